//! An axum application with a database that is open only while somebody needs it.
//!
//! The backend is not a service: it is a pool of SQLite connections, opened on first use, lent to handlers,
//! and closed when nobody has used it for a while. The example calls its own application over HTTP, and checks
//! what the pool has counted.

mod app;
mod pool;

use std::{
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_on_demand::{Group, IdleEvict, LazyStartLayer, Named, Runtime, State, UntilResponse};

use self::pool::{Counts, Open};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A pool that nobody has used for so long is closed.
const IDLE: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("embed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("notes.sqlite");
    let counts = Arc::new(Counts::default());
    let runtime = Runtime::tokio();
    let group = Group::new();

    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let db: app::Db = ServiceBuilder::new()
        .layer(LazyStartLayer::new(runtime.clone(), Named::new("notes", file)).join(&group))
        .layer(evictable.idle_after(IDLE))
        .service(Open::new(counts.clone()));
    runtime.spawn(idle_evict.run());
    let handle = db.handle();

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/notes", listener.local_addr()?);
    let serving = tokio::spawn(async move { axum::serve(listener, app::router(db)).await });

    let caller = Caller::new(url);
    let mut failed = 0;
    let mut check = |what: &str, got: Result<String, Error>, wanted: &str| match got {
        Ok(got) if got == wanted => println!("{what}: {got:?}"),
        Ok(got) => {
            println!("{what}: {got:?}, not {wanted:?}");
            failed += 1;
        }
        Err(error) => {
            println!("{what}: {error}");
            failed += 1;
        }
    };

    // The first of them opens the pool; all use it.
    for written in join_all((1..=8).map(|n| caller.post(format!("note {n}")))).await {
        check("write a note", written, "written");
    }
    check("count the notes", caller.get().await, "8 notes");
    handle.until(State::Stopped).await;
    println!("nobody asked for {IDLE:?}: the pool was closed");
    check("count them again", caller.get().await, "8 notes");
    check("write", caller.post("the last".into()).await, "written");
    check("count", caller.get().await, "9 notes");

    group.stopped(Duration::from_secs(10)).await;
    serving.abort();

    let count = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::SeqCst);
    let (queries, opened) = (count(&counts.queries), count(&counts.opened));
    let closed = count(&counts.closed);
    println!("embed: queries {queries}, opened {opened}, closed {closed}, failed {failed}");
    if (queries, opened, closed, failed) != (12, 2, 2, 0) {
        return Err("expected are queries 12, opened 2, closed 2, failed 0".into());
    }
    Ok(())
}

/// Calls the application as anybody would.
struct Caller {
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<bytes::Bytes>>,
    url: String,
}

impl Caller {
    fn new(url: String) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, url }
    }

    async fn get(&self) -> Result<String, Error> {
        self.call(http::Request::get(&*self.url), String::new())
            .await
    }

    async fn post(&self, note: String) -> Result<String, Error> {
        self.call(http::Request::post(&*self.url), note).await
    }

    async fn call(&self, request: http::request::Builder, body: String) -> Result<String, Error> {
        let response = self.client.request(request.body(body.into())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let text = String::from_utf8(body.into())?;
        if status.is_success() {
            Ok(text)
        } else {
            Err(format!("{status}: {text}").into())
        }
    }
}
