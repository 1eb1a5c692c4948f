//! The host example's feed: events as JSON, for whoever follows.

use serde_json::{Map, Value, json};
use tower::{Layer, ServiceExt};
use tower_on_demand::{LazyStartLayer, test_util};
use tracing_subscriber::layer::SubscriberExt;

use crate::{
    feed::{Feed, Kind, Told},
    support::{World, ms},
};

#[test]
fn a_feed_tells_whoever_follows_all_events_from_where_he_left_off() {
    let feed = Feed::new();
    let subscriber = tracing_subscriber::registry().with(feed.clone());
    let _told = tracing::subscriber::set_default(subscriber);
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    let a = LazyStartLayer::new(runtime, "a".to_owned()).layer(world.maker());

    assert!(feed.after(0, usize::MAX).events.is_empty());
    clock.block_on(a.clone().oneshot(ms(0))).expect("served");
    let mut events: Vec<Value> = (feed.after(0, usize::MAX).events.iter())
        .map(|told| serde_json::to_value(&**told).expect("JSON"))
        .collect();
    let told: Vec<_> = events
        .iter()
        .map(|event| (event["id"].clone(), event["event"].clone()))
        .collect();
    assert_eq!(
        told,
        [(json!(1), json!("starting")), (json!(2), json!("ready"))]
    );
    let mut ready = events.pop().expect("an event");
    assert!(
        ready["at_ms"]
            .as_u64()
            .is_some_and(|at| at > 1_700_000_000_000)
    );
    ready["at_ms"] = json!(0);
    assert_eq!(
        ready,
        json!({
            "id": 2, "at_ms": 0, "level": "info", "event": "ready", "backend": "a",
            "generation": 1, "took_ms": 10, "waited_ms": 0,
        })
    );

    // Who comes late, and who comes again.
    clock.block_on(a.handle().stop()).expect("stopped");
    let ids = |after, most| {
        let passage = feed.after(after, most);
        assert!(!passage.gap);
        let ids = passage.events.iter().map(|told| told.id);
        ids.collect::<Vec<_>>()
    };
    assert_eq!(ids(0, 9), [1, 2, 3, 4]);
    assert_eq!(ids(0, 3), [1, 2, 3]);
    assert_eq!(ids(3, 9), [4]);
    assert!(ids(4, 9).is_empty());
    // By name, which is good for this run of the host only.
    assert_eq!(feed.id(&feed.name(3)), 3);
    assert_eq!(feed.id("1-3"), 0);
}

#[test]
fn a_feed_is_bounded_and_says_when_something_is_missing_and_uses_push_out_no_transition() {
    let feed = Feed::new();
    let tell = |kind, event: &str| feed.tell(kind, event, Map::new());
    tell(Kind::Transition, "ready");
    for _ in 0..100_000 {
        tell(Kind::Use, "busy");
    }
    let kept = feed.after(0, usize::MAX);
    assert!(!kept.gap);
    assert_eq!(kept.events[0].event, "ready");
    assert!(kept.events.len() < 10_000);
    assert_eq!(kept.events.last().map(|told| told.id), Some(100_001));
    for _ in 0..100_000 {
        tell(Kind::Transition, "starting");
    }
    let kept = feed.after(1, usize::MAX);
    assert!(kept.gap);
    assert!(kept.events.len() < 10_000);
    assert!(!feed.after(200_000, usize::MAX).gap);
    let long = Map::from_iter([("error".to_owned(), Value::from("é".repeat(100_000)))]);
    feed.tell(Kind::Transition, "died", long);
    let last: &Told = &feed.after(200_001, 1).events[0];
    let error = last.fields["error"].as_str().expect("a text");
    assert!(error.len() < 10_000 && error.ends_with('…'));
}
