//! While a workload runs: who else scales it, and an API server that is away.

mod support;

use support::{Saw, World, films, ms, secs};
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_on_demand::{Backend, ErrorKind, Retired};

#[tokio::test(start_paused = true)]
async fn what_somebody_else_scales_to_zero_is_retired_and_started_again_by_the_next_call() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(600));
    host.call(ms(10)).await.unwrap();
    world.cluster.scale("media", "films", 0);
    sleep(ms(1)).await;
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
    assert_eq!(world.cluster.replicas("media", "films"), 1);
    let status = host.group.handle("media/films").unwrap().status();
    assert_eq!((status.starts, status.crashes), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn it_is_retired_with_its_last_endpoint() {
    let world = World::new();
    world.films();
    let scaled = world
        .scale("host")
        .oneshot(films().replicas(2))
        .await
        .unwrap();
    sleep(secs(1)).await;
    assert_eq!(scaled.endpoints().ready().len(), 2);
    let retired = tokio::spawn(scaled.retired());
    sleep(secs(600)).await;
    assert!(!retired.is_finished());

    world.cluster.sicken("media", "films");
    let Retired::Died(Some(error)) = retired.await.unwrap() else {
        panic!("it died");
    };
    assert_eq!(*error.kind(), ErrorKind::Died);
    assert_eq!(error.backend(), Some("media/films"));
    assert!(scaled.endpoints().ready().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_scales_up_is_used_and_scaled_down_when_it_is_idle() {
    let world = World::new();
    world.films();
    let scaled = world.scale("host").oneshot(films()).await.unwrap();
    let mut endpoints = scaled.endpoints();
    endpoints.ready();
    world.cluster.scale("media", "films", 3);
    assert!(endpoints.changed().await);
    sleep(secs(1)).await;
    assert_eq!(endpoints.ready().len(), 3);
    scaled.stop().await;
    assert_eq!(world.cluster.pods("media", "films"), 0);
    assert!(!endpoints.changed().await || endpoints.ready().is_empty());
}

#[tokio::test(start_paused = true)]
async fn while_the_api_server_is_away_for_a_minute_running_backends_keep_serving() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(600));
    host.call(ms(10)).await.unwrap();
    world.cluster.away(true);
    for _ in 0..60 {
        host.call(ms(10)).await.unwrap();
        sleep(secs(1)).await;
    }
    world.cluster.away(false);
    sleep(secs(90)).await;
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 62,
            ..Saw::default()
        }
    );
    let status = host.group.handle("media/films").unwrap().status();
    assert_eq!((status.starts, status.crashes), (1, 0));

    // It sees again what happens.
    world.cluster.scale("media", "films", 0);
    sleep(secs(1)).await;
    let status = host.group.handle("media/films").unwrap().status();
    assert_eq!(status.crashes, 1);
}

#[tokio::test(start_paused = true)]
async fn what_falls_idle_while_the_api_server_is_away_is_scaled_down_on_its_return() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(10));
    host.call(ms(10)).await.unwrap();
    world.cluster.away(true);
    sleep(secs(50)).await;
    assert_eq!(world.cluster.replicas("media", "films"), 1);
    world.cluster.away(false);
    sleep(secs(60)).await;
    assert_eq!(world.cluster.replicas("media", "films"), 0);
    assert_eq!(world.cluster.watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn broken_watches_and_forgotten_history_change_nothing_for_callers() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(600));
    for _ in 0..20 {
        host.call(ms(10)).await.unwrap();
        world.cluster.forget_history();
        world.cluster.break_watches();
        sleep(secs(3)).await;
    }
    assert_eq!(
        world.saw(),
        Saw {
            served: 20,
            ..Saw::default()
        }
    );
    let status = host.group.handle("media/films").unwrap().status();
    assert_eq!((status.starts, status.crashes), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_hour_costs_two_watches_every_five_minutes() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(7_200));
    host.call(ms(10)).await.unwrap();
    let before = world.cluster.calls().len();
    sleep(secs(3_600)).await;
    let calls = world.cluster.calls().len() - before;
    assert!((20..=30).contains(&calls), "{calls} calls in an hour");
    assert_eq!(world.cluster.watches(), 2);
}
