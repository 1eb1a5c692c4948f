//! Over the limit, and back.

use tower::Layer;
use tower_on_demand::{ErrorKind, Eviction, LazyStartLayer};

use crate::{
    common::{Host, Stack, error, is_done, no_room},
    support::{ms, secs},
};

fn pinned(host: &Host, name: &str) -> Stack {
    host.stack_with(name, |it| it.evictable = it.evictable.clone().pinned(true))
}

#[test]
fn s41_c9_a_hopeless_start_is_admitted_over_the_limit_and_retired_when_its_call_ends() {
    for seed in 0..20 {
        let host = Host::new(seed, 2);
        let stacks: Vec<_> = ["p", "q"].map(|name| pinned(&host, name)).into();
        for stack in &stacks {
            host.served(stack, ms(1));
        }
        let [a, b] = ["a", "b"].map(|name| host.stack(name));
        let to_a = host.call(&a, secs(5));
        host.clock.advance(secs(1));
        assert_eq!(host.world.alive(), 3);
        // One at a time: that one will make room.
        let to_b = host.call(&b, ms(1));
        host.clock.advance(secs(3));
        assert_eq!(host.world.alive(), 3);
        assert!(!is_done(&to_b));
        host.clock.block_on(to_a).expect("it is served");
        host.clock.run();
        assert_eq!(a.status().last_eviction, Some(Eviction::Over));
        host.clock.block_on(to_b).expect("it is served");
        host.clock.advance(ms(20));
        assert_eq!(host.alive(&["p", "q", "a", "b"]), [1, 1, 0, 0]);
        assert_eq!(host.world.peak(), 3);
        let mut stacks = stacks;
        stacks.extend([a, b]);
        host.over(stacks);
    }
}

#[test]
fn a_strict_stack_is_never_admitted_over_the_limit() {
    let host = Host::new(1, 1);
    let p = pinned(&host, "p");
    host.served(&p, ms(1));
    let a = host.stack_with("a", |it| {
        it.ceiling = it.ceiling.clone().strict().wait(secs(7))
    });
    let mut refused = host.call(&a, ms(1));
    host.clock.advance(secs(7) - ms(1));
    assert!(!is_done(&refused));
    host.clock.advance(ms(1));
    no_room(&error(&mut refused));
    assert_eq!(host.world.peak(), 1);
    host.over(vec![p, a]);
}

#[test]
fn it_is_not_hopeless_while_something_starts_or_stops_or_is_only_not_counted() {
    let host = Host::new(1, 2);
    let p = pinned(&host, "p");
    host.served(&p, ms(1));
    // A stack without IdleEvict: it counts, is no victim, and is not pinned by anybody's word.
    let lazy = LazyStartLayer::new(host.runtime.clone(), "uncounted".to_owned());
    let (lazy, handle) = lazy.pair();
    let uncounted = lazy.layer(host.ceiling.layer(host.world.maker()));
    host.clock.block_on(handle.start()).expect("there is room");
    let a = host.stack_with("a", |it| it.ceiling = it.ceiling.clone().wait(secs(5)));
    let mut refused = host.call(&a, ms(1));
    host.clock.advance(secs(5));
    let numbers = no_room(&error(&mut refused));
    assert_eq!((numbers.used, numbers.running), (2, 2));
    assert_eq!(numbers.uncounted, 1);
    assert_eq!(host.alive(&["p", "uncounted", "a"]), [1, 1, 0]);
    // Stopped by its owner, it makes room.
    let waiting = host.call(&a, ms(1));
    host.clock.run();
    host.clock.block_on(handle.stop()).expect("it stops");
    host.clock.block_on(waiting).expect("there is room");
    assert_eq!(host.world.peak(), 2);
    drop((uncounted, handle));
    host.over(vec![p, a]);
}

#[test]
fn s43_a_lower_limit_retires_the_idle_now_and_the_busy_when_they_fall_idle() {
    let host = Host::new(1, 5);
    let stacks: Vec<_> = (0..5).map(|n| host.stack(&format!("b{n}"))).collect();
    for stack in &stacks {
        host.served(stack, ms(1));
        host.clock.advance(ms(1));
    }
    let long: Vec<_> = (2..5)
        .map(|n| host.call(&stacks[n], secs(n as u64)))
        .collect();
    host.clock.run();
    host.ceiling.set_limit(1);
    host.clock.advance(ms(20));
    // The two idle ones are gone, the busy ones are not.
    assert_eq!(host.alive(&["b0", "b1", "b2", "b3", "b4"]), [0, 0, 1, 1, 1]);
    host.clock.advance(secs(2));
    assert_eq!(host.alive(&["b2", "b3", "b4"]), [0, 1, 1]);
    host.clock.advance(secs(1));
    assert_eq!(host.alive(&["b3", "b4"]), [0, 1]);
    // Within the limit again: the last one stays.
    host.clock.advance(secs(5));
    assert_eq!(host.alive(&["b4"]), [1]);
    for call in long {
        host.clock.block_on(call).expect("none is cut");
    }
    for (n, stack) in stacks.iter().enumerate().take(4) {
        assert_eq!(stack.status().last_eviction, Some(Eviction::Over), "b{n}");
        assert_eq!(host.world.saw(&format!("b{n}")).cut, 0);
    }
    host.over(stacks);
}

