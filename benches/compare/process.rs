//! The first answer of a child process that has to be started for it.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::Stdio,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response, header::HOST};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::sleep};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_on_demand::{
    CeilingLayer, IdleEvict, LazyStartLayer, Runtime,
    http::UntilBodyEnd,
    process::{Command, Spawn},
};

use crate::{
    child::{ANSWER, ROLE, program},
    harness::{Table, median},
};

/// How many starts each side has.
const ROUNDS: usize = 101;
/// What all the layers may add, in milliseconds.
const MORE: f64 = 2.0;

fn request() -> Request<Empty<Bytes>> {
    let request = Request::get("/").header(HOST, "localhost");
    request.body(Empty::new()).expect("a request")
}

async fn answered<B>(response: Response<B>)
where
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let body = response.into_body().collect().await.expect("a body");
    assert_eq!(body.to_bytes(), ANSWER);
}

/// A free port, the program, connecting until it listens, one call.
async fn by_hand() -> Duration {
    let begun = Instant::now();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let address = free.expect("a port");
    let mut child = tokio::process::Command::new(program())
        .args([ROLE, &address.port().to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let stream = loop {
        match TcpStream::connect(address).await {
            Ok(stream) => break stream,
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .expect("a connection");
    let connection = tokio::spawn(connection);
    answered(sender.send_request(request()).await.expect("an answer")).await;
    let took = begun.elapsed();
    connection.abort();
    child.kill().await.expect("it ends");
    took
}

/// A call of a stack whose child does not run.
async fn first_call<S, B>(stack: &S) -> Duration
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>, Error: std::fmt::Debug> + Clone,
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let begun = Instant::now();
    answered(stack.clone().oneshot(request()).await.expect("an answer")).await;
    begun.elapsed()
}

/// Medians of both, in milliseconds.
async fn in_turns() -> (f64, f64) {
    let runtime = Runtime::tokio();
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    let command = Command::new("child", program())
        .args([ROLE, "{port}"])
        .grace(Duration::ZERO);
    let (lazy_start, handle) = LazyStartLayer::new(runtime.clone(), command).pair();
    let stack = ServiceBuilder::new()
        .layer(lazy_start)
        .layer(evictable.idle_after(Duration::from_secs(900)))
        .layer(CeilingLayer::new(runtime, 8))
        .service(Spawn::http());
    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(first_call(&stack).await.as_secs_f64() * 1e3);
        handle.stop().await.expect("it stops");
        reference.push(by_hand().await.as_secs_f64() * 1e3);
    }
    (median(&mut ours), median(&mut reference))
}

pub(crate) fn rows(table: &mut Table, tokio: &tokio::runtime::Runtime) {
    const NAME: &str = "real process, first answer: ms more than by hand";
    if !table.wants(NAME) {
        return;
    }
    let (ours, by_hand) = tokio.block_on(in_turns());
    println!("a process's first answer: {ours:.2} ms through the layers, {by_hand:.2} ms by hand");
    table.count(NAME, 1.0, "2 ms", ours - by_hand, MORE);
}
