//! Who has to go: the coldest of the idle ones, and never anybody else.

use tower::{Layer, ServiceExt};
use tower_on_demand::{
    Backend, CeilingLayer, Error, ErrorKind, Eviction, LazyStartLayer, Retired, State,
};

use crate::{
    common::{Host, Stack, error, is_done, no_room},
    support::{ms, secs},
};

#[test]
fn c3_under_the_limit_nothing_is_stopped_and_without_a_limit_nothing_ever() {
    for limit in [10, u64::MAX] {
        let host = Host::new(1, limit);
        let stacks: Vec<_> = (0..10).map(|n| host.stack(&format!("b{n}"))).collect();
        for _ in 0..3 {
            for stack in &stacks {
                host.served(stack, ms(1));
            }
            host.clock.advance(secs(600));
        }
        assert_eq!(host.world.alive(), 10);
        assert_eq!(host.ceiling.occupancy().running, 10);
        host.over(stacks);
    }
    let (runtime, _clock) = tower_on_demand::test_util::runtime(1);
    assert_eq!(CeilingLayer::unbounded(runtime).limit(), u64::MAX);
}

#[test]
fn s08_an_instance_just_started_is_used_before_it_can_be_evicted() {
    for seed in 0..50 {
        let host = Host::new(seed, 1);
        host.world.plan("a", |plan| plan.start = ms(300));
        let [a, b] = ["a", "b"].map(|name| host.stack(name));
        let to_a = host.call(&a, ms(1));
        host.clock.advance(ms(100));
        let to_b = host.call(&b, ms(1));
        host.clock.block_on(to_a).expect("it is served");
        host.clock.block_on(to_b).expect("it is served");
        for name in ["a", "b"] {
            let saw = host.world.saw(name);
            assert_eq!(
                (saw.begun, saw.answered, saw.misdelivered),
                (1, 1, 0),
                "{name}"
            );
        }
        host.over(vec![a, b]);
    }
}

#[test]
fn a_clock_with_coarse_steps_makes_nobody_seem_colder_than_who_was_used_before() {
    let (runtime, clock) = tower_on_demand::test_util::runtime(1);
    let origin = runtime.now();
    let coarse = {
        let clock = clock.clone();
        // It moves every 4 ms.
        move || ms(clock.now().duration_since(origin).as_millis() as u64 / 4 * 4)
    };
    let host = Host::on(runtime.recency(coarse), clock, 2);
    let [a, b, c] = ["a", "b", "c"].map(|name| {
        host.world.plan(name, |plan| {
            plan.start = ms(0);
            plan.stop = ms(0);
        });
        host.stack(name)
    });
    // `a` comes up at the end of a step and `b` at the beginning of the next.
    host.clock.advance(ms(3));
    host.served(&a, ms(1));
    host.served(&b, ms(1));
    host.served(&c, ms(1));
    assert_eq!(host.alive(&["a", "b", "c"]), [0, 1, 1]);
    host.over(vec![a, b, c]);
}

#[test]
fn s10_c1_c2_fifty_backends_at_once_and_never_more_than_two_alive() {
    for seed in 0..100 {
        let host = Host::new(seed, 2);
        let stacks: Vec<_> = (0..50).map(|n| host.stack(&format!("b{n}"))).collect();
        let calls: Vec<_> = stacks.iter().map(|stack| host.call(stack, ms(7))).collect();
        for call in calls {
            host.clock.block_on(call).expect("it is served");
        }
        assert_eq!(host.world.peak(), 2);
        for n in 0..50 {
            let saw = host.world.saw(&format!("b{n}"));
            assert_eq!((saw.begun, saw.answered, saw.cut), (1, 1, 0));
        }
        host.over(stacks);
    }
}

#[test]
fn s11_what_is_starting_with_a_caller_is_no_victim() {
    let host = Host::new(1, 1);
    host.world.plan("a", |plan| plan.start = secs(100));
    let [a, b] = ["a", "b"].map(|name| host.stack(name));
    let to_a = host.call(&a, ms(1));
    host.clock.run();
    let mut to_b = host.call(&b, ms(1));
    host.clock.advance(secs(60) - ms(1));
    assert!(!is_done(&to_b));
    host.clock.advance(ms(1));
    let error = error(&mut to_b);
    let numbers = no_room(&error);
    assert_eq!((numbers.used, numbers.running, numbers.busy), (1, 0, 0));
    host.clock.block_on(to_a).expect("it is served");
    assert_eq!(host.world.saw("a").begun, 1);
    host.over(vec![a, b]);
}

