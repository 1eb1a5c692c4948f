//! Caps, vetoes and long waits.

use std::time::Duration;

use tower::{Layer, Service, service_fn};
use tower_on_demand::{
    CoalesceLayer, ErrorKind,
    test_util::{self, Counted},
};

use crate::inner::{
    Answer, Ask, Broken, Inner, assert_empty, broken, call, done, kind, layer, pending,
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn c24_f10_at_the_cap_of_joiners_the_next_is_refused_and_the_flight_unharmed() {
    let inner = Inner::new();
    let (layer, handle) = layer().max_joiners(2).with_handle();
    let mut service = layer.layer(inner.clone());
    let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    let limit = |kind| matches!(kind, ErrorKind::TooManyWaiting { limit: 2, .. });
    assert!(limit(kind(done(&mut call(&mut service, "a")))));
    assert_eq!(handle.statistics().waiting, 3);
    // Another key is another flight.
    let mut other = call(&mut service, "b");
    pending(&mut other);
    // One left: one may come.
    calls.pop();
    calls.push(call(&mut service, "a"));
    pending(&mut calls[2]);
    assert!(limit(kind(done(&mut call(&mut service, "a")))));
    inner.answer(0);
    for call in &mut calls {
        assert_eq!(done(call).unwrap().call, 0);
    }
    inner.answer(1);
    done(&mut other).unwrap();
    assert_eq!(inner.calls(), 2);
    assert_empty(&handle);
}

#[test]
fn c24_f10_at_the_cap_of_flights_the_next_is_refused_and_joining_still_possible() {
    let inner = Inner::new();
    let (layer, handle) = layer().max_flights(2).with_handle();
    let mut service = layer.layer(inner.clone());
    let mut a = call(&mut service, "a");
    let mut b = call(&mut service, "b");
    pending(&mut a);
    pending(&mut b);
    let limit = |kind| matches!(kind, ErrorKind::TooManyWaiting { limit: 2, .. });
    for _ in 0..10 {
        assert!(limit(kind(done(&mut call(&mut service, "c")))));
    }
    assert_eq!(handle.statistics().in_flight, 2);
    let mut joiner = call(&mut service, "a");
    pending(&mut joiner);
    // What passes by is not counted.
    pending(&mut call(&mut service, "-"));
    // Room comes back by an answer, a drop, a failure and a panic.
    inner.answer(0);
    done(&mut a).unwrap();
    done(&mut joiner).unwrap();
    let mut c = call(&mut service, "c");
    pending(&mut c);
    assert!(limit(kind(done(&mut call(&mut service, "d")))));
    drop(b);
    let mut d = call(&mut service, "d");
    pending(&mut d);
    assert!(limit(kind(done(&mut call(&mut service, "e")))));
    inner.fail(inner.calls() - 1, "down");
    done(&mut d).unwrap_err();
    let mut e = call(&mut service, "e");
    pending(&mut e);
    inner.panic(inner.calls() - 1);
    crate::inner::panics(|| e.poll_once());
    pending(&mut call(&mut service, "f"));
    drop(c);
    assert_empty(&handle);
}

/// An inner service that answers a second after it was called.
fn slow(
    runtime: &tower_on_demand::Runtime,
    inner: &Inner,
) -> impl Service<Ask, Response = Answer, Error = Broken, Future: Send> + Clone + Send + use<> {
    let (runtime, inner) = (runtime.clone(), inner.clone());
    service_fn(move |ask: Ask| {
        let call = inner.calls();
        let (answer, inner) = (inner.clone().call(ask), inner.clone());
        let sleep = runtime.sleep(SECOND);
        async move {
            sleep.await;
            inner.answer(call);
            answer.await
        }
    })
}

#[test]
fn c19_a_vetoed_response_sends_the_joiners_off_alone_and_in_parallel() {
    for leader_stays in [true, false] {
        let (runtime, clock) = test_util::runtime(5);
        let inner = Inner::new();
        let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
            .share_if(|answer: &Answer| answer.call != 0)
            .linger(runtime.clone(), SECOND)
            .with_handle();
        let mut service = layer.layer(slow(&runtime, &inner));
        let mut calls: Vec<_> = (0..8).map(|_| call(&mut service, "a")).collect();
        calls.iter_mut().for_each(pending);
        if !leader_stays {
            drop(calls.remove(0));
        }
        let calls: Vec<_> = calls.into_iter().map(|call| clock.spawn(call)).collect();
        let answers: Vec<_> = calls
            .into_iter()
            .map(|call| clock.block_on(call).unwrap().call)
            .collect();
        assert_eq!(clock.elapsed(), 2 * SECOND);
        // The leader has its own; no other has it, nor has anybody if the leader is gone.
        let first = usize::from(!leader_stays);
        let mut sorted = answers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (first..8).collect::<Vec<_>>());
        if leader_stays {
            assert_eq!(answers[0], 0);
        }
        assert_eq!((inner.calls(), inner.peak(), inner.clones()), (8, 7, 0));
        let now = handle.statistics();
        assert_eq!((now.led, now.joined, now.lingering), (1, 7, 0));
        assert_empty(&handle);
    }
}

