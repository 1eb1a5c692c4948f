//! What comes before what, and what is stale.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tower::{Layer, Service, service_fn};
use tower_on_demand::{
    CoalesceLayer, Error,
    test_util::{self, Counted},
};

use crate::inner::{Ask, Broken, Inner, assert_empty, call, done, layer, pending, stack};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn c14_f1_after_forget_the_next_flight_is_the_one_to_join() {
    let (runtime, _clock) = test_util::runtime(1);
    let inner = Inner::new();
    let (layer, handle) = layer().linger(runtime, SECOND).with_handle();
    let mut service = layer.layer(inner.clone());
    let mut first = call(&mut service, "a");
    pending(&mut first);
    assert!(handle.forget("a"));
    assert!(!handle.forget("a"));
    assert!(!handle.forget("b"));
    let mut second = call(&mut service, "a");
    pending(&mut second);
    assert_eq!(inner.calls(), 2);
    inner.answer(0);
    assert_eq!(done(&mut first).unwrap().call, 0);
    assert_eq!(handle.statistics().lingering, 0);
    let mut third = call(&mut service, "a");
    pending(&mut third);
    inner.answer(1);
    assert_eq!(done(&mut third).unwrap().call, 1);
    assert_eq!(done(&mut second).unwrap().call, 1);
    // What lingers is the second one's, until it is forgotten too.
    assert_eq!(done(&mut call(&mut service, "a")).unwrap().call, 1);
    assert!(handle.forget("a"));
    let mut fourth = call(&mut service, "a");
    pending(&mut fourth);
    assert_eq!(inner.calls(), 3);
}

#[test]
fn a_forgotten_flight_lives_on_for_its_callers_and_is_dropped_with_the_last() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut calls: Vec<_> = (0..2).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    handle.forget("a");
    assert_eq!(handle.waiting("a"), 0);
    assert_eq!(handle.statistics().waiting, 2);
    calls.pop();
    assert_eq!(inner.live(), 1);
    calls.pop();
    assert_eq!(inner.live(), 0);
    assert_empty(&handle);
}

#[test]
fn f8_after_a_success_it_can_be_joined_within_the_linger_only() {
    let (runtime, clock) = test_util::runtime(2);
    let inner = Inner::prompt();
    let (layer, handle) = layer().linger(runtime, SECOND).with_handle();
    let mut service = layer.layer(inner.clone());
    assert_eq!(done(&mut call(&mut service, "a")).unwrap().call, 0);
    clock.advance(SECOND - Duration::from_nanos(1));
    assert_eq!(done(&mut call(&mut service, "a")).unwrap().call, 0);
    // Not renewed by being asked for.
    clock.advance(Duration::from_nanos(1));
    assert_eq!(done(&mut call(&mut service, "a")).unwrap().call, 1);
    clock.advance(SECOND);
    // What nobody asks for again is dropped when something else lands.
    assert_eq!(done(&mut call(&mut service, "b")).unwrap().call, 2);
    assert_eq!(handle.statistics().lingering, 1);
    assert_empty(&handle);
}

#[test]
fn beyond_the_cap_the_newest_does_not_linger() {
    let (runtime, clock) = test_util::runtime(3);
    let inner = Inner::prompt();
    let (layer, handle) = layer()
        .linger(runtime, SECOND)
        .linger_at_most(2)
        .with_handle();
    let mut service = layer.layer(inner.clone());
    for name in ["a", "b", "c"] {
        done(&mut call(&mut service, name)).unwrap();
    }
    assert_eq!(handle.statistics().lingering, 2);
    assert_eq!(done(&mut call(&mut service, "a")).unwrap().call, 0);
    assert_eq!(done(&mut call(&mut service, "c")).unwrap().call, 3);
    clock.advance(SECOND);
    assert_eq!(done(&mut call(&mut service, "c")).unwrap().call, 4);
    assert_eq!(done(&mut call(&mut service, "c")).unwrap().call, 4);
}

