//! What counts as use over HTTP, through the whole stack, as the backends see it. Virtual time.
#![cfg(feature = "full")]
#![allow(missing_docs)]

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_on_demand::{
    Backend, CeilingLayer, Error, ErrorKind, Group, IdleEvict, LazyStartLayer, Runtime, State,
    Stopped,
    http::{InUse, InUseBody, UntilBodyEnd, UntilBothEnd},
    test_util::{self, Clock, Task},
};

const SECOND: Duration = Duration::from_secs(1);
/// The idle bound of every backend here.
const BOUND: Duration = Duration::from_secs(10);

type Payload = UnsyncBoxBody<Bytes, Infallible>;

/// What one backend's instances have seen.
#[derive(Default)]
struct Log {
    starts: AtomicU32,
    /// Bodies that it is sending or receiving now.
    open: AtomicU32,
    /// When each instance was stopped, and how many bodies were open then.
    stops: Mutex<Vec<(Duration, u32)>>,
}

impl Log {
    fn starts(&self) -> u32 {
        self.starts.load(Ordering::Relaxed)
    }

    fn stops(&self) -> Vec<(Duration, u32)> {
        self.stops.lock().unwrap().clone()
    }
}

/// An open body, counted.
struct Open(Arc<Log>);

impl Open {
    fn new(log: &Arc<Log>) -> Self {
        log.open.fetch_add(1, Ordering::Relaxed);
        Self(log.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An instance. It serves:
///
/// - `/stream`: a chunk every 7 s, eight of them;
/// - `/slow`: a chunk every 25 s, three of them;
/// - `/read`: reads the request's body, then answers with its length;
/// - `/early`: answers at once, and reads on;
/// - `/upgrade`: switches protocols;
/// - anything else: `ok`.
struct Site {
    clock: Clock,
    runtime: Runtime,
    log: Arc<Log>,
}

#[derive(Clone)]
struct Served {
    runtime: Runtime,
    log: Arc<Log>,
}

impl Backend for Site {
    type Lease = Served;

    fn lease(&self) -> Served {
        Served {
            runtime: self.runtime.clone(),
            log: self.log.clone(),
        }
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let open = self.log.open.load(Ordering::Relaxed);
        let at = self.clock.elapsed();
        self.log.stops.lock().unwrap().push((at, open));
        std::future::ready(Stopped::Gone)
    }
}

fn full(text: impl Into<Bytes>) -> Payload {
    Full::new(text.into()).boxed_unsync()
}

/// `chunks` chunks, one `every` so often, the first at once.
fn chunks(served: &Served, chunks: u32, every: Duration) -> Payload {
    let open = Open::new(&served.log);
    let runtime = served.runtime.clone();
    let stream = stream::unfold((0, open), move |(n, open)| {
        let runtime = runtime.clone();
        async move {
            if n == chunks {
                return None;
            }
            if n > 0 {
                runtime.sleep(every).await;
            }
            let frame = Frame::data(Bytes::from(format!("{n} ")));
            Some((Ok(frame), (n + 1, open)))
        }
    });
    StreamBody::new(stream).boxed_unsync()
}

impl<B> Service<Request<B>> for Served
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tower::BoxError> + Send,
{
    type Response = Response<Payload>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Payload>, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let served = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let read = {
                let open = Open::new(&served.log);
                async move {
                    let read = body.collect().await.map_err(Error::service);
                    drop(open);
                    Ok::<_, Error>(read?.to_bytes().len())
                }
            };
            Ok(match parts.uri.path() {
                "/stream" => Response::new(chunks(&served, 8, 7 * SECOND)),
                "/slow" => Response::new(chunks(&served, 3, 25 * SECOND)),
                "/read" => Response::new(full(read.await?.to_string())),
                "/early" => {
                    served.runtime.spawn(async {
                        let _ = read.await;
                    });
                    Response::new(full("early"))
                }
                "/upgrade" => Response::builder()
                    .status(StatusCode::SWITCHING_PROTOCOLS)
                    .body(Empty::new().boxed_unsync())
                    .unwrap(),
                _ => Response::new(full("ok")),
            })
        })
    }
}

type Site1<B> = BoxCloneSyncService<Request<B>, Response<InUseBody<Payload>>, Error>;

/// Backends under one ceiling and one registry.
struct Host {
    runtime: Runtime,
    clock: Clock,
    group: Group,
    ceiling: CeilingLayer,
}

impl Host {
    fn new(limit: u64) -> Self {
        let (runtime, clock) = test_util::runtime(7);
        Self {
            group: Group::new(),
            ceiling: CeilingLayer::new(runtime.clone(), limit).wait(1000 * SECOND),
            runtime,
            clock,
        }
    }

