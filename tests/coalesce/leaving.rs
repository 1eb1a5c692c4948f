//! Callers leave.

use std::{convert::Infallible, future::pending as never, sync::Arc, time::Duration};

use tower::{Layer, Service, service_fn};
use tower_on_demand::{CoalesceLayer, ErrorKind, test_util};

use crate::inner::{Inner, assert_empty, call, done, kind, pending, stack};

#[test]
fn c01_f6_the_leader_leaves_and_its_joiners_are_served_by_the_same_inner_call() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut leader = call(&mut service, "a");
    let mut joiners: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    pending(&mut leader);
    joiners.iter_mut().for_each(pending);
    drop(leader);
    inner.answer(0);
    for joiner in &mut joiners {
        assert_eq!(done(joiner).unwrap().call, 0);
    }
    assert_eq!(inner.calls(), 1);
    assert_eq!(inner.live(), 0);
    assert_empty(&handle);
    let counts = handle.statistics();
    assert_eq!((counts.led, counts.joined, counts.left_early), (1, 3, 1));
}

#[test]
fn c02_ten_thousand_keys_dropped_after_one_poll_leave_nothing() {
    let inner = Inner::new();
    let names: Vec<&'static str> = (0..10_000)
        .map(|n| &*Box::leak(format!("key {n}").into_boxed_str()))
        .collect();
    let (mut service, handle) = stack(inner.clone());
    let mut calls: Vec<_> = names.iter().map(|name| call(&mut service, name)).collect();
    calls.iter_mut().for_each(pending);
    assert_eq!(handle.statistics().in_flight, 10_000);
    assert_eq!(inner.live(), 10_000);
    drop(calls);
    assert_empty(&handle);
    assert_eq!(inner.live(), 0);
    assert_eq!(handle.statistics().left_early, 10_000);
}

#[test]
fn c03_a_joiner_leaves_and_a_third_caller_joins_the_same_flight() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut leader = call(&mut service, "a");
    let mut joiner = call(&mut service, "a");
    pending(&mut leader);
    pending(&mut joiner);
    drop(joiner);
    let mut third = call(&mut service, "a");
    assert_eq!(handle.waiting("a"), 2);
    pending(&mut third);
    inner.answer(0);
    assert_eq!(done(&mut third).unwrap().call, 0);
    assert_eq!(done(&mut leader).unwrap().call, 0);
    assert_eq!(inner.calls(), 1);
    assert_empty(&handle);
}

#[test]
fn c04_f12_the_last_to_leave_drops_the_inner_future_within_that_same_drop() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    // Leader last, joiner last, alone, never polled.
    for leader_first in [true, false] {
        let mut leader = call(&mut service, "a");
        let mut joiner = call(&mut service, "a");
        pending(&mut leader);
        pending(&mut joiner);
        let (first, last) = if leader_first {
            (leader, joiner)
        } else {
            (joiner, leader)
        };
        drop(first);
        assert_eq!(inner.live(), 1);
        drop(last);
        assert_eq!(inner.live(), 0);
        assert_empty(&handle);
    }
    let mut alone = call(&mut service, "a");
    pending(&mut alone);
    assert_eq!(inner.live(), 1);
    drop(alone);
    assert_eq!(inner.live(), 0);
    drop(call(&mut service, "a"));
    assert_empty(&handle);
    // A newcomer leads anew.
    let mut next = call(&mut service, "a");
    pending(&mut next);
    assert_eq!(inner.live(), 1);
    inner.answer(inner.calls() - 1);
    done(&mut next).unwrap();
}

#[test]
fn c05_a_joiners_own_timeout_is_its_own() {
    let (runtime, clock) = test_util::runtime(1);
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut leader = call(&mut service, "a");
    pending(&mut leader);
    let joiner = call(&mut service, "a");
    let timer = runtime.clone();
    let impatient = clock.spawn(async move {
        let _ = futures_util::future::select(joiner, timer.sleep(Duration::from_millis(5))).await;
    });
    clock.advance(Duration::from_millis(4));
    assert_eq!(handle.statistics().waiting, 2);
    clock.advance(Duration::from_millis(1));
    assert_eq!(handle.statistics().waiting, 1);
    clock.block_on(impatient);
    clock.advance(Duration::from_secs(1));
    inner.answer(0);
    assert_eq!(done(&mut leader).unwrap().call, 0);
    assert_eq!(inner.calls(), 1);
}

#[test]
fn a_call_that_panicked_when_polled_leaves_nothing() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut leader = call(&mut service, "a");
    let mut joiner = call(&mut service, "a");
    pending(&mut leader);
    inner.panic(0);
    crate::inner::panics(|| leader.poll_once());
    assert_eq!(kind(done(&mut joiner)), ErrorKind::Panicked);
    drop(leader);
    assert_empty(&handle);
}

#[test]
fn one_who_leaves_a_flight_that_has_landed_leaves_the_next_one_alone() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut leader = call(&mut service, "a");
    let mut late = call(&mut service, "a");
    pending(&mut leader);
    pending(&mut late);
    inner.answer(0);
    assert_eq!(done(&mut leader).unwrap().call, 0);
    // It has the same key, and the entry that the first had in the table.
    let mut next = call(&mut service, "a");
    pending(&mut next);
    drop(late);
    assert_eq!(handle.waiting("a"), 1);
    inner.answer(1);
    assert_eq!(done(&mut next).unwrap().call, 1);
    assert_empty(&handle);
}

/// Handles and calls of other threads count the table apart, and it goes with the last of all.
#[test]
fn the_table_goes_with_the_last_handle_or_call_of_whatever_thread() {
    for layer_first in [true, false] {
        let held = Arc::new(());
        let of_identity = held.clone();
        let layer = CoalesceLayer::new(move |n: &u32| {
            let _ = &of_identity;
            Some(*n)
        });
        let first = layer.layer(service_fn(|_: u32| never::<Result<u32, Infallible>>()));
        let mut layer = Some(layer);
        if layer_first {
            drop(layer.take());
        }
        let elsewhere = || {
            std::thread::scope(|scope| {
                let clone = scope.spawn(|| first.clone());
                clone.join().expect("no panic")
            })
        };
        let mut handles: Vec<_> = (0..20).map(|_| elsewhere()).collect();
        drop(first);
        let mut call = Box::pin(handles[3].call(7));
        assert!(test_util::poll_once(&mut call).is_pending());
        // They share the calls in flight, whatever they are counted by, and so do their clones.
        let mut clone = handles[15].clone();
        let mut joiner = Box::pin(clone.call(7));
        assert!(test_util::poll_once(&mut joiner).is_pending());
        assert!(format!("{joiner:?}").contains("joined"), "{joiner:?}");
        drop((layer, clone, call));
        while let Some(handle) = handles.pop() {
            std::thread::spawn(move || drop(handle)).join().unwrap();
            assert!(Arc::strong_count(&held) > 1);
        }
        drop(joiner);
        assert_eq!(Arc::strong_count(&held), 1, "layer first: {layer_first}");
    }
}
