//! What the HTTP edge promises: errors as responses.
#![cfg(feature = "http")]
#![allow(missing_docs)]

use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt,
    future::{pending, poll_fn},
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    Error, ErrorKind,
    http::{StatusLayer, response, retry_after, status},
};

type Plain = Response<Full<Bytes>>;

fn now<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it is pending")
}

/// What a client is told of `error` by a stack that ends in it.
fn answer<E>(error: E) -> Response<String>
where
    E: Into<BoxError> + Clone + Send + 'static,
{
    let failing = service_fn(move |_: ()| std::future::ready(Err::<Plain, _>(error.clone())));
    let told = now(StatusLayer::new().layer_on(failing).oneshot(()));
    text(told.unwrap_or_else(|never| match never {}))
}

/// `Layer::layer`, with the request type said.
trait LayerOn {
    fn layer_on<S>(&self, inner: S) -> tower_on_demand::http::Status<S, ()>
    where
        S: Service<()>,
        S::Error: Into<BoxError>;
}

impl LayerOn for StatusLayer<()> {
    fn layer_on<S>(&self, inner: S) -> tower_on_demand::http::Status<S, ()>
    where
        S: Service<()>,
        S::Error: Into<BoxError>,
    {
        tower::Layer::layer(self, inner)
    }
}

fn text<B>(response: Response<B>) -> Response<String>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: fmt::Debug,
{
    response.map(|body| {
        let bytes = now(body.collect()).unwrap().to_bytes();
        String::from_utf8(bytes.to_vec()).unwrap()
    })
}

fn header<'a, B>(response: &'a Response<B>, name: &str) -> Option<&'a str> {
    Some(response.headers().get(name)?.to_str().unwrap())
}

#[test]
fn every_kind_of_error_has_its_status() {
    for (kind, expected) in [
        (ErrorKind::StartFailed, 502),
        (ErrorKind::Stopped, 502),
        (ErrorKind::Died, 502),
        (ErrorKind::Panicked, 502),
        (ErrorKind::Service, 502),
        (ErrorKind::Unloaded, 503),
        (ErrorKind::ShutDown, 503),
        (ErrorKind::NotRunning, 503),
        (ErrorKind::Evicted, 503),
        (ErrorKind::NoRoom(Default::default()), 503),
        (ErrorKind::Unknown, 404),
    ] {
        let error = Error::new(kind.clone()).of("films");
        assert_eq!(status(&error), expected, "{kind:?}");
        let told = answer(error);
        assert_eq!(told.status(), expected, "{kind:?}");
        assert_eq!(header(&told, "cache-control"), Some("no-store"));
        assert_eq!(
            header(&told, "content-type"),
            Some("text/plain; charset=utf-8")
        );
        assert_eq!(header(&told, "retry-after"), None);
        assert!(told.body().contains("films"), "{}", told.body());
    }
}

#[test]
fn retry_after_is_whole_seconds_rounded_up_and_at_least_one() {
    for (after, expected) in [
        (Duration::ZERO, "1"),
        (Duration::from_nanos(1), "1"),
        (Duration::from_secs(1), "1"),
        (Duration::from_millis(1001), "2"),
        (Duration::from_secs(30), "30"),
    ] {
        let error = Error::new(ErrorKind::NoRoom(Default::default())).after(after);
        let told = answer(error.clone());
        assert_eq!(told.status(), 503);
        assert_eq!(header(&told, "retry-after"), Some(expected), "{after:?}");
        assert_eq!(retry_after(&error), Some(after));
    }
}

#[derive(Debug, Clone)]
struct Outer(std::sync::Arc<dyn StdError + Send + Sync>);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("outer")
    }
}

