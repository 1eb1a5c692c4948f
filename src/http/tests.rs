//! The clauses of the HTTP holds, one by one, on a lease and the usage word it claims.

use std::{
    collections::VecDeque,
    convert::Infallible,
    error::Error as StdError,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use tower::{Service, service_fn};

use super::{InUse, InUseBody, UntilBodyEnd, UntilBothEnd};
use crate::{
    BoxError, Error, ErrorKind,
    busy::Begin,
    clock::Recency,
    lease::Leased,
    test_util::{self, Clock},
    usage::Usage,
};

const SECOND: Duration = Duration::from_secs(1);

struct At(Clock);

impl Recency for At {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap()
    }
}

fn instance() -> (Arc<Usage>, crate::Runtime, Clock) {
    let (runtime, clock) = test_util::runtime(1);
    (Usage::new(Arc::new(At(clock.clone()))), runtime, clock)
}

fn uses(usage: &Usage) -> u32 {
    usage.look().count()
}

type Given<D, E> = Option<Result<Frame<D>, E>>;

/// A body that gives what it is fed, and sees whether the instance is in use while it is dropped.
#[derive(Clone)]
struct Fed {
    feed: Arc<Feed>,
}

struct Feed {
    usage: Arc<Usage>,
    frames: Mutex<VecDeque<Given<Bytes, BoxError>>>,
    waker: Mutex<Option<Waker>>,
    dropped_in_use: AtomicBool,
}

impl Feed {
    fn push(&self, frame: Given<Bytes, BoxError>) {
        self.frames.lock().unwrap().push_back(frame);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    fn data(&self, data: &'static str) {
        self.push(Some(Ok(Frame::data(Bytes::from(data)))));
    }
}

/// The body itself; its drop is seen.
struct Streaming(Fed);

impl Drop for Streaming {
    fn drop(&mut self) {
        let in_use = uses(&self.0.feed.usage) > 0;
        self.0.feed.dropped_in_use.store(in_use, Ordering::Relaxed);
    }
}

impl Body for Streaming {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        *self.0.feed.waker.lock().unwrap() = Some(cx.waker().clone());
        match self.0.feed.frames.lock().unwrap().pop_front() {
            Some(frame) => Poll::Ready(frame),
            None => Poll::Pending,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(77)
    }
}

impl Fed {
    fn new(usage: &Arc<Usage>) -> Self {
        Self {
            feed: Arc::new(Feed {
                usage: usage.clone(),
                frames: Mutex::default(),
                waker: Mutex::default(),
                dropped_in_use: AtomicBool::new(false),
            }),
        }
    }

    fn body(&self) -> Streaming {
        Streaming(self.clone())
    }
}

/// One call through a lease of `usage`, answered at once with what `answer` makes.
fn call<H, Req, Res>(
    hold: H,
    usage: &Arc<Usage>,
    request: Req,
    answer: impl Fn(H::Request) -> Res,
) -> <H::Hold as crate::Hold<Res>>::Response
where
    H: Begin<Req>,
    H::Hold: crate::Hold<Res>,
{
    let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(answer(request))));
    let mut lease = Leased::claimed(service, usage, hold, crate::Nothing);
    poll_fn(|cx| lease.poll_ready(cx))
        .now_or_never()
        .unwrap()
        .unwrap();
    lease.call(request).now_or_never().unwrap().unwrap()
}

fn get() -> Request<Empty<Bytes>> {
    Request::new(Empty::new())
}

/// A streamed response, and what feeds it.
fn stream(usage: &Arc<Usage>) -> (Response<InUseBody<Streaming>>, Arc<Feed>) {
    let fed = Fed::new(usage);
    let response = call(UntilBodyEnd, usage, get(), |_| Response::new(fed.body()));
    (response, fed.feed)
}

/// What the body gives now, if anything.
fn frame<B: Body + Unpin>(body: &mut B) -> Poll<Given<B::Data, B::Error>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

fn data<B: Body<Data = Bytes> + Unpin>(body: &mut B) -> Bytes {
    match frame(body) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().expect("data"),
        _ => panic!("no data"),
    }
}