#[test]
fn share_if_is_asked_once_and_a_shared_response_is_shared() {
    let inner = Inner::new();
    let asked = std::rc::Rc::new(std::cell::Cell::new(0));
    let counted = asked.clone();
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).share_if(move |_: &Answer| {
        counted.set(counted.get() + 1);
        true
    });
    let mut service = layer.layer(inner.clone());
    let mut calls: Vec<_> = (0..5).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    inner.answer(0);
    for call in &mut calls {
        assert_eq!(done(call).unwrap().call, 0);
    }
    assert_eq!((asked.get(), inner.calls()), (1, 1));
}

#[test]
fn an_error_that_is_for_the_leader_alone_sends_the_joiners_off() {
    let inner = Inner::new();
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .alone(|error: &Broken| error.0 == "yours")
        .with_handle();
    let mut service = layer.layer(inner.clone());
    let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    inner.fail(0, "yours");
    // A joiner drives, and goes alone; then the leader finds what is its own.
    pending(&mut calls[1]);
    assert_eq!(broken(&done(&mut calls[0]).unwrap_err()).0, "yours");
    pending(&mut calls[2]);
    assert_eq!((inner.calls(), inner.live()), (3, 2));
    inner.answer(1);
    inner.fail(2, "yours");
    assert_eq!(done(&mut calls[1]).unwrap().call, 1);
    assert_eq!(broken(&done(&mut calls[2]).unwrap_err()).0, "yours");
    // Other errors are for all.
    let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    inner.fail(3, "everybody's");
    for call in &mut calls {
        assert_eq!(broken(&done(call).unwrap_err()).0, "everybody's");
    }
    assert_eq!(inner.calls(), 4);
    assert_empty(&handle);
}

#[test]
fn what_only_the_leader_might_have_goes_with_it() {
    struct Held(#[allow(dead_code)] std::sync::Arc<()>);
    impl Clone for Held {
        fn clone(&self) -> Self {
            panic!("it is not shared")
        }
    }
    let held = std::sync::Arc::new(());
    let gate = Inner::new();
    let inner = {
        let (held, gate) = (held.clone(), gate.clone());
        service_fn(move |ask: Ask| {
            let (held, answer) = (held.clone(), gate.clone().call(ask));
            async move { answer.await.map(|_| Held(held)) }
        })
    };
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).share_if(|_: &Held| false);
    let mut service = layer.layer(inner);
    let mut leader = call(&mut service, "a");
    let mut driver = call(&mut service, "a");
    let mut idle = call(&mut service, "a");
    pending(&mut leader);
    pending(&mut driver);
    pending(&mut idle);
    gate.answer(0);
    pending(&mut driver);
    // The response waits for the leader, which leaves, though another caller still has a seat.
    let while_it_waits = std::sync::Arc::strong_count(&held);
    drop(leader);
    assert_eq!(std::sync::Arc::strong_count(&held), while_it_waits - 1);
    drop(idle);
}

#[test]
fn c28_fifty_behind_a_wedged_leader_make_one_new_call() {
    let (runtime, clock) = test_util::runtime(6);
    let inner = Inner::new();
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .max_wait(runtime.clone(), SECOND)
        .with_handle();
    let mut service = layer.layer(inner.clone());
    let leader = clock.spawn(call(&mut service, "a"));
    let joiners: Vec<_> = (0..50)
        .map(|_| clock.spawn(call(&mut service, "a")))
        .collect();
    clock.run();
    clock.advance(SECOND / 2);
    // They come later: their time comes later.
    let late: Vec<_> = (0..5)
        .map(|_| clock.spawn(call(&mut service, "a")))
        .collect();
    clock.advance(SECOND / 2 - Duration::from_nanos(1));
    assert_eq!(inner.calls(), 1);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(inner.calls(), 2);
    // Newcomers join the new one.
    let newcomer = clock.spawn(call(&mut service, "a"));
    clock.run();
    assert_eq!(handle.waiting("a"), 51);
    // It is not taken over in its turn.
    clock.advance(10 * SECOND);
    assert_eq!(inner.calls(), 2);
    assert_eq!(handle.waiting("a"), 56);
    inner.answer(1);
    for joiner in joiners.into_iter().chain(late).chain([newcomer]) {
        assert_eq!(clock.block_on(joiner).unwrap().call, 1);
    }
    assert_eq!(inner.live(), 1);
    // Who stays gets the old one's outcome.
    inner.answer(0);
    assert_eq!(clock.block_on(leader).unwrap().call, 0);
    assert_eq!((inner.calls(), inner.live()), (2, 0));
    let now = handle.statistics();
    assert_eq!((now.led, now.left_early), (2, 0));
    assert_empty(&handle);
}

