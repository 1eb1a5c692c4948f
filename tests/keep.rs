//! `KeepLayer`: a started backend as an ordinary service.

mod support;

use std::time::Duration;

use support::{World, ms, secs};
use tower::{Layer, Service, ServiceExt};
use tower_on_demand::{ErrorKind, KeepLayer, keep::Kept, test_util};

fn made(seed: u64) -> (test_util::Clock, World, Kept<support::Caller>) {
    let (runtime, clock) = test_util::runtime(seed);
    let world = World::new(&runtime);
    let mut maker = KeepLayer::new(runtime).name("a").layer(world.maker());
    let making = maker.call("a".to_owned());
    let kept = clock.block_on(making).expect("it starts");
    (clock, world, kept)
}

#[test]
fn dropping_the_last_clone_stops_it_after_its_calls() {
    let (clock, world, kept) = made(1);
    let clone = kept.clone();
    let mut call = clock.spawn(kept.oneshot(secs(5)));
    clock.advance(secs(1));
    drop(clone);
    clock.advance(secs(3));
    assert_eq!((world.alive(), world.saw("a").stops), (1, 0));
    clock.advance(secs(2));
    assert!(call.take().expect("answered").is_ok());
    let saw = world.saw("a");
    assert_eq!((saw.alive, saw.stops, saw.cut, clock.tasks()), (0, 1, 0, 0));
}

#[test]
fn a_dead_one_fails_its_readiness_and_is_gone_without_another_call() {
    let (clock, world, mut kept) = made(1);
    clock.block_on(kept.ready()).expect("ready");
    clock.block_on(kept.call(ms(0))).expect("served");
    world.kill("a");
    clock.advance(secs(1));
    assert_eq!((world.alive(), clock.tasks()), (0, 0));
    let error = clock.block_on(kept.ready()).expect_err("discard it");
    assert_eq!(
        (error.kind(), error.backend()),
        (&ErrorKind::Evicted, Some("a"))
    );
}

#[test]
fn a_clone_of_a_readied_service_is_not_ready() {
    let (clock, _world, mut kept) = made(1);
    clock.block_on(kept.ready()).expect("ready");
    let mut clone = kept.clone();
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| clone.call(ms(0))));
    assert!(called.is_err());
    clock
        .block_on(kept.call(Duration::ZERO))
        .expect("it was ready");
}

#[test]
fn an_executor_that_goes_away_leaves_no_instance() {
    let (clock, world, mut kept) = made(1);
    clock.shutdown();
    assert_eq!(world.alive(), 0);
    assert!(clock.block_on(kept.ready()).is_err());
}
