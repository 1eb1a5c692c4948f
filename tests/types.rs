//! What compiles: a call to any stack of two to four layers can be spawned, over makers and services
//! with a `BoxError` and with errors of their own; and what users expect to be `Clone`, `Send` and
//! `Sync` is.
//!
//! A future that a spawned task awaits is looked at with its lifetimes erased. So
//! `tokio::spawn(async move { stack.oneshot(request).await })` fails ("implementation of `From` is not
//! general enough") as soon as a type that mentions a `BoxError`, or anything else that is `'static`,
//! stands under a bound that only the `'static` one fulfils. Nothing but compiling them all keeps that
//! out.
//!
//! One limit is left, and it is tower's own as well: a *backend's* service whose type mentions
//! `BoxError`. See `a_backend_with_a_box_error_has_three_ways_out`.
#![cfg(feature = "full")]

use std::{fmt::Debug, io, pin::Pin, time::Duration};

use http_body_util::BodyExt;
use tower::{
    Layer, Service as _, ServiceExt, service_fn, timeout::TimeoutLayer, util::BoxCloneSyncService,
};
use tower_on_demand::{
    BoxError, CeilingLayer, Coalesce, CoalesceHandle, CoalesceLayer, DropToStop, Error, Evictable,
    Group, Handle, IdleEvict, IdleEvictLayer, KeepLayer, Keyed, KeyedLayer, LazyStart,
    LazyStartLayer, LeasedFuture, Named, Occupied, Runtime, UntilResponse,
    http::{OnDemandHeaderLayer, ProgressPageLayer, ShareBodyLayer, StatusLayer, UntilBodyEnd},
    lazy_start, test_util,
};

const SECOND: Duration = Duration::from_secs(1);

type Idle = IdleEvictLayer<UntilResponse>;

/// A maker of backends that add one.
macro_rules! maker {
    ($error:ty) => {
        service_fn(|_: &'static str| async {
            let service = service_fn(|n: u32| async move { Ok::<_, io::Error>(n + 1) });
            Ok::<_, $error>(DropToStop::new(service))
        })
    };
}

/// Spawns one call, the way users do, and sees it answered.
macro_rules! spawn {
    ($stack:expr) => {{
        let stack = $stack;
        let answer = tokio::spawn(async move { stack.oneshot(20).await });
        assert_eq!(answer.await.unwrap().unwrap(), 21);
    }};
}

/// The same under `Coalesce`, and under `Coalesce` under a timeout.
macro_rules! spawn_shared {
    ($service:expr) => {{
        let service = $service;
        spawn!(CoalesceLayer::new(|n: &u32| Some(*n)).layer(service.clone()));
        spawn!(
            TimeoutLayer::new(SECOND).layer(CoalesceLayer::new(|n: &u32| Some(*n)).layer(service))
        );
    }};
}

/// Spawns a call to every order of the layers over one maker.
macro_rules! spawn_every_stack_over {
    ($maker:expr) => {{
        let maker = $maker;
        let runtime = Runtime::tokio();
        let (idle, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let ceiling = CeilingLayer::new(runtime.clone(), 100);
        let lazy = LazyStartLayer::new(runtime.clone(), "x");
        let timeout = TimeoutLayer::new(SECOND);

        spawn!(lazy.layer(maker.clone()));
        spawn!(lazy.layer(timeout.layer(maker.clone())));
        spawn!(lazy.layer(idle.layer(maker.clone())));
        spawn!(lazy.layer(ceiling.layer(maker.clone())));
        spawn!(lazy.layer(idle.layer(ceiling.layer(maker.clone()))));
        spawn!(lazy.layer(ceiling.layer(idle.layer(maker.clone()))));
        spawn!(lazy.layer(idle.layer(timeout.layer(ceiling.layer(maker.clone())))));
        spawn!(lazy.layer(timeout.layer(idle.layer(ceiling.layer(timeout.layer(maker.clone()))))));
        spawn!(timeout.layer(lazy.layer(idle.layer(ceiling.layer(maker.clone())))));
        let keyed = KeyedLayer::new(
            runtime.clone(),
            |n: &u32| Some(*n),
            |_: &u32| Ok::<_, io::Error>("x"),
        );
        spawn!(keyed.layer(maker.clone()));
        spawn!(keyed.layer(idle.layer(timeout.layer(ceiling.layer(maker.clone())))));
        spawn_shared!(keyed.layer(idle.layer(ceiling.layer(maker.clone()))));
        spawn_shared!(lazy.layer(maker.clone()));
        spawn_shared!(lazy.layer(idle.layer(maker.clone())));
        spawn_shared!(lazy.layer(ceiling.layer(maker.clone())));
        spawn_shared!(lazy.layer(idle.layer(ceiling.layer(maker.clone()))));
        spawn_shared!(lazy.layer(timeout.layer(idle.layer(ceiling.layer(maker.clone())))));
        spawn_shared!(timeout.layer(lazy.layer(idle.layer(ceiling.layer(maker.clone())))));
    }};
}

#[tokio::test]
async fn over_a_maker_with_an_error_of_its_own() {
    spawn_every_stack_over!(maker!(io::Error));
}

#[tokio::test]
async fn over_a_maker_with_a_box_error() {
    spawn_every_stack_over!(maker!(BoxError));
}

#[tokio::test]
async fn over_a_maker_under_a_timeout() {
    spawn_every_stack_over!(TimeoutLayer::new(SECOND).layer(maker!(io::Error)));
}

#[tokio::test]
async fn over_a_maker_with_a_box_error_under_a_timeout() {
    spawn_every_stack_over!(TimeoutLayer::new(SECOND).layer(maker!(BoxError)));
}

#[tokio::test]
async fn over_a_maker_and_backends_that_captured_a_static_str() {
    let word: &'static str = "one";
    spawn_every_stack_over!(service_fn(move |_: &'static str| async move {
        let service =
            service_fn(move |n: u32| async move { Ok::<_, io::Error>(n + word.len() as u32 - 2) });
        Ok::<_, io::Error>(DropToStop::new(service))
    }));
}

