//! HTTP responses for several callers: the safe preset, and streamed bodies.
#![cfg(all(feature = "coalesce", feature = "http", feature = "test-util"))]

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use tower::{Layer, Service, ServiceBuilder, service_fn};
use tower_on_demand::{
    BoxError, CoalesceHandle, CoalesceLayer, Error, ErrorKind, Identity, Runtime,
    http::{Flight, RequestKey, SameRequest, ShareBodyLayer, SharedBody, is_shareable},
    test_util::{self, Counted},
};

const SECOND: Duration = Duration::from_secs(1);

/// A body that a test feeds.
#[derive(Clone, Default)]
struct Feed {
    state: Arc<Mutex<Fed>>,
}

#[derive(Default)]
struct Fed {
    frames: VecDeque<Option<Result<Frame<Bytes>, BoxError>>>,
    waker: Option<Waker>,
    length: Option<u64>,
    pulled: usize,
    polls: usize,
    live: usize,
}

struct FedBody(Feed);

impl Feed {
    fn body(&self) -> FedBody {
        self.state.lock().unwrap().live += 1;
        FedBody(self.clone())
    }

    fn push(&self, frame: Option<Result<Frame<Bytes>, BoxError>>) {
        let waker = {
            let mut state = self.state.lock().unwrap();
            state.frames.push_back(frame);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    fn send(&self, bytes: &'static [u8]) {
        self.push(Some(Ok(Frame::data(Bytes::from_static(bytes)))));
    }

    fn trailers(&self) {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("7"));
        self.push(Some(Ok(Frame::trailers(trailers))));
    }

    fn end(&self) {
        self.push(None);
    }

    fn fail(&self) {
        self.push(Some(Err("broken off".into())));
    }

    fn live(&self) -> usize {
        self.state.lock().unwrap().live
    }

    fn pulled(&self) -> usize {
        self.state.lock().unwrap().pulled
    }

    fn polls(&self) -> usize {
        self.state.lock().unwrap().polls
    }
}

impl Body for FedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = self.0.state.lock().unwrap();
        state.polls += 1;
        match state.frames.pop_front() {
            Some(frame) => {
                state.pulled += 1;
                Poll::Ready(frame)
            }
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.0.state.lock().unwrap().length;
        length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for FedBody {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().live -= 1;
    }
}

type Ask = Request<Empty<Bytes>>;

fn get(path: &'static str) -> Ask {
    Request::get(path).body(Empty::new()).unwrap()
}

/// A backend that answers each call with a body of its own, and counts its calls.
#[derive(Clone, Default)]
struct Backend {
    feeds: Arc<Mutex<Vec<Feed>>>,
    length: Option<u64>,
}

impl Backend {
    fn calls(&self) -> usize {
        self.feeds.lock().unwrap().len()
    }

    fn feed(&self, call: usize) -> Feed {
        self.feeds.lock().unwrap()[call].clone()
    }
}

impl Service<Ask> for Backend {
    type Response = Response<FedBody>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<FedBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Ask) -> Self::Future {
        let feed = Feed::default();
        feed.state.lock().unwrap().length = self.length;
        let body = feed.body();
        self.feeds.lock().unwrap().push(feed);
        std::future::ready(Ok(Response::new(body)))
    }
}

type Answer = Response<SharedBody<FedBody>>;

/// The preset over shared bodies of at most `cap` bytes.
fn stack(
    runtime: &Runtime,
    backend: &Backend,
    cap: u64,
) -> (
    impl Service<Ask, Response = Answer, Error = Error, Future: Send> + Clone + Send + use<>,
    CoalesceHandle<RequestKey>,
) {
    let (layer, handle) = CoalesceLayer::http().shared_bodies().with_handle();
    let service = ServiceBuilder::new()
        .layer(layer)
        .layer(ShareBodyLayer::new(runtime.clone(), cap))
        .service(backend.clone());
    (service, handle)
}

