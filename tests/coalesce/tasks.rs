//! Flights as tasks, and the end of all flights.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use tower::{Layer, Service};
use tower_on_demand::{
    CoalesceLayer, ErrorKind,
    test_util::{self, Counted},
};

use crate::inner::{Ask, Inner, assert_empty, call, done, kind, layer, pending, stack};

#[test]
fn a_flight_as_a_task_runs_to_its_end_though_all_have_left() {
    let (runtime, clock) = test_util::runtime(1);
    let inner = Inner::new();
    let (layer, handle) = layer()
        .linger(runtime.clone(), Duration::from_secs(1))
        .spawn_on(runtime)
        .with_handle();
    let mut service = layer.layer(inner.clone());
    let leader = call(&mut service, "a");
    let joiner = call(&mut service, "a");
    clock.run();
    drop((leader, joiner));
    clock.run();
    assert_eq!((inner.live(), handle.statistics().in_flight), (1, 1));
    // Whoever comes joins it.
    let mut late = call(&mut service, "a");
    pending(&mut late);
    assert_eq!(handle.waiting("a"), 1);
    drop(late);
    inner.answer(0);
    clock.run();
    assert_eq!((inner.calls(), inner.live(), clock.tasks()), (1, 0, 0));
    assert_empty(&handle);
    assert_eq!(done(&mut call(&mut service, "a")).unwrap().call, 0);
}

#[test]
fn with_a_task_a_joiner_is_polled_twice_however_often_the_inner_wakes() {
    let (runtime, clock) = test_util::runtime(2);
    let inner = Inner::new();
    let layer = layer().spawn_on(runtime);
    let mut service = layer.layer(inner.clone());
    let mut calls: Vec<_> = (0..10).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    for _ in 0..100 {
        clock.run();
        inner.wake(0);
    }
    inner.answer(0);
    clock.run();
    assert_eq!(inner.polls(0), 101);
    for call in &mut calls {
        assert_eq!(call.wakes(), 1);
        assert_eq!(done(call).unwrap().call, 0);
        assert_eq!(call.polls(), 2);
    }
    // The task is gone, so the last caller had the answer itself.
    assert_eq!(inner.clones(), 9);
}

#[test]
fn f9_a_task_that_vanishes_tells_shut_down_at_once() {
    for polled in [false, true] {
        let (runtime, clock) = test_util::runtime(3);
        let inner = Inner::new();
        let (layer, handle) = layer().spawn_on(runtime).with_handle();
        let mut service = layer.layer(inner.clone());
        let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
        calls.iter_mut().for_each(pending);
        if polled {
            clock.run();
            assert_eq!(inner.live(), 1);
        }
        clock.shutdown();
        assert_eq!(inner.live(), 0);
        for call in &mut calls {
            assert_eq!(call.wakes(), 1);
            assert_eq!(kind(done(call)), ErrorKind::ShutDown);
        }
        assert_empty(&handle);
        // The executor takes no task any more.
        assert_eq!(
            kind(done(&mut call(&mut service, "a"))),
            ErrorKind::ShutDown
        );
        assert_empty(&handle);
    }
}

#[test]
fn c08_a_panic_in_a_task_is_told_to_all_after_the_work_was_dropped() {
    let (runtime, clock) = test_util::runtime(4);
    let inner = Inner::new();
    let (layer, handle) = layer().spawn_on(runtime).with_handle();
    let mut service = layer.layer(inner.clone());
    let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    clock.run();
    inner.panic(0);
    let panicked = crate::inner::quietly(|| {
        clock.run();
        clock.panics()
    });
    assert_eq!(panicked, ["the inner future panics"]);
    assert_eq!(inner.live(), 0);
    for call in &mut calls {
        assert_eq!(kind(done(call)), ErrorKind::Panicked);
    }
    assert_empty(&handle);
    let mut next = call(&mut service, "a");
    clock.run();
    inner.answer(1);
    clock.run();
    assert_eq!(done(&mut next).unwrap().call, 1);
}

#[test]
fn an_outcome_that_is_for_the_leader_alone_is_so_with_a_task_too() {
    let (runtime, clock) = test_util::runtime(5);
    let inner = Inner::new();
    let layer = layer().share_if(|_: &_| false).spawn_on(runtime);
    let mut service = layer.layer(inner.clone());
    let mut leader = call(&mut service, "a");
    let mut joiner = call(&mut service, "a");
    clock.run();
    inner.answer(0);
    clock.run();
    pending(&mut joiner);
    assert_eq!(done(&mut leader).unwrap().call, 0);
    inner.answer(1);
    assert_eq!(done(&mut joiner).unwrap().call, 1);
}