#[test]
fn a_body_is_use_from_its_head_to_its_end() {
    let (usage, ..) = instance();
    let (response, feed) = stream(&usage);
    let mut body = response.into_body();
    assert_eq!(uses(&usage), 1);
    assert!(frame(&mut body).is_pending());
    assert_eq!(uses(&usage), 1);
    feed.data("one");
    assert_eq!(data(&mut body), "one");
    assert_eq!(uses(&usage), 1);
    let trailers = HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
    feed.push(Some(Ok(Frame::trailers(trailers))));
    let trailers = frame(&mut body).map(|frame| frame.unwrap().unwrap().into_trailers());
    assert!(matches!(trailers, Poll::Ready(Ok(map)) if map["etag"] == "x"));
    assert_eq!(uses(&usage), 1);
    feed.push(None);
    assert!(matches!(frame(&mut body), Poll::Ready(None)));
    assert_eq!(uses(&usage), 0);
    assert!(matches!(frame(&mut body), Poll::Ready(None)));
    assert!(body.is_end_stream());
}

#[test]
fn an_error_ends_the_use_and_is_the_source_of_ours() {
    let (usage, ..) = instance();
    let (response, feed) = stream(&usage);
    let mut body = response.into_body();
    feed.push(Some(Err("broken".into())));
    let Poll::Ready(Some(Err(error))) = frame(&mut body) else {
        panic!("no error");
    };
    assert_eq!(*error.kind(), ErrorKind::Service);
    assert_eq!(error.source().unwrap().to_string(), "broken");
    assert_eq!(uses(&usage), 0);
    assert!(matches!(frame(&mut body), Poll::Ready(None)));
}

#[test]
fn the_use_ends_after_the_body_inside_is_dropped() {
    for end in [true, false] {
        let (usage, ..) = instance();
        let (response, feed) = stream(&usage);
        let mut body = response.into_body();
        if end {
            feed.push(None);
            assert!(matches!(frame(&mut body), Poll::Ready(None)));
        } else {
            drop(body);
        }
        assert!(feed.dropped_in_use.load(Ordering::Relaxed));
        assert_eq!(uses(&usage), 0);
    }
}

#[test]
fn the_last_frame_of_a_body_that_knows_it_is_the_last_ends_the_use() {
    let (usage, ..) = instance();
    let answer = |_| Response::new(Full::new(Bytes::from("all")));
    let mut body = call(UntilBodyEnd, &usage, get(), answer).into_body();
    assert_eq!(uses(&usage), 1);
    assert_eq!(body.size_hint().exact(), Some(3));
    assert!(!body.is_end_stream());
    assert_eq!(data(&mut body), "all");
    assert_eq!(uses(&usage), 0);
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
}

#[test]
fn responses_without_a_body_end_the_use_at_once() {
    let (usage, ..) = instance();
    for (method, status) in [(Method::HEAD, 200), (Method::GET, 204), (Method::GET, 304)] {
        let mut request = get();
        *request.method_mut() = method;
        let response = call(UntilBodyEnd, &usage, request, |_| {
            let response = Response::builder().status(status);
            response.body(Empty::<Bytes>::new()).unwrap()
        });
        assert_eq!(uses(&usage), 0);
        assert!(response.body().is_end_stream());
        assert!(response.extensions().is_empty());
        let whole = response.into_body().collect().now_or_never();
        assert_eq!(whole.unwrap().unwrap().to_bytes(), "");
    }
}

#[test]
fn hints_are_the_bodys_own() {
    let (usage, ..) = instance();
    let (response, _) = stream(&usage);
    assert_eq!(response.body().size_hint().exact(), Some(77));
    assert!(!response.body().is_end_stream());
    assert!(response.body().get_ref().is_some());
}

#[test]
fn a_body_cut_while_it_waits_is_woken_and_ends_with_stopped() {
    let (usage, _, clock) = instance();
    let (response, feed) = stream(&usage);
    let mut reader = clock.spawn(async move { response.into_body().collect().await });
    feed.data("part");
    clock.run();
    assert!(!reader.is_finished());
    usage.close_now();
    clock.run();
    assert!(!reader.is_finished());
    usage.cut();
    clock.run();
    let error = reader.take().unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Stopped);
    assert!(feed.dropped_in_use.load(Ordering::Relaxed));
    assert_eq!(uses(&usage), 0);
}

