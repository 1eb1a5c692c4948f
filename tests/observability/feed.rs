//! The host example's feed: events as JSON, for whoever follows.

use serde_json::{Value, json};
use tower::{Layer, ServiceExt};
use tower_on_demand::{LazyStartLayer, test_util};
use tracing_subscriber::layer::SubscriberExt;

use crate::{
    feed::Feed,
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

    let (none, mut live) = feed.follow(0);
    assert!(none.is_empty());
    clock.block_on(a.clone().oneshot(ms(0))).expect("served");
    let mut events = Vec::new();
    while let Ok(told) = live.try_recv() {
        events.push(serde_json::from_str::<Value>(&told.json).expect("JSON"));
    }
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
    let ids = |after| {
        let (kept, _live) = feed.follow(after);
        kept.iter().map(|told| told.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(0), [1, 2, 3, 4]);
    assert_eq!(ids(3), [4]);
    assert!(ids(4).is_empty());
}
