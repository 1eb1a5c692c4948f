//! Somebody panics.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tower::{Layer, Service, service_fn};
use tower_on_demand::{CoalesceLayer, ErrorKind};

use crate::inner::{Ask, Broken, Inner, assert_empty, call, done, kind, panics, pending, stack};

#[test]
fn c08_whoever_polled_a_panicking_future_unwinds_and_the_others_are_told() {
    // The leader or a joiner is the one that polls.
    for poller in 0..2 {
        let inner = Inner::new();
        let (mut service, handle) = stack(inner.clone());
        let mut calls: Vec<_> = (0..4).map(|_| call(&mut service, "a")).collect();
        calls.iter_mut().for_each(pending);
        inner.panic(0);
        assert_eq!(
            panics(|| calls[poller].poll_once()),
            "the inner future panics"
        );
        assert_eq!(inner.live(), 0);
        for (n, other) in calls.iter_mut().enumerate() {
            if n != poller {
                assert_eq!(other.wakes(), 1);
                assert_eq!(kind(done(other)), ErrorKind::Panicked);
            }
        }
        let mut next = call(&mut service, "a");
        pending(&mut next);
        inner.answer(1);
        assert_eq!(done(&mut next).unwrap().call, 1);
        drop(calls);
        assert_empty(&handle);
    }
}

#[test]
fn c08_an_inner_call_that_panics_does_the_same() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    inner.panic_in_call(true);
    let mut leader = call(&mut service, "a");
    let mut joiners: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    assert_eq!(panics(|| joiners[1].poll_once()), "the inner call panics");
    assert_eq!(kind(done(&mut joiners[0])), ErrorKind::Panicked);
    assert_eq!(kind(done(&mut joiners[2])), ErrorKind::Panicked);
    assert_eq!(kind(done(&mut leader)), ErrorKind::Panicked);
    assert_eq!(inner.calls(), 1);
    // Alone.
    assert_eq!(
        panics(|| call(&mut service, "a").poll_once()),
        "the inner call panics"
    );
    assert_empty(&handle);
    inner.panic_in_call(false);
    let mut next = call(&mut service, "a");
    pending(&mut next);
    inner.answer(2);
    done(&mut next).unwrap();
}

#[test]
fn c20_a_panic_in_one_callers_clone_of_the_response_harms_no_other() {
    /// Panics when it is cloned for the second time.
    struct Fragile(Arc<AtomicUsize>);
    impl Clone for Fragile {
        fn clone(&self) -> Self {
            assert!(
                self.0.fetch_add(1, Ordering::SeqCst) != 1,
                "the clone panics"
            );
            Self(self.0.clone())
        }
    }
    let gate = Inner::new();
    let inner = {
        let gate = gate.clone();
        service_fn(move |ask: Ask| {
            let answer = gate.clone().call(ask);
            async move { answer.await.map(|_| Fragile(Arc::default())) }
        })
    };
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).with_handle();
    let mut service = layer.layer(inner);
    let mut calls: Vec<_> = (0..4).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    gate.answer(0);
    assert!(done(&mut calls[0]).is_ok());
    assert_eq!(panics(|| calls[1].poll_once()), "the clone panics");
    assert!(done(&mut calls[2]).is_ok());
    assert!(done(&mut calls[3]).is_ok());
    assert_eq!(gate.calls(), 1);
    assert_empty(&handle);
}

#[test]
fn c20_the_one_whose_clone_panics_may_be_the_one_that_drove() {
    struct Fragile;
    impl Clone for Fragile {
        fn clone(&self) -> Self {
            panic!("the clone panics")
        }
    }
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0));
    let mut service = layer.layer(service_fn(|_: Ask| async { Ok::<_, Broken>(Fragile) }));
    let mut one = call(&mut service, "a");
    let mut two = call(&mut service, "a");
    assert_eq!(panics(|| one.poll_once()), "the clone panics");
    drop(one);
    // Now it is the last, and gets the response itself.
    assert!(done(&mut two).is_ok());
}