#[test]
fn s12_a_slow_stop_delays_no_call_to_what_runs() {
    let host = Host::new(1, 2);
    host.world.plan("a", |plan| plan.stop = secs(10));
    let [a, b, c] = ["a", "b", "c"].map(|name| host.stack(name));
    host.served(&a, ms(1));
    host.clock.advance(ms(1));
    host.served(&b, ms(1));
    let to_c = host.call(&c, ms(1));
    host.clock.advance(ms(1));
    assert_eq!(a.status().state, State::Stopping);
    for _ in 0..100 {
        let before = host.clock.elapsed();
        host.served(&b, ms(0));
        assert_eq!(host.clock.elapsed(), before);
    }
    host.clock.block_on(to_c).expect("it is served");
    assert_eq!(
        host.world.saw("b").begun,
        1,
        "it was not evicted for the same start"
    );
    host.over(vec![a, b, c]);
}

#[test]
fn s14_e5_exactly_one_is_stopped_the_one_whose_last_use_ended_first() {
    for seed in 0..20 {
        let host = Host::new(seed, 3);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| host.stack(name));
        // `a` is asked first and answers last: it is the warmest.
        let long = host.call(&a, secs(10));
        host.clock.advance(secs(1));
        host.served(&b, secs(1));
        host.served(&c, secs(1));
        host.clock.block_on(long).expect("it is served");
        host.clock.advance(secs(1));
        host.served(&d, ms(1));
        assert_eq!(host.alive(&["a", "b", "c", "d"]), [1, 0, 1, 1]);
        let status = b.status();
        assert_eq!((status.evictions, status.crashes), (1, 0));
        // And so on, one by one.
        host.served(&b, ms(1));
        assert_eq!(host.alive(&["a", "b", "c", "d"]), [1, 1, 0, 1]);
        host.served(&c, ms(1));
        assert_eq!(host.alive(&["a", "b", "c", "d"]), [0, 1, 1, 1]);
        host.over(vec![a, b, c, d]);
    }
}

#[test]
fn as_many_evictions_are_under_way_as_starters_are_in_need_and_no_more() {
    let host = Host::new(1, 6);
    let stacks: Vec<_> = (0..9)
        .map(|n| {
            let name = format!("b{n}");
            host.world.plan(&name, |plan| plan.stop = secs(5));
            host.stack(&name)
        })
        .collect();
    for stack in &stacks[..6] {
        host.served(stack, ms(1));
    }
    let calls: Vec<_> = stacks[6..].iter().map(|it| host.call(it, ms(1))).collect();
    host.clock.run();
    // All three victims stop at once, not one after the other.
    let room = host.ceiling.occupancy();
    assert_eq!((room.stopping, room.running, room.waiting), (3, 3, 3));
    host.clock.advance(secs(1));
    assert_eq!(host.ceiling.occupancy().stopping, 3);
    for call in calls {
        host.clock.block_on(call).expect("it is served");
    }
    assert!(host.clock.elapsed() < secs(6));
    host.over(stacks);
}

#[test]
fn c4_e7_s42_a_pinned_one_counts_and_is_never_a_victim() {
    for zero_bound in [false, true] {
        let host = Host::new(1, 2);
        let pinned = host.stack_with("pinned", |it| {
            it.evictable = match zero_bound {
                true => it.evictable.clone().idle_after(secs(0)),
                false => it.evictable.clone().pinned(true),
            };
        });
        host.served(&pinned, ms(1));
        let stacks: Vec<_> = (0..5).map(|n| host.stack(&format!("b{n}"))).collect();
        for stack in &stacks {
            host.served(stack, ms(1));
        }
        assert_eq!(host.world.saw("pinned").alive, 1);
        assert_eq!(host.world.peak(), 2);
        let mut stacks = stacks;
        stacks.push(pinned);
        host.over(stacks);
    }
}

#[test]
fn s42_without_an_idle_bound_it_goes_for_room_only() {
    let host = Host::new(1, 1);
    let [a, b] = ["a", "b"].map(|name| {
        host.stack_with(name, |it| {
            it.evictable = it.evictable.clone().idle_after(None);
        })
    });
    host.served(&a, ms(1));
    host.clock.advance(secs(1_000_000));
    assert_eq!(host.alive(&["a"]), [1]);
    host.served(&b, ms(1));
    assert_eq!(host.alive(&["a", "b"]), [0, 1]);
    host.over(vec![a, b]);
}