impl StdError for Outer {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

fn around(error: impl StdError + Send + Sync + 'static) -> Outer {
    Outer(std::sync::Arc::new(error))
}

#[test]
fn errors_of_other_layers_are_answered_too() {
    let elapsed = tower::timeout::error::Elapsed::new;
    let overloaded = tower::load_shed::error::Overloaded::new;
    assert_eq!(status(&elapsed()), 504);
    assert_eq!(status(&overloaded()), 429);
    assert_eq!(status(&around(around(elapsed()))), 504);
    assert_eq!(status(&around(overloaded())), 429);
    assert_eq!(status(&around(fmt::Error)), 502);
    assert_eq!(status(&fmt::Error), 502);

    // Ours, under others.
    let ours = Error::new(ErrorKind::Unloaded).after(Duration::from_secs(3));
    assert_eq!(status(&around(ours.clone())), 503);
    assert_eq!(
        retry_after(&around(ours.clone())),
        Some(Duration::from_secs(3))
    );
    assert_eq!(header(&answer(around(ours)), "retry-after"), Some("3"));

    // Others, under ours: a service's own error is what it is, a failed start is a failed start.
    assert_eq!(status(&Error::service(elapsed())), 504);
    assert_eq!(status(&Error::service(around(overloaded()))), 429);
    assert_eq!(status(&Error::start_failed(elapsed())), 502);
}

#[test]
fn the_body_tells_the_whole_chain_once() {
    let io = std::io::Error::other("no such file");
    let told = answer(around(Error::start_failed(io).of("films")));
    assert_eq!(
        told.body(),
        "outer: backend \"films\": could not be started: no such file\n"
    );
    let failed: Plain = response(&Error::new(ErrorKind::Unknown).of("x"));
    assert_eq!(failed.status(), 404);
}

#[test]
fn terse_answers_keep_what_happened_inside() {
    let failing = service_fn(|_: ()| async {
        Err::<Plain, _>(
            Error::new(ErrorKind::StartFailed)
                .of("films")
                .seen("secret"),
        )
    });
    let layer = StatusLayer::new().terse();
    let told = text(now(layer.layer_on(failing).oneshot(())).unwrap());
    assert_eq!(told.status(), 502);
    assert_eq!(told.body(), "502 Bad Gateway\n");
}

/// Fails before it is called.
#[derive(Clone)]
struct NotReady;

impl Service<()> for NotReady {
    type Response = Plain;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Plain, BoxError>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Err(tower::load_shed::error::Overloaded::new().into()))
    }

    fn call(&mut self, _: ()) -> Self::Future {
        panic!("it was not ready")
    }
}

#[test]
fn an_error_of_poll_ready_is_the_answer_to_the_call() {
    let mut service = StatusLayer::new().layer_on(NotReady);
    now(poll_fn(|cx| service.poll_ready(cx))).unwrap();
    let told = now(service.call(())).unwrap();
    assert_eq!(told.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[test]
fn what_the_service_answers_goes_through_unchanged() {
    let service = service_fn(|_: ()| async {
        let body = Full::new(Bytes::from_static(b"hello")).with_trailers(async {
            Some(Ok::<_, Infallible>(
                [(http::HeaderName::from_static("x-sum"), 5.into())]
                    .into_iter()
                    .collect(),
            ))
        });
        Ok::<_, Error>(Response::builder().status(201).body(body).unwrap())
    });
    let told = now(StatusLayer::new().layer_on(service).oneshot(())).unwrap();
    assert_eq!(told.status(), 201);
    let body = now(told.into_body().collect()).unwrap();
    assert_eq!(body.trailers().unwrap()["x-sum"], "5");
    assert_eq!(body.to_bytes(), "hello");
}

/// A service whose type mentions `BoxError`, under layers that have more of them.
fn boxed() -> impl Service<
    Request<axum::body::Body>,
    Response = Response<Empty<Bytes>>,
    Error = BoxError,
    Future: Send,
> + Clone
+ Send
+ Sync
+ 'static {
    ServiceBuilder::new()
        .load_shed()
        .timeout(Duration::from_millis(20))
        .service(service_fn(|_: Request<axum::body::Body>| {
            pending::<Result<Response<Empty<Bytes>>, BoxError>>()
        }))
}

#[tokio::test]
async fn a_stack_of_boxed_errors_can_be_spawned() {
    let service = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .service(service_fn(|_: Request<axum::body::Body>| async {
            Err::<Response<Empty<Bytes>>, BoxError>("broken".into())
        }));
    let told = tokio::spawn(async move { service.oneshot(Request::default()).await });
    assert_eq!(told.await.unwrap().unwrap().status(), 502);
}

async fn get(addr: SocketAddr) -> Response<String> {
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build_http::<Empty<Bytes>>();
    let response = client
        .get(format!("http://{addr}/x").parse().unwrap())
        .await
        .unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn it_serves_under_hyper() {
    let service = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .map_request(|request: Request<hyper::body::Incoming>| request.map(axum::body::Body::new))
        .service(boxed());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = TowerToHyperService::new(service);
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await
    });
    let told = get(addr).await;
    assert_eq!(told.status(), 504);
    assert_eq!(header(&told, "cache-control"), Some("no-store"));
    assert_eq!(told.body(), "request timed out\n");
    server.abort();
}

