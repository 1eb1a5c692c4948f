//! The server: an ordinary tonic server, which writes down what it sees.

use std::{path::Path, pin::Pin};

use futures_util::{Stream, StreamExt, stream};
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
};
use tonic::{Request, Response, Status, Streaming, transport::Server};

use crate::{
    Error,
    greeter::{
        HelloReply, HelloRequest,
        greeter_server::{Greeter, GreeterServer},
    },
    ledger::{Entry, Ledger},
};

/// Serves on `socket` until it is told to stop.
pub(crate) async fn serve(socket: &Path, ledger: Ledger) -> Result<(), Error> {
    let mut told = signal(SignalKind::terminate())?;
    ledger.note(Entry::Start)?;
    let (health, health_server) = tonic_health::server::health_reporter();
    let listener = UnixListener::bind(socket)?;
    let connections = stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    health.set_serving::<GreeterServer<Noting>>().await;
    let until = async {
        told.recv().await;
        if let Err(error) = ledger.note(Entry::Told) {
            eprintln!("the ledger: {error}");
        }
    };
    Server::builder()
        .add_service(health_server)
        .add_service(GreeterServer::new(Noting(ledger.clone())))
        .serve_with_incoming_shutdown(connections, until)
        .await?;
    ledger.note(Entry::Gone)?;
    Ok(())
}

/// Greets, and notes each call.
struct Noting(Ledger);

impl Noting {
    fn call(&self) -> Result<(), Status> {
        let noted = self.0.note(Entry::Call);
        noted.map_err(|error| Status::internal(format!("the ledger: {error}")))
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

fn reply(text: impl Into<String>) -> HelloReply {
    HelloReply { text: text.into() }
}

#[tonic::async_trait]
impl Greeter for Noting {
    type SpellStream = Replies;
    type ChatStream = Replies;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        self.call()?;
        let name = request.into_inner().name;
        Ok(Response::new(reply(format!("hello {name}"))))
    }

    async fn spell(&self, request: Request<HelloRequest>) -> Result<Response<Replies>, Status> {
        self.call()?;
        let letters: Vec<_> = request.into_inner().name.chars().map(reply).collect();
        let replies = stream::iter(letters).map(Ok);
        Ok(Response::new(Box::pin(replies)))
    }

    async fn meet(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<HelloReply>, Status> {
        self.call()?;
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
        self.call()?;
        let replies = request
            .into_inner()
            .map(|request| Ok(reply(format!("hello {}", request?.name))));
        Ok(Response::new(Box::pin(replies)))
    }
}
