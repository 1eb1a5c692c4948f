//! A gRPC server that counts what it sees, and goes on with a stream only when it is let.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{Stream, StreamExt, stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Endpoint, server::Connected},
};

use crate::greeter::{
    HelloReply, HelloRequest,
    greeter_server::{Greeter, GreeterServer},
};

pub(crate) fn request(name: &str) -> HelloRequest {
    HelloRequest { name: name.into() }
}

pub(crate) fn text(reply: Response<HelloReply>) -> String {
    reply.into_inner().text
}

/// What a greeter sees.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) calls: AtomicUsize,
    /// Connections, ever and now.
    pub(crate) opened: AtomicUsize,
    pub(crate) open: AtomicUsize,
    /// Each permit lets a gated stream go one step: to the next message, or from the last one to the trailers.
    pub(crate) gate: Semaphore,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            calls: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        }
    }
}

pub(crate) fn get(count: &AtomicUsize) -> usize {
    count.load(Ordering::SeqCst)
}

/// Greets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Greeting(pub(crate) Arc<Seen>);

impl Greeting {
    pub(crate) fn server(&self) -> GreeterServer<Self> {
        GreeterServer::new(self.clone())
    }

    fn call(&self) {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
    }

    async fn step(&self) {
        self.0.gate.acquire().await.expect("never closed").forget();
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

fn reply(text: impl Into<String>) -> HelloReply {
    HelloReply { text: text.into() }
}

#[tonic::async_trait]
impl Greeter for Greeting {
    type SpellStream = Replies;
    type ChatStream = Replies;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        self.call();
        let name = request.into_inner().name;
        if name == "pid" {
            return Ok(Response::new(reply(std::process::id().to_string())));
        }
        if name.is_empty() {
            return Err(Status::invalid_argument("whom shall I greet?"));
        }
        Ok(Response::new(reply(format!("hello {name}"))))
    }

    /// The first letter at once, every other one and the end when the gate lets it.
    async fn spell(&self, request: Request<HelloRequest>) -> Result<Response<Replies>, Status> {
        self.call();
        let name = request.into_inner().name;
        let letters: Vec<_> = name.chars().map(|letter| Some(reply(letter))).collect();
        let own = self.clone();
        let steps = stream::iter(letters.into_iter().chain([None]).enumerate());
        let replies = steps.filter_map(move |(n, step)| {
            let own = own.clone();
            async move {
                if n > 0 {
                    own.step().await;
                }
                step.map(Ok)
            }
        });
        Ok(Response::new(Box::pin(replies)))
    }

    async fn meet(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        self.call();
        let mut requests = request.into_inner();
        let mut names = Vec::new();
        while let Some(request) = requests.message().await? {
            names.push(request.name);
        }
        Ok(Response::new(reply(format!("hello {}", names.join(", ")))))
    }

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Replies>, Status> {
        self.call();
        let replies = request
            .into_inner()
            .map(|request| Ok(reply(format!("hello {}", request?.name))));
        Ok(Response::new(Box::pin(replies)))
    }
}

/// One that runs on a port.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let greeting = Greeting::default();
        let seen = greeting.0.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counted = seen.clone();
        let connections = stream::unfold(listener, move |listener| {
            let seen = counted.clone();
            async move {
                let accepted = listener.accept().await;
                let counted = accepted.map(|(stream, _)| Counted::new(stream, seen));
                Some((counted, listener))
            }
        });
        let serving = tonic::transport::Server::builder()
            .add_service(greeting.server())
            .serve_with_incoming(connections);
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Self {
            address,
            seen,
            task,
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        format!("http://{}", self.address).parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection that is counted.
struct Counted {
    stream: TcpStream,
    seen: Arc<Seen>,
}

impl Counted {
    fn new(stream: TcpStream, seen: Arc<Seen>) -> Self {
        seen.opened.fetch_add(1, Ordering::SeqCst);
        seen.open.fetch_add(1, Ordering::SeqCst);
        Self { stream, seen }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.seen.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connected for Counted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Waits until `fact` holds, for as long as a fact may take on a busy machine.
pub(crate) async fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let seen = tokio::time::timeout(Duration::from_secs(30), async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(seen.await.is_ok(), "never seen: {what}");
}
