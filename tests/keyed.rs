//! `Keyed`: backends known only at run time.

mod support;

use std::{
    hash::{Hash, Hasher},
    time::Duration,
};

use support::{Caller, World, ms, secs};
use tower::{Layer, ServiceExt};
use tower_on_demand::{
    Error, ErrorKind, Group, Keyed, KeyedLayer, Runtime, State,
    test_util::{self, Clock},
};
use tower_service::Service;

/// Whose backend, and how long the call takes.
#[derive(Clone)]
struct Call(Option<String>, Duration);

fn to(key: impl Into<String>) -> Call {
    Call(Some(key.into()), ms(0))
}

/// Takes [`Call`]s to a fake, which takes durations.
#[derive(Clone)]
struct Serve(Caller);

impl Service<Call> for Serve {
    type Response = ();
    type Error = std::io::Error;
    type Future = <Caller as Service<Duration>>::Future;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, call: Call) -> Self::Future {
        self.0.call(call.1)
    }
}

fn key_of(call: &Call) -> Option<String> {
    call.0.clone()
}

type Tenants = Keyed<String, Serve, fn(&Call) -> Option<String>>;

fn tenants(
    runtime: &Runtime,
    world: &World,
    options: impl FnOnce(
        KeyedLayer<String, String, fn(&Call) -> Option<String>>,
    ) -> KeyedLayer<String, String, fn(&Call) -> Option<String>>,
) -> Tenants {
    let target = |key: &String| {
        if key.starts_with("no-") {
            Err("no such tenant")
        } else {
            Ok(key.clone())
        }
    };
    let layer = KeyedLayer::new(
        runtime.clone(),
        key_of as fn(&Call) -> Option<String>,
        target,
    );
    let maker = world.maker().map_response(|fake| {
        tower_on_demand::Backend::map_service(fake, Serve as fn(Caller) -> Serve)
    });
    options(layer).layer(maker)
}

fn world(seed: u64) -> (Runtime, Clock, World) {
    let (runtime, clock) = test_util::runtime(seed);
    let world = World::new(&runtime);
    (runtime, clock, world)
}

fn served(clock: &Clock, tenants: &Tenants, call: Call) -> Result<(), Error> {
    clock.block_on(tenants.clone().oneshot(call))
}

#[test]
fn s1_each_key_is_started_once_by_its_first_calls() {
    let (runtime, clock, world) = world(1);
    let tenants = tenants(&runtime, &world, |layer| layer);
    let calls: Vec<_> = (0..30)
        .map(|n| clock.spawn(tenants.clone().oneshot(to(["a", "b", "c"][n % 3]))))
        .collect();
    clock.advance(secs(1));
    assert!(
        calls
            .into_iter()
            .all(|mut call| call.take().expect("answered").is_ok())
    );
    for key in ["a", "b", "c"] {
        let saw = world.saw(key);
        assert_eq!((saw.begun, saw.calls), (1, 10), "{key}");
    }
    assert_eq!(tenants.keys(), 3);
}

#[test]
fn a_request_without_a_key_or_with_a_key_of_nothing_is_unknown_and_leaves_nothing() {
    let (runtime, clock, world) = world(1);
    let tenants = tenants(&runtime, &world, |layer| layer);
    let error = served(&clock, &tenants, Call(None, ms(0))).expect_err("no key");
    assert_eq!(*error.kind(), ErrorKind::Unknown);
    let error = served(&clock, &tenants, to("no-such")).expect_err("no target");
    assert_eq!(*error.kind(), ErrorKind::Unknown);
    assert!(format!("{error:#}").contains("no such tenant"));
    assert!(tenants.handle("no-such".to_owned()).is_err());
    assert_eq!((tenants.keys(), world.alive()), (0, 0));
}

#[test]
fn a_key_is_forgotten_when_its_backend_has_stopped() {
    let (runtime, clock, world) = world(1);
    let tenants = tenants(&runtime, &world, |layer| layer);
    served(&clock, &tenants, to("a")).expect("served");
    let long = clock.spawn(tenants.clone().oneshot(Call(Some("b".into()), secs(5))));
    clock.advance(ms(20));
    world.kill("a");
    clock.run();
    clock.advance(secs(1));
    assert_eq!(tenants.keys(), 1);
    drop(long);
    clock.run();
    world.kill("b");
    clock.advance(secs(1));
    assert_eq!((tenants.keys(), clock.tasks()), (0, 0));
    served(&clock, &tenants, to("a")).expect("served anew");
}

#[test]
fn s46_an_unloaded_key_stays_unloaded_while_a_million_others_come_and_go() {
    // A tenth of it without optimisation, where each takes ten times as long.
    const OTHERS: usize = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    const AT_ONCE: usize = 100;
    let (runtime, clock, world) = world(1);
    let tenants = tenants(&runtime, &world, |layer| {
        layer
            .max_keys(1 + AT_ONCE)
            .each(|backend| backend.cancel_when_abandoned())
    });
    served(&clock, &tenants, to("kept")).expect("served");
    let handle = tenants.handle("kept".to_owned()).expect("it is there");
    clock.block_on(handle.unload()).expect("unloaded");
    drop(handle);
    for batch in 0..OTHERS / AT_ONCE {
        // They come: each starts its backend. They go: the starts are dropped.
        let mut calls: Vec<_> = (0..AT_ONCE)
            .map(|n| Box::pin(tenants.clone().oneshot(to(format!("{batch}-{n}")))))
            .collect();
        for call in &mut calls {
            let polled = test_util::poll_once(call);
            assert!(polled.is_pending(), "batch {batch}: {polled:?}");
        }
        assert_eq!(tenants.keys(), 1 + AT_ONCE);
        drop(calls);
        clock.run();
    }
    assert_eq!((tenants.keys(), world.alive(), clock.tasks()), (1, 0, 0));
    let error = served(&clock, &tenants, to("kept")).expect_err("unloaded");
    assert_eq!(*error.kind(), ErrorKind::Unloaded);
    let handle = tenants.handle("kept".to_owned()).expect("it is there");
    assert_eq!(handle.status().state, State::Unloaded);
    handle.load();
    served(&clock, &tenants, to("kept")).expect("served");
}