    /// One backend, under the hold `hold`.
    fn site<H, B>(&self, name: &'static str, hold: H) -> (Site1<B>, Arc<Log>)
    where
        H: tower_on_demand::Begin<Request<B>>,
        H::Hold: tower_on_demand::Hold<Response<Payload>, Response = Response<InUseBody<Payload>>>
            + Send,
        Served: Service<H::Request, Response = Response<Payload>, Error = Error, Future: Send>,
        B: Send + 'static,
        H::Request: Send,
    {
        let log = Arc::new(Log::default());
        let (evictable, idle_evict) = IdleEvict::pair(self.runtime.clone(), hold);
        self.runtime.spawn(idle_evict.run());
        let (clock, runtime, ours) = (self.clock.clone(), self.runtime.clone(), log.clone());
        let maker = service_fn(move |_: &'static str| {
            ours.starts.fetch_add(1, Ordering::Relaxed);
            let site = Site {
                clock: clock.clone(),
                runtime: runtime.clone(),
                log: ours.clone(),
            };
            std::future::ready(Ok::<_, Infallible>(site))
        });
        let stack = ServiceBuilder::new()
            .layer(LazyStartLayer::new(self.runtime.clone(), name).join(&self.group))
            .layer(evictable.idle_after(BOUND))
            .layer(self.ceiling.clone())
            .service(maker);
        (BoxCloneSyncService::new(stack), log)
    }

    /// Calls `path`, and reads the answer to its end.
    fn get(&self, site: &Site1<Empty<Bytes>>, path: &str) -> Task<Result<String, Error>> {
        let request = Request::get(path).body(Empty::new()).unwrap();
        self.send(site, request)
    }

    fn send<B: Send + 'static>(
        &self,
        site: &Site1<B>,
        request: Request<B>,
    ) -> Task<Result<String, Error>> {
        let site = site.clone();
        self.clock.spawn(async move {
            let response = site.oneshot(request).await?;
            let bytes = response.into_body().collect().await?.to_bytes();
            Ok(String::from_utf8(bytes.to_vec()).unwrap())
        })
    }

    /// A request body of `pieces`, one `every` so often.
    fn upload(&self, pieces: u32, every: Duration) -> UnsyncBoxBody<Bytes, Infallible> {
        let runtime = self.runtime.clone();
        let stream = stream::unfold(0, move |n| {
            let runtime = runtime.clone();
            async move {
                if n == pieces {
                    return None;
                }
                runtime.sleep(every).await;
                Some((Ok(Frame::data(Bytes::from("piece"))), n + 1))
            }
        });
        StreamBody::new(stream).boxed_unsync()
    }
}

fn text(task: &mut Task<Result<String, Error>>) -> String {
    task.take().expect("it is not done").unwrap()
}

#[test]
fn s16_e1_a_body_that_outlives_five_idle_bounds_is_whole() {
    let host = Host::new(1);
    let (site, log) = host.site("films", UntilBodyEnd);
    // 7 × 7 s, in chunks closer together than the bound; and 2 × 25 s, further apart.
    for (path, seconds, expected) in [("/stream", 49, "0 1 2 3 4 5 6 7 "), ("/slow", 50, "0 1 2 ")]
    {
        let before = host.clock.elapsed();
        let stops = log.stops().len();
        let mut answer = host.get(&site, path);
        host.clock.advance(seconds * SECOND);
        assert_eq!(text(&mut answer), expected);
        host.clock.advance(BOUND - Duration::from_nanos(1));
        assert_eq!(log.stops().len(), stops);
        host.clock.advance(Duration::from_nanos(1));
        // One bound after the last chunk, with nothing open.
        assert_eq!(
            log.stops()[stops..],
            [(before + seconds * SECOND + BOUND, 0)]
        );
    }
    assert_eq!(log.starts(), 2);
}

#[test]
fn s07_e1_a_streamed_body_is_complete_before_its_backend_makes_way() {
    let host = Host::new(1);
    let (films, films_log) = host.site("films", UntilBodyEnd);
    let (music, music_log) = host.site("music", UntilBodyEnd);
    let mut streamed = host.get(&films, "/stream");
    host.clock.advance(SECOND);
    let mut waits = host.get(&music, "/");
    host.clock.advance(48 * SECOND - Duration::from_nanos(1));
    assert!(!streamed.is_finished() && !waits.is_finished());
    assert_eq!((music_log.starts(), films_log.stops().len()), (0, 0));
    host.clock.advance(Duration::from_nanos(1));
    assert_eq!(text(&mut streamed), "0 1 2 3 4 5 6 7 ");
    assert_eq!(text(&mut waits), "ok");
    assert_eq!(films_log.stops(), [(49 * SECOND, 0)]);
    assert_eq!(music_log.starts(), 1);
}

#[test]
fn s17_a_slow_upload_keeps_its_backend_in_use() {
    let host = Host::new(1);
    let (site, log) = host.site("films", UntilBodyEnd);
    // Three bounds long; the answer waits for it.
    let request = Request::post("/read").body(host.upload(3, BOUND)).unwrap();
    let mut answer = host.send(&site, request);
    host.clock.advance(3 * BOUND);
    assert_eq!(text(&mut answer), "15");
    host.clock.advance(BOUND);
    assert_eq!(log.stops(), [(4 * BOUND, 0)]);
}