#[tokio::test]
async fn it_serves_as_an_axum_fallback_and_as_an_axum_layer() {
    let fallback = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .service(boxed());
    let router = axum::Router::new()
        .route("/", axum::routing::get(|| async { "home" }))
        .layer(StatusLayer::new())
        .fallback_service(fallback);
    let home = router
        .clone()
        .oneshot(Request::new(axum::body::Body::empty()))
        .await
        .unwrap();
    assert_eq!(home.status(), 200);
    let request = Request::get("/other").body(axum::body::Body::empty());
    let told = router.oneshot(request.unwrap()).await.unwrap();
    assert_eq!(told.status(), 504);
}

/// The whole stack over a maker with boxed errors, answering under hyper (in a spawned task) and as a
/// fallback of axum. It counts its starts.
#[cfg(feature = "full")]
mod whole_stack {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use http_body::Body;
    use tower_on_demand::{
        CeilingLayer, DropToStop, Group, IdleEvict, LazyStartLayer, Runtime, State,
        http::{InUseBody, StatusBody, UntilBodyEnd},
    };

    use super::*;

    type Answer = Response<StatusBody<InUseBody<Full<Bytes>>>>;

    /// The stack; its group and how many instances were made.
    fn stack<B>() -> (
        impl Service<Request<B>, Response = Answer, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
        Group,
        Arc<AtomicU32>,
    )
    where
        B: Body<Data = Bytes> + Send + 'static,
    {
        let starts = Arc::new(AtomicU32::new(0));
        let count = starts.clone();
        let maker = service_fn(move |_: &'static str| {
            let nth = count.fetch_add(1, Ordering::Relaxed);
            let site = service_fn(move |_: Request<B>| async move {
                Ok::<_, Error>(Response::new(Full::new(Bytes::from(format!("by {nth}")))))
            });
            async move { Ok::<_, BoxError>(DropToStop::new(site)) }
        });
        let runtime = Runtime::tokio();
        let group = Group::new();
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
        runtime.spawn(idle_evict.run());
        let service = ServiceBuilder::new()
            .layer(StatusLayer::new())
            .timeout(Duration::from_secs(30))
            .layer(LazyStartLayer::new(runtime.clone(), "films").join(&group))
            .layer(evictable)
            .layer(CeilingLayer::new(runtime, 1))
            .service(maker);
        (service, group, starts)
    }

    #[tokio::test]
    async fn it_serves_under_hyper() {
        let (service, group, starts) = stack();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(service.clone());
                tokio::spawn(async move {
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                });
            }
        });
        assert_eq!(starts.load(Ordering::Relaxed), 0);
        assert_eq!(get(addr).await.body(), "by 0");
        assert_eq!(get(addr).await.body(), "by 0");
        let handle = group.handle("films").unwrap();
        handle.stop().await.unwrap();
        assert_eq!(get(addr).await.body(), "by 1");
        handle.unload().await.unwrap();
        let told = get(addr).await;
        assert_eq!(told.status(), 503);
        assert!(told.body().starts_with("backend \"films\": unloaded"));
        assert_eq!(starts.load(Ordering::Relaxed), 2);
        server.abort();
    }

    #[tokio::test]
    async fn it_serves_as_an_axum_fallback() {
        let (service, group, _) = stack();
        let router = axum::Router::new()
            .route("/own", axum::routing::get(|| async { "own" }))
            .fallback_service(service);
        let ask = |path: &str| {
            let request = Request::get(path).body(axum::body::Body::empty());
            router.clone().oneshot(request.unwrap())
        };
        let own = ask("/own").await.unwrap();
        assert_eq!(own.into_body().collect().await.unwrap().to_bytes(), "own");
        assert!(group.status().iter().all(|status| status.starts == 0));
        let told = ask("/other").await.unwrap();
        assert_eq!(told.into_body().collect().await.unwrap().to_bytes(), "by 0");
        assert!(
            group
                .status()
                .iter()
                .any(|status| status.state == State::Running)
        );
        group.close();
        assert_eq!(ask("/other").await.unwrap().status(), 503);
    }
}
