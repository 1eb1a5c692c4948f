//! Who asks, in the demo.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, future::join_all};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpStream;
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

use crate::{backend::CHUNKS, timeline::Timeline};

pub(super) type Socket = WebSocketStream<TcpStream>;

/// Calls the host, and counts.
pub(super) struct Driver {
    url: String,
    client: Client<HttpConnector, Empty<Bytes>>,
    timeline: Timeline,
    asked: AtomicU64,
    failed: AtomicU64,
}

impl Driver {
    pub(super) fn new(url: &str, timeline: Timeline) -> Self {
        Self {
            url: url.to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
            timeline,
            asked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Says it after all that has happened before.
    pub(super) async fn say(&self, what: &str) {
        self.timeline.caught_up().await;
        self.timeline.say("you", what);
    }

    fn fail(&self, what: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.timeline.say("FAILED", what);
    }

    async fn ask(&self, backend: &str, path: &str) -> Result<Response<Incoming>, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let request = Request::get(format!("{}/{backend}{path}", self.url));
        let request = request.body(Empty::new()).map_err(|e| e.to_string())?;
        let response = self.client.request(request).await;
        let response = response.map_err(|error| error.to_string())?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map(|body| body.to_bytes());
        Err(format!("{status}: {:?}", body.unwrap_or_default()))
    }

    async fn answer(&self, backend: &str, path: &str) -> Option<String> {
        let answer = async {
            let body = self.ask(backend, path).await?.into_body();
            let body = body.collect().await.map_err(|error| error.to_string())?;
            String::from_utf8(body.to_bytes().to_vec()).map_err(|error| error.to_string())
        };
        match answer.await {
            Ok(text) if text.contains(backend) => Some(text.trim_end().to_owned()),
            Ok(text) => {
                self.fail(&format!("{backend}{path}: {text:?} is not its answer"));
                None
            }
            Err(error) => {
                self.fail(&format!("{backend}{path}: {error}"));
                None
            }
        }
    }

    /// One call, and what came of it.
    pub(super) async fn get(&self, backend: &str, path: &str) {
        if let Some(answer) = self.answer(backend, path).await {
            self.say(&format!("GET /{backend}{path}: {answer}")).await;
        }
    }

    pub(super) async fn get_quietly(&self, backend: &str, path: &str) {
        self.answer(backend, path).await;
    }

    /// Many calls at the same time.
    pub(super) async fn herd(&self, backend: &str, path: &str, callers: usize) {
        let calls = (0..callers).map(|_| self.answer(backend, path));
        let answers = join_all(calls).await;
        let first = answers.iter().flatten().next().cloned().unwrap_or_default();
        let same = answers
            .iter()
            .flatten()
            .filter(|one| **one == first)
            .count();
        self.say(&format!("GET /{backend}{path}: {first}")).await;
        self.say(&format!("{same} of {callers} callers have this answer"))
            .await;
    }

    /// A streamed answer, read to its end.
    pub(super) async fn stream(&self, backend: &str) {
        self.say(&format!("GET /{backend}/stream: begins")).await;
        let streamed = async {
            let body = self.ask(backend, "/stream").await?.into_body();
            let body = body.collect().await.map_err(|error| error.to_string())?;
            Ok::<_, String>(body.to_bytes().split(|byte| *byte == b'\n').count() - 1)
        };
        match streamed.await {
            Ok(CHUNKS) => {
                self.say(&format!(
                    "GET /{backend}/stream: all {CHUNKS} chunks have come"
                ))
                .await
            }
            Ok(chunks) => self.fail(&format!("{backend}/stream: {chunks} of {CHUNKS} chunks")),
            Err(error) => self.fail(&format!("{backend}/stream: {error}")),
        }
    }

    /// An open WebSocket that has said something.
    pub(super) async fn websocket(&self, backend: &str) -> Option<(Socket, String)> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let open = async {
            let address = self.url.trim_start_matches("http://");
            let stream = TcpStream::connect(address)
                .await
                .map_err(|e| e.to_string())?;
            let url = format!("ws://{address}/{backend}/ws");
            let opened = client_async(url, stream).await;
            let (mut socket, _) = opened.map_err(|error| error.to_string())?;
            let said = exchange(&mut socket, "hello").await?;
            Ok::<_, String>((socket, said))
        };
        match open.await {
            Ok((socket, said)) => {
                self.say(&format!("WebSocket to {backend}: {said}")).await;
                Some((socket, said))
            }
            Err(error) => {
                self.fail(&format!("{backend}/ws: {error}"));
                None
            }
        }
    }

    /// The same WebSocket, later: it must be the same process.
    pub(super) async fn talk(&self, socket: Option<(Socket, String)>) {
        let Some((mut socket, first)) = socket else {
            return;
        };
        let again = async {
            let said = exchange(&mut socket, "hello").await?;
            socket
                .close(None)
                .await
                .map_err(|error| error.to_string())?;
            Ok::<_, String>(said)
        };
        match again.await {
            Ok(said) if said == first => {
                self.say(&format!("the same WebSocket: {said}; you close it"))
                    .await;
            }
            Ok(said) => self.fail(&format!("the WebSocket said {first:?}, now {said:?}")),
            Err(error) => self.fail(&format!("the WebSocket: {error}")),
        }
    }
}

async fn exchange(socket: &mut Socket, text: &str) -> Result<String, String> {
    let message = Message::text(text);
    socket
        .send(message)
        .await
        .map_err(|error| error.to_string())?;
    match socket.next().await {
        Some(Ok(Message::Text(text))) => Ok(text.to_string()),
        other => Err(format!("{other:?}")),
    }
}