#[tokio::test]
async fn coalesce_over_services_of_any_error() {
    let concrete = service_fn(|n: u32| async move { Ok::<_, io::Error>(n + 1) });
    let boxed = service_fn(|n: u32| async move { Ok::<_, BoxError>(n + 1) });
    spawn_shared!(concrete);
    spawn_shared!(boxed);
    spawn_shared!(TimeoutLayer::new(SECOND).layer(concrete));
    spawn_shared!(BoxCloneSyncService::new(boxed));
    let word: &'static str = "one";
    spawn_shared!(service_fn(move |n: u32| async move {
        Ok::<_, BoxError>(n + word.len() as u32 - 2)
    }));
    spawn!(
        CoalesceLayer::new(|n: &u32| Some(*n))
            .share_if(|n: &u32| *n > 0)
            .alone(|_: &BoxError| true)
            .linger(Runtime::tokio(), SECOND)
            .max_wait(Runtime::tokio(), SECOND)
            .layer(boxed)
    );
    spawn!(
        CoalesceLayer::new(|n: &u32| Some(*n))
            .spawn_on(Runtime::tokio())
            .layer(boxed)
    );
}

#[tokio::test]
async fn http_from_the_edge_to_the_body() {
    macro_rules! spawn_http {
        ($stack:expr) => {{
            let stack = $stack;
            let request = http::Request::get("http://localhost/").body(String::new());
            let answer = tokio::spawn(async move { stack.oneshot(request.unwrap()).await });
            let body = answer.await.unwrap().unwrap().into_body();
            let body = tokio::spawn(async move { body.collect().await });
            assert_eq!(body.await.unwrap().unwrap().to_bytes(), "hello");
        }};
    }
    let runtime = Runtime::tokio();
    let (idle, _sweeper) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    let ceiling = CeilingLayer::new(runtime.clone(), 100);
    let lazy = LazyStartLayer::new(runtime.clone(), "x");
    let share = ShareBodyLayer::new(runtime.clone(), 1024);
    let maker = service_fn(|_: &'static str| async {
        let service = service_fn(|_: http::Request<String>| async {
            Ok::<_, io::Error>(http::Response::new("hello".to_owned()))
        });
        Ok::<_, BoxError>(DropToStop::new(service))
    });
    let stack = || lazy.layer(idle.layer(ceiling.layer(maker)));
    spawn_http!(stack());
    spawn_http!(StatusLayer::new().layer(stack()));
    spawn_http!(OnDemandHeaderLayer::new().layer(stack()));
    let (named, handle) = LazyStartLayer::new(runtime.clone(), "y").pair();
    let page = ProgressPageLayer::new(runtime.clone(), handle);
    spawn_http!(page.layer(OnDemandHeaderLayer::new().layer(named.layer(maker))));
    spawn_http!(
        CoalesceLayer::http()
            .shared_bodies()
            .layer(share.layer(stack()))
    );
    spawn_http!(
        StatusLayer::new().layer(
            TimeoutLayer::new(SECOND).layer(
                CoalesceLayer::http()
                    .shared_bodies()
                    .layer(share.layer(stack()))
            )
        )
    );
}

