//! What is shared: successes, failures, and for how long.

use std::time::Duration;

use tower::{Layer, Service};
use tower_on_demand::{
    ErrorKind,
    test_util::{self},
};

use crate::inner::{
    Ask, Inner, assert_empty, broken, call, done, kind, layer, panics, pending, stack,
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn c23_f6_a_failing_inner_call_is_one_call_and_the_same_error_for_all() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut leader = call(&mut service, "a");
    let mut joiners: Vec<_> = (0..12).map(|_| call(&mut service, "a")).collect();
    pending(&mut leader);
    joiners.iter_mut().for_each(pending);
    inner.fail(0, "no such thing");
    let first = done(&mut leader).unwrap_err();
    let same = std::ptr::from_ref(broken(&first));
    for joiner in &mut joiners {
        let error = done(joiner).unwrap_err();
        assert_eq!(broken(&error).0, "no such thing");
        assert!(std::ptr::eq(broken(&error), same));
    }
    assert_eq!((inner.calls(), inner.clones()), (1, 0));
    assert_empty(&handle);
}

#[test]
fn c16_f1_concurrent_calls_share_without_linger_and_later_ones_do_not() {
    let inner = Inner::prompt();
    let (mut service, _handle) = stack(inner.clone());
    let mut one = call(&mut service, "a");
    let mut two = call(&mut service, "a");
    assert_eq!(done(&mut one).unwrap().call, 0);
    // It has landed: the next one leads, though one of the callers has not collected yet.
    let mut three = call(&mut service, "a");
    assert_eq!(done(&mut three).unwrap().call, 1);
    assert_eq!(done(&mut two).unwrap().call, 0);
}

#[test]
fn c15_f7_failures_and_panics_are_never_lingered() {
    let (runtime, _clock) = test_util::runtime(1);
    let inner = Inner::new();
    let (layer, handle) = layer().linger(runtime, SECOND).with_handle();
    let mut service = layer.layer(inner.clone());
    // Failed.
    let mut one = call(&mut service, "a");
    pending(&mut one);
    inner.fail(0, "down");
    assert_eq!(kind(done(&mut one)), ErrorKind::Service);
    // Panicked.
    let mut two = call(&mut service, "a");
    pending(&mut two);
    assert_eq!(inner.calls(), 2);
    inner.panic(1);
    panics(|| two.poll_once());
    // Cancelled.
    let mut three = call(&mut service, "a");
    pending(&mut three);
    assert_eq!(inner.calls(), 3);
    drop(three);
    let mut four = call(&mut service, "a");
    pending(&mut four);
    assert_eq!(inner.calls(), 4);
    inner.answer(3);
    done(&mut four).unwrap();
    assert_eq!(handle.statistics().lingering, 1);
    assert_eq!(done(&mut call(&mut service, "a")).unwrap().call, 3);
    assert_eq!(inner.calls(), 4);
}

#[test]
fn what_has_no_identity_passes_by() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "-")).collect();
    calls.iter_mut().for_each(pending);
    assert_eq!((inner.calls(), inner.peak()), (3, 3));
    inner.answer(1);
    assert_eq!(done(&mut calls[1]).unwrap().call, 1);
    inner.fail(2, "down");
    assert_eq!(broken(&done(&mut calls[2]).unwrap_err()).0, "down");
    assert_eq!(handle.statistics().passed_by, 3);
    assert_eq!(handle.statistics().led, 0);
    drop(service.call(Ask("-")));
}

#[test]
fn an_error_at_once_is_the_answer_to_all_who_asked_before() {
    let inner = Inner::new();
    inner.fail_at_once("down");
    let (mut service, handle) = stack(inner.clone());
    let mut one = call(&mut service, "a");
    let mut two = call(&mut service, "a");
    assert_eq!(broken(&done(&mut two).unwrap_err()).0, "down");
    let mut three = call(&mut service, "a");
    assert_eq!(broken(&done(&mut one).unwrap_err()).0, "down");
    assert_eq!(inner.calls(), 1);
    assert_eq!(broken(&done(&mut three).unwrap_err()).0, "down");
    assert_eq!(inner.calls(), 2);
    assert_empty(&handle);
}
