//! What a decision costs when a great many instances run.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    time::{Duration, Instant},
};

use tower::{Layer, Service, service_fn};
use tower_on_demand::{
    Backend, CeilingLayer, DropToStop, IdleEvict, Sweep, UntilResponse,
    test_util::{self, poll_once},
};

type Echo = fn(()) -> Ready<Result<(), Infallible>>;

fn echo(_: ()) -> Ready<Result<(), Infallible>> {
    ready(Ok(()))
}

fn made(_: ()) -> Ready<Result<DropToStop<tower::util::ServiceFn<Echo>>, Infallible>> {
    ready(Ok(DropToStop::new(service_fn(echo as Echo))))
}

#[allow(clippy::disallowed_methods, reason = "this measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn polled<F: Future + Unpin>(mut future: F) -> F::Output {
    match poll_once(&mut future) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it is pending"),
    }
}

/// How long one eviction for room takes with `count` idle instances, and one sweep of one instance.
fn costs(count: usize) -> (Duration, Duration) {
    const ROUNDS: u32 = 300;
    let (runtime, clock) = test_util::runtime(1);
    let (evictable, mut idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), count as u64);
    let bound = Duration::from_secs(1_000_000);
    let mut maker = evictable
        .idle_after(bound)
        .layer(ceiling.layer(service_fn(made)));
    let mut instances = std::collections::VecDeque::new();
    for _ in 0..count {
        let instance = polled(maker.call(())).expect("there is room");
        drop(instance.lease());
        instances.push_back(instance);
        clock.advance(Duration::from_millis(1));
    }

    let begin = now();
    for _ in 0..ROUNDS {
        let mut start = Box::pin(maker.call(()));
        assert!(poll_once(&mut start).is_pending());
        // The coldest is closed; its owner lets go of it.
        drop(instances.pop_front());
        let instance = polled(start).expect("its room");
        drop(instance.lease());
        instances.push_back(instance);
    }
    let eviction = now().duration_since(begin) / ROUNDS;
    assert_eq!(ceiling.occupancy().used, count as u64);

    clock.advance(bound);
    let begin = now();
    let first = polled(idle_evict.call(Sweep)).expect("it sweeps");
    let all = now().duration_since(begin);
    let swept = first.retired().len() as u32;
    assert!(swept as usize >= count - ROUNDS as usize);
    (eviction, all / swept)
}

#[test]
fn the_choice_of_a_victim_and_the_next_due_grow_less_than_the_number_of_instances() {
    // The machine may be busy: the best of three.
    let best = |count| {
        let costs = [costs(count), costs(count), costs(count)];
        let (evictions, sweeps): (Vec<_>, Vec<_>) = costs.into_iter().unzip();
        (
            evictions.into_iter().min().expect("three"),
            sweeps.into_iter().min().expect("three"),
        )
    };
    let few = best(1_000);
    let many = best(32_000);
    // 32 times as many: a scan would cost 32 times as much, and a tree costs half as much again.
    assert!(many.0 < few.0 * 10, "eviction: {few:?} to {many:?}");
    assert!(many.1 < few.1 * 10, "sweep: {few:?} to {many:?}");
    println!("eviction and sweep per instance: {few:?} of 1,000, {many:?} of 32,000");
}