fn call<S: Service<Ask>>(service: &mut S) -> Counted<S::Future> {
    Counted::new(service.call(get("/")))
}

fn done<F: Future>(future: &mut Counted<F>) -> F::Output {
    match future.poll_once() {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is not done"),
    }
}

/// A reader that keeps what it has read.
struct Reader {
    body: Pin<Box<SharedBody<FedBody>>>,
    read: Vec<u8>,
    end: Option<Result<Option<HeaderMap>, Error>>,
}

impl Reader {
    fn new(answer: Answer) -> Self {
        Self {
            body: Box::pin(answer.into_body()),
            read: Vec::new(),
            end: None,
        }
    }

    /// Reads what there is, at most so many frames.
    fn poll_frames(&mut self, cx: &mut Context<'_>, frames: usize) -> Poll<()> {
        let mut trailers = None;
        for _ in 0..frames {
            if self.end.is_some() {
                break;
            }
            match self.body.as_mut().poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    self.end = Some(Ok(trailers));
                    return Poll::Ready(());
                }
                Poll::Ready(Some(Err(error))) => {
                    self.end = Some(Err(error));
                    assert!(matches!(
                        self.body.as_mut().poll_frame(cx),
                        Poll::Ready(None)
                    ));
                    return Poll::Ready(());
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.read.extend_from_slice(&data),
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
            }
        }
        Poll::Ready(())
    }

    fn read(&mut self) {
        self.read_frames(usize::MAX);
    }

    fn read_frames(&mut self, frames: usize) {
        let _ = self.poll_frames(&mut Context::from_waker(Waker::noop()), frames);
    }

    fn trailers(&self) -> Option<&HeaderMap> {
        match &self.end {
            Some(Ok(trailers)) => trailers.as_ref(),
            _ => panic!("it has not ended well"),
        }
    }

    fn error(&self) -> &Error {
        match &self.end {
            Some(Err(error)) => error,
            _ => panic!("it has not failed"),
        }
    }
}

#[test]
fn c25_f11_a_joiner_at_any_moment_of_a_body_within_the_cap_reads_the_same_bytes_and_trailers() {
    let (runtime, _clock) = test_util::runtime(1);
    let backend = Backend::default();
    let (mut service, handle) = stack(&runtime, &backend, 100);
    let mut readers = vec![Reader::new(done(&mut call(&mut service)).unwrap())];
    let feed = backend.feed(0);
    for piece in [&b"one "[..], b"two ", b"three "] {
        feed.send(piece);
        // One joins before the others have read the piece, one after.
        readers.push(Reader::new(done(&mut call(&mut service)).unwrap()));
        readers[0].read();
        readers.push(Reader::new(done(&mut call(&mut service)).unwrap()));
        readers.iter_mut().skip(1).step_by(2).for_each(Reader::read);
    }
    feed.trailers();
    readers[3].read();
    // Complete: the next one leads anew.
    let mut next = Reader::new(done(&mut call(&mut service)).unwrap());
    assert_eq!(backend.calls(), 2);
    for reader in &mut readers {
        reader.read();
        assert_eq!(reader.read, b"one two three ");
        assert_eq!(reader.trailers().unwrap()["x-sum"], "7");
    }
    assert_eq!(feed.live(), 0);
    backend.feed(1).end();
    next.read();
    assert_eq!(next.read, b"");
    drop((readers, next));
    let now = handle.statistics();
    assert_eq!((now.in_flight, now.waiting, now.lingering), (0, 0, 0));
}

