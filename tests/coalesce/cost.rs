//! What it costs, where that is a promise.
#![allow(clippy::disallowed_methods)] // it is the machine's time that is measured here

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use tower::Service;
use tower_on_demand::test_util::poll_once;

use crate::inner::{Ask, Inner, call, done, stack};

/// The least of many measurements: noise only adds.
fn least(mut measure: impl FnMut() -> Duration) -> f64 {
    (0..15).map(|_| measure()).min().unwrap().as_secs_f64()
}

/// Telling `joiners` callers, from the inner wake to the last outcome.
fn publish(joiners: usize) -> Duration {
    let inner = Inner::new();
    let (mut service, _handle) = stack(inner.clone());
    let mut calls: Vec<_> = (0..joiners)
        .map(|_| Box::pin(service.call(Ask("a"))))
        .collect();
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    let start = Instant::now();
    inner.answer(0);
    for call in &mut calls {
        assert!(poll_once(call).is_ready());
    }
    start.elapsed()
}

/// Dropping a hundred of `joiners`.
fn leave(joiners: usize) -> Duration {
    let inner = Inner::new();
    let (mut service, _handle) = stack(inner.clone());
    let mut calls: Vec<_> = (0..joiners)
        .map(|_| Box::pin(service.call(Ask("a"))))
        .collect();
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    let some: Vec<_> = (0..100)
        .map(|n| calls.swap_remove(n * (calls.len() / 100 - 1)))
        .collect();
    let start = Instant::now();
    drop(black_box(some));
    start.elapsed()
}

#[test]
fn c13_telling_ten_times_as_many_costs_at_most_twelve_times_as_much() {
    // Other tests run beside this one: the best of a few tries counts.
    let ratios: Vec<f64> = (0..8)
        .map(|_| least(|| publish(10_000)) / least(|| publish(1_000)))
        .collect();
    assert!(ratios.iter().any(|ratio| *ratio <= 12.0), "{ratios:?}");
}

#[test]
fn c13_one_that_leaves_costs_the_same_among_few_and_many() {
    let ratios: Vec<f64> = (0..8)
        .map(|_| least(|| leave(10_000)) / least(|| leave(1_000)))
        .collect();
    assert!(ratios.iter().any(|ratio| *ratio <= 3.0), "{ratios:?}");
}

#[test]
fn the_future_of_a_caller_is_small() {
    // Beside what the inner future or the service and the request need.
    let (mut service, _handle) = stack(Inner::new());
    let future = service.call(Ask("a"));
    let inner = size_of::<crate::inner::InnerFuture>().max(size_of::<(Inner, Ask)>());
    let size = size_of_val(&future);
    assert!(size <= inner + 64, "{size} for {inner}");
    drop(future);
    done(&mut call(&mut stack(Inner::prompt()).0, "a")).unwrap();
}
