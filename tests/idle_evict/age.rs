//! Age: an instance goes one bound after its last use ended.

use std::{fs, path::Path, time::Duration};

use tower::ServiceExt;
use tower_on_demand::{
    Eviction, IdleEvict, LazyStartLayer, Runtime, State, UntilResponse, test_util,
};

use crate::{
    common::Host,
    support::{World, ms, secs},
};

#[test]
fn s03_e1_a_call_longer_than_the_bound_ends_first_and_the_stop_comes_one_bound_after_its_end() {
    let host = Host::swept(1);
    host.prompt("a");
    let a = host.stack("a", secs(10));
    let call = host.call(&a, secs(60));
    host.clock.advance(secs(70) - ms(1));
    assert!(call.is_finished());
    assert_eq!(host.stops("a"), 0);
    host.clock.advance(ms(1));
    assert_eq!(host.stopped_at("a"), Some(secs(70)));
    assert_eq!(host.world.saw("a").cut, 0);
    assert_eq!(a.status().last_eviction, Some(Eviction::Idle));
}

#[test]
fn s04_e6_the_idle_clock_starts_at_ready_whoever_has_left_by_then() {
    let host = Host::swept(1);
    host.world
        .plan("a", |plan| (plan.start, plan.stop) = (secs(20), ms(0)));
    let a = host.stack("a", secs(5));
    let call = host.call(&a, ms(1));
    host.clock.advance(secs(1));
    drop(call);
    host.clock.advance(secs(24) - ms(1));
    assert_eq!((host.world.saw("a").ready, host.stops("a")), (1, 0));
    host.clock.advance(ms(1));
    assert_eq!(host.stopped_at("a"), Some(secs(25)));
}

#[test]
fn s05_a_call_that_begins_just_before_the_bound_and_outlasts_it_prevents_the_stop() {
    let host = Host::swept(1);
    host.prompt("a");
    let a = host.stack("a", secs(10));
    host.served(&a, ms(0));
    host.clock.advance(ms(9_900));
    let call = host.call(&a, ms(20_100));
    host.clock.advance(ms(20_100));
    assert!(call.is_finished());
    assert_eq!(host.stops("a"), 0);
    host.clock.advance(secs(10));
    assert_eq!(host.stopped_at("a"), Some(secs(40)));
}

#[test]
fn s19_short_calls_a_little_less_than_the_bound_apart_keep_it() {
    let host = Host::swept(1);
    host.prompt("a");
    let a = host.stack("a", secs(10));
    for _ in 0..100 {
        host.served(&a, ms(1));
        host.clock.advance(secs(9));
    }
    assert_eq!((host.stops("a"), host.world.saw("a").begun), (0, 1));
    host.clock.advance(secs(1));
    assert_eq!(host.stops("a"), 1);
}

#[test]
fn s18_what_is_declared_not_use_passes_and_does_not_move_the_idle_clock() {
    let host = Host::swept(1);
    host.prompt("a");
    // A health check takes 7 ms here, anything else something else.
    let health = |takes: &Duration| *takes == ms(7);
    let evictable = host.evictable.clone().idle_after(secs(10)).not_use(health);
    let a = host.stack_of("a", evictable);
    host.served(&a, ms(0));
    for _ in 0..9 {
        host.clock.advance(secs(1) - ms(7));
        host.served(&a, ms(7));
    }
    assert_eq!(host.world.saw("a").answered, 10);
    host.clock.advance(secs(1));
    assert_eq!(host.stopped_at("a"), Some(secs(10)));
}

#[test]
fn s18_one_that_is_in_flight_when_it_is_due_is_not_cut_and_it_goes_when_that_ends() {
    for seed in 0..10 {
        let host = Host::swept(seed);
        host.prompt("a");
        let health = |takes: &Duration| *takes == secs(7);
        let evictable = host.evictable.clone().idle_after(secs(10)).not_use(health);
        let a = host.stack_of("a", evictable);
        host.served(&a, ms(0));
        host.clock.advance(secs(8));
        let check = host.call(&a, secs(7));
        host.clock.advance(secs(7) - ms(1));
        assert_eq!(host.stops("a"), 0);
        host.clock.advance(ms(1));
        assert!(check.is_finished());
        assert_eq!(host.stopped_at("a"), Some(secs(15)));
        assert_eq!(host.world.saw("a").cut, 0);
    }
}