#[test]
fn a_complete_body_lingers_as_values_do() {
    let (runtime, clock) = test_util::runtime(2);
    let backend = Backend::default();
    let (layer, handle) = CoalesceLayer::http()
        .linger(runtime.clone(), SECOND)
        .linger_bytes(10)
        .shared_bodies()
        .with_handle();
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .layer(ShareBodyLayer::new(runtime, 100))
        .service(backend.clone());
    let mut first = Reader::new(done(&mut call(&mut service)).unwrap());
    backend.feed(0).send(b"12345");
    backend.feed(0).end();
    // Open, however long it takes.
    clock.advance(10 * SECOND);
    first.read();
    drop(first);
    let mut second = Reader::new(done(&mut call(&mut service)).unwrap());
    second.read();
    assert_eq!(
        (second.read.as_slice(), backend.calls()),
        (&b"12345"[..], 1)
    );
    assert_eq!(handle.statistics().lingering, 1);
    clock.advance(SECOND);
    let mut third = Reader::new(done(&mut call(&mut service)).unwrap());
    assert_eq!(backend.calls(), 2);
    // Too long to linger.
    backend.feed(1).send(b"12345678901");
    backend.feed(1).end();
    third.read();
    drop((second, third));
    assert_eq!(handle.statistics().lingering, 0);
}

#[test]
fn c25_past_the_cap_eager_readers_all_finish_and_newcomers_lead_anew() {
    let (runtime, clock) = test_util::runtime(3);
    let backend = Backend::default();
    let (mut service, handle) = stack(&runtime, &backend, 10);
    let mut readers: Vec<_> = (0..3)
        .map(|_| Reader::new(done(&mut call(&mut service)).unwrap()))
        .collect();
    let feed = backend.feed(0);
    for _ in 0..20 {
        feed.send(b"1234");
        readers.iter_mut().for_each(Reader::read);
    }
    assert_eq!(feed.pulled(), 20);
    let late = Reader::new(done(&mut call(&mut service)).unwrap());
    assert_eq!(backend.calls(), 2);
    feed.end();
    for reader in &mut readers {
        reader.read();
        assert_eq!(reader.read, b"1234".repeat(20));
        assert!(reader.trailers().is_none());
    }
    assert_eq!((feed.live(), clock.timers()), (0, 0));
    drop((readers, late));
    assert_eq!(backend.feed(1).live(), 0);
    assert_eq!(handle.statistics().lingering, 0);
}

#[test]
fn c25_a_leader_that_stops_reading_lags_and_the_joiners_go_on_after_the_patience() {
    let (runtime, clock) = test_util::runtime(4);
    let backend = Backend::default();
    let (mut service, _handle) = stack(&runtime, &backend, 10);
    let mut leader = Reader::new(done(&mut call(&mut service)).unwrap());
    let feed = backend.feed(0);
    for _ in 0..10 {
        feed.send(b"1234");
    }
    feed.end();
    leader.read_frames(1);
    let joiners: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = Reader::new(done(&mut call(&mut service)).unwrap());
            clock.spawn(async move {
                poll_fn(|cx| reader.poll_frames(cx, usize::MAX)).await;
                reader
            })
        })
        .collect();
    clock.run();
    // What the leader has not read is kept: the cap and at most one frame.
    assert_eq!(feed.pulled(), 1 + 3);
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(feed.pulled(), 1 + 3);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(feed.pulled(), 11);
    for joiner in joiners {
        let joiner = clock.block_on(joiner);
        assert_eq!(joiner.read, b"1234".repeat(10));
        assert!(joiner.trailers().is_none());
    }
    leader.read();
    assert_eq!(*leader.error().kind(), ErrorKind::Lagged);
    assert_eq!(leader.read, b"1234");
    assert_eq!((backend.calls(), feed.live(), clock.timers()), (1, 0, 0));
}

