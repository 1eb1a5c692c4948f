//! The HTTP preset of Coalesce in an axum application without state, under real connections.
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
    response::Response,
    routing::get,
};
use futures_util::{future::join_all, stream};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tower::ServiceBuilder;
use tower_on_demand::{
    CoalesceLayer, Runtime,
    http::{Flight, ShareBodyLayer, SharedBody, StatusBody, StatusLayer},
};

const CONNECTIONS: usize = 10;

/// What the handler saw, and what lets its answers go on.
#[derive(Clone)]
struct Handler {
    called: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
}

impl Handler {
    /// Half of the answer at once, the other half when the gate opens.
    async fn answer(self) -> Response {
        let n = self.called.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate;
        let halves = stream::unfold(0, move |half| {
            let gate = gate.clone();
            async move {
                match half {
                    0 => Some((Ok(format!("answer {n}, ")), 1)),
                    1 => {
                        gate.acquire().await.ok()?.forget();
                        Some((Ok::<_, std::io::Error>("and its end".to_owned()), 2))
                    }
                    _ => None,
                }
            }
        });
        Response::new(Body::from_stream(halves))
    }
}

async fn serve(handler: &Handler) -> SocketAddr {
    let handler = handler.clone();
    let router = Router::new()
        .route("/slow", get(move || handler.clone().answer()))
        .layer(
            ServiceBuilder::new()
                .map_response(
                    |mut response: http::Response<StatusBody<SharedBody<Body>>>| {
                        let how = match response.extensions().get::<Flight>() {
                            Some(flight) if flight.led() => "led",
                            Some(_) => "joined",
                            None => "passed by",
                        };
                        response
                            .headers_mut()
                            .insert("flight", how.parse().unwrap());
                        response
                    },
                )
                .layer(StatusLayer::new())
                .layer(CoalesceLayer::http().shared_bodies().flight_extension())
                .layer(ShareBodyLayer::new(Runtime::tokio(), 64 * 1024)),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// The head of the response to one GET, over a connection of its own.
async fn ask(address: SocketAddr, cookie: Option<&str>) -> http::Response<hyper::body::Incoming> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::get("/slow").header("host", "localhost");
    if let Some(cookie) = cookie {
        request = request.header("cookie", cookie);
    }
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    client.send_request(request).await.unwrap()
}

#[tokio::test]
async fn c26_f11_ten_connections_share_one_call_and_all_of_its_streamed_answer() {
    let handler = Handler {
        called: Arc::new(AtomicUsize::new(0)),
        gate: Arc::new(Semaphore::new(0)),
    };
    let address = serve(&handler).await;
    let test = async {
        // All have the head while the body is under way, and the last one came when half of it was over.
        let answers = join_all((0..CONNECTIONS).map(|_| ask(address, None))).await;
        assert_eq!(handler.called.load(Ordering::SeqCst), 1);

        // Who says who he is, is answered alone.
        let mine = ask(address, Some("me=1")).await;
        assert_eq!(handler.called.load(Ordering::SeqCst), 2);
        assert_eq!(mine.headers()["flight"], "passed by");

        handler.gate.add_permits(2);
        let mut led = 0;
        for answer in answers {
            assert_eq!(answer.status(), 200);
            led += usize::from(answer.headers()["flight"] == "led");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, "answer 0, and its end");
        }
        assert_eq!(led, 1);
        let body = mine.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "answer 1, and its end");

        // It was the call they shared, not its answer.
        handler.gate.add_permits(1);
        let next = ask(address, None).await;
        assert_eq!(next.headers()["flight"], "led");
        let body = next.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "answer 2, and its end");
    };
    tokio::time::timeout(Duration::from_secs(60), test)
        .await
        .unwrap();
}
