//! What is told costs a call nothing: it is told at transitions.
#![allow(missing_docs)]

use std::{
    alloc::System,
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};

use http::{Request, Response};
use metrics_util::debugging::DebuggingRecorder;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower::{Layer, Service, ServiceBuilder, service_fn};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, DropToStop, IdleEvict, LazyStartLayer, UntilResponse,
    http::OnDemandHeaderLayer, test_util,
};
use tracing_subscriber::layer::SubscriberExt;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Takes every event there is.
struct Sink;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Sink {}

#[derive(Clone)]
struct Echo;

impl Service<Request<()>> for Echo {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

fn call(stack: &mut impl Service<Request<()>, Error: std::fmt::Debug>) {
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(())) = stack.poll_ready(&mut cx) else {
        panic!("it is not ready");
    };
    let answered = pin!(stack.call(Request::new(()))).poll(&mut cx);
    assert!(matches!(answered, Poll::Ready(Ok(_))));
}

/// Allocations of a thousand calls: the least of a few times, for what else there is in the process.
fn allocations(mut stack: impl Service<Request<()>, Error: std::fmt::Debug>) -> usize {
    let thousand = |_| {
        let region = Region::new(ALLOCATOR);
        for _ in 0..1000 {
            call(&mut stack);
        }
        let change = region.change();
        change.allocations + change.reallocations
    };
    (0..5).map(thousand).min().expect("it was done")
}

#[test]
fn observability_allocates_nothing_for_a_warm_call() {
    // All that there is to be told is, to a recorder and a subscriber.
    let recorder = DebuggingRecorder::new();
    recorder.install().expect("the only one");
    let subscriber = tracing_subscriber::registry().with(Sink);
    let _told = tracing::subscriber::set_default(subscriber);

    let (runtime, clock) = test_util::runtime(1);
    let ceiling = CeilingLayer::new(runtime.clone(), 1);
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(sweeper.run());
    let lazy = ServiceBuilder::new()
        .layer(OnDemandHeaderLayer::new())
        .layer(LazyStartLayer::new(runtime, "echo"))
        .layer(evictable)
        .layer(ceiling)
        .service(service_fn(|_: &'static str| {
            ready(Ok::<_, Infallible>(DropToStop::new(Echo)))
        }));
    let handle = lazy.get_ref().handle();
    let region = Region::new(ALLOCATOR);
    clock.block_on(handle.start()).expect("started");
    assert_ne!(region.change().allocations, 0, "a start may allocate");
    assert_eq!(allocations(lazy.clone()), 0);

    // And in a space whose calls are counted, of which none waits for another.
    let by_nothing = CoalesceLayer::new(|_: &Request<()>| Some(()));
    let (layer, counts) = by_nothing.with_handle();
    assert_eq!(allocations(layer.layer(lazy)), 0);
    assert_eq!(counts.statistics().led, 5000);
}