#[test]
fn a_slow_reader_that_reads_within_the_patience_never_lags() {
    let (runtime, clock) = test_util::runtime(5);
    let backend = Backend::default();
    let (mut service, _handle) = stack(&runtime, &backend, 10);
    let mut slow = Reader::new(done(&mut call(&mut service)).unwrap());
    let mut fast = Reader::new(done(&mut call(&mut service)).unwrap());
    let feed = backend.feed(0);
    for _ in 0..30 {
        feed.send(b"1234");
    }
    feed.end();
    let fast = clock.spawn(async move {
        poll_fn(|cx| fast.poll_frames(cx, usize::MAX)).await;
        fast
    });
    clock.run();
    for _ in 0..30 {
        clock.advance(SECOND - Duration::from_millis(1));
        let before = feed.pulled();
        slow.read_frames(1);
        clock.run();
        assert!(feed.pulled() - before <= 1 || feed.pulled() == 31);
    }
    slow.read();
    assert_eq!(slow.read, b"1234".repeat(30));
    assert!(slow.trailers().is_none());
    assert_eq!(clock.block_on(fast).read, b"1234".repeat(30));
}

#[test]
fn a_caller_that_has_not_collected_when_the_body_outgrows_the_cap_goes_off_alone() {
    let (runtime, _clock) = test_util::runtime(6);
    let backend = Backend::default();
    let (mut service, _handle) = stack(&runtime, &backend, 10);
    let mut leader = call(&mut service);
    let mut joiner = call(&mut service);
    let mut uncollected = call(&mut service);
    let mut reader = Reader::new(done(&mut joiner).unwrap());
    let feed = backend.feed(0);
    feed.send(b"123456");
    reader.read();
    // Still whole: one who collects now begins at the first byte.
    let mut collected = Reader::new(done(&mut call(&mut service)).unwrap());
    feed.send(b"789012");
    collected.read();
    reader.read();
    assert_eq!(reader.read, b"123456789012");
    assert_eq!(collected.read, b"123456789012");
    let mut alone = Reader::new(done(&mut uncollected).unwrap());
    assert_eq!(backend.calls(), 2);
    backend.feed(1).send(b"mine");
    backend.feed(1).end();
    alone.read();
    assert_eq!(alone.read, b"mine");
    // The caller that led has begun at the first byte: it has no request to go alone with.
    let mut leader = Reader::new(done(&mut leader).unwrap());
    leader.read();
    assert_eq!(leader.read, b"123456789012");
    assert_eq!(backend.calls(), 2);
}

#[test]
fn without_a_reader_or_an_uncollected_caller_the_source_is_dropped() {
    let (runtime, _clock) = test_util::runtime(7);
    let backend = Backend::default();
    let (mut service, handle) = stack(&runtime, &backend, 100);
    // Readers only.
    let one = done(&mut call(&mut service)).unwrap();
    let two = done(&mut call(&mut service)).unwrap();
    let feed = backend.feed(0);
    drop(one);
    assert_eq!(feed.live(), 1);
    assert_eq!(handle.statistics().lingering, 1);
    drop(two);
    assert_eq!(feed.live(), 0);
    assert_eq!(handle.statistics().lingering, 0);
    // An uncollected caller keeps it.
    let mut leader = call(&mut service);
    let mut waiting = call(&mut service);
    let other = call(&mut service);
    drop(done(&mut leader).unwrap());
    let feed = backend.feed(1);
    assert_eq!(feed.live(), 1);
    drop(other);
    assert_eq!(feed.live(), 1);
    let mut reader = Reader::new(done(&mut waiting).unwrap());
    feed.send(b"all of it");
    feed.end();
    reader.read();
    assert_eq!(reader.read, b"all of it");
    // The last of them leaves without collecting.
    let mut leader = call(&mut service);
    let waiting = call(&mut service);
    drop(done(&mut leader).unwrap());
    let feed = backend.feed(2);
    assert_eq!(feed.live(), 1);
    drop(waiting);
    assert_eq!(feed.live(), 0);
    assert_eq!(handle.statistics().lingering, 0);
}

