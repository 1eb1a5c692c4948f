//! What it can be built of: errors, keys, services of any kind, and other people's stacks.

use std::{
    cell::RefCell,
    convert::Infallible,
    error::Error as _,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use http_body_util::{BodyExt, Empty, Full};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{CoalesceLayer, ErrorKind, test_util};

use crate::inner::{Ask, Inner, call, done, pending};

fn assert_shared<T: Clone + Send + Sync + 'static>(_: &T) {}

fn assert_send<T: Send + 'static>(_: &T) {}

/// An axum server without state, on a port of its own, that layers per connection, as axum does.
async fn serve(router: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    addr
}

#[tokio::test]
async fn c26_a_stateless_axum_router_makes_one_handler_call_for_ten_connections() {
    let calls = Arc::new(AtomicUsize::new(0));
    let arrived = Arc::new(tokio::sync::Semaphore::new(0));
    let (counted, entered) = (calls.clone(), arrived.clone());
    let (layer, handle) = CoalesceLayer::new(|request: &axum::extract::Request| {
        (request.method() == http::Method::GET).then(|| request.uri().path().to_owned())
    })
    .with_handle();
    let gate = Arc::new(tokio::sync::Notify::new());
    let open = gate.clone();
    let slow = axum::routing::get(move || {
        let (calls, entered, gate) = (counted.clone(), entered.clone(), gate.clone());
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            entered.add_permits(1);
            gate.notified().await;
            "slow"
        }
    });
    // Applied by `Router::layer`, which axum calls for each connection.
    let stack = ServiceBuilder::new()
        .layer(axum::error_handling::HandleErrorLayer::new(
            |_: tower_on_demand::Error| async { http::StatusCode::BAD_GATEWAY },
        ))
        .layer(layer)
        .and_then(|response: axum::response::Response| async {
            let (parts, body) = response.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            Ok::<_, Infallible>(http::Response::from_parts(parts, Full::new(body)))
        });
    let addr = serve(axum::Router::new().route("/same", slow).layer(stack)).await;
    let clients: Vec<_> = (0..10)
        .map(|_| {
            tokio::spawn(async move {
                // A client of its own: a connection of its own.
                let client = hyper_util::client::legacy::Client::builder(
                    hyper_util::rt::TokioExecutor::new(),
                )
                .build_http::<Empty<bytes::Bytes>>();
                let uri = format!("http://{addr}/same").parse().unwrap();
                client.get(uri).await.unwrap().status()
            })
        })
        .collect();
    let _entered = arrived.acquire().await.unwrap();
    while handle.waiting("/same") < 10 {
        tokio::task::yield_now().await;
    }
    open.notify_one();
    for status in join_all(clients).await {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn services_made_by_clones_of_one_layer_share() {
    let inner = Inner::new();
    let layer = crate::inner::layer();
    let mut one = layer.layer(inner.clone());
    let mut two = layer.clone().layer(inner.clone());
    let mut a = call(&mut one, "a");
    let mut b = call(&mut two, "a");
    pending(&mut a);
    pending(&mut b);
    inner.answer(0);
    assert_eq!(done(&mut a).unwrap().call, 0);
    assert_eq!(done(&mut b).unwrap().call, 0);
    assert_eq!(inner.calls(), 1);
}

#[tokio::test]
async fn c22_boxed_errors_compile_and_the_source_chain_reaches_every_caller() {
    #[derive(Debug)]
    struct Deep;
    impl std::fmt::Display for Deep {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("deep")
        }
    }
    impl std::error::Error for Deep {}

    let service = ServiceBuilder::new()
        .layer(CoalesceLayer::new(|request: &String| Some(request.clone())))
        .service(service_fn(|_: String| async {
            tokio::task::yield_now().await;
            Err::<String, BoxError>(Box::new(std::io::Error::other(Deep)))
        }));
    assert_shared(&service);
    // What is spawned is checked for every lifetime that a boxed error could have.
    let calls = (0..12).map(|_| {
        let service = service.clone();
        tokio::spawn(async move { service.oneshot("a".to_owned()).await })
    });
    for result in join_all(calls).await {
        let error = result.unwrap().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Service);
        let io = error.source().unwrap();
        assert!(io.is::<std::io::Error>());
        let inner = io
            .downcast_ref::<std::io::Error>()
            .unwrap()
            .get_ref()
            .unwrap();
        assert!(inner.is::<Deep>());
    }
}

