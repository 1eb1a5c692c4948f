//! The layers on smol, with hyper on both sides, and no tokio runtime in the process.
//!
//! A proxy on one port, and behind it a server on another that is there only while somebody needs it. The
//! example calls the proxy over real connections, and checks what the servers themselves have counted.

mod backend;
mod front;

use std::{
    fs,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http_body_util::BodyExt;
use smol::net::{SocketAddr, TcpListener};
use tower::ServiceBuilder;
use tower_on_demand::{
    CeilingLayer, Group, IdleEvict, LazyStartLayer, Runtime, State,
    http::{StatusLayer, UntilBodyEnd},
};

use self::backend::{Counts, Open};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A server that nobody has called for so long is stopped.
const IDLE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match smol::block_on(run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("smol: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let runtime = Runtime::smol();
    let group = Group::new();
    let counts = Arc::new(Counts::default());

    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    let stack = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(LazyStartLayer::new(runtime.clone(), "words").join(&group))
        .layer(evictable.idle_after(IDLE))
        .layer(CeilingLayer::new(runtime.clone(), 1))
        .service(Open::new(counts.clone()));
    runtime.spawn(idle_evict.run());
    let handle = stack.get_ref().handle();

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = listener.local_addr()?;
    let proxying = smol::spawn(front::serve(listener, stack));

    let mut failed = 0;
    let mut call = async |path: &str, wanted: &str| match get(proxy, path).await {
        Ok(text) if text == wanted => println!("GET {path}: {text:?}"),
        Ok(text) => {
            println!("GET {path}: {text:?}, not {wanted:?}");
            failed += 1;
        }
        Err(error) => {
            println!("GET {path}: {error}");
            failed += 1;
        }
    };
    call("/hello", "server 1 says hello").await;
    // Longer than a server may be idle.
    call("/slowly", "server 1 says slowly").await;
    handle.until(State::Stopped).await;
    println!("nobody called for {IDLE:?}: it was stopped");
    call("/again", "server 2 says again").await;

    // What is closed from here on is the host's own doing.
    let evictions = counts.closed.load(Ordering::SeqCst);
    let tokio = tokio_threads().max(counts.on_tokio.load(Ordering::SeqCst));
    group.stopped(Duration::from_secs(10)).await;
    proxying.cancel().await;

    let starts = counts.opened.load(Ordering::SeqCst);
    println!(
        "smol: starts {starts}, evictions {evictions}, failed {failed}, tokio threads {tokio}"
    );
    if counts.closed.load(Ordering::SeqCst) != starts {
        return Err("a server is left".into());
    }
    if (starts, evictions, failed, tokio) != (2, 1, 0, 0) {
        return Err("expected are starts 2, evictions 1, failed 0, tokio threads 0".into());
    }
    Ok(())
}

/// One call over a connection of its own.
async fn get(to: SocketAddr, path: &str) -> Result<String, Error> {
    let request = http::Request::get(path)
        .header("host", "localhost")
        .body(http_body_util::Empty::<bytes::Bytes>::new())?;
    let response = front::send(to, request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let text = String::from_utf8(body.into())?;
    if status.is_success() {
        Ok(text)
    } else {
        Err(format!("{status}: {text}").into())
    }
}

/// The threads of this process that a tokio runtime has named.
fn tokio_threads() -> usize {
    let names = fs::read_dir("/proc/self/task").into_iter().flatten();
    let names = names.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("tokio")).count()
}