#[test]
fn an_error_reaches_every_reader_at_the_same_byte_and_nobody_joins_after_it() {
    let (runtime, _clock) = test_util::runtime(8);
    let backend = Backend::default();
    let (mut service, _handle) = stack(&runtime, &backend, 100);
    let mut readers: Vec<_> = (0..3)
        .map(|_| Reader::new(done(&mut call(&mut service)).unwrap()))
        .collect();
    let feed = backend.feed(0);
    feed.send(b"half of");
    feed.fail();
    readers[0].read();
    drop(done(&mut call(&mut service)).unwrap());
    assert_eq!(backend.calls(), 2);
    for reader in &mut readers {
        reader.read();
        assert_eq!(reader.read, b"half of");
        assert_eq!(*reader.error().kind(), ErrorKind::Service);
        let source = std::error::Error::source(reader.error()).unwrap();
        assert_eq!(source.to_string(), "broken off");
    }
    assert_eq!(feed.live(), 0);
}

#[test]
fn one_wake_of_the_source_wakes_all_readers_and_is_one_pull() {
    let (runtime, clock) = test_util::runtime(9);
    let backend = Backend::default();
    let (mut service, _handle) = stack(&runtime, &backend, 100);
    let readers: Vec<_> = (0..10)
        .map(|_| {
            let mut reader = Reader::new(done(&mut call(&mut service)).unwrap());
            clock.spawn(async move {
                poll_fn(|cx| reader.poll_frames(cx, usize::MAX)).await;
                reader.read
            })
        })
        .collect();
    clock.run();
    let feed = backend.feed(0);
    assert_eq!(feed.polls(), 1);
    for _ in 0..5 {
        feed.send(b"piece ");
        clock.run();
    }
    // One poll that finds the piece, one that waits for the next.
    assert_eq!(feed.polls(), 1 + 2 * 5);
    feed.end();
    for reader in readers {
        assert_eq!(clock.block_on(reader), b"piece ".repeat(5));
    }
}

#[test]
fn a_reader_that_is_never_polled_again_holds_nobody_up() {
    let (runtime, _clock) = test_util::runtime(10);
    let backend = Backend::default();
    let (mut service, _handle) = stack(&runtime, &backend, 100);
    let mut stuck = Reader::new(done(&mut call(&mut service)).unwrap());
    let mut other = Reader::new(done(&mut call(&mut service)).unwrap());
    // It pulls, and is the one whose waker the body has seen last.
    other.read();
    stuck.read();
    let feed = backend.feed(0);
    feed.send(b"for all");
    feed.end();
    other.read();
    assert_eq!(other.read, b"for all");
    drop(stuck);
}

#[test]
fn a_panic_of_the_body_ends_it_for_the_others() {
    struct Panics;
    impl Body for Panics {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            std::panic::resume_unwind(Box::new("the body panics"))
        }
    }
    let (runtime, _clock) = test_util::runtime(11);
    let mut service = ServiceBuilder::new()
        .layer(CoalesceLayer::http().shared_bodies())
        .layer(ShareBodyLayer::new(runtime, 100))
        .service(service_fn(|_: Ask| async {
            Ok::<_, Infallible>(Response::new(Panics))
        }));
    let mut one = Box::pin(done(&mut call(&mut service)).unwrap().into_body());
    let mut two = Box::pin(done(&mut call(&mut service)).unwrap().into_body());
    let mut cx = Context::from_waker(Waker::noop());
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = one.as_mut().poll_frame(&mut cx);
    }));
    assert!(polled.is_err());
    match two
        .as_mut()
        .poll_frame(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(Some(Err(error))) => assert_eq!(*error.kind(), ErrorKind::Panicked),
        _ => panic!("it was told"),
    }
}