#[test]
fn what_lingers_does_not_keep_the_service_alive() {
    let (runtime, _clock) = test_util::runtime(3);
    let alive = Arc::new(());
    let held = alive.clone();
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).linger(runtime, SECOND);
    let mut service = layer.layer(service_fn(move |_: Ask| {
        let held = held.clone();
        async move { Ok::<_, Broken>(held) }
    }));
    let mut one = call(&mut service, "a");
    let mut two = call(&mut service, "a");
    done(&mut two).unwrap();
    done(&mut one).unwrap();
    drop((one, two, layer, service));
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// Writes down how things stand when it is woken.
struct Witness {
    look: Box<dyn Fn() -> String + Send + Sync>,
    seen: Mutex<Vec<String>>,
}

impl Wake for Witness {
    fn wake(self: Arc<Self>) {
        let seen = (self.look)();
        self.seen.lock().unwrap().push(seen);
    }
}

#[test]
fn f4_f5_what_the_work_held_is_released_and_a_failure_unlisted_before_anybody_is_told() {
    type Joiner = Pin<Box<dyn Future<Output = Result<u8, Error>> + Send>>;
    for (outcome, expected) in [
        (Ok(7), "held 0, in flight 0, lingering 1"),
        (Err("down"), "held 0, in flight 0, lingering 0"),
    ] {
        let (runtime, _clock) = test_util::runtime(4);
        let held = Arc::new(());
        let joiner = Arc::new(Mutex::new(None::<(Joiner, Waker)>));
        let inner = {
            let (held, joiner) = (held.clone(), joiner.clone());
            service_fn(move |_: Ask| {
                let (mut held, joiner) = (Some(held.clone()), joiner.clone());
                std::future::poll_fn(move |_| {
                    // On another thread the joiner comes to wait; then this ends.
                    let waiting = joiner.clone();
                    let other_thread = std::thread::spawn(move || {
                        let mut waiting = waiting.lock().unwrap();
                        let (joiner, waker) = waiting.as_mut().expect("set");
                        let mut cx = Context::from_waker(waker);
                        assert!(joiner.as_mut().poll(&mut cx).is_pending());
                    });
                    other_thread.join().unwrap();
                    assert!(held.as_mut().is_some());
                    Poll::Ready(outcome.map_err(Broken))
                })
            })
        };
        let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
            .linger(runtime, SECOND)
            .with_handle();
        let mut service = layer.layer(inner);
        let witness = Arc::new(Witness {
            look: Box::new(move || {
                let now = handle.statistics();
                let held = Arc::strong_count(&held) - 2;
                let (in_flight, lingering) = (now.in_flight, now.lingering);
                format!("held {held}, in flight {in_flight}, lingering {lingering}")
            }),
            seen: Mutex::default(),
        });
        let mut leader = call(&mut service, "a");
        let told = Box::pin(service.call(Ask("a")));
        *joiner.lock().unwrap() = Some((told, Waker::from(witness.clone())));
        assert_eq!(done(&mut leader).ok(), outcome.ok());
        // `held` is held by the service and its clone, not by the inner future any more.
        assert_eq!(*witness.seen.lock().unwrap(), [expected]);
        let (mut told, _) = joiner.lock().unwrap().take().unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        match told.as_mut().poll(&mut cx) {
            Poll::Ready(told) => assert_eq!(told.ok(), outcome.ok()),
            Poll::Pending => panic!("it was told"),
        }
    }
}

#[test]
fn f2_a_caller_that_comes_while_it_lands_has_the_outcome_or_leads_anew() {
    // Many times over, on two threads, with an inner service that ends at once.
    const CALLS: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let inner = Inner::prompt();
    let (service, handle) = stack(inner.clone());
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let mut service = service.clone();
            std::thread::spawn(move || {
                for _ in 0..CALLS {
                    let mut one: Counted<_> = call(&mut service, "a");
                    loop {
                        match one.poll_once() {
                            Poll::Ready(answer) => break drop(answer.unwrap()),
                            Poll::Pending => {
                                // Woken, or about to be.
                                while one.wakes() == 0 {
                                    std::hint::spin_loop();
                                }
                            }
                        }
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let counts = handle.statistics();
    assert_eq!(counts.led + counts.joined, 2 * CALLS);
    assert_eq!(counts.led as usize, inner.calls());
    assert_empty(&handle);
}