/// As a pool would call them.
#[tokio::test]
async fn makers_by_themselves() {
    macro_rules! spawn_start {
        ($maker:expr) => {{
            let maker = $maker;
            let made = tokio::spawn(async move { maker.oneshot(String::new()).await.is_ok() });
            assert!(made.await.unwrap());
        }};
    }
    macro_rules! spawn_every_maker {
        ($maker:expr) => {{
            let maker = $maker;
            let runtime = Runtime::tokio();
            let (idle, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
            let ceiling = CeilingLayer::new(runtime.clone(), 100);
            spawn_start!(idle.layer(maker.clone()));
            spawn_start!(ceiling.layer(maker.clone()));
            spawn_start!(idle.layer(ceiling.layer(maker.clone())));
            spawn_start!(ceiling.layer(idle.layer(maker.clone())));
        }};
    }
    spawn_every_maker!(service_fn(|_: String| async {
        Ok::<_, io::Error>(DropToStop::new(7))
    }));
    spawn_every_maker!(service_fn(|_: String| async {
        Ok::<_, BoxError>(DropToStop::new(7))
    }));
    spawn_every_maker!(
        TimeoutLayer::new(SECOND).layer(service_fn(|_: String| async {
            Ok::<_, io::Error>(DropToStop::new(7))
        }))
    );
}

/// `tokio::spawn(async move { timeout.oneshot(20).await })` fails for tower's own `Timeout` over such a
/// service; a stack over it inherits that.
#[tokio::test]
async fn a_backend_with_a_box_error_has_three_ways_out() {
    let backend = || service_fn(|n: u32| async move { Ok::<_, BoxError>(n + 1) });
    let maker =
        service_fn(
            move |_: &'static str| async move { Ok::<_, io::Error>(DropToStop::new(backend())) },
        );
    let stack = LazyStartLayer::new(Runtime::tokio(), "x").layer(maker);

    // Spawn the call itself, which is `Send` and `'static` all the same.
    let answer = tokio::spawn(stack.clone().oneshot(20));
    assert_eq!(answer.await.unwrap().unwrap(), 21);

    // Box the stack.
    let boxed: BoxCloneSyncService<u32, u32, Error> = BoxCloneSyncService::new(stack.clone());
    spawn!(boxed);

    // Box the call.
    let mut stack = stack;
    let call: Pin<Box<dyn Future<Output = Result<u32, Error>> + Send>> =
        Box::pin(stack.ready().await.unwrap().call(20));
    let answer = tokio::spawn(async move { call.await.map(|n| n + 1) });
    assert_eq!(answer.await.unwrap().unwrap(), 22);
}

#[tokio::test]
async fn boxed_makers_and_boxed_backends() {
    type Boxed = BoxCloneSyncService<u32, u32, io::Error>;
    let maker = service_fn(|_: &'static str| async {
        let service = service_fn(|n: u32| async move { Ok::<_, io::Error>(n + 1) });
        Ok::<_, BoxError>(DropToStop::new(Boxed::new(service)))
    });
    spawn_every_stack_over!(maker);
    let boxed: BoxCloneSyncService<&'static str, DropToStop<Boxed>, BoxError> =
        BoxCloneSyncService::new(maker);
    spawn_every_stack_over!(boxed);
}

/// Checked when this compiles.
#[test]
fn what_goes_where_users_take_it() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    fn owned<T: Send + Sync + 'static>() {}
    fn shown<T: Debug>() {}

    // Not `Sync`, as many futures and some requests are.
    type Request = std::cell::Cell<u32>;
    type Service = BoxCloneSyncService<Request, u32, BoxError>;
    type Backend = DropToStop<Service>;
    type Lease = tower_on_demand::Leased<Service>;
    type Cheap = BoxCloneSyncService<u32, u32, BoxError>;
    type Key = fn(&u32) -> Option<u32>;

    shared::<Runtime>();
    shared::<Group>();
    shared::<Error>();
    shared::<Named<String>>();
    shared::<Idle>();
    shared::<CeilingLayer>();
    shared::<LazyStartLayer<String>>();
    shared::<LazyStart<String, Lease>>();
    shared::<Handle<String>>();
    shared::<KeepLayer>();
    shared::<KeyedLayer<u32, String, Key>>();
    shared::<Keyed<u32, Lease, Key>>();
    shared::<CoalesceLayer<Key, u32, Cheap>>();
    shared::<Coalesce<Cheap, Key, u32>>();
    shared::<CoalesceHandle<u32>>();
    sent::<tower_on_demand::coalesce::ResponseFuture<Cheap, Key, u32>>();
    owned::<IdleEvict>();
    owned::<Backend>();
    owned::<Occupied<Backend>>();
    owned::<Evictable<Occupied<Backend>, UntilResponse>>();
    sent::<Lease>();
    sent::<LeasedFuture<<Service as tower::Service<Request>>::Future, UntilResponse>>();
    sent::<lazy_start::ResponseFuture<Lease, Request>>();
    sent::<lazy_start::Lending<Lease>>();
    sent::<lazy_start::Order>();
    shared::<test_util::Clock>();

    shown::<Runtime>();
    shown::<Group>();
    shown::<LazyStart<String, Lease>>();
    shown::<CeilingLayer>();
    shown::<Idle>();
    shown::<IdleEvict>();
}
