//! Arrival order, direct hand-over, and what it wakes.

use std::{pin::Pin, time::Duration};

use tower::{Layer, ServiceExt};
use tower_on_demand::{
    CeilingLayer, ErrorKind, Occupied,
    ceiling::MakeError,
    test_util::{self, Counted},
};

use crate::{
    common::{Call, Host, error, is_done},
    support::{Fake, World, ms, secs},
};

type Start = Pin<Box<dyn Future<Output = Result<Occupied<Fake>, MakeError<std::io::Error>>>>>;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("b{n:02}")).collect()
}

/// The names in the order in which their starts began.
fn started(world: &World) -> Vec<String> {
    let log = world.log();
    let starts = log.iter().filter_map(|line| line.split_once(" start "));
    starts.map(|(_, name)| name.to_owned()).collect()
}

#[test]
fn c7_w1_room_goes_to_those_who_wait_in_the_order_in_which_they_came() {
    for seed in 0..20 {
        let host = Host::new(seed, 1);
        let first = host.stack("first");
        let busy = host.call(&first, secs(1));
        host.clock.advance(ms(500));
        let names = names(20);
        let stacks: Vec<_> = names.iter().map(|name| host.stack(name)).collect();
        let mut calls: Vec<Call> = Vec::new();
        for stack in &stacks {
            calls.push(host.call(stack, ms(3)));
            host.clock.run();
        }
        assert_eq!(host.ceiling.occupancy().waiting, 20);
        for call in calls {
            host.clock.block_on(call).expect("it is served");
        }
        host.clock.block_on(busy).expect("it was served");
        let mut expected = vec!["first".to_owned()];
        expected.extend(names);
        assert_eq!(started(&host.world), expected);
        assert_eq!(host.world.peak(), 1);
        let mut stacks = stacks;
        stacks.push(first);
        host.over(stacks);
    }
}

#[test]
fn s09_two_starters_at_once_are_served_in_order_and_no_timer_is_needed() {
    for seed in 0..50 {
        let host = Host::new(seed, 1);
        for name in ["a", "b", "c"] {
            host.world.plan(name, |plan| {
                (plan.start, plan.stop) = (ms(0), ms(0));
            });
        }
        let [a, b, c] = ["a", "b", "c"].map(|name| host.stack(name));
        host.served(&a, ms(0));
        let to_b = host.call(&b, ms(0));
        host.clock.run();
        let to_c = host.call(&c, ms(0));
        // No time passes.
        host.clock.run();
        assert!(is_done(&to_b) && is_done(&to_c));
        assert_eq!(started(&host.world), ["a", "b", "c"]);
        assert_eq!(host.clock.elapsed(), Duration::ZERO);
        host.over(vec![a, b, c]);
    }
}

#[test]
fn c8_a_starter_that_leaves_the_line_leaves_no_hole_and_no_permit() {
    for seed in 0..20 {
        let host = Host::new(seed, 1);
        let stacks: Vec<_> = names(6)
            .iter()
            .map(|name| {
                host.stack_with(name, |it| it.lazy = it.lazy.clone().cancel_when_abandoned())
            })
            .collect();
        let first = host.call(&stacks[0], secs(1));
        host.clock.advance(ms(100));
        let mut calls: Vec<Option<Call>> = Vec::new();
        for stack in &stacks[1..] {
            calls.push(Some(host.call(stack, ms(3))));
            host.clock.run();
        }
        // The head, one in the middle, and the last.
        for gone in [0, 2, 4] {
            calls[gone] = None;
            host.clock.run();
        }
        assert_eq!(host.ceiling.occupancy().waiting, 2);
        host.clock.block_on(first).expect("it is served");
        for call in calls.into_iter().flatten() {
            host.clock.block_on(call).expect("it is served");
        }
        assert_eq!(started(&host.world), ["b00", "b02", "b04"]);
        host.over(stacks);
    }
}

fn starts(limit: u64, count: usize) -> (CeilingLayer, test_util::Clock, Vec<Counted<Start>>) {
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    let ceiling = CeilingLayer::new(runtime.clone(), limit);
    let maker = ceiling.layer(world.maker());
    let starts = names(count).into_iter().map(|name| {
        world.plan(&name, |plan| plan.start = ms(0));
        let start: Start = Box::pin(maker.clone().oneshot(name));
        Counted::new(start)
    });
    let starts = starts.collect();
    (ceiling, clock, starts)
}

fn poll_all(starts: &mut [Counted<Start>]) {
    for start in starts {
        assert!(start.poll_once().is_pending());
    }
}

#[test]
fn one_wake_per_hand_over_and_it_is_the_first_in_line_that_is_woken() {
    let (_ceiling, clock, mut starts) = starts(1, 12);
    let mut holder = starts.remove(0);
    let mut running = Some(clock.block_on(&mut holder).expect("there is room"));
    poll_all(&mut starts);
    for index in 0..starts.len() {
        drop(running.take());
        let woken: Vec<u64> = starts.iter().map(|start| start.counts().wakes()).collect();
        let mut expected = vec![1; index + 1];
        expected.resize(starts.len(), 0);
        assert_eq!(woken, expected);
        running = Some(clock.block_on(&mut starts[index]).expect("its turn"));
        assert_eq!(starts[index].counts().polls(), 2);
    }
}

