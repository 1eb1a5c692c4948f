//! Coalesce in an axum application, under real connections.
#![cfg(feature = "full")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    response::Response,
    routing::get,
};
use futures_util::future::join_all;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, net::TcpStream, sync::Semaphore};
use tower::ServiceBuilder;
use tower_on_demand::{BoxError, CoalesceLayer, http::StatusLayer};

const CONNECTIONS: usize = 10;

/// One GET over a connection of its own.
async fn get_over_own_connection(address: SocketAddr, path: &str) -> Bytes {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(path)
        .header("host", "localhost")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.unwrap().to_bytes()
}

/// The response with its body at hand, which is what can be shared.
async fn collected(response: Response) -> Result<http::Response<Full<Bytes>>, BoxError> {
    let (head, body) = response.into_parts();
    let bytes = body.collect().await?.to_bytes();
    Ok(http::Response::from_parts(head, Full::new(bytes)))
}

#[tokio::test]
async fn c26_a_stateless_router_makes_one_handler_call_for_ten_connections() {
    let handled = Arc::new(AtomicUsize::new(0));
    let gate = Arc::new(Semaphore::new(0));
    let asked = Arc::new(Semaphore::new(0));

    let handler = {
        let (handled, gate) = (handled.clone(), gate.clone());
        move || async move {
            let n = handled.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.unwrap().forget();
            format!("answer {n}")
        }
    };
    let identity = {
        let asked = asked.clone();
        move |request: &Request| {
            asked.add_permits(1);
            Some(request.uri().path().to_owned())
        }
    };
    let router = Router::new().route("/slow", get(handler)).layer(
        ServiceBuilder::new()
            .layer(StatusLayer::new())
            .map_response(|response: http::Response<Full<Bytes>>| response.map(Body::new))
            .layer(CoalesceLayer::new(identity))
            .and_then(collected)
            .map_err(BoxError::from),
    );

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, router).await });

    let calls = join_all((0..CONNECTIONS).map(|_| get_over_own_connection(address, "/slow")));
    let release = async {
        // All ten have arrived; then the one call may end.
        asked
            .acquire_many(CONNECTIONS as u32)
            .await
            .unwrap()
            .forget();
        gate.add_permits(CONNECTIONS);
    };
    let both = async { futures_util::join!(calls, release).0 };
    let answers = tokio::time::timeout(Duration::from_secs(30), both)
        .await
        .unwrap();

    assert_eq!(handled.load(Ordering::SeqCst), 1);
    assert_eq!(answers.len(), CONNECTIONS);
    assert!(answers.iter().all(|answer| answer == "answer 0"));

    // It was that call they shared, not its answer.
    gate.add_permits(1);
    let next = get_over_own_connection(address, "/slow").await;
    assert_eq!(
        next,
        format!("answer {}", handled.load(Ordering::SeqCst) - 1)
    );
    assert_eq!(handled.load(Ordering::SeqCst), 2);
    server.abort();
}
