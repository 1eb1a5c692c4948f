//! `IdleEvict` as a service: when it is ready, what it tells, when it ends.

use std::future::poll_fn;

use tower::{Service, ServiceExt};
use tower_on_demand::{ErrorKind, Eviction, State, Sweep, test_util::Counted};

use crate::{
    common::Host,
    support::{ms, secs},
};

#[test]
fn it_is_ready_when_something_is_due_and_stays_so_and_a_sweep_tells_who_and_why() {
    let (host, mut idle_evict) = Host::new(1);
    for name in ["a", "b", "c"] {
        host.prompt(name);
    }
    let [a, b] = ["a", "b"].map(|name| host.stack(name, secs(10)));
    let c = host.stack("c", secs(30));
    host.served(&a, ms(0));
    host.clock.advance(secs(1));
    host.served(&b, ms(0));
    host.served(&c, ms(0));

    let before = host.clock.elapsed();
    host.clock.block_on(idle_evict.ready()).expect("due");
    assert_eq!(
        host.clock.elapsed() - before,
        secs(9),
        "pending until the first is due"
    );
    host.clock.advance(secs(1));
    // Nobody has swept: it is due still, and so is the next one.
    assert_eq!(host.world.alive(), 3);
    host.clock.block_on(idle_evict.ready()).expect("due");
    assert_eq!(host.clock.elapsed() - before, secs(10));

    let swept = host
        .clock
        .block_on(idle_evict.call(Sweep))
        .expect("it sweeps");
    let told: Vec<_> = swept
        .retired()
        .iter()
        .map(|it| (it.name(), it.why(), it.idle()))
        .collect();
    assert_eq!(
        told,
        [
            (Some("a"), Eviction::Idle, secs(11)),
            (Some("b"), Eviction::Idle, secs(10)),
        ]
    );
    host.clock.block_on(swept.gone());
    assert_eq!((host.world.alive(), host.stops("c")), (1, 0));

    // The next one is `c`; a sweep that is too early finds nothing.
    let swept = host
        .clock
        .block_on(idle_evict.call(Sweep))
        .expect("it sweeps");
    assert!(swept.retired().is_empty());
    host.clock.block_on(swept.gone());
    host.clock.block_on(idle_evict.ready()).expect("due");
    assert_eq!(host.clock.elapsed() - before, secs(30));
}

#[test]
fn gone_waits_until_they_are_stopped() {
    let (host, mut idle_evict) = Host::new(1);
    host.world.plan("a", |plan| plan.stop = secs(5));
    let a = host.stack("a", secs(10));
    host.served(&a, ms(1));
    host.clock.block_on(idle_evict.ready()).expect("due");
    let swept = host
        .clock
        .block_on(idle_evict.call(Sweep))
        .expect("it sweeps");
    let before = host.clock.elapsed();
    host.clock.block_on(swept.gone());
    assert_eq!(host.clock.elapsed() - before, secs(5));
    assert_eq!(host.world.alive(), 0);
}

#[test]
fn one_timer_for_the_earliest_and_uses_wake_nobody() {
    let (host, mut idle_evict) = Host::new(1);
    let stacks: Vec<_> = (0..50)
        .map(|n| {
            let name = format!("b{n:02}");
            host.prompt(&name);
            host.stack(&name, secs(100 + n))
        })
        .collect();
    for stack in &stacks {
        host.served(stack, ms(0));
    }
    let mut ready = Counted::new(Box::pin(poll_fn(|cx| idle_evict.poll_ready(cx))));
    let counts = ready.counts();
    assert!(ready.poll_once().is_pending());
    assert_eq!(host.clock.timers(), 1);
    for _ in 0..10 {
        for stack in &stacks {
            host.served(stack, ms(1));
        }
    }
    assert_eq!(
        counts.wakes(),
        0,
        "a use moves only what is looked at later"
    );
    // A shorter bound and a new instance that is due earlier do wake it.
    let early = host.stack("early", secs(5));
    host.served(&early, ms(0));
    assert_eq!(counts.wakes(), 1);
    assert!(ready.poll_once().is_pending());
    let late = host.stack("late", secs(5000));
    host.served(&late, ms(0));
    assert_eq!(counts.wakes(), 1);
    assert_eq!(host.clock.timers(), 1);
}

#[test]
fn a_busy_instance_costs_the_sweeper_one_look_per_bound() {
    let (host, idle_evict) = Host::new(1);
    let a = host.stack("a", secs(10));
    let call = host.call(&a, secs(1000));
    host.clock.advance(secs(1));
    let polls = host.clock.polls();
    let sweeper = host.clock.spawn(idle_evict.run());
    host.clock.advance(secs(998));
    let looks = host.clock.polls() - polls;
    assert!(looks <= 102, "{looks}");
    host.clock.advance(secs(12));
    assert!(call.is_finished());
    assert_eq!(host.stops("a"), 1);
    drop(sweeper);
}

