//! What a backend holds while it is stopped, and while it runs.
#![allow(missing_docs)]

use std::{
    alloc::System,
    convert::Infallible,
    future::ready,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    CeilingLayer, DropToStop, Group, IdleEvict, LazyStartLayer, Runtime, UntilResponse,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const BACKENDS: usize = 1000;

/// Bytes allocated and not given back since `region` began, for each backend.
fn held(region: &Region<'_, System>) -> usize {
    let change = region.change();
    (change.bytes_allocated - change.bytes_deallocated) / BACKENDS
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_stopped_backend_holds_half_a_kilobyte_and_a_running_one_less_than_two_more() {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _entered = tokio.enter();
    let runtime = Runtime::tokio();
    let group = Group::new();
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), BACKENDS as u64);
    // The service itself is nothing at all.
    let service = service_fn(|n: u64| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        ready(Ok::<_, Infallible>(n))
    });
    let stack = |n: usize| {
        let maker =
            service_fn(move |_: String| ready(Ok::<_, Infallible>(DropToStop::new(service))));
        ServiceBuilder::new()
            .layer(LazyStartLayer::new(runtime.clone(), format!("backend-{n:04}")).join(&group))
            .layer(evictable.clone().idle_after(Duration::from_secs(900)))
            .layer(ceiling.clone())
            .service(maker)
    };
    let mut stacks = Vec::with_capacity(BACKENDS);
    let region = Region::new(ALLOCATOR);
    stacks.extend((0..BACKENDS).map(stack));
    let stopped = held(&region) + size_of_val(&stacks[0]);

    for stack in &stacks {
        assert_eq!(tokio.block_on(stack.clone().oneshot(7)).unwrap(), 7);
    }
    let running = held(&region) + size_of_val(&stacks[0]) - stopped;
    assert_eq!(CALLS.load(Ordering::Relaxed), BACKENDS);
    assert_eq!(ceiling.occupancy().used, BACKENDS as u64);

    tokio.block_on(group.stopped(Duration::from_secs(1)));
    let again = held(&region) + size_of_val(&stacks[0]);

    println!("bytes: {stopped} stopped, {running} more running, {again} stopped again");
    // What holds them, and what they should be: docs/performance/processes.md.
    assert!(stopped <= 512, "{stopped} bytes for one that never ran");
    assert!(running <= 1750, "{running} more bytes for one that runs");
    assert!(again <= 700, "{again} bytes for one that ran");
}