#[test]
fn s31_c5_what_is_granted_to_one_that_is_dropped_before_it_looks_goes_to_the_next() {
    let (ceiling, clock, mut starts) = starts(1, 4);
    let mut holder = starts.remove(0);
    let running = clock.block_on(&mut holder).expect("there is room");
    poll_all(&mut starts);
    drop(running);
    // Granted, and never polled again.
    drop(starts.remove(0));
    assert_eq!(ceiling.occupancy().used, 1);
    assert_eq!(starts[0].counts().wakes(), 1);
    drop(starts.remove(0));
    let running = clock.block_on(&mut starts[0]).expect("its turn");
    assert_eq!(ceiling.occupancy().used, 1);
    drop(running);
    assert_eq!(ceiling.occupancy().used, 0);
}

#[test]
fn s31_a_call_dropped_after_any_number_of_polls_leaves_no_use_and_no_room_behind() {
    for dropped_after in 0..12 {
        for seed in 0..5 {
            let host = Host::new(seed, 1);
            let [a, b] = ["a", "b"].map(|name| host.stack(name));
            host.served(&a, ms(1));
            let mut call = Counted::new(Box::pin(b.clone().oneshot(ms(5))));
            for _ in 0..dropped_after {
                if call.poll_once().is_ready() {
                    break;
                }
                host.clock.advance(ms(3));
            }
            drop(call);
            host.clock.advance(secs(1));
            assert_eq!(host.world.saw("b").in_flight, 0);
            assert_eq!(b.status().in_flight.unwrap_or(0), 0);
            assert_eq!(host.ceiling.occupancy().busy, 0);
            // Nothing is in the way of the next.
            host.served(&a, ms(1));
            host.served(&b, ms(1));
            host.over(vec![a, b]);
        }
    }
}

#[test]
fn a_finished_call_wakes_nobody_unless_somebody_waits_for_it() {
    let host = Host::new(1, 1);
    let mut idle_evict = host.evictable.clone();
    idle_evict = idle_evict.idle_after(secs(60));
    let a = host.stack_with("a", |it| it.evictable = idle_evict);
    host.served(&a, ms(1));
    host.clock.run();

    let polls = host.clock.polls();
    let call = Counted::new(Box::pin(a.clone().oneshot(ms(5))));
    let counts = call.counts();
    let call = host.clock.spawn(call);
    host.clock.advance(ms(5));
    assert!(call.is_finished());
    assert_eq!(host.clock.polls() - polls, counts.polls());

    // Somebody waits, but this is not the last call in flight.
    let long = host.call(&a, secs(5));
    let short = host.call(&a, secs(1));
    let b = host.stack("b");
    let waiting = host.call(&b, ms(1));
    host.clock.advance(ms(999));
    let polls = host.clock.polls();
    host.clock.advance(ms(1));
    assert!(short.is_finished());
    assert_eq!(
        host.clock.polls() - polls,
        1,
        "the call itself, and nobody else"
    );
    host.clock.block_on(waiting).expect("it is served");
    assert!(long.is_finished());
    host.over(vec![a, b]);
}

#[test]
fn a_prewarm_takes_free_room_only_and_stops_nothing() {
    let host = Host::new(1, 1);
    let (a, warm_a) = host.pair_with("a", |_| {});
    let (b, warm_b) = host.pair_with("b", |_| {});
    host.clock.block_on(warm_a.start()).expect("room is free");
    host.served(&a, ms(1));
    let refused = host
        .clock
        .block_on(warm_b.start())
        .expect_err("there is no free room");
    assert!(matches!(refused.kind(), ErrorKind::NoRoom(_)), "{refused}");
    assert_eq!(host.alive(&["a", "b"]), [1, 0]);
    host.clock
        .block_on(warm_b.start_evicting())
        .expect("it may evict");
    assert_eq!(host.alive(&["a", "b"]), [0, 1]);
    drop((warm_a, warm_b));
    host.over(vec![a, b]);
}

#[test]
fn w2_a_refusal_comes_exactly_at_the_deadline_and_touches_nothing() {
    let host = Host::new(1, 1);
    let a = host.stack("a");
    let b = host.stack_with("b", |it| it.ceiling = it.ceiling.clone().wait(secs(10)));
    let busy = host.call(&a, secs(30));
    host.clock.advance(secs(1));
    let mut refused = host.call(&b, ms(1));
    host.clock.advance(secs(10) - Duration::from_nanos(1));
    assert!(!is_done(&refused));
    host.clock.advance(Duration::from_nanos(1));
    let error = error(&mut refused);
    assert!(matches!(error.kind(), ErrorKind::NoRoom(_)));
    assert_eq!(host.world.saw("b").begun, 0);
    assert_eq!(host.world.saw("a").cut, 0);
    host.clock
        .block_on(busy)
        .expect("nothing in flight was touched");
    host.over(vec![a, b]);
}