#[test]
fn it_keeps_nothing_alive_and_ends_with_the_last_layer_and_the_last_instance() {
    let (host, idle_evict) = Host::new(1);
    let a = host.stack("a", secs(100));
    host.served(&a, ms(1));
    let sweeper = host.clock.spawn(idle_evict.run());
    let Host {
        clock,
        world,
        evictable,
        runtime,
    } = host;
    clock.run();
    drop(evictable);
    clock.run();
    assert!(!sweeper.is_finished(), "its stack can start instances");
    drop(a);
    clock.advance(secs(1));
    assert_eq!(world.alive(), 0);
    assert!(sweeper.is_finished());
    assert_eq!((clock.tasks(), clock.timers()), (0, 0));
    drop(runtime);

    let (host, mut idle_evict) = Host::new(1);
    drop(host.evictable);
    let error = host
        .clock
        .block_on(idle_evict.ready())
        .map(drop)
        .expect_err("it is over");
    assert_eq!(*error.kind(), ErrorKind::ShutDown);
}

#[test]
fn l4_run_until_ends_after_the_sweep_in_progress_and_not_before() {
    let (host, idle_evict) = Host::new(1);
    host.world.plan("a", |plan| plan.stop = secs(5));
    let [a, b] = ["a", "b"].map(|name| host.stack(name, secs(10)));
    host.served(&a, ms(1));
    host.clock.advance(secs(1));
    host.served(&b, ms(1));
    let (stop, stopped) = futures_channel::oneshot::channel::<()>();
    let sweeper = host.clock.spawn(idle_evict.run_until(stopped));
    host.clock.advance(ms(9_500));
    assert_eq!(a.status().state, State::Stopping);
    stop.send(()).expect("it runs");
    host.clock.advance(secs(3));
    assert!(!sweeper.is_finished(), "its sweep is in progress");
    assert_eq!(b.status().state, State::Running, "and no new one begins");
    host.clock.block_on(sweeper);
    assert_eq!(host.alive("a"), 0);
    host.clock.advance(secs(100));
    assert_eq!(host.alive("b"), 1);
}

#[test]
fn a_signal_with_nothing_in_progress_ends_it_at_once() {
    let (host, idle_evict) = Host::new(1);
    let a = host.stack("a", secs(10));
    host.served(&a, ms(1));
    let before = host.clock.elapsed();
    let signal = host.clock.sleep(secs(3));
    host.clock.block_on(idle_evict.run_until(signal));
    assert_eq!(host.clock.elapsed() - before, secs(3));
}

#[test]
fn e4_what_was_used_or_is_in_transition_since_is_not_retired_and_nobody_waits() {
    let (host, mut idle_evict) = Host::new(1);
    for name in ["a", "b"] {
        host.prompt(name);
    }
    let [a, b] = ["a", "b"].map(|name| host.stack(name, secs(10)));
    host.served(&a, ms(0));
    host.served(&b, ms(0));
    host.clock.block_on(idle_evict.ready()).expect("due");
    // Between ready and call: a use that came and went, and one in flight.
    host.served(&a, ms(0));
    let call = host.call(&b, secs(1));
    host.clock.run();
    let swept = host
        .clock
        .block_on(idle_evict.call(Sweep))
        .expect("it sweeps");
    assert!(swept.retired().is_empty());
    host.clock.block_on(call).expect("it is served");
    assert_eq!((host.stops("a"), host.stops("b")), (0, 0));
}

#[test]
fn ten_thousand_instances_are_retired_each_at_its_time() {
    let (host, idle_evict) = Host::new(1);
    let stacks: Vec<_> = (0..10_000)
        .map(|n| {
            let name = format!("b{n}");
            host.prompt(&name);
            let stack = host.stack(&name, ms(1000 + n));
            let call = host.call(&stack, ms(0));
            (stack, call)
        })
        .collect();
    host.clock.run();
    let polls = host.clock.polls();
    let sweeper = host.clock.spawn(idle_evict.run());
    host.clock.advance(ms(1000 + 4_999));
    assert_eq!(host.world.alive(), 5_000);
    host.clock.advance(ms(5_000));
    assert_eq!(host.world.alive(), 0);
    // One poll of the sweeper for each moment, and a few of each owner.
    assert!(
        host.clock.polls() - polls < 100_000,
        "{}",
        host.clock.polls() - polls
    );
    drop((sweeper, stacks));
}
