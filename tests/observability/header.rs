//! `X-On-Demand`: what a start took, in the answers of those who waited for it.

use http::{Request, Response};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService,
};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, DropToStop, IdleEvict, KeyedLayer, LazyStartLayer, Runtime,
    UntilResponse,
    http::OnDemandHeaderLayer,
    test_util::{self, Clock, Task},
};

use crate::support::{ms, secs};

type Backend = BoxCloneSyncService<Request<()>, Response<()>, &'static str>;
type Maker = BoxCloneSyncService<&'static str, DropToStop<Backend>, &'static str>;

/// Takes 200 ms to start, and 1 s to answer.
fn maker(runtime: &Runtime) -> Maker {
    let runtime = runtime.clone();
    BoxCloneSyncService::new(service_fn(move |_: &'static str| {
        let runtime = runtime.clone();
        async move {
            runtime.sleep(ms(200)).await;
            let backend = service_fn(move |_: Request<()>| {
                let answering = runtime.sleep(secs(1));
                async move {
                    answering.await;
                    Ok(Response::new(()))
                }
            });
            Ok(DropToStop::new(Backend::new(backend)))
        }
    }))
}

/// What a call is told, once it is answered.
fn told<S, E>(clock: &Clock, stack: &S) -> Task<Option<String>>
where
    S: Service<Request<()>, Response = Response<()>, Error = E> + Clone + Send + 'static,
    S::Future: Send,
    E: Into<BoxError> + Send,
{
    let call = stack.clone().oneshot(Request::new(()));
    let task = clock.spawn(async move {
        let response = call.await.map_err(Into::into).expect("an answer");
        let value = response.headers().get("x-on-demand");
        value.map(|value| value.to_str().expect("text").to_owned())
    });
    clock.run();
    task
}

#[test]
fn a_cold_call_and_who_joined_it_are_told_what_the_start_took_and_a_warm_one_nothing() {
    let (runtime, clock) = test_util::runtime(1);
    let ceiling = CeilingLayer::new(runtime.clone(), 1).wait(secs(60));
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(sweeper.run());
    let stack = |name: &'static str| {
        ServiceBuilder::new()
            .layer(OnDemandHeaderLayer::new())
            .layer(LazyStartLayer::new(runtime.clone(), name))
            .layer(evictable.clone())
            .layer(ceiling.clone())
            .service(maker(&runtime))
    };
    let (a, b) = (stack("a"), stack("b"));

    let first = told(&clock, &a);
    clock.advance(ms(150));
    let joined = told(&clock, &a);
    clock.advance(ms(500));
    let warm = told(&clock, &a);
    // Its start waits for `a` to fall idle: the last call there ends 1 s after it was made.
    let waits = told(&clock, &b);

    let start = Some("cold; start=0.200, wait=0.000".to_owned());
    assert_eq!(clock.block_on(first), start);
    assert_eq!(clock.block_on(joined), start);
    assert_eq!(clock.block_on(warm), None);
    let waited = Some("cold; start=1.200, wait=1.000".to_owned());
    assert_eq!(clock.block_on(waits), waited);
    assert_eq!(clock.block_on(told(&clock, &b)), None);
}

#[test]
fn a_call_that_was_to_go_to_an_instance_that_is_stopped_first_is_cold_after_all() {
    let (runtime, clock) = test_util::runtime(1);
    let (lazy, handle) = LazyStartLayer::new(runtime.clone(), "a").pair();
    let a = OnDemandHeaderLayer::new().layer(lazy.layer(maker(&runtime)));
    clock.block_on(handle.start()).expect("started");
    clock.advance(secs(1));
    let warm = told(&clock, &a);
    let stopping = handle.stop();
    let cold = told(&clock, &a);
    assert_eq!(clock.block_on(warm), None);
    let start = Some("cold; start=0.200, wait=0.000".to_owned());
    assert_eq!(clock.block_on(cold), start);
    clock.block_on(stopping).expect("stopped");
}

#[test]
fn callers_of_one_flight_have_one_header_and_backends_by_key_have_theirs() {
    let (runtime, clock) = test_util::runtime(1);
    let lazy = LazyStartLayer::new(runtime.clone(), "a").layer(maker(&runtime));
    let shared = ServiceBuilder::new()
        .layer(CoalesceLayer::new(|_: &Request<()>| Some(())))
        .layer(OnDemandHeaderLayer::new())
        .service(lazy);
    let start = Some("cold; start=0.200, wait=0.000".to_owned());
    let callers = [told(&clock, &shared), told(&clock, &shared)];
    for caller in callers {
        assert_eq!(clock.block_on(caller), start);
    }

    let by_key = KeyedLayer::new(
        runtime.clone(),
        |_: &Request<()>| Some("tenant"),
        |_: &&'static str| Ok::<_, BoxError>("tenant"),
    );
    let keyed = ServiceBuilder::new()
        .layer(OnDemandHeaderLayer::new())
        .layer(by_key)
        .service(maker(&runtime));
    assert_eq!(clock.block_on(told(&clock, &keyed)), start);
    assert_eq!(clock.block_on(told(&clock, &keyed)), None);
}