#[test]
fn what_is_longer_than_the_cap_by_what_it_says_and_what_switches_protocols_is_not_shared() {
    let (runtime, _clock) = test_util::runtime(12);
    let backend = Backend {
        length: Some(11),
        ..Backend::default()
    };
    let (mut service, _handle) = stack(&runtime, &backend, 10);
    let mut leader = call(&mut service);
    let mut joiner = call(&mut service);
    let mut joiner = Reader::new(done(&mut joiner).unwrap());
    let mut leader = Reader::new(done(&mut leader).unwrap());
    assert_eq!(backend.calls(), 2);
    for call in 0..2 {
        backend.feed(call).send(b"hello world");
        backend.feed(call).end();
    }
    joiner.read();
    leader.read();
    assert_eq!(
        (joiner.read.as_slice(), leader.read.as_slice()),
        (&b"hello world"[..], &b"hello world"[..])
    );

    let switching = service_fn(|_: Ask| async {
        let mut response = Response::new(Full::new(Bytes::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        Ok::<_, Infallible>(response)
    });
    let mut service = ServiceBuilder::new()
        .layer(CoalesceLayer::new(|_: &Ask| Some(())).shared_bodies())
        .layer(ShareBodyLayer::new(runtime, 10))
        .service(switching);
    let mut leader = call(&mut service);
    let mut joiner = call(&mut service);
    assert!(done(&mut joiner).is_ok());
    assert!(done(&mut leader).is_ok());
}

#[test]
fn an_empty_body_and_a_head_are_shared_as_values() {
    let (runtime, _clock) = test_util::runtime(13);
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let mut service = ServiceBuilder::new()
        .layer(CoalesceLayer::http().shared_bodies())
        .layer(ShareBodyLayer::new(runtime, 10))
        .service(service_fn(move |_: Ask| {
            counted.fetch_add(1, Ordering::SeqCst);
            async {
                let response = Response::builder().header("content-length", "1000000");
                Ok::<_, Infallible>(response.body(Empty::<Bytes>::new()).unwrap())
            }
        }));
    let head = || Request::head("/").body(Empty::new()).unwrap();
    let (one, two) = (service.call(head()), service.call(head()));
    let mut two = Counted::new(two);
    let mut one = Counted::new(one);
    assert!(done(&mut two).unwrap().body().is_end_stream());
    assert!(done(&mut one).unwrap().body().is_end_stream());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    // It is over: the next is another call.
    assert!(done(&mut Counted::new(service.call(head()))).is_ok());
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn a_declared_length_is_told_and_counted_down() {
    let (runtime, _clock) = test_util::runtime(14);
    let backend = Backend {
        length: Some(8),
        ..Backend::default()
    };
    let (mut service, _handle) = stack(&runtime, &backend, 10);
    let mut one = Reader::new(done(&mut call(&mut service)).unwrap());
    let two = Reader::new(done(&mut call(&mut service)).unwrap());
    assert_eq!(one.body.size_hint().exact(), Some(8));
    backend.feed(0).send(b"1234");
    one.read();
    assert_eq!(one.body.size_hint().exact(), Some(4));
    assert_eq!(two.body.size_hint().exact(), Some(8));
}

#[test]
fn a_forgotten_flight_goes_on_for_its_readers() {
    let (runtime, _clock) = test_util::runtime(15);
    let backend = Backend::default();
    let (mut service, handle) = stack(&runtime, &backend, 100);
    let mut one = Reader::new(done(&mut call(&mut service)).unwrap());
    assert!(handle.forget(&RequestKey::of(&get("/")).unwrap()));
    let two = done(&mut call(&mut service)).unwrap();
    assert_eq!(backend.calls(), 2);
    backend.feed(0).send(b"on");
    backend.feed(0).end();
    one.read();
    assert_eq!(one.read, b"on");
    drop(two);
    assert_eq!(backend.feed(1).live(), 0);
}

#[test]
fn bodies_of_flights_as_tasks_are_shared_too() {
    let (runtime, clock) = test_util::runtime(16);
    let backend = Backend::default();
    let (layer, handle) = CoalesceLayer::http()
        .spawn_on(runtime.clone())
        .shared_bodies()
        .with_handle();
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .layer(ShareBodyLayer::new(runtime, 100))
        .service(backend.clone());
    let mut one = call(&mut service);
    clock.run();
    let mut two = Reader::new(done(&mut call(&mut service)).unwrap());
    let mut one = Reader::new(done(&mut one).unwrap());
    backend.feed(0).send(b"both");
    backend.feed(0).end();
    two.read();
    one.read();
    assert_eq!(
        (one.read.as_slice(), two.read.as_slice()),
        (&b"both"[..], &b"both"[..])
    );
    // All left before it landed: nobody is there to read, so nothing is kept.
    drop(call(&mut service));
    clock.run();
    assert_eq!((backend.calls(), backend.feed(1).live()), (2, 0));
    assert_eq!(handle.statistics().lingering, 0);
}

#[test]
fn readers_on_many_threads_read_the_same() {
    for round in 0..50 {
        let (runtime, _clock) = test_util::runtime(round);
        let backend = Backend::default();
        let (mut service, _handle) = stack(&runtime, &backend, 1_000_000);
        let answers: Vec<_> = (0..4)
            .map(|_| done(&mut call(&mut service)).unwrap())
            .collect();
        let feed = backend.feed(0);
        let readers: Vec<_> = answers
            .into_iter()
            .map(|answer| {
                std::thread::spawn(move || {
                    block_on(answer.into_body().collect()).unwrap().to_bytes()
                })
            })
            .collect();
        for _ in 0..100 {
            feed.send(b"piece ");
        }
        feed.end();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), b"piece ".repeat(100));
        }
        assert_eq!((backend.calls(), feed.live()), (1, 0));
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    futures_util::pin_mut!(future);
    let thread = std::thread::current();
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread)));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn key(request: Request<Full<Bytes>>) -> Option<RequestKey> {
    SameRequest.identity(&request)
}