#[test]
fn e3_after_a_starter_gave_up_the_busy_one_serves_on() {
    let host = Host::new(1, 1);
    let a = host.stack("a");
    let b = host.stack_with("b", |it| it.ceiling = it.ceiling.clone().wait(secs(1)));
    let long = host.call(&a, secs(5));
    host.clock.advance(secs(1));
    let mut refused = host.call(&b, ms(1));
    host.clock.advance(secs(1));
    no_room(&error(&mut refused));
    for _ in 0..10 {
        host.served(&a, ms(1));
    }
    host.clock.block_on(long).expect("it is served");
    host.served(&a, ms(1));
    assert_eq!(host.world.saw("a").begun, 1);
    host.over(vec![a, b]);
}

#[test]
fn e4_what_is_being_replaced_is_nobodys_victim_and_nobody_waits_for_a_lock() {
    let host = Host::new(1, 2);
    let (a, handle) = host.pair_with("a", |_| {});
    let b = host.stack("b");
    host.served(&a, ms(1));
    host.world.plan("a", |plan| plan.start = secs(20));
    let reload = host.clock.spawn(async move { handle.reload(None).await });
    host.clock.advance(secs(1));
    assert_eq!(host.alive(&["a"]), [2]);
    let to_b = host.call(&b, ms(1));
    host.clock.advance(secs(10));
    // The old one is idle, save for the lease its owner holds for the time of the reload.
    host.served(&a, ms(1));
    assert_eq!((host.alive(&["a"]), is_done(&to_b)), (vec![2], false));
    host.clock.block_on(reload).expect("the new one is ready");
    host.clock
        .block_on(to_b)
        .expect("the old one's room is free");
    assert_eq!(host.world.peak(), 2);
    assert_eq!(host.world.saw("a").cut, 0);
    host.over(vec![a, b]);
}

#[test]
fn s45_c6_a_reload_whose_own_old_instance_is_all_that_blocks_fails_at_once() {
    let host = Host::new(1, 1);
    let (a, handle) = host.pair_with("a", |_| {});
    host.served(&a, ms(1));
    let error = host
        .clock
        .block_on(handle.reload(None))
        .expect_err("no room for one more");
    assert!(no_room(&error).own);
    assert!(error.to_string().contains("reload_in_place"), "{error}");
    assert!(host.clock.elapsed() < secs(1));
    host.served(&a, ms(1));
    assert_eq!(host.world.saw("a").begun, 1);
    drop(handle);
    host.over(vec![a]);
}

#[test]
fn a_reload_waits_for_the_room_of_others_and_takes_it() {
    let host = Host::new(1, 2);
    let (a, handle) = host.pair_with("a", |_| {});
    let b = host.stack("b");
    host.served(&a, ms(1));
    let busy = host.call(&b, secs(5));
    host.clock.advance(secs(1));
    let reload = host.clock.spawn(async move { handle.reload(None).await });
    host.clock.advance(secs(1));
    assert!(!reload.is_finished());
    host.clock.block_on(reload).expect("the other one's room");
    host.clock.block_on(busy).expect("it is served");
    host.clock.advance(secs(1));
    assert_eq!(host.alive(&["a", "b"]), [1, 0]);
    assert_eq!(host.world.saw("a").begun, 2);
    host.over(vec![a, b]);
}

#[test]
fn min_residency_keeps_a_fresh_instance_until_exactly_then() {
    let host = Host::new(1, 1);
    let stack = |name: &str| {
        host.stack_with(name, |it| {
            it.ceiling = it.ceiling.clone().min_residency(secs(5))
        })
    };
    let [a, b] = ["a", "b"].map(stack);
    host.world.plan("a", |plan| plan.start = ms(0));
    host.world.plan("b", |plan| plan.start = ms(0));
    host.served(&a, ms(0));
    host.clock.advance(secs(1));
    let to_b = host.call(&b, ms(0));
    host.clock.advance(secs(4) - ms(1));
    assert_eq!(
        (host.alive(&["a", "b"]), is_done(&to_b)),
        (vec![1, 0], false)
    );
    host.clock.advance(ms(1));
    assert_eq!(a.status().state, State::Stopping);
    host.clock.block_on(to_b).expect("it is served");
    // In use past its time, it goes when it falls idle.
    host.clock.advance(secs(1));
    let to_a = host.call(&a, ms(1));
    let busy = host.call(&b, secs(8));
    host.clock.advance(secs(8) - ms(1));
    assert!(!is_done(&to_a));
    host.clock.block_on(busy).expect("it is served");
    host.clock.block_on(to_a).expect("it is served");
    host.over(vec![a, b]);
}

