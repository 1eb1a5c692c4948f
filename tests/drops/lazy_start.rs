//! Calls, leases and orders.

use super::*;
use tower_on_demand::{KeyedLayer, Runtime};

#[test]
fn l5_a_call_that_waits_for_room_for_its_start_and_for_its_answer() {
    let points = at_each_await(|host| {
        let (_, b) = idle_and_cold(host);
        boxed(b.oneshot(ms(3)))
    });
    assert!(points >= 6, "{points} points");
}

#[test]
fn l5_a_call_whose_start_is_cancelled_when_it_leaves() {
    at_each_await(|host| {
        let (_, _) = idle_and_cold(host);
        let layer = host.layer("c").cancel_when_abandoned();
        let c = host.stack_of(layer);
        boxed(c.oneshot(ms(3)))
    });
}

#[test]
fn l5_a_call_that_waits_while_its_instance_yields() {
    let points = at_each_await(|host| {
        let (a, b) = idle_and_cold(host);
        let long = host.call(&a, secs(2));
        host.clock.run();
        let other = host.call(&b, ms(1));
        host.clock.advance(ms(300));
        host.beside.extend([long, other]);
        boxed(a.oneshot(ms(3)))
    });
    assert!(points >= 6, "{points} points");
}

#[test]
fn l5_a_call_for_which_an_instance_yields() {
    let points = at_each_await(|host| {
        let (a, b) = idle_and_cold(host);
        let long = host.call(&a, secs(2));
        host.clock.run();
        host.beside.push(long);
        boxed(b.oneshot(ms(3)))
    });
    assert!(points >= 6, "{points} points");
}

#[test]
fn l5_a_call_that_goes_on_to_a_second_instance() {
    at_each_await(|host| {
        let (a, _) = idle_and_cold(host);
        let handle = a.handle();
        let mut call = boxed(a.oneshot(ms(3)));
        begin(&mut call);
        drop(handle.stop());
        host.clock.run();
        call
    });
}

#[test]
fn l5_a_call_whose_start_fails() {
    at_each_await(|host| {
        let b = host.stack("b");
        host.world.plan("b", |plan| plan.failing = 1);
        boxed(b.oneshot(ms(3)))
    });
}

#[test]
fn l5_a_lease_that_waits_for_room_and_for_a_start() {
    let points = at_each_await(|host| {
        let (_, b) = idle_and_cold(host);
        boxed(b.lend())
    });
    assert!(points >= 2, "{points} points");
}

#[test]
fn l5_a_lease_that_waits_while_its_instance_yields() {
    let points = at_each_await(|host| {
        let (a, b) = idle_and_cold(host);
        let long = host.call(&a, secs(2));
        host.clock.run();
        let other = host.call(&b, ms(1));
        host.clock.advance(ms(300));
        host.beside.extend([long, other]);
        boxed(a.lend())
    });
    assert!(points >= 4, "{points} points");
}

/// An order to a backend that runs and has a call in flight, or is cold.
fn order(give: impl Fn(&Stack) -> BoxFuture<()>) {
    for cold in [false, true] {
        let points = at_each_await(|host| {
            let (a, b) = idle_and_cold(host);
            if cold {
                return give(&b);
            }
            let call = host.call(&a, secs(1));
            host.clock.run();
            host.beside.push(call);
            give(&a)
        });
        assert!(points >= 2, "{points} points, cold: {cold}");
    }
}

#[test]
fn l5_an_order_to_start() {
    order(|stack| {
        let order = stack.handle().start();
        boxed(async move { drop(order.await) })
    });
    order(|stack| {
        let order = stack.handle().start_evicting();
        boxed(async move { drop(order.await) })
    });
}

#[test]
fn l5_an_order_to_stop() {
    order(|stack| {
        let order = stack.handle().stop();
        boxed(async move { drop(order.await) })
    });
    order(|stack| {
        let order = stack.handle().unload();
        boxed(async move { drop(order.await) })
    });
}

#[test]
fn l5_an_order_to_reload() {
    order(|stack| {
        let order = stack.handle().reload(None);
        boxed(async move { drop(order.await) })
    });
    order(|stack| {
        let order = stack.handle().reload_in_place(None);
        boxed(async move { drop(order.await) })
    });
    // With room for both.
    at_each_await(|host| {
        host.ceiling.set_limit(2);
        let (a, _) = idle_and_cold(host);
        let call = host.call(&a, secs(1));
        host.clock.run();
        host.beside.push(call);
        boxed(a.handle().reload(None))
    });
}

#[test]
fn l5_who_waits_for_a_state() {
    at_each_await(|host| {
        let (a, b) = idle_and_cold(host);
        let until = [
            b.handle().until(State::Starting),
            a.handle().until(State::Stopping),
            a.handle().until(State::Stopped),
            b.handle().until(State::Running),
        ];
        host.beside.push(host.call(&b, ms(1)));
        boxed(async move {
            for until in until {
                until.await;
            }
        })
    });
    // The end of a backoff window is a timer's.
    at_each_await(|host| {
        let b = host.stack("b");
        host.world.plan("b", |plan| plan.failing = 1);
        host.clock
            .block_on(b.clone().oneshot(ms(0)))
            .expect_err("it fails");
        boxed(b.handle().until(State::Stopped))
    });
}

#[test]
fn l5_a_group_that_is_being_stopped() {
    for woken in [false, true] {
        for at in 0.. {
            let mut host = Host::new(at);
            let (a, b) = idle_and_cold(&mut host);
            let calls = [host.call(&a, secs(5)), host.call(&b, ms(1))];
            host.clock.run();
            let group = host.group.clone();
            let mut stopping = Counted::new(boxed(async move { group.stopped(secs(1)).await }));
            let done = polled(&host.clock, &mut stopping, at, woken);
            drop(stopping);
            // Whoever asks next has the same answer.
            host.clock.block_on(host.group.stopped(secs(1)));
            host.clock.run();
            assert!(calls.iter().all(Task::is_finished));
            assert_eq!((host.world.alive(), host.ceiling.occupancy().used), (0, 0));
            assert_eq!((host.clock.tasks(), host.clock.timers()), (0, 0));
            if done {
                break;
            }
        }
    }
}

#[test]
fn l5_the_first_call_of_a_key() {
    for at in 0.. {
        let host = Host::new(at);
        let tenants = KeyedLayer::new(
            Runtime::clone(&host.runtime),
            |_: &Duration| Some("key".to_owned()),
            |key: &String| Ok::<_, Error>(key.clone()),
        )
        .each(|backend| backend.cancel_when_abandoned())
        .layer(host.evictable.layer(host.ceiling.layer(host.world.maker())));
        let mut call = Counted::new(boxed(tenants.clone().oneshot(ms(3))));
        let done = polled(&host.clock, &mut call, at, false);
        drop(call);
        host.clock.advance(secs(3600));
        // Nobody sweeps here: what has started is there, and else not even the key.
        let running = host.world.alive() as usize;
        assert_eq!(tenants.keys(), running, "after poll {at}");
        drop(tenants);
        host.clock.advance(secs(1));
        assert_eq!((host.world.alive(), host.ceiling.occupancy().used), (0, 0));
        if done {
            break;
        }
    }
}
