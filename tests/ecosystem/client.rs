//! hyper-util's `Client` as a backend: its connections are what is started and stopped.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::{net::TcpListener, sync::Semaphore};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_on_demand::{Eviction, IdleEvict, LazyStartLayer, Runtime, Sweep, http::UntilBodyEnd};

use crate::grpc_server::{get, until};

#[derive(Debug, Default)]
struct Seen {
    opened: AtomicUsize,
    open: AtomicUsize,
}

/// Answers each call with two chunks; the second one when the gate lets it.
async fn server(gate: Arc<Semaphore>) -> (SocketAddr, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::<Seen>::default();
    let counted = seen.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (seen, gate) = (counted.clone(), gate.clone());
            seen.opened.fetch_add(1, Ordering::SeqCst);
            seen.open.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let answer = service_fn(move |_: Request<Incoming>| {
                    let gate = gate.clone();
                    async move {
                        let chunks = stream::iter([false, true]).then(move |last| {
                            let gate = gate.clone();
                            async move {
                                if last {
                                    gate.acquire().await.unwrap().forget();
                                }
                                Ok::<_, Infallible>(Frame::data(Bytes::from(if last {
                                    "two"
                                } else {
                                    "one"
                                })))
                            }
                        });
                        Ok::<_, Infallible>(Response::new(StreamBody::new(chunks)))
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
                seen.open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, seen)
}

type Upstream = Client<HttpConnector, Empty<Bytes>>;

#[tokio::test]
async fn its_connections_are_closed_when_nobody_has_read_from_them_for_a_while() {
    let gate = Arc::new(Semaphore::new(0));
    let (address, seen) = server(gate.clone()).await;
    let runtime = Runtime::tokio();
    let (evictable, mut idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    let stack = ServiceBuilder::new()
        .layer(LazyStartLayer::new(runtime, "upstream"))
        .layer(evictable.idle_after(Duration::from_millis(1)))
        .service(tower::service_fn(|_: &'static str| async {
            let client: Upstream = Client::builder(TokioExecutor::new()).build_http();
            Ok::<_, Infallible>(client)
        }));
    let request = || {
        let request = Request::get(format!("http://{address}/"));
        request.body(Empty::<Bytes>::new()).unwrap()
    };

    let response = stack.clone().oneshot(request()).await.unwrap();
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "one");
    assert_eq!(stack.status().in_flight, Some(1));
    assert_eq!((get(&seen.opened), get(&seen.open)), (1, 1));

    // The body has ended: the client is idle, and due.
    gate.add_permits(1);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "two");
    idle_evict.ready().await.unwrap();
    let swept = idle_evict.call(Sweep).await.unwrap();
    assert_eq!(swept.retired()[0].why(), Eviction::Idle);
    swept.gone().await;
    until("its connection is closed", || get(&seen.open) == 0).await;

    gate.add_permits(1);
    let response = stack.oneshot(request()).await.unwrap();
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "onetwo"
    );
    assert_eq!(get(&seen.opened), 2);
}
