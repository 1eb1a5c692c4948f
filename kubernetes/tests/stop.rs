//! Stops: on condition, and undone by nobody.

mod support;

use std::time::Duration;

use support::{Saw, World, films, ms, secs, story};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt as _};
use tower_on_demand::{Backend, CeilingLayer, Runtime, Stopped};
use tower_on_demand_kubernetes::{Workload, test_util::Plan};

#[tokio::test(start_paused = true)]
async fn a_stop_resolves_when_the_pods_are_gone() {
    let world = World::new();
    world.films();
    world
        .cluster
        .plan("media", "films", |plan| plan.stops = secs(30));
    let scaled = world
        .scale("host")
        .oneshot(films().replicas(3))
        .await
        .unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(scaled.stop().await, Stopped::Gone);
    assert_eq!(begun.elapsed().as_secs(), 30);
    assert_eq!(world.cluster.pods("media", "films"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_made_on_the_condition_of_what_was_read_and_gives_way_to_who_scales_up() {
    let world = World::new();
    world.films();
    let scaled = world.scale("host").oneshot(films()).await.unwrap();
    let cluster = world.cluster.clone();
    // Between the look and the patch.
    world.cluster.before("PATCH", "/films/scale", move || {
        cluster.scale("media", "films", 2)
    });
    scaled.stop().await;
    assert_eq!(
        world.cluster.replicas("media", "films"),
        2,
        "somebody wants it"
    );
    let story = story(&world.cluster);
    assert!(
        story.iter().any(|call| call.ends_with("-> 409")),
        "{story:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_conflicts_with_a_change_of_another_kind_is_made_again() {
    let world = World::new();
    world.films();
    let scaled = world.scale("host").oneshot(films()).await.unwrap();
    let cluster = world.cluster.clone();
    world.cluster.before("PATCH", "/films/scale", move || {
        cluster.sicken("media", "films")
    });
    scaled.stop().await;
    assert_eq!(world.cluster.replicas("media", "films"), 0);
    let story = story(&world.cluster);
    assert!(
        story.iter().any(|call| call.ends_with("-> 409")),
        "{story:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_lands_during_a_stop_waits_for_it_and_starts_the_workload_again() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(10));
    world
        .cluster
        .plan("media", "films", |plan| plan.stops = secs(5));
    host.call(ms(10)).await.unwrap();
    let stopping = async {
        while world.cluster.replicas("media", "films") > 0 {
            sleep(ms(10)).await;
        }
    };
    stopping.await;
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
    assert_eq!(world.cluster.peak(), 1, "never two at once");
}

#[tokio::test(start_paused = true)]
async fn two_instances_in_one_process_are_scaled_down_by_the_last() {
    let world = World::new();
    world.films();
    let scale = world.scale("host");
    let one = scale.clone().oneshot(films()).await.unwrap();
    let two = scale.oneshot(films()).await.unwrap();
    one.stop().await;
    assert_eq!(world.cluster.replicas("media", "films"), 1);
    assert_eq!(two.endpoints().ready().len(), 1);
    two.stop().await;
    assert_eq!(world.cluster.replicas("media", "films"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reload_to_the_same_workload_does_not_stop_it() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(600));
    host.call(ms(10)).await.unwrap();
    let handle = host.group.handle("media/films").unwrap();
    handle.reload(None).await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(world.cluster.replicas("media", "films"), 1);
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
    host.group.stopped(secs(60)).await;
    assert_eq!(world.cluster.pods("media", "films"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_came_to_nothing_keeps_its_room_until_its_pods_are_gone() {
    let world = World::new();
    world.cluster.deployment("media", "songs", Plan::default());
    world.films();
    world
        .cluster
        .plan("media", "films", |plan| plan.stops = secs(20));
    world
        .cluster
        .plan("media", "films", |plan| plan.starts = secs(600));
    let runtime = Runtime::tokio();
    let ceiling = CeilingLayer::new(runtime, 1).wait(secs(60));
    let mut maker = ceiling.layer(world.scale("host"));
    let dropped = maker.ready().await.unwrap().call(films());
    assert!(timeout(secs(5), dropped).await.is_err());
    let begun = tokio::time::Instant::now();
    let songs = Workload::deployment("media", "songs");
    let started = maker.ready().await.unwrap().call(songs).await.unwrap();
    assert_eq!(
        begun.elapsed().as_secs(),
        22,
        "20 s until the pod was gone, and 2 s of its own"
    );
    assert_eq!(world.cluster.peak(), 1);
    drop(started);
}

/// Nothing is left of anything.
async fn assert_nothing_left(world: &World, after: Duration, what: &str) {
    sleep(secs(60)).await;
    assert_eq!(
        world.cluster.replicas("media", "films"),
        0,
        "{what} dropped after {after:?}"
    );
    assert_eq!(
        world.cluster.pods("media", "films"),
        0,
        "{what} dropped after {after:?}"
    );
    assert_eq!(world.cluster.watches(), 0, "{what} dropped after {after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_dropped_at_any_moment_leaves_nothing() {
    let plan = Plan {
        starts: ms(500),
        lag: ms(100),
        ..Plan::default()
    };
    let (mut done, mut dropped) = (0, 0);
    for at in (0..1_500).step_by(25) {
        let world = World::new();
        world.cluster.deployment("media", "films", plan.clone());
        world.cluster.latency("host", ms(50));
        // Dropped with the start, or as the instance that it became.
        match timeout(ms(at), world.scale("host").oneshot(films())).await {
            Ok(started) => drop(started.unwrap()),
            Err(_) => dropped += 1,
        }
        done += 1;
        assert_nothing_left(&world, ms(at), "the start").await;
    }
    assert!(dropped > 25 && dropped < done, "{dropped} of {done}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_whose_future_is_dropped_at_any_moment_goes_on() {
    for at in (0..1_500).step_by(25) {
        let world = World::new();
        world.films();
        world.cluster.latency("host", ms(50));
        let scaled = world.scale("host").oneshot(films()).await.unwrap();
        let stopped = timeout(ms(at), scaled.stop()).await.is_ok();
        if stopped {
            assert_eq!(world.cluster.pods("media", "films"), 0);
        }
        drop(scaled);
        assert_nothing_left(&world, ms(at), "the stop").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_follows_a_dropped_one_waits_until_that_is_undone() {
    for at in (0..1_500).step_by(50) {
        let world = World::new();
        world.films();
        world.cluster.latency("host", ms(50));
        let scale = world.scale("host");
        let _ = timeout(ms(at), scale.clone().oneshot(films())).await;
        let scaled = scale.oneshot(films()).await.unwrap();
        sleep(secs(10)).await;
        let ready = scaled.endpoints().ready();
        assert_eq!(ready.len(), 1, "dropped after {at} ms");
        assert!(world.cluster.serves(ready[0]));
        scaled.stop().await;
        assert_eq!(world.cluster.pods("media", "films"), 0);
    }
}
