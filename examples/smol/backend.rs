//! What is started: a server on a loopback port of its own.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use smol::{
    Task, Timer,
    net::{SocketAddr, TcpListener},
};
use tower::Service;
use tower_on_demand::{Backend, Stopped};

use crate::{Error, front};

/// What the servers count of themselves.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) opened: AtomicUsize,
    pub(crate) closed: AtomicUsize,
    /// Calls that were served within a tokio runtime.
    pub(crate) on_tokio: AtomicUsize,
}

/// The maker: a `MakeService` whose target is the server's name.
#[derive(Debug, Clone)]
pub(crate) struct Open(Arc<Counts>);

impl Open {
    pub(crate) fn new(counts: Arc<Counts>) -> Self {
        Self(counts)
    }
}

impl Service<&'static str> for Open {
    type Response = Server;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Server>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _name: &'static str) -> Self::Future {
        let counts = self.0.clone();
        Box::pin(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            let number = counts.opened.fetch_add(1, Ordering::SeqCst) + 1;
            println!("server {number} listens on {address}");
            let serving = smol::spawn(serve(listener, number, counts.clone()));
            Ok(Server {
                address,
                counts,
                serving: Mutex::new(Some(serving)),
            })
        })
    }
}

/// A server that runs: a `Backend`, since its end is something to wait for.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    counts: Arc<Counts>,
    serving: Mutex<Option<Task<()>>>,
}

impl Backend for Server {
    type Lease = Caller;

    fn lease(&self) -> Caller {
        Caller(self.address)
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        let (serving, counts) = (serving.take(), self.counts.clone());
        async move {
            if let Some(serving) = serving {
                serving.cancel().await;
            }
            counts.closed.fetch_add(1, Ordering::SeqCst);
            Stopped::Gone
        }
    }
}

/// Calls the server.
#[derive(Debug, Clone)]
pub(crate) struct Caller(SocketAddr);

impl Service<Request<Incoming>> for Caller {
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        Box::pin(front::send(self.0, request))
    }
}

async fn serve(listener: TcpListener, number: usize, counts: Arc<Counts>) {
    let answer = move |request: Request<Incoming>| {
        if tokio::runtime::Handle::try_current().is_ok() {
            counts.on_tokio.fetch_add(1, Ordering::SeqCst);
        }
        let word = request.uri().path().trim_start_matches('/').to_owned();
        async move { Ok::<_, Infallible>(Response::new(says(number, word))) }
    };
    front::serve(listener, tower::service_fn(answer)).await;
}

/// A streamed body; a slow one takes longer than a server may be idle.
fn says(number: usize, word: String) -> impl http_body::Body<Data = Bytes, Error = Infallible> {
    let pause = match &*word {
        "slowly" => crate::IDLE * 2,
        _ => Duration::ZERO,
    };
    let parts = [format!("server {number} "), "says ".to_owned(), word];
    StreamBody::new(stream::unfold(
        parts.into_iter(),
        move |mut parts| async move {
            let part = parts.next()?;
            Timer::after(pause / 2).await;
            Some((Ok(Frame::data(Bytes::from(part))), parts))
        },
    ))
}
