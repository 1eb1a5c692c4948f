//! Under hyper's and axum's own ways of serving.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::Request, response::Response, routing::get};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, service_fn, timeout::TimeoutLayer};
use tower_on_demand::{
    BoxError, CeilingLayer, CoalesceLayer, DropToStop, IdleEvict, LazyStartLayer, Runtime,
    http::{StatusLayer, UntilBodyEnd},
};

/// The answer's status and body, by HTTP/1.1 or HTTP/2.
async fn ask(address: SocketAddr, path: &str, http2: bool) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .build_http::<Empty<Bytes>>();
    let uri = format!("http://{address}{path}").parse().unwrap();
    let (head, body) = client.get(uri).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.into()).unwrap();
    (head.status.as_u16(), text)
}

#[tokio::test]
async fn hyper_serves_a_stack_by_every_version_of_http() {
    let started = Arc::new(AtomicUsize::new(0));
    let runtime = Runtime::tokio();
    let (evictable, _) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    let counted = started.clone();
    let stack = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(LazyStartLayer::new(runtime.clone(), "pages"))
        .layer(evictable)
        .layer(CeilingLayer::new(runtime, 1))
        .service(service_fn(move |_: &'static str| {
            counted.fetch_add(1, Ordering::SeqCst);
            let pages = |request: http::Request<hyper::body::Incoming>| async move {
                let told = format!("{:?}", request.version());
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(told))))
            };
            async move { Ok::<_, io::Error>(DropToStop::new(service_fn(pages))) }
        }));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = TowerToHyperService::new(stack);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service.clone();
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    assert_eq!(ask(address, "/", false).await, (200, "HTTP/1.1".into()));
    assert_eq!(ask(address, "/", true).await, (200, "HTTP/2.0".into()));
    assert_eq!(started.load(Ordering::SeqCst), 1);
}

/// The response with its body at hand, which is what can be shared.
async fn at_hand(response: Response) -> Result<http::Response<Full<Bytes>>, BoxError> {
    let (head, body) = response.into_parts();
    let bytes = body.collect().await?.to_bytes();
    Ok(http::Response::from_parts(head, Full::new(bytes)))
}

#[tokio::test]
async fn axum_takes_the_layers_for_services_by_router_layer() {
    let handled = Arc::new(AtomicUsize::new(0));
    let counted = handled.clone();
    let report = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            "report"
        }
    };
    let never = || std::future::pending::<&'static str>();
    let router = Router::new()
        .route("/report", get(report))
        .route("/never", get(never))
        .layer(
            ServiceBuilder::new()
                .layer(StatusLayer::new())
                .layer(TimeoutLayer::new(Duration::from_secs(2)))
                .layer(CoalesceLayer::new(|request: &Request| {
                    Some(request.uri().path().to_owned())
                }))
                .and_then(at_hand),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });

    let same = (0..5).map(|_| ask(address, "/report", false));
    for answer in futures_util::future::join_all(same).await {
        assert_eq!(answer, (200, "report".into()));
    }
    assert_eq!(handled.load(Ordering::SeqCst), 1);
    let (status, told) = ask(address, "/never", false).await;
    assert_eq!((status, &*told), (504, "request timed out\n"));
}