#[test]
fn s17_an_upload_that_goes_on_after_its_answer_keeps_its_backend_in_use() {
    let host = Host::new(1);
    let (site, log) = host.site("films", UntilBothEnd);
    let (other, other_log) = host.site("music", UntilBothEnd);
    let request = Request::post("/early").body(host.upload(3, BOUND)).unwrap();
    let mut answer = host.send(&site, request);
    host.clock.advance(SECOND);
    assert_eq!(text(&mut answer), "early");
    // Not for its age, and not for room either.
    let mut waits = host.get(&other, "/");
    host.clock.advance(29 * SECOND - Duration::from_nanos(1));
    assert!(!waits.is_finished());
    assert!(log.stops().is_empty());
    host.clock.advance(Duration::from_nanos(1));
    assert_eq!(log.stops(), [(30 * SECOND, 0)]);
    assert_eq!(text(&mut waits), "ok");
    assert_eq!(other_log.starts(), 1);
}

#[test]
fn an_upload_that_is_given_up_gives_its_claim_back() {
    let host = Host::new(1);
    let (site, log) = host.site("films", UntilBothEnd);
    let request = Request::post("/read").body(host.upload(3, BOUND)).unwrap();
    let answer = host.send(&site, request);
    host.clock.advance(15 * SECOND);
    drop(answer);
    host.clock.advance(BOUND);
    assert_eq!(log.stops(), [(25 * SECOND, 0)]);
}

#[test]
fn a_body_that_is_dropped_half_way_gives_its_claim_back() {
    let host = Host::new(1);
    let (films, films_log) = host.site("films", UntilBodyEnd);
    let (music, _) = host.site("music", UntilBodyEnd);
    let streamed = host.get(&films, "/stream");
    host.clock.advance(10 * SECOND);
    let mut waits = host.get(&music, "/");
    host.clock.advance(SECOND);
    assert!(!waits.is_finished());
    drop(streamed);
    host.clock.run();
    assert_eq!(text(&mut waits), "ok");
    assert_eq!(films_log.stops(), [(11 * SECOND, 0)]);
}

#[test]
fn a_stop_by_order_cuts_what_streams_after_the_drain() {
    let host = Host::new(1);
    let (site, log) = host.site("films", UntilBodyEnd);
    let mut streamed = host.get(&site, "/slow");
    host.clock.advance(SECOND);
    let order = host.group.handle("films").unwrap().stop();
    let mut stopped = host.clock.spawn(order);
    host.clock.advance(30 * SECOND - Duration::from_nanos(1));
    assert!(!streamed.is_finished() && !stopped.is_finished());
    host.clock.advance(Duration::from_nanos(1));
    let error = streamed.take().unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Stopped);
    stopped.take().unwrap().unwrap();
    // Cut, and only then stopped; the reader drops what is open.
    assert_eq!(log.stops(), [(31 * SECOND, 1)]);
    assert_eq!(log.open.load(Ordering::Relaxed), 0);
}

#[test]
fn an_upgraded_connection_survives_a_full_ceiling() {
    let host = Host::new(1);
    let (films, films_log) = host.site("films", UntilBodyEnd);
    let (music, music_log) = host.site("music", UntilBodyEnd);
    let request = Request::builder().method(Method::GET).uri("/upgrade");
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let mut response = host.clock.block_on(films.clone().oneshot(request)).unwrap();
    let in_use = response.extensions_mut().remove::<InUse>().unwrap();
    drop(response);
    let mut waits = host.get(&music, "/");
    host.clock.advance(10 * BOUND);
    assert!(!waits.is_finished());
    assert_eq!((music_log.starts(), films_log.stops().len()), (0, 0));
    drop(in_use);
    host.clock.run();
    assert_eq!(text(&mut waits), "ok");
    assert_eq!(films_log.stops(), [(10 * BOUND, 0)]);
}

#[test]
fn a_stream_nobody_reads_holds_its_backend_only_until_it_is_silent_for_too_long() {
    let host = Host::new(1);
    let hold = UntilBodyEnd.unless_silent(host.runtime.clone(), 60 * SECOND);
    let (films, log) = host.site("films", hold);
    let request = Request::get("/stream").body(Empty::<Bytes>::new()).unwrap();
    // The client is gone, and nobody polls the body any more.
    let _unread = host.clock.block_on(films.clone().oneshot(request)).unwrap();
    host.clock.advance(70 * SECOND - Duration::from_nanos(1));
    assert!(log.stops().is_empty());
    host.clock.advance(Duration::from_nanos(1));
    assert_eq!(log.stops(), [(70 * SECOND, 1)]);
    assert_eq!(host.group.status()[0].state, State::Stopped);
}
