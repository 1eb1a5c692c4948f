//! A gRPC server that is a child process, and is there only while somebody needs it.
//!
//! ```text
//! grpc                          makes nine calls of every kind, and checks what the servers saw
//! grpc serve SOCKET LEDGER      the server: what the first form starts
//! ```
//!
//! `greeter.rs` is what tonic-prost-build makes of `greeter.proto`, kept in the repository so that nobody
//! needs protoc to build this.

#[allow(clippy::all, unreachable_pub)]
#[rustfmt::skip]
mod greeter;
mod ledger;
mod server;

use std::{
    env,
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream};
use tokio::time::sleep;
use tonic::{Response, Streaming};
use tower::{ServiceBuilder, ServiceExt};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, Group, IdleEvict, LazyStartLayer, Runtime, State,
    grpc::{self, StatusLayer},
    http::UntilBodyEnd,
    process::{Client, Command, Listen, Spawn},
};

use self::{
    greeter::{HelloReply, HelloRequest, greeter_client::GreeterClient},
    ledger::{Entry, Ledger},
};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A server that nobody has called for so long is stopped.
const IDLE: Duration = Duration::from_secs(1);

/// The transport of the generated client, as a type with a name.
type Greeter = GreeterClient<grpc::Stack<Command, Client>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    let done = match &args[..] {
        [] => run().await,
        [serve, socket, ledger] if serve == "serve" => {
            server::serve(Path::new(socket), Ledger::at(ledger)).await
        }
        _ => Err("usage: grpc, or grpc serve SOCKET LEDGER".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grpc: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let ledger = Ledger::at(dir.path().join("ledger"));
    let runtime = Runtime::tokio();
    let group = Group::new();

    // The server is this same program. It is ready when its own health service says so.
    let command = Command::new("greeter", env::current_exe()?)
        .arg("serve")
        .arg("{socket}")
        .arg(ledger.path())
        .listen(Listen::unix())
        .ready(grpc::health("greeter.Greeter"));
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    let stack: grpc::Stack<Command, Client> = ServiceBuilder::new()
        .layer(StatusLayer::new().deadlines(runtime.clone()))
        .layer(LazyStartLayer::new(runtime.clone(), command).join(&group))
        .layer(evictable.idle_after(IDLE))
        .layer(CeilingLayer::new(runtime.clone(), 1))
        .service(Spawn::h2c());
    let handle = stack.get_ref().handle();
    let sweeping = tokio::spawn(idle_evict.run());

    let calls = Calls::default();
    let greeter = GreeterClient::new(stack);
    calls.first_round(&greeter).await;

    handle.until(State::Stopped).await;
    println!("nobody called for {IDLE:?}: it was stopped");
    calls.second_round(&greeter).await;

    // What follows is the host's own doing.
    ledger.note(Entry::Closing)?;
    group.stopped(Duration::from_secs(10)).await;
    sweeping.abort();
    verdict(&calls, &ledger)
}

/// Calls made, and those of them that failed.
#[derive(Default)]
struct Calls {
    made: AtomicUsize,
    failed: AtomicUsize,
}

impl Calls {
    /// Counts a call, and whether it was answered as it should be.
    fn count<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        got: Result<T, impl std::fmt::Display>,
        wanted: T,
    ) {
        self.made.fetch_add(1, Ordering::Relaxed);
        let wrong = match got {
            Ok(got) if got == wanted => {
                println!("{what}: {got:?}");
                return;
            }
            Ok(got) => format!("{got:?}"),
            Err(error) => error.to_string(),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        println!("{what}: {wrong}, not {wanted:?}");
    }

    async fn first_round(&self, greeter: &Greeter) {
        // Three clients want the same greeting, and there is no server yet. It is started once, and
        // asked once: the calls are one before they are bytes.
        let client = greeter.clone();
        let hello = ServiceBuilder::new()
            .layer(CoalesceLayer::new(|request: &HelloRequest| {
                Some(request.name.clone())
            }))
            .service_fn(move |request: HelloRequest| {
                let mut client = client.clone();
                async move { client.hello(request).await.map(Response::into_inner) }
            });
        let three = (0..3).map(|_| hello.clone().oneshot(request("everybody")));
        for got in join_all(three).await {
            let text = got.map(|reply| reply.text);
            self.count("hello, shared", text, "hello everybody".to_owned());
        }

        let mut client = greeter.clone();
        let got = client.hello(request("Ada")).await.map(text);
        self.count("hello", got, "hello Ada".to_owned());

        let got = client.spell(request("Bob")).await;
        let got = texts(got).await;
        self.count("spell, a stream of answers", got, list(&["B", "o", "b"]));

        let got = client.meet(stream::iter(["Ada", "Bob"].map(request))).await;
        let got = got.map(text);
        let wanted = "hello Ada, Bob".to_owned();
        self.count("meet, a stream of requests", got, wanted);

        // Longer than a server may be idle: a stream is use for as long as it lasts.
        let slow = stream::iter(["Ada", "Bob"]).then(|name| async move {
            sleep(IDLE).await;
            request(name)
        });
        let got = texts(client.chat(slow).await).await;
        let wanted = list(&["hello Ada", "hello Bob"]);
        self.count("chat, streams both ways", got, wanted);
    }

    async fn second_round(&self, greeter: &Greeter) {
        let mut client = greeter.clone();
        for name in ["Ada", "Bob"] {
            let got = client.hello(request(name)).await.map(text);
            self.count("hello, by a new server", got, format!("hello {name}"));
        }
    }
}

fn request(name: &str) -> HelloRequest {
    HelloRequest { name: name.into() }
}

fn list(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn text(reply: Response<HelloReply>) -> String {
    reply.into_inner().text
}

async fn texts(
    reply: Result<Response<Streaming<HelloReply>>, tonic::Status>,
) -> Result<Vec<String>, tonic::Status> {
    let mut replies = reply?.into_inner();
    let mut texts = Vec::new();
    while let Some(reply) = replies.message().await? {
        texts.push(reply.text);
    }
    Ok(texts)
}

/// What the servers wrote down decides.
fn verdict(calls: &Calls, ledger: &Ledger) -> Result<(), Error> {
    let entries = ledger.read()?;
    let closing = entries.iter().position(|entry| *entry == Entry::Closing);
    let count = |entries: &[Entry], wanted| entries.iter().filter(|e| **e == wanted).count();
    let starts = count(&entries, Entry::Start);
    let evictions = count(&entries[..closing.unwrap_or(0)], Entry::Told);
    let saw = count(&entries, Entry::Call);
    let gone = count(&entries, Entry::Gone);
    let (made, failed) = (&calls.made, &calls.failed);
    let (made, failed) = (made.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
    println!(
        "grpc: calls {made}, starts {starts}, evictions {evictions}, server saw {saw}, failed {failed}"
    );
    if gone != starts {
        return Err(format!("{gone} of {starts} servers ended as they were told").into());
    }
    if (made, starts, evictions, saw, failed) != (9, 2, 1, 7, 0) {
        return Err("expected are calls 9, starts 2, evictions 1, server saw 7, failed 0".into());
    }
    Ok(())
}
