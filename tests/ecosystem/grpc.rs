//! The stack as the transport of a generated client.

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::stream;
use http_body::Frame;
use tokio::sync::mpsc;
use tonic::{Code, Request, Status, transport::Endpoint};
use tonic_types::StatusExt;
use tower::{Service, ServiceBuilder, service_fn, util::BoxCloneSyncService};
use tower_on_demand::{
    BoxError, CeilingLayer, DropToStop, Eviction, Group, IdleEvict, IdleEvictLayer, LazyStartLayer,
    Named, Runtime, State, Sweep,
    grpc::{self, Connect, StatusLayer},
    http::UntilBodyEnd,
    test_util,
};

use crate::{
    greeter::greeter_client::GreeterClient,
    grpc_server::{Greeting, Server, get, request, text, until},
};

/// What a user has: a client in a struct, its type written out.
struct App {
    greeter: GreeterClient<grpc::Stack>,
}

struct Host {
    runtime: Runtime,
    evictable: IdleEvictLayer<UntilBodyEnd>,
    idle_evict: IdleEvict,
    ceiling: CeilingLayer,
}

impl Host {
    fn new(limit: u64) -> Self {
        let runtime = Runtime::tokio();
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
        Self {
            ceiling: CeilingLayer::new(runtime.clone(), limit),
            runtime,
            evictable,
            idle_evict,
        }
    }

    fn stack(&self, endpoint: Endpoint) -> grpc::Stack {
        ServiceBuilder::new()
            .layer(StatusLayer::new())
            .layer(LazyStartLayer::new(self.runtime.clone(), endpoint))
            .layer(self.evictable.clone())
            .layer(self.ceiling.clone())
            .service(Connect::new())
    }
}

#[tokio::test]
async fn a_generated_client_makes_every_kind_of_call_over_it() {
    let server = Server::start().await;
    let host = Host::new(8);
    let mut app = App {
        greeter: GreeterClient::new(host.stack(server.endpoint())),
    };
    assert_eq!(get(&server.seen.opened), 0);

    // The first call connects; a call that is spawned is a call like any other.
    let mut client = app.greeter.clone();
    let hello = tokio::spawn(async move { client.hello(request("Ada")).await });
    assert_eq!(text(hello.await.unwrap().unwrap()), "hello Ada");

    server.seen.gate.add_permits(3);
    let mut spelled = app
        .greeter
        .spell(request("Ada"))
        .await
        .unwrap()
        .into_inner();
    let mut letters = Vec::new();
    while let Some(letter) = spelled.message().await.unwrap() {
        letters.push(letter.text);
    }
    assert_eq!(letters, ["A", "d", "a"]);

    let names = stream::iter(["Ada", "Bob"].map(request));
    let met = app.greeter.meet(names).await.unwrap();
    assert_eq!(text(met), "hello Ada, Bob");

    // In both directions at once: each answer is there before the next question.
    let (say, said) = mpsc::unbounded_channel();
    let said = stream::unfold(said, async |mut said| Some((said.recv().await?, said)));
    let mut chat = app.greeter.chat(said).await.unwrap().into_inner();
    for name in ["Ada", "Bob", "Cyd"] {
        say.send(request(name)).unwrap();
        let answer = chat.message().await.unwrap().unwrap();
        assert_eq!(answer.text, format!("hello {name}"));
    }
    drop(say);
    assert!(chat.message().await.unwrap().is_none());

    // An error of the server's is its own.
    let status = app.greeter.hello(request("")).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "whom shall I greet?")
    );
    assert_eq!((get(&server.seen.opened), get(&server.seen.calls)), (1, 5));
}

#[tokio::test]
async fn a_stream_is_use_until_its_trailers_and_no_longer() {
    let (server, other) = (Server::start().await, Server::start().await);
    let host = Host::new(1);
    let stack = host.stack(server.endpoint());
    let handle = stack.get_ref().handle();
    let mut greeter = GreeterClient::new(stack);
    let mut waiting = GreeterClient::new(host.stack(other.endpoint()));

    let mut spelled = greeter.spell(request("ab")).await.unwrap().into_inner();
    assert_eq!(spelled.message().await.unwrap().unwrap().text, "a");
    let waits = tokio::spawn(async move { waiting.hello(request("Bob")).await.map(text) });
    until("it waits", || host.ceiling.occupancy().waiting == 1).await;

    // The last message is there, the trailers are not.
    server.seen.gate.add_permits(1);
    assert_eq!(spelled.message().await.unwrap().unwrap().text, "b");
    assert_eq!(handle.status().in_flight, Some(1));
    assert_eq!(host.ceiling.occupancy().waiting, 1);
    assert_eq!((get(&server.seen.open), get(&other.seen.opened)), (1, 0));

    // With the trailers it is over, and so is the connection: another one has its room.
    server.seen.gate.add_permits(1);
    assert!(spelled.message().await.unwrap().is_none());
    assert_eq!(waits.await.unwrap().unwrap(), "hello Bob");
    until("its connection is closed", || get(&server.seen.open) == 0).await;
}

