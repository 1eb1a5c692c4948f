//! The child of the rows with real processes, and a proxy by hand: this same program, started again.

use std::{convert::Infallible, ffi::OsString, io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming, client::conn::http1 as client, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener, UnixStream},
};

/// The argument before the port, or the socket, to listen on.
pub(crate) const ROLE: &str = "--child";

/// The argument before the port to listen on and the socket of the child, of a proxy by hand.
pub(crate) const PROXY: &str = "--proxy";

/// What it answers.
pub(crate) const ANSWER: &str = "here I am\n";

/// This program.
pub(crate) fn program() -> PathBuf {
    std::env::current_exe().expect("it has a path")
}

/// Serves until it is killed, if this process is to be the child or the proxy.
pub(crate) fn serve_if_asked() {
    let mut args = std::env::args_os().skip(1);
    let role = args.next().unwrap_or_default();
    if role != ROLE && role != PROXY {
        return;
    }
    let at = args.next().expect("where to listen");
    let ended = if role == ROLE {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        runtime.block_on(serve(at))
    } else {
        let child = args.next().expect("where the child listens");
        // As the host has it.
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build();
        runtime.expect("a runtime").block_on(pass_on(at, child))
    };
    eprintln!("{role:?}: {ended:?}");
    std::process::exit(1);
}

async fn serve(at: OsString) -> io::Result<Infallible> {
    match at.to_str().and_then(|at| at.parse::<u16>().ok()) {
        Some(port) => {
            let listener = TcpListener::bind(("127.0.0.1", port)).await?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                connection(stream);
            }
        }
        None => {
            let listener = UnixListener::bind(at)?;
            loop {
                connection(listener.accept().await?.0);
            }
        }
    }
}

fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let answer = |_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(
            ANSWER.as_bytes(),
        ))))
    };
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
    tokio::spawn(served);
}

/// Each connection of a client has one of its own to the child, and each request goes on as it is.
async fn pass_on(at: OsString, child: OsString) -> io::Result<Infallible> {
    let port = at.to_str().and_then(|at| at.parse::<u16>().ok());
    let listener = TcpListener::bind(("127.0.0.1", port.expect("a port"))).await?;
    loop {
        let (client, _) = listener.accept().await?;
        let child = child.clone();
        tokio::spawn(async move {
            let child = TokioIo::new(UnixStream::connect(child).await?);
            let (sender, connection) = client::handshake(child).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            let sender = Arc::new(tokio::sync::Mutex::new(sender));
            let pass = service_fn(move |request: Request<Incoming>| {
                let sender = sender.clone();
                async move { sender.lock().await.send_request(request).await }
            });
            let served = http1::Builder::new().serve_connection(TokioIo::new(client), pass);
            served.await.map_err(io::Error::other)
        });
    }
}