#[test]
fn every_option_can_be_spawned_over_boxed_errors() {
    let (runtime, clock) = test_util::runtime(3);
    let inner = service_fn(|request: String| async { Ok::<String, BoxError>(request) });
    let base = || CoalesceLayer::new(|request: &String| Some(request.clone()));
    macro_rules! spawn {
        ($layer:expr) => {{
            let (layer, _handle) = $layer.with_handle();
            assert_shared(&layer);
            let service = layer.layer(inner.clone());
            assert_shared(&service);
            let task = clock.spawn(async move { service.oneshot("a".to_owned()).await });
            assert_eq!(clock.block_on(task).unwrap(), "a");
        }};
    }
    spawn!(base());
    spawn!(base().share_if(|response: &String| !response.is_empty()));
    spawn!(base().alone(|_: &BoxError| true));
    spawn!(base().linger(runtime.clone(), Duration::from_secs(1)));
    spawn!(base().max_wait(runtime.clone(), Duration::from_secs(1)));
    spawn!(base().spawn_on(runtime.clone()));
    spawn!(
        base()
            .share_if(|_: &String| true)
            .alone(|_: &BoxError| true)
            .max_wait(runtime.clone(), Duration::from_secs(1))
            .linger(runtime.clone(), Duration::from_secs(1))
            .max_joiners(7)
            .max_flights(7)
            .spawn_on(runtime.clone())
    );
}

#[tokio::test]
async fn layers_that_box_their_errors_can_be_above_and_below() {
    let service = ServiceBuilder::new()
        .load_shed()
        .timeout(Duration::from_secs(5))
        .layer(CoalesceLayer::new(|request: &String| Some(request.clone())))
        .load_shed()
        .concurrency_limit(1)
        .timeout(Duration::from_secs(5))
        .service(service_fn(|request: String| async {
            Ok::<_, std::io::Error>(request)
        }));
    let task = tokio::spawn(async move { service.oneshot("a".to_owned()).await });
    assert_eq!(task.await.unwrap().unwrap(), "a");
}

#[test]
fn nothing_need_be_send_or_static_or_sync() {
    fn itself<'a>(word: &&'a str) -> Option<&'a str> {
        Some(*word)
    }
    let text = String::from("borrowed from the stack");
    let word = String::from("stack");
    let seen = Rc::new(RefCell::new(Vec::new()));
    let inner = {
        let (text, seen) = (&text, seen.clone());
        service_fn(move |word: &str| {
            seen.borrow_mut().push(word.len());
            let found = Rc::new(text.find(word));
            async move { Ok::<_, std::io::Error>(found) }
        })
    };
    // The key is borrowed from what the request is borrowed from.
    let service = ServiceBuilder::new()
        .layer(CoalesceLayer::new(itself))
        .service(inner);
    let (mut one, mut two) = (service.clone(), service);
    let (one, two) = futures_util::future::FutureExt::now_or_never(futures_util::future::join(
        one.call(word.as_str()),
        two.call(word.as_str()),
    ))
    .unwrap();
    assert!(Rc::ptr_eq(&one.unwrap(), &two.unwrap()));
    assert_eq!(*seen.borrow(), [5]);
}

#[test]
fn a_service_and_a_response_that_are_not_sync_go_to_other_threads() {
    /// Not `Sync`.
    #[derive(Clone)]
    struct Cell(std::cell::Cell<u8>);
    #[derive(Clone)]
    struct Unsync(std::cell::Cell<u8>);
    impl Service<Ask> for Unsync {
        type Response = Cell;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Cell, Infallible>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Ask) -> Self::Future {
            std::future::ready(Ok(Cell(self.0.clone())))
        }
    }
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0));
    let mut service = layer.layer(Unsync(7.into()));
    assert_send(&service);
    assert_shared(&layer);
    let (one, two) = (service.call(Ask("a")), service.call(Ask("a")));
    assert_send(&one);
    let other = std::thread::spawn(move || futures_util::FutureExt::now_or_never(two));
    let one = futures_util::FutureExt::now_or_never(one).unwrap().unwrap();
    let two = other.join().unwrap().unwrap().unwrap();
    assert_eq!((one.0.get(), two.0.get()), (7, 7));
}

#[tokio::test]
async fn c21_f3_joiners_take_no_permit_of_what_is_below() {
    let inner = Inner::new();
    let (layer, handle) = crate::inner::layer().with_handle();
    let mut service = layer.layer(
        ServiceBuilder::new()
            .concurrency_limit(1)
            .service(inner.clone()),
    );
    let mut same: Vec<_> = (0..10).map(|_| call(&mut service, "a")).collect();
    same.iter_mut().for_each(pending);
    assert_eq!((inner.calls(), inner.readied()), (1, 1));
    // Ready for another key all the while, though the permit is taken.
    futures_util::future::poll_fn(|cx| service.poll_ready(cx))
        .await
        .unwrap();
    let mut other = call(&mut service, "b");
    pending(&mut other);
    assert_eq!(inner.calls(), 1);
    inner.answer(0);
    for same in &mut same {
        assert_eq!(done(same).unwrap().call, 0);
    }
    pending(&mut other);
    assert_eq!(inner.names(), ["a", "b"]);
    inner.answer(1);
    assert_eq!(done(&mut other).unwrap().call, 1);
    assert_eq!(handle.statistics().in_flight, 0);
}
