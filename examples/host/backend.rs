//! The demo's backend: this same program, run as a child.

use std::{
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{
        State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    middleware::{self, Next},
    response::Response,
    routing::{any, get, post},
};
use futures_util::stream;
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use crate::ledger::{Entry, Ledger, Life};

/// How long it takes to start, as programs do.
const BOOT: Duration = Duration::from_millis(80);
/// How long a report takes.
const REPORT: Duration = Duration::from_millis(300);
/// A stream: so many chunks, and the time between two.
pub(crate) const CHUNKS: usize = 12;
const EVERY: Duration = Duration::from_millis(150);

struct Backend {
    name: String,
    calls: AtomicU64,
    life: Option<Life>,
}

impl Backend {
    fn note(&self, entry: &Entry) {
        if let Some(Err(error)) = self.life.as_ref().map(|life| life.note(entry)) {
            eprintln!("cannot note {entry:?}: {error}");
        }
    }
}

/// Runs the backend `name` on `socket` until it is told to stop.
pub(crate) async fn run(
    name: String,
    socket: PathBuf,
    ledger: Option<Ledger>,
) -> Result<(), String> {
    let at = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let life = ledger.map(|ledger| ledger.enter()).transpose();
    let backend = Arc::new(Backend {
        name,
        calls: AtomicU64::new(0),
        life: life.map_err(at("the ledger"))?,
    });
    let mut told = signal(SignalKind::terminate()).map_err(at("SIGTERM"))?;
    sleep(BOOT).await;

    let router = Router::new()
        .route("/", get(hello))
        .route("/report", get(report))
        .route("/stream", get(stream))
        .route("/upload", post(upload))
        .route("/ws", any(websocket))
        .layer(middleware::from_fn_with_state(backend.clone(), count))
        .with_state(backend.clone());
    let listener = UnixListener::bind(&socket).map_err(at("the socket"))?;
    println!("{} listens on {}", backend.name, socket.display());
    let ours = backend.clone();
    axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            told.recv().await;
            ours.note(&Entry::Told);
        })
        .await
        .map_err(at("serving"))?;
    backend.note(&Entry::Gone);
    Ok(())
}

async fn count(
    State(backend): State<Arc<Backend>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    backend.calls.fetch_add(1, Ordering::Relaxed);
    backend.note(&Entry::Call);
    next.run(request).await
}

fn signature(backend: &Backend) -> String {
    let calls = backend.calls.load(Ordering::Relaxed);
    format!("{}, process {}, call {calls}", backend.name, process::id())
}

async fn hello(State(backend): State<Arc<Backend>>) -> String {
    format!("{}\n", signature(&backend))
}

/// What is worth making once for all who ask at the same time.
async fn report(State(backend): State<Arc<Backend>>) -> String {
    let signature = signature(&backend);
    sleep(REPORT).await;
    format!("report by {signature}\n")
}

async fn stream(State(_): State<Arc<Backend>>) -> Body {
    let chunks = stream::unfold(0, |n| async move {
        if n == CHUNKS {
            return None;
        }
        if n > 0 {
            sleep(EVERY).await;
        }
        Some((Ok::<_, std::io::Error>(format!("chunk {n}\n")), n + 1))
    });
    Body::from_stream(chunks)
}

async fn upload(body: Bytes) -> String {
    format!("{} bytes\n", body.len())
}

async fn websocket(State(backend): State<Arc<Backend>>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(|socket| echo(socket, backend))
}

async fn echo(mut socket: WebSocket, backend: Arc<Backend>) {
    while let Some(Ok(message)) = socket.recv().await {
        if let Message::Text(text) = message {
            let text = format!("{text}, says process {} of {}", process::id(), backend.name);
            if socket.send(Message::Text(text.into())).await.is_err() {
                return;
            }
        }
    }
}