#[test]
fn e2_e8_a_closed_instance_refuses_its_leases_and_says_why_it_was_retired() {
    let host = Host::new(1, 1);
    host.world.plan("a", |plan| plan.start = ms(0));
    let maker = host.evictable.layer(host.ceiling.layer(host.world.maker()));
    let a = host.clock.block_on(maker.clone().oneshot("a".to_owned()));
    let a = a.expect("there is room");
    let used = a.lease();
    let _ = host.clock.block_on(used.oneshot(ms(1)));
    let late = a.lease();
    let spare = late.clone();
    drop(late);
    // Another start takes its room.
    let b = host.clock.spawn(maker.oneshot("b".to_owned()));
    host.clock.run();
    let retired = host.clock.block_on(a.retired());
    assert!(
        matches!(retired, Retired::Evicted(Eviction::Room)),
        "{retired:?}"
    );
    for lease in [spare, a.lease()] {
        let refused: Error = host
            .clock
            .block_on(lease.oneshot(ms(1)))
            .expect_err("closed");
        assert_eq!(*refused.kind(), ErrorKind::Evicted);
    }
    assert!(!b.is_finished());
    assert_eq!(host.world.saw("a").calls, 1);
    host.clock.block_on(a.stop());
    assert!(
        host.clock.block_on(b).is_ok(),
        "it is gone, though its owner still has it"
    );
    drop(a);
}

#[test]
fn a_death_makes_room_and_wakes_the_first_in_line() {
    let host = Host::new(1, 1);
    let [a, b] = ["a", "b"].map(|name| host.stack(name));
    let dies = host.call(&a, secs(50));
    host.clock.advance(secs(1));
    let to_b = host.call(&b, ms(1));
    host.clock.advance(secs(1));
    assert!(!is_done(&to_b));
    host.world.kill("a");
    host.clock.advance(secs(1));
    assert!(
        is_done(&to_b),
        "it did not wait for the call on the dead one"
    );
    drop(dies);
    host.over(vec![a, b]);
}

#[test]
fn s48_one_room_four_backends_callers_for_all_and_every_call_served() {
    for seed in 0..50 {
        let host = Host::new(seed, 1);
        let stacks: Vec<Stack> = (0..4).map(|n| host.stack(&format!("b{n}"))).collect();
        let mut calls = 0;
        for round in 0..10 {
            let tasks: Vec<_> = stacks
                .iter()
                .flat_map(|stack| [host.call(stack, ms(round)), host.call(stack, ms(2))])
                .collect();
            for task in tasks {
                host.clock.block_on(task).expect("it is served");
                calls += 1;
            }
        }
        let starts: u64 = (0..4).map(|n| host.world.saw(&format!("b{n}")).begun).sum();
        assert!(starts <= calls, "{starts} starts for {calls} calls");
        assert_eq!(host.world.peak(), 1);
        host.over(stacks);
    }
}

#[test]
fn room_that_is_on_its_way_back_anyway_is_waited_for_and_nobody_is_stopped_for_it() {
    let host = Host::new(1, 2);
    host.world.plan("uncounted", |plan| plan.stop = secs(5));
    let lazy = LazyStartLayer::new(host.runtime.clone(), "uncounted".to_owned());
    let (lazy, handle) = lazy.pair();
    let uncounted = lazy.layer(host.ceiling.layer(host.world.maker()));
    host.clock.block_on(handle.start()).expect("there is room");
    let [a, b] = ["a", "b"].map(|name| host.stack(name));
    host.served(&a, ms(1));
    let stopping = host.clock.spawn(handle.stop());
    host.clock.advance(secs(1));
    let to_b = host.call(&b, ms(1));
    host.clock.block_on(to_b).expect("it is served");
    assert!(stopping.is_finished());
    assert_eq!(host.alive(&["uncounted", "a", "b"]), [0, 1, 1]);
    drop((uncounted, handle));
    host.over(vec![a, b]);
}
