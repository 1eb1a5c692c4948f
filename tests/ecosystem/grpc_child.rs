//! Children that serve gRPC: ready when their health service says so, gone when they are killed.

use std::{env, path::PathBuf, time::Duration};

use futures_util::stream;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::net::UnixListener;
use tonic::{Code, transport::Server};
use tonic_health::ServingStatus;
use tower::ServiceBuilder;
use tower_on_demand::{
    Group, IdleEvict, LazyStartLayer, Runtime, State,
    grpc::{self, StatusLayer},
    http::UntilBodyEnd,
    process::{Client, Command, Listen, Spawn},
};

use crate::{
    greeter::greeter_client::GreeterClient,
    grpc_server::{Greeting, request, text},
};

const SOCKET: &str = "ECOSYSTEM_CHILD_SOCKET";
const MODE: &str = "ECOSYSTEM_CHILD_MODE";

/// No test by itself: what the tests below start, which is this same program.
#[test]
fn the_child() {
    let Some(socket) = env::var_os(SOCKET) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(serve(socket.into(), &env::var(MODE).unwrap()));
}

async fn serve(socket: PathBuf, mode: &str) {
    let (health, health_server) = tonic_health::server::health_reporter();
    if mode != "no health" {
        let status = ServingStatus::NotServing;
        health.set_service_status("greeter.Greeter", status).await;
    }
    let greeting = Greeting::default();
    let listener = UnixListener::bind(socket).unwrap();
    let connections = stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let warm = mode == "warms up";
    if warm {
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let status = ServingStatus::Serving;
            health.set_service_status("greeter.Greeter", status).await;
        });
    }
    let server = Server::builder().add_service(greeting.server());
    let server = match mode {
        "no health" => server,
        _ => server.add_service(health_server),
    };
    server.serve_with_incoming(connections).await.unwrap();
}

fn command(mode: &str) -> Command {
    Command::new("greeter", env::current_exe().unwrap())
        .args(["--exact", "grpc_child::the_child", "--nocapture"])
        .env(SOCKET, "{socket}")
        .env(MODE, mode)
        .listen(Listen::unix())
        .grace(Duration::from_secs(1))
        .ready(grpc::health("greeter.Greeter"))
}

fn stack(command: Command, group: &Group) -> grpc::Stack<Command, Client> {
    let runtime = Runtime::tokio();
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    runtime.spawn(idle_evict.run());
    ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(LazyStartLayer::new(runtime, command).join(group))
        .layer(evictable)
        .service(Spawn::h2c())
}

#[tokio::test]
async fn a_child_is_ready_when_its_health_service_says_so_and_another_follows_a_killed_one() {
    let group = Group::new();
    let stack = stack(command("warms up"), &group);
    let handle = stack.get_ref().handle();
    let mut greeter = GreeterClient::new(stack);

    let pid = text(greeter.hello(request("pid")).await.unwrap());
    assert_ne!(pid, std::process::id().to_string());

    // Killed in the middle of a stream, which is told so; the next call has a fresh one.
    let mut spelled = greeter.spell(request("ab")).await.unwrap().into_inner();
    assert_eq!(spelled.message().await.unwrap().unwrap().text, "a");
    kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).unwrap();
    let status = spelled.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(spelled.message().await.unwrap().is_none());
    handle.until(State::Stopped).await;
    let other = text(greeter.hello(request("pid")).await.unwrap());
    assert_ne!(other, pid);
    assert_eq!((handle.status().crashes, handle.status().starts), (1, 2));
    group.stopped(Duration::from_secs(5)).await;
}

async fn refused(mode: &str, says: &str) {
    let group = Group::new();
    let command = command(mode).ready_within(Duration::from_secs(2));
    let mut greeter = GreeterClient::new(stack(command, &group));
    let status = greeter.hello(request("Ada")).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains(says), "{status:?}");
    group.stopped(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_child_that_never_serves_is_a_start_that_failed_and_says_why() {
    let says = "the health service says NOT_SERVING of \"greeter.Greeter\"";
    refused("never serves", says).await;
}

#[tokio::test]
async fn a_child_without_a_health_service_is_told_apart_from_one_that_is_not_well() {
    refused("no health", "the server has no health service").await;
}