fn request(method: Method, uri: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

#[test]
fn c17_only_get_and_head_without_anything_personal_have_a_key() {
    let plain = || key(request(Method::GET, "/a", &[("host", "h")]));
    assert!(plain().is_some());
    assert_eq!(plain(), plain());
    assert!(key(request(Method::HEAD, "/a", &[("host", "h")])).is_some());
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::PATCH,
        Method::TRACE,
    ] {
        assert_eq!(key(request(method, "/a", &[("host", "h")])), None);
    }
    for header in [
        "authorization",
        "proxy-authorization",
        "cookie",
        "range",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "if-range",
        "upgrade",
        "transfer-encoding",
    ] {
        assert_eq!(
            key(request(Method::GET, "/a", &[("host", "h"), (header, "x")])),
            None,
            "{header}"
        );
    }
    assert_eq!(key(request(Method::GET, "http://me:secret@h/a", &[])), None);
    assert_eq!(
        key(request(Method::GET, "/a", &[("host", "h"), ("host", "i")])),
        None
    );
    assert_eq!(
        key(request(Method::GET, "/a", &[("content-length", "1")])),
        None
    );
    assert!(key(request(Method::GET, "/a", &[("content-length", "0")])).is_some());
    let body = Request::get("/a")
        .body(Full::new(Bytes::from_static(b"x")))
        .unwrap();
    assert_eq!(key(body), None);
}

#[test]
fn c17_the_key_is_method_authority_path_query_and_what_is_negotiated() {
    let base: &[(&str, &str)] = &[("host", "h"), ("accept", "a"), ("origin", "o")];
    let with = |more: &[(&str, &str)]| {
        let headers: Vec<_> = base.iter().chain(more).copied().collect();
        key(request(Method::GET, "/a?b", &headers)).unwrap()
    };
    let plain = with(&[]);
    // Not in the key.
    assert_eq!(plain, with(&[("user-agent", "one"), ("x-request-id", "1")]));
    for header in ["accept", "accept-encoding", "accept-language", "origin"] {
        assert_ne!(plain, with(&[(header, "other")]), "{header}");
    }
    assert_ne!(plain, key(request(Method::HEAD, "/a?b", base)).unwrap());
    assert_ne!(plain, key(request(Method::GET, "/a?c", base)).unwrap());
    assert_ne!(plain, key(request(Method::GET, "/b?b", base)).unwrap());
    let elsewhere = [("host", "i"), ("accept", "a"), ("origin", "o")];
    assert_ne!(
        plain,
        key(request(Method::GET, "/a?b", &elsewhere)).unwrap()
    );
    // The URI's authority counts, as servers have it.
    let absolute = |host: &str| {
        let headers = [("host", host), ("accept", "a"), ("origin", "o")];
        key(request(Method::GET, "http://h/a?b", &headers)).unwrap()
    };
    assert_eq!(plain, absolute("whatever"));
    assert_eq!(absolute("one"), absolute("two"));
    // Two values are one with a comma.
    let two = with(&[("accept", "b")]);
    let joined = [("host", "h"), ("accept", "a, b"), ("origin", "o")];
    assert_eq!(two, key(request(Method::GET, "/a?b", &joined)).unwrap());
}