#[tokio::test]
async fn a_stream_that_is_dropped_is_use_no_more() {
    let server = Server::start().await;
    let mut host = Host::new(1);
    host.evictable = host.evictable.idle_after(Duration::from_millis(1));
    let stack = host.stack(server.endpoint());
    let handle = stack.get_ref().handle();
    let mut greeter = GreeterClient::new(stack);

    let mut spelled = greeter.spell(request("ab")).await.unwrap().into_inner();
    spelled.message().await.unwrap();
    assert_eq!(handle.status().in_flight, Some(1));
    drop(spelled);
    assert_eq!(handle.status().in_flight, Some(0));

    // Nobody uses it any more: it is due, it is closed, and the server sees that.
    std::future::poll_fn(|cx| host.idle_evict.poll_ready(cx))
        .await
        .unwrap();
    let swept = host.idle_evict.call(Sweep).await.unwrap();
    assert_eq!(swept.retired()[0].why(), Eviction::Idle);
    swept.gone().await;
    until("its connection is closed", || get(&server.seen.open) == 0).await;
    assert_eq!(
        text(greeter.hello(request("Ada")).await.unwrap()),
        "hello Ada"
    );
    assert_eq!(get(&server.seen.opened), 2);
}

#[tokio::test]
async fn a_client_behind_a_full_ceiling_is_told_unavailable_and_when_to_come_back() {
    let (server, other) = (Server::start().await, Server::start().await);
    let mut host = Host::new(1);
    host.ceiling = host.ceiling.wait(Duration::from_millis(20));
    let mut greeter = GreeterClient::new(host.stack(server.endpoint()));
    let mut refused = GreeterClient::new(host.stack(other.endpoint()));

    // It has lived: the time to come back is guessed from how long instances do.
    greeter.hello(request("Ada")).await.unwrap();
    refused.hello(request("Bob")).await.unwrap();
    let mut spelled = greeter.spell(request("ab")).await.unwrap().into_inner();

    let status = refused.hello(request("Bob")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status
            .message()
            .contains("no room: 1 of 1 in use by 1 running, 1 of them busy"),
        "{status:?}"
    );
    let retry = status.get_details_retry_info().expect("when");
    assert!(retry.retry_delay.is_some(), "{status:?}");
    assert_eq!(get(&other.seen.calls), 1);

    // The stream that was in the way is whole.
    server.seen.gate.add_permits(2);
    spelled.message().await.unwrap().unwrap();
    assert_eq!(spelled.message().await.unwrap().unwrap().text, "b");
    assert!(spelled.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_tried_again() {
    let server = Server::start().await;
    let (address, endpoint) = (server.address, server.endpoint());
    drop(server);
    until("the port is closed", || {
        std::net::TcpStream::connect(address).is_err()
    })
    .await;
    let host = Host::new(8);
    let stack = host.stack(endpoint);
    let handle = stack.get_ref().handle();
    let mut greeter = GreeterClient::new(stack);

    let status = greeter.hello(request("Ada")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains(&address.to_string()),
        "{status:?}"
    );
    assert_eq!(handle.status().state, State::BackingOff);
    let status = greeter.hello(request("Ada")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let retry = status.get_details_retry_info().expect("when");
    assert!(
        retry
            .retry_delay
            .is_some_and(|delay| delay < Duration::from_secs(1))
    );
}

#[tokio::test]
async fn endpoints_have_names() {
    let endpoint = Endpoint::from_static("http://greeter.example:50051");
    let group = Group::new();
    let layer = LazyStartLayer::new(Runtime::tokio(), endpoint.clone()).join(&group);
    let _by_host = tower::Layer::layer(&layer, Connect::new());
    let layer = LazyStartLayer::new(Runtime::tokio(), Named::new("greeter", endpoint)).join(&group);
    let _by_name = tower::Layer::layer(&layer, Connect::new());
    let names = group.status().into_iter().map(|status| status.name);
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["greeter.example:50051".into(), "greeter".into()]
    );
}

/// A body that says one message, and then nothing.
struct Half(bool);

impl http_body::Body for Half {
    type Data = bytes::Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, Infallible>>> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Pending;
        }
        // A reply that says "a", as gRPC frames it.
        let message = b"\0\0\0\0\x03\x0a\x01a";
        Poll::Ready(Some(Ok(Frame::data(bytes::Bytes::from_static(message)))))
    }
}

type Call = http::Request<tonic::body::Body>;
type Boxed = BoxCloneSyncService<Call, http::Response<tonic::body::Body>, Infallible>;