#[test]
fn s18_health_checks_are_only_for_what_runs() {
    let host = Host::swept(1);
    let health = |takes: &Duration| *takes == ms(7);
    let evictable = host.evictable.clone().idle_after(secs(10)).not_use(health);
    let a = tower::Layer::layer(
        &LazyStartLayer::new(host.runtime.clone(), "a".to_owned()).only_if_running(health),
        tower::Layer::layer(&evictable, host.world.maker()),
    );
    for _ in 0..20 {
        let refused = host.clock.block_on(a.clone().oneshot(ms(7)));
        assert!(refused.is_err());
        host.clock.advance(secs(1));
    }
    assert_eq!(host.world.saw("a").begun, 0);
    host.clock
        .block_on(a.clone().oneshot(ms(1)))
        .expect("it starts it");
    host.clock
        .block_on(a.clone().oneshot(ms(7)))
        .expect("it runs");
}

#[test]
fn s40_nothing_reads_the_wall_clock_so_its_jumps_stop_nothing() {
    // No test can set it; but nobody asks for it either.
    let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut sources = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("it is readable");
            files.extend(entries.map(|entry| entry.expect("it is readable").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("it is text");
            assert!(!source.contains("SystemTime"), "{}", path.display());
            sources += 1;
        }
    }
    assert!(sources > 20, "{sources}");

    // Nor the monotonic clock of the machine: no virtual time passes, however much real time does.
    let host = Host::swept(1);
    let a = host.stack("a", Duration::from_nanos(1));
    host.prompt("a");
    let call = host.call(&a, ms(0));
    host.clock.run();
    assert!(call.is_finished());
    std::thread::sleep(ms(5));
    host.clock.run();
    assert_eq!(host.stops("a"), 0);
    host.clock.advance(Duration::from_nanos(1));
    assert_eq!(host.stops("a"), 1);
}

#[test]
fn a_coarse_recency_clock_is_as_good_to_its_granularity() {
    let (runtime, clock) = test_util::runtime(1);
    let origin = runtime.now();
    let coarse = {
        let clock = clock.clone();
        // It moves every 250 ms.
        move || {
            let millis = clock.now().duration_since(origin).as_millis() as u64;
            ms(millis / 250 * 250)
        }
    };
    let runtime: Runtime = runtime.recency(coarse);
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(idle_evict.run());
    let world = World::new(&runtime);
    world.plan("a", |plan| plan.stop = ms(0));
    let a = tower::Layer::layer(
        &LazyStartLayer::new(runtime.clone(), "a".to_owned()),
        tower::Layer::layer(&evictable.idle_after(secs(10)), world.maker()),
    );
    clock
        .block_on(a.clone().oneshot(ms(90)))
        .expect("it is served");
    clock.advance(secs(10) + ms(400));
    assert_eq!(world.saw("a").stops, 1);
    let polls = clock.polls();
    clock
        .block_on(a.clone().oneshot(ms(1)))
        .expect("it is served");
    clock.advance(secs(9));
    assert!(clock.polls() - polls < 100, "the sweeper does not spin");
}

#[test]
fn e7_s42_bound_zero_is_pinned_and_no_bound_is_never_for_age() {
    for bound in [Some(secs(0)), None] {
        let host = Host::swept(1);
        let a = host.stack("a", bound);
        host.served(&a, ms(1));
        host.clock.advance(secs(10_000_000));
        assert_eq!(host.stops("a"), 0, "{bound:?}");
        assert_eq!(a.status().state, State::Running);
    }
    let host = Host::swept(1);
    let a = host.stack_of("a", host.evictable.clone().idle_after(secs(1)).pinned(true));
    host.served(&a, ms(1));
    host.clock.advance(secs(1000));
    assert_eq!(host.stops("a"), 0);
}

#[test]
fn e8_an_eviction_is_no_crash_and_the_next_call_gets_a_fresh_instance() {
    let host = Host::swept(1);
    let a = host.stack("a", secs(1));
    for round in 1..=5 {
        host.served(&a, ms(1));
        host.clock.advance(secs(2));
        let status = a.status();
        assert_eq!(
            (status.evictions, status.crashes, status.restarts),
            (round, 0, 0)
        );
        assert_eq!(
            (status.state, host.world.saw("a").begun),
            (State::Stopped, round)
        );
    }
}

#[test]
fn s01_a_call_that_lands_during_the_stop_gets_a_fresh_instance() {
    for seed in 0..20 {
        let host = Host::swept(seed);
        host.world.plan("a", |plan| plan.stop = secs(5));
        let a = host.stack("a", secs(10));
        host.served(&a, ms(1));
        host.clock.advance(secs(12));
        assert_eq!(a.status().state, State::Stopping);
        let call = host.call(&a, ms(1));
        host.clock.block_on(call).expect("it is served");
        let saw = host.world.saw("a");
        assert_eq!(
            (saw.begun, saw.stops, saw.misdelivered, saw.peak),
            (2, 1, 0, 1)
        );
        host.served(&a, ms(1));
        assert_eq!(host.world.saw("a").begun, 2);
    }
}