#[test]
fn a_body_that_never_waits_is_cut_too() {
    let (usage, ..) = instance();
    let (response, feed) = stream(&usage);
    let mut body = response.into_body();
    feed.data("one");
    feed.data("two");
    assert_eq!(data(&mut body), "one");
    usage.close_now();
    usage.cut();
    assert!(matches!(frame(&mut body), Poll::Ready(Some(Err(_)))));
    assert_eq!(uses(&usage), 0);
}

/// The answer to a request by `method`, with `status`, and a body that streams if `fed` says.
fn switched(usage: &Arc<Usage>, method: Method, status: StatusCode) -> Response<()> {
    let mut request = get();
    *request.method_mut() = method;
    call(UntilBodyEnd, usage, request, |_| {
        let response = Response::builder().status(status);
        response.body(Empty::<Bytes>::new()).unwrap()
    })
    .map(drop)
}

#[test]
fn only_answers_that_switch_protocols_have_an_in_use() {
    for (method, status, has) in [
        (Method::GET, StatusCode::SWITCHING_PROTOCOLS, true),
        (Method::CONNECT, StatusCode::OK, true),
        (Method::CONNECT, StatusCode::NO_CONTENT, true),
        (Method::CONNECT, StatusCode::BAD_GATEWAY, false),
        (Method::GET, StatusCode::OK, false),
        (Method::POST, StatusCode::NO_CONTENT, false),
    ] {
        let (usage, ..) = instance();
        let mut response = switched(&usage, method.clone(), status);
        assert_eq!(
            response.extensions_mut().remove::<InUse>().is_some(),
            has,
            "{method} {status}"
        );
        assert!(response.extensions().is_empty());
        assert_eq!(uses(&usage), 0);
    }
}

#[test]
fn an_upgraded_connection_is_one_use_until_its_last_clone_is_dropped() {
    let (usage, ..) = instance();
    let mut response = switched(&usage, Method::GET, StatusCode::SWITCHING_PROTOCOLS);
    let first = response.extensions_mut().remove::<InUse>().unwrap();
    drop(response);
    let second = first.clone();
    let third = second.clone();
    assert_eq!(uses(&usage), 1);
    drop((first, third));
    assert_eq!(uses(&usage), 1);
    drop(second);
    assert_eq!(uses(&usage), 0);
}

#[test]
fn every_clone_of_an_in_use_hears_of_the_cut() {
    let (usage, _, clock) = instance();
    let mut response = switched(&usage, Method::GET, StatusCode::SWITCHING_PROTOCOLS);
    let mut first = response.extensions_mut().remove::<InUse>().unwrap();
    let mut second = first.clone();
    let waits = [
        clock.spawn(async move { first.cut().await }),
        clock.spawn(async move { second.cut().await }),
    ];
    clock.run();
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    usage.close_now();
    usage.cut();
    clock.run();
    assert!(waits.iter().all(|wait| wait.is_finished()));
    assert_eq!(uses(&usage), 0);
}

#[test]
fn a_request_body_still_uploading_is_use_after_the_response_is_done() {
    let (usage, ..) = instance();
    let upload = Fed::new(&usage);
    let kept = Mutex::new(None);
    let response = call(
        UntilBothEnd,
        &usage,
        Request::new(upload.body()),
        |request| {
            *kept.lock().unwrap() = Some(request.into_body());
            Response::new(Empty::<Bytes>::new())
        },
    );
    drop(response);
    assert_eq!(uses(&usage), 1, "one call is one use");
    let mut body: InUseBody<Streaming> = kept.into_inner().unwrap().unwrap();
    upload.feed.data("more");
    assert_eq!(data(&mut body), "more");
    assert_eq!(uses(&usage), 1);
    upload.feed.push(None);
    assert!(matches!(frame(&mut body), Poll::Ready(None)));
    assert_eq!(uses(&usage), 0);
}

#[test]
fn an_upload_that_ends_first_leaves_the_use_to_the_response() {
    let (usage, ..) = instance();
    let (upload, answer) = (Fed::new(&usage), Fed::new(&usage));
    let response = call(
        UntilBothEnd,
        &usage,
        Request::new(upload.body()),
        |request| {
            drop(request);
            Response::new(answer.body())
        },
    );
    assert_eq!(uses(&usage), 1);
    drop(response);
    assert_eq!(uses(&usage), 0);
}

