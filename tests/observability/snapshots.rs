//! Status and statistics, as JSON has them.

use serde_json::{Value, json, to_value};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, Error, ErrorKind, Eviction, Group, IdleEvict, LazyStart,
    LazyStartLayer, Leased, State, UntilResponse, ceiling::Phase, test_util,
};

use crate::support::{Caller, World, ms, secs};

type Stack = LazyStart<String, Leased<Caller, UntilResponse>>;

#[test]
fn snapshots_of_stack_ceiling_and_registry_have_the_documented_shape() {
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    let group = Group::new();
    let ceiling = CeilingLayer::new(runtime.clone(), 2).wait(secs(60));
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(sweeper.run());
    let stack = |name: &str| -> Stack {
        ServiceBuilder::new()
            .layer(LazyStartLayer::new(runtime.clone(), name.to_owned()).join(&group))
            .layer(evictable.clone().idle_after(secs(90)))
            .layer(ceiling.clone())
            .service(world.maker())
    };
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(stack);
    let call = |stack: &Stack, takes| {
        let task = clock.spawn(stack.clone().oneshot(takes));
        clock.advance(ms(1));
        task
    };

    // Never asked for.
    assert_eq!(
        to_value(a.status()).expect("JSON"),
        json!({
            "name": "a", "state": "stopped", "generation": 0, "since_seconds": 0.0,
            "in_flight": null, "last_use_seconds": null, "waiting": 0,
            "queued": null, "last_start": null,
            "starts": 0, "restarts": 0, "reloads": 0,
            "evictions": 0, "last_eviction": null, "evicted_for": null,
            "crashes": 0, "last_error": null,
        })
    );

    // One idle, one busy, and two that wait for it.
    clock.block_on(a.clone().oneshot(ms(0))).expect("served");
    clock.advance(ms(500));
    let busy = call(&b, secs(20));
    clock.advance(secs(1));
    let evicting = call(&c, secs(20));
    let waiting = [call(&d, ms(0)), call(&e, ms(0))];
    assert_eq!(
        to_value(ceiling.status()).expect("JSON"),
        json!({
            "limit": 2, "used": 2,
            "holders": [
                {
                    "name": "a", "weight": 1, "phase": "stopping", "pinned": false,
                    "held_seconds": 1.514, "in_flight": 0, "idle_seconds": null,
                },
                {
                    "name": "b", "weight": 1, "phase": "busy", "pinned": false,
                    "held_seconds": 1.004, "in_flight": 1, "idle_seconds": null,
                },
            ],
            "waiting": [
                { "name": "c", "weight": 1, "ahead": 0, "waited_seconds": 0.003 },
                { "name": "d", "weight": 1, "ahead": 1, "waited_seconds": 0.002 },
                { "name": "e", "weight": 1, "ahead": 2, "waited_seconds": 0.001 },
            ],
        })
    );
    clock.advance(secs(3));
    assert_eq!(
        to_value(e.status().queued).expect("JSON"),
        json!({ "place": 2, "ahead": 1, "waited_seconds": 3.001 })
    );
    let occupancy = to_value(ceiling.occupancy()).expect("JSON");
    assert_eq!(
        occupancy,
        json!({ "limit": 2, "used": 2, "starting": 0, "running": 2, "stopping": 0, "busy": 2, "waiting": 2 })
    );
    let gone = to_value(a.status()).expect("JSON");
    assert_eq!(
        (&gone["state"], &gone["evictions"], &gone["last_eviction"]),
        (&json!("stopped"), &json!(1), &json!("room"))
    );
    assert_eq!(gone["evicted_for"], json!("c"));
    assert_eq!(
        to_value(c.status()).expect("JSON")["last_start"],
        json!({ "took_seconds": 0.02, "waited_seconds": 0.01 })
    );
    assert_eq!(
        to_value(evictable.status()).expect("JSON"),
        json!([
            {
                "name": "b", "in_flight": 1, "idle_seconds": null, "idle_after_seconds": 90.0,
                "pinned": false, "stopping": false,
            },
            {
                "name": "c", "in_flight": 1, "idle_seconds": null, "idle_after_seconds": 90.0,
                "pinned": false, "stopping": false,
            },
        ])
    );
    let names: Vec<Value> = group
        .status()
        .iter()
        .map(|status| to_value(status).expect("JSON")["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);

    // A failure, with what was seen.
    clock.advance(secs(60));
    drop((busy, evicting, waiting));
    world.plan("a", |plan| plan.failing = 1);
    clock
        .block_on(a.clone().oneshot(ms(0)))
        .expect_err("it fails");
    let failed = to_value(a.status()).expect("JSON");
    assert_eq!(failed["state"], json!("backing_off"));
    let error = &failed["last_error"];
    assert_eq!(
        (&error["kind"], &error["backend"]),
        (&json!("start_failed"), &json!("a"))
    );
    assert_eq!(
        error["text"],
        json!("could not be started: exit status 1"),
        "{error}"
    );
    assert_eq!(error["retry_after_seconds"], json!(null));
}

#[test]
fn an_unbounded_ceiling_has_no_limit_that_a_reader_could_get_wrong() {
    let (runtime, _clock) = test_util::runtime(1);
    let ceiling = CeilingLayer::unbounded(runtime);
    assert_eq!(
        to_value(ceiling.status()).expect("JSON")["limit"],
        json!(null)
    );
    assert_eq!(
        to_value(ceiling.occupancy()).expect("JSON")["limit"],
        json!(null)
    );
}

#[test]
fn coalescing_statistics_are_numbers_under_their_names() {
    let (layer, handle) = CoalesceLayer::new(|name: &String| Some(name.clone())).with_handle();
    let service = layer.layer(service_fn(async |name: String| {
        Ok::<_, std::io::Error>(name.len())
    }));
    let served = futures_executor::block_on(service.oneshot("four".to_owned()));
    assert_eq!(served.expect("served"), 4);
    assert_eq!(
        to_value(handle.statistics()).expect("JSON"),
        json!({
            "led": 1, "joined": 0, "passed_by": 0, "left_early": 0,
            "in_flight": 0, "waiting": 0, "lingering": 0,
        })
    );
}

#[test]
fn words_are_lower_case_and_told_apart() {
    let states = [
        State::Stopped,
        State::Starting,
        State::Running,
        State::Stopping,
        State::BackingOff,
        State::Unloaded,
        State::ShutDown,
    ];
    let phases = [
        Phase::Starting,
        Phase::Idle,
        Phase::Busy,
        Phase::Uncounted,
        Phase::Stopping,
    ];
    let evictions = [
        Eviction::Idle,
        Eviction::Room,
        Eviction::Yield,
        Eviction::Over,
    ];
    let kinds = [
        ErrorKind::NoRoom(Default::default()),
        ErrorKind::StartFailed,
        ErrorKind::Unloaded,
        ErrorKind::Unknown,
        ErrorKind::NotRunning,
        ErrorKind::ShutDown,
        ErrorKind::Stopped,
        ErrorKind::Evicted,
        ErrorKind::Died,
        ErrorKind::Panicked,
        ErrorKind::Reentrant,
        ErrorKind::Lagged,
        ErrorKind::Service,
    ];
    let words = [
        to_value(states).expect("JSON"),
        to_value(phases).expect("JSON"),
        to_value(evictions).expect("JSON"),
        to_value(&kinds).expect("JSON"),
    ];
    for list in &words {
        let list: Vec<&str> = list
            .as_array()
            .expect("a list")
            .iter()
            .map(|word| word.as_str().expect("a word"))
            .collect();
        let mut once = list.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), list.len(), "{list:?}");
        let plain = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        assert!(list.iter().all(plain), "{list:?}");
    }

    // What was seen of a backend stands apart from what the error says.
    let error = Error::new(ErrorKind::Died)
        .of("a")
        .after(ms(1500))
        .seen("line 1\nline 2");
    assert_eq!(
        to_value(error).expect("JSON"),
        json!({
            "kind": "died", "text": "the instance died", "backend": "a",
            "retry_after_seconds": 1.5, "detail": "line 1\nline 2",
        })
    );
}
