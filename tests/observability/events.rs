//! What is told of a backend's life, as `docs/observability.md` has it.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex},
};

use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_on_demand::{
    CeilingLayer, IdleEvict, KeepLayer, LazyStartLayer, UntilResponse, test_util,
};
use tracing::field::{Field, Visit};
use tracing_subscriber::{
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

use super::section;
use crate::support::{World, ms, secs};

/// One event: its message, and its other fields as `name=value`.
#[derive(Debug, Clone, Default)]
struct Event {
    level: String,
    message: String,
    fields: Vec<(String, String)>,
}

impl Event {
    fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(field, _)| field == name);
        &found.unwrap_or_else(|| panic!("no {name} in {self:?}")).1
    }
}

impl Visit for Event {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.message = value,
            name => self.fields.push((name.to_owned(), value)),
        }
    }
}

/// Keeps the events of the layers.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Event>>>);

impl<S> tracing_subscriber::Layer<S> for Log
where
    S: tracing::Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "tower_on_demand" {
            let mut seen = Event {
                level: event.metadata().level().as_str().to_lowercase(),
                ..Event::default()
            };
            event.record(&mut seen);
            self.0.lock().expect("whole").push(seen);
        }
    }
}

impl Log {
    fn messages(&self) -> Vec<String> {
        let events = self.0.lock().expect("whole");
        events.iter().map(|event| event.message.clone()).collect()
    }

    fn last(&self, message: &str) -> Event {
        let events = self.0.lock().expect("whole");
        let found = events.iter().rev().find(|event| event.message == message);
        found.unwrap_or_else(|| panic!("no {message:?}")).clone()
    }
}

