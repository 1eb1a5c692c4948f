//! The futures of single layers, without `LazyStart` above them.

use super::*;
use tower::Service;
use tower_on_demand::{Backend, KeepLayer, Sweep};

#[test]
fn l5_a_start_under_a_ceiling_alone() {
    let points = at_each_await(|host| {
        let (a, _) = idle_and_cold(host);
        let long = host.call(&a, ms(500));
        host.clock.run();
        host.beside.push(long);
        let mut maker = host.ceiling.layer(host.world.maker());
        // In line behind what does not yield to it in time, and then made.
        boxed(maker.call("made".to_owned()))
    });
    assert!(points >= 4, "{points} points");
}

#[test]
fn l5_a_start_whose_uses_are_counted() {
    let points = at_each_await(|host| {
        let (_, _) = idle_and_cold(host);
        let maker = host.ceiling.layer(host.world.maker());
        let mut maker = host.evictable.layer(maker);
        boxed(maker.call("made".to_owned()))
    });
    assert!(points >= 4, "{points} points");
}

#[test]
fn l5_a_call_on_a_lease_of_an_instance_that_is_counted() {
    at_each_await(|host| {
        let (_, _) = idle_and_cold(host);
        let maker = host.ceiling.layer(host.world.maker());
        let mut maker = host.evictable.layer(maker);
        let made = host.clock.block_on(maker.call("made".to_owned()));
        let made = made.expect("there is room");
        boxed(async move {
            let mut lease = made.lease();
            let answer = lease.ready().await.expect("open").call(ms(5));
            answer.await.expect("served");
            drop(made);
        })
    });
}

#[test]
fn l5_a_start_that_is_kept() {
    let points = at_each_await(|host| {
        let (_, _) = idle_and_cold(host);
        let maker = host.ceiling.layer(host.world.maker());
        let maker = host.evictable.layer(maker);
        let mut keep = KeepLayer::new(host.runtime.clone()).layer(maker);
        boxed(keep.call("kept".to_owned()))
    });
    assert!(points >= 4, "{points} points");
}

#[test]
fn l5_a_call_on_what_is_kept() {
    let points = at_each_await(|host| {
        let (_, _) = idle_and_cold(host);
        let maker = host.ceiling.layer(host.world.maker());
        let maker = host.evictable.layer(maker);
        let mut keep = KeepLayer::new(host.runtime.clone()).layer(maker);
        let kept = host.clock.block_on(keep.call("kept".to_owned()));
        boxed(kept.expect("there is room").oneshot(ms(5)))
    });
    assert!(points >= 2, "{points} points");
}

#[test]
fn l5_a_call_on_what_is_kept_and_does_not_count() {
    at_each_await(|host| {
        let maker = host.ceiling.layer(host.world.maker());
        let mut keep = KeepLayer::new(host.runtime.clone()).layer(maker);
        let kept = host.clock.block_on(keep.call("kept".to_owned()));
        boxed(kept.expect("there is room").oneshot(ms(5)))
    });
}

/// A host whose first backend is due.
fn due(host: &mut Host) -> IdleEvict {
    let (a, _) = idle_and_cold(host);
    host.world.plan("a", |plan| plan.stop = ms(50));
    a.handle().set_idle_after(secs(10));
    host.sweeper.take().expect("it is there once")
}

#[test]
fn l5_who_waits_until_what_was_swept_is_gone() {
    let points = at_each_await(|host| {
        let mut sweeper = due(host);
        host.clock.advance(secs(10));
        let swept = sweeper.call(Sweep).into_inner().expect("it never fails");
        assert_eq!(swept.retired().len(), 1);
        boxed(swept.gone())
    });
    assert!(points >= 2, "{points} points");
}

#[test]
fn l5_a_sweeper_that_runs() {
    // It ends when nothing can be due any more; dropped before, it leaves no timer.
    for at in 0..6 {
        let mut host = Host::new(at);
        let sweeper = due(&mut host);
        let mut running = Counted::new(boxed(sweeper.run()));
        for _ in 0..at {
            assert!(running.poll_once().is_pending());
            host.clock.advance(secs(4));
        }
        drop(running);
        host.has_nothing_left(&format!("after poll {at}"));
    }
}

#[test]
fn l5_a_sweeper_that_runs_until_it_is_told_to_end() {
    let points = at_each_await(|host| {
        let sweeper = due(host);
        let signal = host.runtime.sleep(secs(10) + ms(20));
        boxed(sweeper.run_until(signal))
    });
    assert!(points >= 3, "{points} points");
}
