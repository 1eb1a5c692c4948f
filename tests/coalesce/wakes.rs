//! Who is woken, who polls.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
};

use tower::{Layer, Service, service_fn};
use tower_on_demand::CoalesceLayer;

use crate::inner::{Ask, Inner, assert_empty, call, done, pending, stack};

#[test]
fn c06_a_leader_that_is_never_polled_again_holds_nobody_up() {
    for polls in 0..3 {
        let inner = Inner::new();
        let (mut service, handle) = stack(inner.clone());
        let mut leader = call(&mut service, "a");
        (0..polls).for_each(|_| pending(&mut leader));
        let mut joiners: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
        joiners.iter_mut().for_each(pending);
        inner.answer(0);
        for joiner in &mut joiners {
            assert_eq!(done(joiner).unwrap().call, 0);
        }
        assert_eq!(inner.calls(), 1);
        drop(leader);
        assert_empty(&handle);
    }
}

#[test]
fn no_one_of_the_callers_is_needed_whichever_it_is() {
    // All but one of them are polled once and never again, whoever drove.
    for alive in 0..4 {
        for first in 0..4 {
            let inner = Inner::new();
            let (mut service, handle) = stack(inner.clone());
            let mut calls: Vec<_> = (0..4).map(|_| call(&mut service, "a")).collect();
            pending(&mut calls[first]);
            calls.iter_mut().for_each(pending);
            inner.wake(0);
            // Woken, and drives for nothing.
            pending(&mut calls[first]);
            inner.answer(0);
            assert!(calls[alive].wakes() > 0);
            assert_eq!(done(&mut calls[alive]).unwrap().call, 0);
            drop(calls);
            assert_empty(&handle);
        }
    }
}

#[test]
fn c07_a_hundred_thousand_hand_overs_past_one_patient_joiner_leave_the_stack_flat() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut driver = call(&mut service, "a");
    pending(&mut driver);
    let mut patient = call(&mut service, "a");
    pending(&mut patient);
    for _ in 0..100_000 {
        let mut next = call(&mut service, "a");
        inner.wake(0);
        // Drives, with a waker that goes away with it.
        pending(&mut next);
        drop(std::mem::replace(&mut driver, next));
    }
    drop(driver);
    assert_eq!(handle.statistics().waiting, 1);
    inner.answer(0);
    assert_eq!(done(&mut patient).unwrap().call, 0);
    assert_eq!(inner.calls(), 1);
    assert_empty(&handle);
}

#[test]
fn c09_one_inner_wake_is_one_wake_and_two_polls_for_each_joiner() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut leader = call(&mut service, "a");
    pending(&mut leader);
    let mut joiners: Vec<_> = (0..64).map(|_| call(&mut service, "a")).collect();
    joiners.iter_mut().for_each(pending);
    inner.answer(0);
    for joiner in &mut joiners {
        assert_eq!(done(joiner).unwrap().call, 0);
        assert_eq!((joiner.wakes(), joiner.polls()), (1, 2));
    }
    assert_eq!(done(&mut leader).unwrap().call, 0);
    assert_eq!((leader.wakes(), leader.polls()), (1, 2));
    assert_eq!(inner.calls(), 1);
    assert_empty(&handle);
    // 65 callers: 64 copies, and the answer itself for the last.
    assert_eq!(inner.clones(), 64);
}

#[test]
fn c09_a_hundred_inner_wakes_are_a_hundred_inner_polls_for_a_hundred_callers() {
    let inner = Inner::new();
    let (mut service, _handle) = stack(inner.clone());
    let mut calls: Vec<_> = (0..100).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    assert_eq!(inner.polls(0), 1);
    for wake in 1..=100 {
        inner.wake(0);
        calls.iter_mut().for_each(pending);
        // And again, without having been woken.
        calls.iter_mut().for_each(pending);
        assert_eq!(inner.polls(0), 1 + wake);
    }
    inner.answer(0);
    for call in &mut calls {
        done(call).unwrap();
        assert_eq!(call.wakes(), 101);
    }
    assert_eq!(inner.polls(0), 102);
}

#[test]
fn c10_the_joiner_that_drove_is_dropped_and_another_one_ends_the_flight() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let leader = call(&mut service, "a");
    let mut driver = call(&mut service, "a");
    let mut other = call(&mut service, "a");
    pending(&mut driver);
    pending(&mut other);
    assert_eq!(inner.polls(0), 1);
    drop(driver);
    inner.answer(0);
    assert_eq!(other.wakes(), 1);
    assert_eq!(done(&mut other).unwrap().call, 0);
    drop(leader);
    assert_empty(&handle);
}