#[test]
fn c28_an_answer_that_comes_at_once_to_the_new_call_is_for_all_whose_time_has_come() {
    let (runtime, clock) = test_util::runtime(7);
    let inner = Inner::new();
    let wedged_first = {
        let inner = inner.clone();
        service_fn(move |ask: Ask| {
            let call = inner.calls();
            let answer = inner.clone().call(ask);
            if call > 0 {
                inner.answer(call);
            }
            answer
        })
    };
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .max_wait(runtime.clone(), SECOND)
        .with_handle();
    let mut service = layer.layer(wedged_first);
    let leader = clock.spawn(call(&mut service, "a"));
    let joiners: Vec<_> = (0..50)
        .map(|_| clock.spawn(call(&mut service, "a")))
        .collect();
    for joiner in joiners {
        assert_eq!(clock.block_on(joiner).unwrap().call, 1);
    }
    assert_eq!(inner.calls(), 2);
    // The old one goes on for the leader, and with it.
    assert_eq!(inner.live(), 1);
    drop(leader);
    clock.run();
    assert_eq!(inner.live(), 0);
    assert_empty(&handle);
}

#[test]
fn the_old_flight_ends_when_all_have_gone_over_to_the_new_one() {
    let (runtime, clock) = test_util::runtime(8);
    let inner = Inner::new();
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .max_wait(runtime.clone(), SECOND)
        .with_handle();
    let mut service = layer.layer(inner.clone());
    let leader = call(&mut service, "a");
    let joiners: Vec<_> = (0..3)
        .map(|_| clock.spawn(call(&mut service, "a")))
        .collect();
    clock.run();
    drop(leader);
    assert_eq!((inner.calls(), inner.live()), (1, 1));
    clock.advance(SECOND);
    assert_eq!((inner.calls(), inner.live()), (2, 1));
    inner.fail(1, "down");
    for joiner in joiners {
        assert_eq!(broken(&clock.block_on(joiner).unwrap_err()).0, "down");
    }
    assert_empty(&handle);
}

#[test]
fn a_joiner_whose_time_has_come_and_whose_flight_was_forgotten_begins_anew() {
    let (runtime, clock) = test_util::runtime(9);
    let inner = Inner::new();
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .max_wait(runtime.clone(), SECOND)
        .with_handle();
    let mut service = layer.layer(inner.clone());
    let leader = clock.spawn(call(&mut service, "a"));
    let joiners: Vec<_> = (0..3)
        .map(|_| clock.spawn(call(&mut service, "a")))
        .collect();
    clock.run();
    handle.forget("a");
    let other = clock.spawn(call(&mut service, "a"));
    clock.run();
    assert_eq!(inner.calls(), 2);
    clock.advance(SECOND);
    // They joined the one that was there.
    assert_eq!(inner.calls(), 2);
    inner.answer(1);
    for joiner in joiners.into_iter().chain([other]) {
        assert_eq!(clock.block_on(joiner).unwrap().call, 1);
    }
    inner.answer(0);
    assert_eq!(clock.block_on(leader).unwrap().call, 0);
    assert_empty(&handle);
}

#[test]
fn a_new_call_that_all_have_left_again_is_not_waited_for() {
    let (runtime, clock) = test_util::runtime(10);
    let inner = Inner::new();
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .max_wait(runtime.clone(), SECOND)
        .with_handle();
    let mut service = layer.layer(inner.clone());
    let leader = clock.spawn(call(&mut service, "a"));
    let first = clock.spawn(call(&mut service, "a"));
    clock.run();
    clock.advance(SECOND / 2);
    let second = clock.spawn(call(&mut service, "a"));
    clock.advance(SECOND / 2);
    assert_eq!((inner.calls(), inner.live()), (2, 2));
    drop(first);
    clock.run();
    assert_eq!(inner.live(), 1);
    clock.advance(SECOND / 2);
    assert_eq!((inner.calls(), inner.live()), (3, 2));
    inner.answer(2);
    assert_eq!(clock.block_on(second).unwrap().call, 2);
    drop(leader);
    clock.run();
    assert_empty(&handle);
}

#[test]
fn the_timer_of_a_joiner_goes_with_it() {
    let (runtime, clock) = test_util::runtime(11);
    let inner = Inner::new();
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).max_wait(runtime.clone(), SECOND);
    let mut service = layer.layer(inner.clone());
    let mut leader = call(&mut service, "a");
    let mut joiner: Counted<_> = call(&mut service, "a");
    pending(&mut leader);
    pending(&mut joiner);
    assert_eq!(clock.timers(), 1);
    drop(joiner);
    assert_eq!(clock.timers(), 0);
}