#[test]
fn s43_starters_in_line_that_can_never_fit_any_more_are_refused_and_a_higher_limit_admits() {
    let host = Host::new(1, 4);
    let busy = host.stack_with("busy", |it| it.ceiling = it.ceiling.clone().weight(4));
    let heavy = host.stack_with("heavy", |it| it.ceiling = it.ceiling.clone().weight(3));
    let light = host.stack("light");
    let long = host.call(&busy, secs(30));
    host.clock.advance(secs(1));
    let mut to_heavy = host.call(&heavy, ms(1));
    host.clock.run();
    let to_light = host.call(&light, ms(1));
    host.clock.run();
    host.ceiling.set_limit(2);
    host.clock.run();
    let refused = error(&mut to_heavy);
    assert!(matches!(
        refused.kind(),
        ErrorKind::NeverFits {
            weight: 3,
            limit: 2,
            ..
        }
    ));
    assert!(!is_done(&to_light));
    host.ceiling.set_limit(5);
    host.clock.block_on(to_light).expect("room for one more");
    assert!(host.clock.elapsed() < secs(2));
    host.clock.block_on(long).expect("it is served");
    host.over(vec![busy, heavy, light]);
}

fn kept(host: &Host, pinned: bool) -> Stack {
    host.stack_with("kept", |it| {
        it.lazy = it.lazy.clone().keep_running().backoff(secs(3), secs(3));
        it.evictable = it.evictable.clone().pinned(pinned);
    })
}

/// The starts that began after the first `skip`, in order.
fn started(host: &Host, skip: usize) -> Vec<String> {
    let log = host.world.log();
    let starts = log.iter().filter_map(|line| line.split_once(" start "));
    starts.skip(skip).map(|(_, name)| name.to_owned()).collect()
}

#[test]
fn s44_what_is_pinned_and_kept_running_is_restarted_before_all_who_wait() {
    for (seed, short_life) in [(1, false), (2, true), (3, false), (4, true)] {
        let host = Host::new(seed, 2);
        let kept = kept(&host, true);
        host.served(&kept, ms(1));
        let other = host.stack("other");
        let long = host.call(&other, secs(50));
        host.clock
            .advance(if short_life { secs(1) } else { secs(40) });
        let stacks: Vec<_> = (0..20).map(|n| host.stack(&format!("b{n}"))).collect();
        let calls: Vec<_> = stacks
            .iter()
            .map(|stack| host.call(stack, ms(10)))
            .collect();
        host.clock.run();
        assert_eq!(host.ceiling.occupancy().waiting, 20);
        // After a short life it waits a little before it is started again; its room is not another's
        // meanwhile.
        host.world.kill("kept");
        host.clock.advance(secs(4));
        assert_eq!(started(&host, 2), ["kept"]);
        assert_eq!(kept.status().restarts, 1);
        for call in calls {
            host.clock.block_on(call).expect("it is served");
        }
        host.clock.block_on(long).expect("it is served");
        assert_eq!((host.world.saw("kept").begun, host.world.peak()), (2, 2));
        let mut stacks = stacks;
        stacks.extend([kept, other]);
        host.over(stacks);
    }
}

#[test]
fn the_room_kept_for_a_restart_comes_back_when_there_is_none() {
    let host = Host::new(1, 1);
    let (kept, handle) = host.pair_with("kept", |it| {
        it.lazy = it.lazy.clone().keep_running().backoff(secs(3), secs(3));
        it.evictable = it.evictable.clone().pinned(true);
    });
    host.served(&kept, ms(1));
    let a = host.stack_with("a", |it| it.ceiling = it.ceiling.clone().strict());
    let call = host.call(&a, ms(1));
    host.clock.run();
    host.world.kill("kept");
    host.clock.advance(secs(1));
    let room = host.ceiling.occupancy();
    assert_eq!((room.used, room.stopping, host.world.alive()), (1, 0, 0));
    assert!(!is_done(&call));
    host.clock.block_on(handle.stop()).expect("it stays down");
    host.clock.block_on(call).expect("the room is free");
    drop(handle);
    host.over(vec![kept, a]);
}

#[test]
fn what_is_kept_running_but_not_pinned_queues_like_everybody() {
    let host = Host::new(1, 1);
    let kept = kept(&host, false);
    let stacks: Vec<_> = ["a", "b"].map(|name| host.stack(name)).into();
    let busy = host.call(&kept, secs(100));
    host.clock.advance(secs(40));
    let calls: Vec<_> = stacks
        .iter()
        .map(|stack| host.call(stack, ms(10)))
        .collect();
    host.clock.run();
    host.world.kill("kept");
    host.clock.advance(secs(4));
    assert_eq!(started(&host, 1)[..2].len(), 2);
    assert!(calls.iter().all(is_done));
    drop(busy);
    let mut stacks = stacks;
    stacks.push(kept);
    host.over(stacks);
}