#[test]
fn one_key_too_many_is_refused_with_its_own_kind_and_the_others_are_unharmed() {
    let (runtime, clock, world) = world(1);
    let tenants = tenants(&runtime, &world, |layer| layer.max_keys(2));
    served(&clock, &tenants, to("a")).expect("served");
    served(&clock, &tenants, to("b")).expect("served");
    let error = served(&clock, &tenants, to("c")).expect_err("too many");
    assert!(matches!(
        error.kind(),
        ErrorKind::TooManyKeys { limit: 2, .. }
    ));
    served(&clock, &tenants, to("a")).expect("served");
    world.kill("b");
    clock.advance(secs(1));
    served(&clock, &tenants, to("c")).expect("there is room for a key");
}

#[test]
fn keys_that_only_fail_are_remembered_up_to_their_own_cap() {
    let (runtime, clock, world) = world(1);
    let tenants = tenants(&runtime, &world, |layer| {
        layer
            .max_failing_keys(3)
            .each(|backend| backend.backoff(secs(3600), secs(3600)))
    });
    for n in 0..10 {
        let key = format!("{n}");
        world.plan(&key, |plan| plan.failing = 1);
        let error = served(&clock, &tenants, to(key)).expect_err("it fails");
        assert_eq!(*error.kind(), ErrorKind::StartFailed);
        clock.run();
        assert!(tenants.keys() <= 3);
    }
    // The last ones are remembered, the first ones were forgotten before their time.
    let error = served(&clock, &tenants, to("9")).expect_err("backing off");
    assert!(matches!(error.kind(), ErrorKind::BackingOff { .. }));
    served(&clock, &tenants, to("0")).expect("tried again");
    // Once its window is over a failed key is forgotten by those that come.
    clock.advance(secs(3600));
    for n in 100..103 {
        served(&clock, &tenants, to(format!("{n}"))).expect("served");
    }
    assert_eq!(tenants.keys(), 4, "0, 100, 101 and 102 run");
}

#[test]
fn a_key_with_a_handle_is_not_forgotten() {
    let (runtime, clock, world) = world(1);
    let tenants = tenants(&runtime, &world, |layer| layer);
    let handle = tenants.handle("a".to_owned()).expect("a handle");
    clock.block_on(handle.start()).expect("it starts");
    clock.block_on(handle.stop()).expect("it stops");
    clock.run();
    assert_eq!(tenants.keys(), 1);
    served(&clock, &tenants, to("a")).expect("served");
    assert_eq!(handle.status().generation, 2);
    clock.block_on(handle.stop()).expect("it stops");
    drop(handle);
    for n in 0..3 {
        served(&clock, &tenants, to(format!("{n}"))).expect("served");
    }
    assert_eq!(tenants.keys(), 3);
}

#[test]
fn dropping_the_last_clone_stops_every_backend_and_a_group_knows_them_by_name() {
    let (runtime, clock, world) = world(1);
    let group = Group::new();
    let joined = group.clone();
    let tenants = tenants(&runtime, &world, move |layer| {
        layer.each(move |backend| backend.join(&joined))
    });
    for key in ["a", "b", "c"] {
        served(&clock, &tenants, to(key)).expect("served");
    }
    assert_eq!(group.handle("b").expect("by name").status().starts, 1);
    drop(tenants);
    clock.advance(secs(1));
    assert_eq!((world.alive(), clock.tasks()), (0, 0));
}

/// All of them have the same hash.
#[derive(Clone, PartialEq, Eq)]
struct Clash(String);

impl Hash for Clash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        0.hash(state);
    }
}

#[test]
fn keys_of_the_same_hash_are_told_apart() {
    let (runtime, clock, world) = world(1);
    let layer = KeyedLayer::new(
        runtime.clone(),
        |call: &Call| call.0.clone().map(Clash),
        |key: &Clash| Ok::<_, String>(key.0.clone()),
    );
    let maker = world.maker().map_response(|fake| {
        tower_on_demand::Backend::map_service(fake, Serve as fn(Caller) -> Serve)
    });
    let tenants = layer.layer(maker);
    for _ in 0..2 {
        for key in ["a", "b", "c"] {
            let call = tenants.clone().oneshot(to(key));
            clock.block_on(call).expect("served");
        }
    }
    for key in ["a", "b", "c"] {
        assert_eq!(
            (world.saw(key).begun, world.saw(key).calls),
            (1, 2),
            "{key}"
        );
    }
    assert_eq!(tenants.keys(), 3);
}

#[test]
fn a_key_may_be_what_is_started() {
    let (runtime, clock, world) = world(1);
    let tenants = KeyedLayer::by_key(runtime, |key: &Duration| Some(format!("{key:?}")));
    let tenants = tenants.layer(world.maker());
    clock
        .block_on(tenants.oneshot(ms(7)))
        .expect("it is served");
    assert_eq!(world.saw("7ms").begun, 1);
}