#[test]
fn f9_shutdown_ends_every_flight_tells_all_and_lets_nobody_in() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    // Alone and polled; alone and not; shared and polled by the leader, by a joiner, by nobody.
    let mut calls = vec![call(&mut service, "a"), call(&mut service, "b")];
    pending(&mut calls[0]);
    for name in ["c", "d", "e"] {
        calls.push(call(&mut service, name));
        calls.push(call(&mut service, name));
    }
    pending(&mut calls[2]);
    pending(&mut calls[5]);
    assert_eq!(inner.live(), 3);
    let mut ended = Counted::new(handle.shutdown());
    assert_eq!(inner.live(), 0);
    assert!(ended.poll_once().is_ready());
    for (n, caller) in calls.iter_mut().enumerate() {
        assert_eq!(caller.wakes(), u64::from(caller.polls() > 0), "{n}");
        assert_eq!(kind(done(caller)), ErrorKind::ShutDown);
    }
    assert_eq!(
        kind(done(&mut call(&mut service, "a"))),
        ErrorKind::ShutDown
    );
    // What has no key passes by.
    pending(&mut call(&mut service, "-"));
    assert!(Counted::new(handle.shutdown()).poll_once().is_ready());
    assert_empty(&handle);
}

#[test]
fn shutdown_of_a_flight_that_was_left_to_its_leader_leaves_nothing() {
    let (mut service, handle) = stack(Inner::new());
    let mut leader = call(&mut service, "a");
    pending(&mut leader);
    assert!(Counted::new(handle.shutdown()).poll_once().is_ready());
    drop(leader);
    assert_empty(&handle);
}

#[test]
fn shutdown_waits_for_the_tasks_it_ends() {
    let (runtime, clock) = test_util::runtime(6);
    let inner = Inner::new();
    let (layer, handle) = layer().spawn_on(runtime).with_handle();
    let mut service = layer.layer(inner.clone());
    let mut calls: Vec<_> = (0..2).map(|_| call(&mut service, "a")).collect();
    calls.iter_mut().for_each(pending);
    clock.run();
    let mut ended = Counted::new(handle.shutdown());
    assert!(ended.poll_once().is_pending());
    assert_eq!(inner.live(), 1);
    clock.run();
    assert_eq!(ended.wakes(), 1);
    assert!(ended.poll_once().is_ready());
    assert_eq!((inner.live(), clock.tasks()), (0, 0));
    for call in &mut calls {
        assert_eq!(kind(done(call)), ErrorKind::ShutDown);
    }
}

#[test]
fn shutdown_from_within_a_flight_ends_that_one_when_it_comes_back() {
    let inner = Inner::new();
    let slot = Arc::new(Mutex::new(None::<Box<dyn FnOnce() + Send>>));
    let hooked = {
        let (inner, slot) = (inner.clone(), slot.clone());
        tower::service_fn(move |ask: Ask| {
            let mut future = inner.clone().call(ask);
            let slot = slot.clone();
            std::future::poll_fn(move |cx| {
                let hook = slot.lock().unwrap().take();
                if let Some(hook) = hook {
                    hook();
                }
                std::pin::Pin::new(&mut future).poll(cx)
            })
        })
    };
    for joiners in 0..2 {
        let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).with_handle();
        let mut service = layer.layer(hooked.clone());
        let mut leader = call(&mut service, "a");
        let mut others: Vec<_> = (0..joiners).map(|_| call(&mut service, "a")).collect();
        let ending = handle.clone();
        *slot.lock().unwrap() = Some(Box::new(move || {
            assert!(Counted::new(ending.shutdown()).poll_once().is_pending());
        }));
        assert_eq!(kind(done(&mut leader)), ErrorKind::ShutDown);
        for other in &mut others {
            assert_eq!(kind(done(other)), ErrorKind::ShutDown);
        }
        assert_eq!(inner.live(), 0);
        assert_empty(&handle);
    }
}

#[test]
fn a_handle_counts_what_happens() {
    let (runtime, clock) = test_util::runtime(7);
    let inner = Inner::new();
    let (layer, handle) = layer()
        .linger(runtime, Duration::from_secs(1))
        .with_handle();
    let mut service = layer.layer(inner.clone());
    let mut a = call(&mut service, "a");
    let mut b = call(&mut service, "a");
    let c = call(&mut service, "a");
    pending(&mut a);
    pending(&mut b);
    drop(c);
    drop(call(&mut service, "-"));
    let now = handle.statistics();
    assert_eq!((now.led, now.joined, now.passed_by), (1, 2, 1));
    assert_eq!((now.left_early, now.in_flight, now.waiting), (1, 1, 2));
    assert_eq!((handle.waiting("a"), handle.waiting("b")), (2, 0));
    inner.answer(0);
    done(&mut a).unwrap();
    done(&mut b).unwrap();
    done(&mut call(&mut service, "a")).unwrap();
    let now = handle.clone().statistics();
    assert_eq!((now.led, now.joined, now.lingering), (1, 3, 1));
    assert_eq!((now.left_early, now.in_flight, now.waiting), (1, 0, 0));
    assert_eq!(handle.waiting("a"), 0);
    clock.advance(Duration::from_secs(1));
}