#[test]
fn c17_a_response_that_is_somebodys_own_is_not_shared() {
    let shareable = |headers: &[(&str, &str)]| {
        let mut response = Response::builder();
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        is_shareable(&response.body(()).unwrap())
    };
    assert!(shareable(&[]));
    assert!(shareable(&[
        ("cache-control", "max-age=0, public"),
        ("vary", "Accept, origin")
    ]));
    assert!(shareable(&[
        ("vary", "Accept-Encoding"),
        ("vary", "accept-language")
    ]));
    assert!(!shareable(&[("set-cookie", "a=b")]));
    assert!(!shareable(&[("cache-control", "Private")]));
    assert!(!shareable(&[
        ("cache-control", "max-age=1"),
        ("cache-control", "no-store")
    ]));
    assert!(!shareable(&[("cache-control", "private=\"x-user\"")]));
    assert!(!shareable(&[("vary", "*")]));
    assert!(!shareable(&[("vary", "accept, Cookie")]));
    assert!(!shareable(&[("vary", "accept"), ("vary", "x-user")]));
}

#[test]
fn c17_the_preset_shares_what_may_be_shared_and_nothing_else() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let backend = service_fn(move |request: Request<Full<Bytes>>| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut response = Response::new(Full::new(Bytes::from(call.to_string())));
            if request.uri().path() == "/mine" {
                let cookie = HeaderValue::from_str(&format!("call={call}")).unwrap();
                response.headers_mut().insert("set-cookie", cookie);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut service = CoalesceLayer::http().flight_extension().layer(backend);
    let mut ask = |uri: &str, headers: &[(&str, &str)]| {
        Counted::new(service.call(request(Method::GET, uri, headers)))
    };
    let flight = |response: &Response<Full<Bytes>>| response.extensions().get::<Flight>().copied();
    // Shared, and each response says how it came.
    let (mut one, mut two) = (ask("/", &[]), ask("/", &[]));
    let (one, two) = (done(&mut one).unwrap(), done(&mut two).unwrap());
    assert_eq!(calls.swap(0, Ordering::SeqCst), 1);
    let (one, two) = (flight(&one).unwrap(), flight(&two).unwrap());
    assert_eq!((one.led(), two.led()), (true, false));
    assert_eq!(one.id(), two.id());
    // A cookie in the response: each has its own.
    let (mut one, mut two) = (ask("/mine", &[]), ask("/mine", &[]));
    let two = done(&mut two).unwrap();
    let one = done(&mut one).unwrap();
    assert_eq!(calls.swap(0, Ordering::SeqCst), 2);
    assert_ne!(one.headers()["set-cookie"], two.headers()["set-cookie"]);
    assert!(flight(&one).unwrap().led());
    assert_eq!(flight(&two), None);
    // A cookie in the request: passed by.
    let (mut one, mut two) = (ask("/", &[("cookie", "me")]), ask("/", &[("cookie", "me")]));
    let (one, two) = (done(&mut one).unwrap(), done(&mut two).unwrap());
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!((flight(&one), flight(&two)), (None, None));
}