#[test]
fn every_transition_is_told_once_with_the_fields_of_the_table_and_no_call_is() {
    let log = Log::default();
    let subscriber = tracing_subscriber::registry().with(log.clone());
    let _told = tracing::subscriber::set_default(subscriber);

    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    let ceiling = CeilingLayer::new(runtime.clone(), 2).wait(secs(1));
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(sweeper.run());
    let stack = |name: &str| {
        ServiceBuilder::new()
            .layer(LazyStartLayer::new(runtime.clone(), name.to_owned()))
            .layer(evictable.clone().idle_after(secs(60)))
            .layer(ceiling.clone())
            .service(world.maker())
    };
    let a = stack("a");
    let call = |takes| clock.block_on(a.clone().oneshot(takes));

    for _ in 0..100 {
        call(ms(0)).expect("served");
    }
    assert_eq!(log.messages(), ["starting", "ready"]);
    assert_eq!(log.last("ready").field("backend"), "\"a\"");
    assert_eq!(log.last("ready").field("took_ms"), "10");

    clock.block_on(a.handle().reload(None)).expect("reloaded");
    assert_eq!(log.last("reloaded").field("generation"), "2");
    clock.advance(secs(1));
    assert_eq!(log.last("stopped").field("generation"), "1");

    clock.advance(secs(61));
    let evicted = log.last("evicted");
    assert_eq!(
        (evicted.field("reason"), evicted.field("idle_ms")),
        ("\"idle\"", "60000")
    );
    assert_eq!(log.last("stopped").field("took_ms"), "10");

    call(ms(0)).expect("served");
    world.kill("a");
    clock.advance(secs(1));
    assert!(log.last("died").field("error").contains("signal 9"));

    world.plan("a", |plan| plan.failing = 1);
    call(ms(0)).expect_err("it fails");
    let failed = log.last("start failed");
    assert!(
        failed.field("error").contains("exit status 1"),
        "{failed:?}"
    );
    assert_eq!(failed.field("kind"), "\"start_failed\"");
    let window = log.last("backing off");
    let window: u64 = window.field("for_ms").parse().expect("a number");
    assert!((75..=100).contains(&window));
    clock.advance(secs(1));

    let (b, c) = (stack("b"), stack("c"));
    let busy = [&a, &b].map(|stack| clock.spawn(stack.clone().oneshot(secs(30))));
    clock.advance(ms(100));
    clock
        .block_on(c.clone().oneshot(ms(0)))
        .expect_err("no room");
    let waits = log.last("waiting for room");
    assert_eq!(
        (waits.field("place"), waits.field("ahead")),
        ("1", "0"),
        "{waits:?}"
    );
    let refused = log.last("start refused");
    assert_eq!(refused.field("kind"), "\"no_room\"");
    assert!(refused.field("error").contains("no room"));

    // The second in line gives up before its turn; the first gets the room of the first that falls idle.
    let behind = stack("behind");
    clock.advance(secs(29) - ms(500));
    let waiting = [&c, &behind].map(|stack| clock.spawn(stack.clone().oneshot(ms(0))));
    clock.run();
    assert_eq!(log.last("waiting for room").field("place"), "2");
    clock.block_on(behind.handle().stop()).expect("stopped");
    let dropped = log.last("start dropped");
    assert_eq!(dropped.field("backend"), "\"behind\"");
    assert_eq!(dropped.field("reason"), "\"stopped\"");
    clock.advance(secs(1));
    let evicted = log.last("evicted");
    assert_eq!(
        (evicted.field("reason"), evicted.field("room_for")),
        ("\"room\"", "\"c\"")
    );
    let ready = log.last("ready");
    assert_eq!(ready.field("backend"), "\"c\"");
    let waited: u64 = ready.field("waited_ms").parse().expect("a number");
    assert!((1..1000).contains(&waited), "{ready:?}");
    assert_eq!(log.last("stopped").field("way"), "\"graceful\"");
    clock.advance(secs(1));
    drop((busy, waiting));

    world.plan("a", |plan| plan.stop_hangs = true);
    clock.block_on(a.handle().stop()).expect("stopped");
    assert_eq!(log.last("stopping").field("backend"), "\"a\"");
    call(ms(0)).expect("served");
    clock.block_on(a.handle().stop()).expect("given up");
    assert!(log.last("stop failed").field("error").contains("30s"));

    // The executor goes first.
    drop((a, b, c, behind, runtime, world));
    drop(clock);
    assert!(log.last("lost").field("error").contains("executor"));

    // The table names what is told, and nothing else is told.
    let table = section("Events");
    let named: BTreeSet<_> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(message, _)| message.to_owned())
        .collect();
    let told: BTreeSet<_> = log.messages().into_iter().collect();
    assert_eq!(named, told);
    let events = log.0.lock().expect("whole");
    for event in events.iter() {
        let row = table
            .lines()
            .find(|line| line.starts_with(&format!("| `{}`", event.message)))
            .expect("a row");
        assert!(row.contains(&format!("| {} |", event.level)), "{event:?}");
        for (name, _) in &event.fields {
            let listed = name == "backend" || row.contains(&format!("`{name}`"));
            assert!(listed, "{name} of {:?} is not in the table", event.message);
        }
    }
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let message = row.split('`').nth(1).expect("a name");
        let fields = row.split('|').nth(3).expect("a column");
        for field in fields.split('`').skip(1).step_by(2) {
            let has = |event: &Event| event.fields.iter().any(|(name, _)| name == field);
            let mut told = events.iter().filter(|event| event.message == message);
            assert!(told.any(has), "no {message:?} was told with {field}");
        }
    }
}

#[test]
fn what_is_kept_for_a_pool_is_told_of_from_ready_on() {
    let log = Log::default();
    let subscriber = tracing_subscriber::registry().with(log.clone());
    let _told = tracing::subscriber::set_default(subscriber);

    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(sweeper.run());
    let maker = evictable.idle_after(secs(60)).layer(world.maker());
    let mut keep = KeepLayer::new(runtime).name("kept").layer(maker);
    let mut kept = || clock.block_on(keep.call("a".to_owned())).expect("made");

    let released = kept();
    drop(released);
    clock.advance(secs(1));
    let idle = kept();
    clock.advance(secs(61));
    let killed = kept();
    world.kill("a");
    clock.advance(secs(1));
    world.plan("a", |plan| plan.stop_hangs = true);
    let hanging = kept();
    drop(hanging);
    clock.advance(secs(61));
    let lost = kept();
    clock.shutdown();

    assert_eq!(
        log.messages(),
        [
            "ready",
            "stopping",
            "stopped",
            "ready",
            "evicted",
            "stopped",
            "ready",
            "died",
            "stopped",
            "ready",
            "stopping",
            "stop failed",
            "ready",
            "lost",
        ]
    );
    assert_eq!(log.last("evicted").field("reason"), "\"idle\"");
    assert_eq!(log.last("stopped").field("way"), "\"died\"");
    let events = log.0.lock().expect("whole");
    assert!(
        events
            .iter()
            .all(|event| event.field("backend") == "\"kept\"")
    );
    drop((idle, killed, lost));
}