#[test]
fn c10_the_joiner_that_was_woken_is_dropped_before_it_is_polled() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    inner.answer(0);
    let mut last = calls.pop().unwrap();
    drop(calls);
    assert_eq!(done(&mut last).unwrap().call, 0);
    assert_empty(&handle);
}

/// Runs something when it wakes.
struct OnWake(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl OnWake {
    fn waker(run: impl FnOnce() + Send + 'static) -> Waker {
        Waker::from(Arc::new(Self(Mutex::new(Some(Box::new(run))))))
    }
}

impl Wake for OnWake {
    fn wake(self: Arc<Self>) {
        let run = self.0.lock().unwrap().take();
        run.into_iter().for_each(|run| run());
    }
}

#[test]
fn c27_all_callers_leave_in_the_middle_of_a_self_made_wake_and_nothing_lives_on() {
    type Caller = Pin<Box<dyn Future<Output = ()> + Send>>;
    let inner = Inner::new();
    let others = Arc::new(Mutex::new(Vec::<Caller>::new()));
    // While it is polled, on another thread all others are polled too, and wait; then it wakes itself.
    let restless = {
        let (inner, others) = (inner.clone(), others.clone());
        service_fn(move |ask: Ask| {
            let mut future = inner.clone().call(ask);
            let others = others.clone();
            std::future::poll_fn(move |cx| {
                let waiting = others.clone();
                let other_thread = std::thread::spawn(move || {
                    let gone = waiting.clone();
                    let waker = OnWake::waker(move || {
                        let gone = std::mem::take(&mut *gone.lock().unwrap());
                        assert_eq!(gone.len(), 2);
                        drop(gone);
                    });
                    for other in &mut *waiting.lock().unwrap() {
                        assert!(
                            other
                                .as_mut()
                                .poll(&mut Context::from_waker(&waker))
                                .is_pending()
                        );
                    }
                });
                other_thread.join().unwrap();
                cx.waker().wake_by_ref();
                Pin::new(&mut future).poll(cx)
            })
        })
    };
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).with_handle();
    let mut service = layer.layer(restless);
    let mut driver = call(&mut service, "a");
    for _ in 0..2 {
        let other = service.call(Ask("a"));
        others.lock().unwrap().push(Box::pin(async move {
            let _ = other.await;
        }));
    }
    pending(&mut driver);
    // The wake of the first of them dropped both, while it was being made.
    assert!(others.lock().unwrap().is_empty());
    assert_eq!((handle.statistics().waiting, inner.live()), (1, 1));
    assert_eq!(driver.wakes(), 1);
    drop(driver);
    assert_eq!(inner.live(), 0);
    assert_empty(&handle);
}

#[test]
fn a_wake_during_the_poll_is_kept_until_the_future_is_back() {
    // The inner future is woken while it is polled, by the poll of another caller even.
    let inner = Inner::new();
    let waking = {
        let inner = inner.clone();
        service_fn(move |ask: Ask| {
            let mut future = inner.clone().call(ask);
            let mut polls = 0;
            std::future::poll_fn(move |cx| {
                polls += 1;
                if polls < 5 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Pin::new(&mut future).poll(cx)
            })
        })
    };
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0));
    let mut service = layer.layer(waking);
    let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    // Whoever was polled has been woken since.
    for call in &calls {
        assert!(call.wakes() >= 1);
    }
    (0..5).for_each(|_| calls.iter_mut().for_each(pending));
    inner.answer(0);
    calls.iter_mut().for_each(|call| assert!(call.wakes() >= 2));
    for call in &mut calls {
        assert_eq!(done(call).unwrap().call, 0);
    }
}

#[test]
fn c11_a_waker_that_calls_into_the_layer_deadlocks_nothing() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let kept = Arc::new(Mutex::new(Vec::new()));
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(service.call(Ask("a")))).collect();
    for future in &mut calls {
        let (mut again, kept) = (service.clone(), kept.clone());
        let waker = OnWake::waker(move || {
            for name in ["a", "b"] {
                let mut future = Box::pin(again.call(Ask(name)));
                let _ = future
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                kept.lock().unwrap().push(future);
            }
        });
        assert!(
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    inner.answer(0);
    for mut future in calls {
        match future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(answer) => assert_eq!(answer.unwrap().call, 0),
            Poll::Pending => panic!("it is not done"),
        }
    }
    kept.lock().unwrap().clear();
    assert_empty(&handle);
}