/// A backend in this process, on virtual time, that takes ten seconds to start.
fn slow_start(runtime: &Runtime, group: &Group) -> GreeterClient<Boxed> {
    let timer = runtime.clone();
    let maker = service_fn(move |_: &'static str| {
        let timer = timer.clone();
        async move {
            timer.sleep(Duration::from_secs(10)).await;
            Ok::<_, Infallible>(DropToStop::new(service_fn(|_: Call| async {
                Ok::<_, Infallible>(http::Response::new(Half(false)))
            })))
        }
    });
    let (evictable, _) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    let stack = ServiceBuilder::new()
        .map_response(|response: http::Response<_>| response.map(tonic::body::Body::new))
        .layer(StatusLayer::new().deadlines(runtime.clone()))
        .layer(
            LazyStartLayer::new(runtime.clone(), "slow")
                .join(group)
                .drain_timeout(Duration::from_secs(1)),
        )
        .layer(evictable)
        .service(maker);
    GreeterClient::new(Boxed::new(stack))
}

fn within(timeout: Duration) -> Request<crate::greeter::HelloRequest> {
    let mut request = Request::new(request("a"));
    request.set_timeout(timeout);
    request
}

#[test]
fn the_wait_for_a_start_counts_in_a_calls_own_deadline() {
    let (runtime, clock) = test_util::runtime(1);
    let group = Group::new();
    let mut greeter = slow_start(&runtime, &group);
    let called = greeter.hello(within(Duration::from_secs(1)));
    let status = clock.block_on(called).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(status.message(), "the call's deadline of 1s has passed");
    assert_eq!(clock.elapsed(), Duration::from_secs(1));

    // Its place was given back; the start goes on.
    let slow = &group.status()[0];
    assert_eq!((slow.state, slow.waiting), (State::Starting, 0));
}

#[test]
fn a_stream_ends_with_its_deadline() {
    let (runtime, clock) = test_util::runtime(1);
    let group = Group::new();
    let mut greeter = slow_start(&runtime, &group);
    let called = greeter.spell(within(Duration::from_secs(15)));
    let mut spelled = clock.block_on(called).unwrap().into_inner();
    assert_eq!(clock.elapsed(), Duration::from_secs(10));
    let first = clock.block_on(spelled.message()).unwrap().unwrap();
    assert_eq!(first.text, "a");
    assert_eq!(group.status()[0].in_flight, Some(1));

    let status = clock.block_on(spelled.message()).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(clock.elapsed(), Duration::from_secs(15));
    assert_eq!(group.status()[0].in_flight, Some(0));
}

#[test]
fn a_stream_that_is_cut_ends_with_trailers_that_say_why() {
    let (runtime, clock) = test_util::runtime(1);
    let group = Group::new();
    let mut greeter = slow_start(&runtime, &group);
    let called = greeter.spell(request("a"));
    let mut spelled = clock.block_on(called).unwrap().into_inner();
    clock.block_on(spelled.message()).unwrap().unwrap();

    let handle = group.handle("slow").unwrap();
    let stopping = handle.stop();
    let status = clock.block_on(spelled.message()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("its drain was over"),
        "{status:?}"
    );
    assert_eq!(clock.elapsed(), Duration::from_secs(11));
    clock.block_on(stopping).unwrap();
    assert!(clock.block_on(spelled.message()).unwrap().is_none());
}

#[test]
fn an_error_of_readiness_is_the_answer_to_the_call() {
    /// Fails before it is called.
    #[derive(Clone)]
    struct NotReady;
    impl Service<Call> for NotReady {
        type Response = http::Response<tonic::body::Body>;
        type Error = BoxError;
        type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Err(tower::load_shed::error::Overloaded::new().into()))
        }
        fn call(&mut self, _: Call) -> Self::Future {
            Box::pin(pending())
        }
    }
    let layer = StatusLayer::new().terse();
    let mut greeter = GreeterClient::new(tower::Layer::layer(&layer, NotReady));
    let (_, clock) = test_util::runtime(1);
    let status: Status = clock.block_on(greeter.hello(request("Ada"))).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), Code::ResourceExhausted.description());
}

#[tokio::test]
async fn an_interceptor_goes_over_a_stack_as_over_a_channel() {
    let server = Server::start().await;
    let host = Host::new(8);
    let mut greeter = GreeterClient::with_interceptor(
        host.stack(server.endpoint()),
        |request: Request<()>| -> Result<Request<()>, Status> { Ok(request) },
    );
    assert_eq!(
        text(greeter.hello(request("Ada")).await.unwrap()),
        "hello Ada"
    );
}

/// The server's own service, without a wire: what is started is whatever the maker makes.
#[tokio::test]
async fn a_service_in_this_process_is_a_backend_as_well() {
    let greeting = Greeting::default();
    let seen = greeting.0.clone();
    let maker = service_fn(move |_: &'static str| {
        let greeting = greeting.clone();
        async move { Ok::<_, Infallible>(DropToStop::new(greeting.server())) }
    });
    let stack = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(LazyStartLayer::new(Runtime::tokio(), "greeter"))
        .service(maker);
    let mut greeter = GreeterClient::new(stack);
    assert_eq!(
        text(greeter.hello(request("Ada")).await.unwrap()),
        "hello Ada"
    );
    assert_eq!(get(&seen.calls), 1);
}