#[test]
fn a_cut_ends_both_bodies() {
    let (usage, ..) = instance();
    let (upload, answer) = (Fed::new(&usage), Fed::new(&usage));
    let kept = Mutex::new(None);
    let response = call(
        UntilBothEnd,
        &usage,
        Request::new(upload.body()),
        |request| {
            *kept.lock().unwrap() = Some(request.into_body());
            Response::new(answer.body())
        },
    );
    let mut bodies = [kept.into_inner().unwrap().unwrap(), response.into_body()];
    assert!(bodies.iter_mut().all(|body| frame(body).is_pending()));
    usage.close_now();
    usage.cut();
    for body in &mut bodies {
        assert!(matches!(frame(body), Poll::Ready(Some(Err(_)))));
    }
    assert_eq!(uses(&usage), 0);
}

#[test]
fn requests_without_a_body_cost_no_share() {
    let (usage, ..) = instance();
    let response = call(UntilBothEnd, &usage, get(), |request| {
        assert!(request.body().is_end_stream());
        Response::new(Empty::<Bytes>::new())
    });
    assert_eq!(uses(&usage), 0);
    drop(response);
}

/// A watched stream: silent for 10 s, it does not count.
fn watched(usage: &Arc<Usage>, runtime: &crate::Runtime) -> (InUseBody<Streaming>, Arc<Feed>) {
    let fed = Fed::new(usage);
    let hold = UntilBodyEnd.unless_silent(runtime.clone(), 10 * SECOND);
    let response = call(hold, usage, get(), |_| Response::new(fed.body()));
    (response.into_body(), fed.feed)
}

#[test]
fn a_silent_stream_stops_counting_even_if_nobody_polls_it() {
    let (usage, runtime, clock) = instance();
    let (mut body, feed) = watched(&usage, &runtime);
    feed.data("one");
    clock.advance(9 * SECOND);
    assert_eq!(data(&mut body), "one");
    clock.advance(10 * SECOND - Duration::from_nanos(1));
    assert_eq!(uses(&usage), 1);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(uses(&usage), 0);
    assert_eq!(clock.tasks(), 0);
    // It is not ended by that.
    assert!(frame(&mut body).is_pending());
    feed.data("two");
    assert_eq!(data(&mut body), "two");
    assert_eq!(uses(&usage), 1, "it counts again");
    clock.advance(10 * SECOND);
    assert_eq!(uses(&usage), 0);
}

#[test]
fn a_stream_that_moves_counts_for_as_long_as_it_does() {
    let (usage, runtime, clock) = instance();
    let (mut body, feed) = watched(&usage, &runtime);
    for _ in 0..100 {
        clock.advance(9 * SECOND);
        feed.data("x");
        assert_eq!(data(&mut body), "x");
        assert_eq!(uses(&usage), 1);
    }
    drop(body);
    assert_eq!(uses(&usage), 0);
    clock.run();
    assert_eq!((clock.tasks(), clock.timers()), (0, 0));
}

#[test]
fn a_silent_stream_whose_instance_was_closed_goes_on_uncounted() {
    let (usage, runtime, clock) = instance();
    let (mut body, feed) = watched(&usage, &runtime);
    clock.advance(10 * SECOND);
    usage.close_now();
    feed.data("late");
    assert_eq!(data(&mut body), "late");
    assert_eq!(uses(&usage), 0);
    usage.cut();
    assert!(matches!(frame(&mut body), Poll::Ready(Some(Err(_)))));
}

#[test]
fn a_watched_stream_is_cut_as_any_other() {
    let (usage, runtime, clock) = instance();
    let (body, _feed) = watched(&usage, &runtime);
    let mut reader = clock.spawn(async move { body.collect().await });
    clock.run();
    usage.close_now();
    usage.cut();
    clock.run();
    let error: Error = reader.take().unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Stopped);
    assert_eq!(uses(&usage), 0);
    assert_eq!(clock.tasks(), 0);
}

#[test]
fn a_response_without_a_body_starts_no_watch() {
    let (usage, runtime, clock) = instance();
    let hold = UntilBothEnd.unless_silent(runtime, 10 * SECOND);
    let _response = call(
        hold,
        &usage,
        get(),
        |_| Response::new(Empty::<Bytes>::new()),
    );
    assert_eq!(clock.tasks(), 0);
}
