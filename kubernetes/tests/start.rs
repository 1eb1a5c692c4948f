//! Cold starts, and what keeps them from ending well.

mod support;

use std::error::Error as _;

use kube::core::{GroupVersionKind, discovery::ApiResource};
use support::{Host, Saw, World, films, ms, secs, story};
use tokio::time::{Instant, sleep};
use tower_on_demand::{Error, ErrorKind};
use tower_on_demand_kubernetes::{
    Failure, Workload,
    test_util::{Plan, Trouble},
};

#[tokio::test(start_paused = true)]
async fn the_first_call_scales_the_workload_up_and_is_answered_by_a_ready_pod() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    assert_eq!(world.cluster.replicas("media", "films"), 0);

    let begun = Instant::now();
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        begun.elapsed().as_secs(),
        2,
        "it waited for the pod, and not longer"
    );
    assert_eq!(world.cluster.replicas("media", "films"), 1);
    assert_eq!(
        world.saw(),
        Saw {
            served: 1,
            ..Saw::default()
        }
    );

    sleep(secs(70)).await;
    assert_eq!(
        world.cluster.replicas("media", "films"),
        0,
        "idle, so it was scaled down"
    );
    assert_eq!(world.cluster.pods("media", "films"), 0);
    assert_eq!(
        world.cluster.watches(),
        0,
        "and nothing of it is watched any more"
    );
    let story = story(&world.cluster);
    let verbs: Vec<_> = story
        .iter()
        .map(|call| call.split(' ').next().unwrap())
        .collect();
    assert_eq!(verbs, ["GET", "PATCH", "GET", "PATCH"], "{story:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_herd_of_a_thousand_costs_no_more_calls_than_one_caller() {
    let alone = World::new();
    let host = alone.host("host", alone.films(), secs(60));
    host.call(ms(10)).await.unwrap();

    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    let calls = (0..1_000).map(|_| {
        let host = host.clone();
        tokio::spawn(async move { host.call(ms(10)).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    assert_eq!(
        world.saw(),
        Saw {
            served: 1_000,
            ..Saw::default()
        }
    );
    assert_eq!(world.cluster.peak(), 1);
    assert_eq!(world.cluster.calls().len(), alone.cluster.calls().len());
}

#[tokio::test(start_paused = true)]
async fn what_runs_already_is_not_patched_and_is_scaled_down_all_the_same() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    world.cluster.scale("media", "films", 3);
    sleep(secs(10)).await;

    let begun = Instant::now();
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        begun.elapsed(),
        ms(10) + ms(0),
        "there was nothing to wait for"
    );
    assert_eq!(world.cluster.replicas("media", "films"), 3);
    sleep(secs(70)).await;
    assert_eq!(world.cluster.pods("media", "films"), 0);
}

#[tokio::test(start_paused = true)]
async fn stateful_sets_and_custom_resources_are_scaled_as_deployments_are() {
    let world = World::new();
    let model = ApiResource::from_gvk(&GroupVersionKind::gvk("ml.example", "v1", "Model"));
    world
        .cluster
        .stateful_set("media", "store", Plan::default());
    world
        .cluster
        .custom(&model, "media", "whisper", Plan::default());
    for workload in [
        Workload::stateful_set("media", "store"),
        Workload::scalable(model, "media", "whisper"),
    ] {
        let name = workload.object().to_owned();
        let host = world.host("host", workload.replicas(2), secs(60));
        host.call(ms(10)).await.unwrap();
        assert_eq!(world.cluster.pods("media", &name), 2);
        sleep(secs(70)).await;
        assert_eq!(world.cluster.pods("media", &name), 0);
    }
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
}

/// The error of a first call, and how many seconds it took.
async fn fails(trouble: Trouble, change: impl FnOnce(Workload) -> Workload) -> (Error, u64) {
    let world = World::new();
    let host = world.host("host", change(world.films()), secs(60));
    world
        .cluster
        .plan("media", "films", |plan| plan.trouble = Some(trouble));
    let begun = Instant::now();
    let error = host.call(ms(10)).await.unwrap_err();
    let took = begun.elapsed().as_secs();
    assert_eq!(error.backend(), Some("media/films"));

    sleep(secs(120)).await;
    assert_eq!(
        world.cluster.replicas("media", "films"),
        0,
        "it is scaled down again"
    );
    assert_eq!(world.cluster.pods("media", "films"), 0);
    assert_eq!(world.cluster.watches(), 0);

    world
        .cluster
        .plan("media", "films", |plan| plan.trouble = None);
    host.call(ms(10)).await.unwrap();
    (error, took)
}

fn failure(error: &Error) -> &Failure {
    error
        .source()
        .and_then(|cause| cause.downcast_ref())
        .expect("a Failure")
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_pulled_is_told_when_the_kubelet_backs_off() {
    let (error, took) = fails(Trouble::ImagePull, |films| films).await;
    assert_eq!(*error.kind(), ErrorKind::StartFailed);
    assert!(
        matches!(failure(&error), Failure::Image { reason, .. } if reason == "ImagePullBackOff")
    );
    assert_eq!(took, 11);
    assert!(
        format!("{error:#}").contains("Back-off pulling image"),
        "{error:#}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_is_told_with_the_exit_code() {
    let (error, took) = fails(Trouble::CrashLoop, |films| films).await;
    assert!(matches!(failure(&error), Failure::CrashLoop { .. }));
    assert!(format!("{error:#}").contains("exit code 1"), "{error:#}");
    assert_eq!(took, 12);
}

#[tokio::test(start_paused = true)]
async fn a_missing_secret_is_told_at_once() {
    let (error, took) = fails(Trouble::Config, |films| films).await;
    assert!(matches!(failure(&error), Failure::Config { .. }));
    assert!(
        format!("{error:#}").contains("secret \"keys\" not found"),
        "{error:#}"
    );
    assert_eq!(took, 1);
}

#[tokio::test(start_paused = true)]
async fn a_used_up_quota_is_a_lack_of_room() {
    let (error, took) = fails(Trouble::Quota, |films| films).await;
    assert!(matches!(error.kind(), ErrorKind::NoRoom(_)));
    assert!(error.is_refusal() && error.retry_after().is_some());
    assert!(matches!(failure(&error), Failure::Quota { .. }));
    assert!(format!("{error:#}").contains("exceeded quota"), "{error:#}");
    assert_eq!(took, 0);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_room_is_waited_for_as_long_as_the_workload_says() {
    let (error, took) = fails(Trouble::Unschedulable, |films| films.room_within(secs(30))).await;
    assert!(matches!(error.kind(), ErrorKind::NoRoom(_)));
    assert!(matches!(failure(&error), Failure::Unschedulable { .. }));
    assert!(
        format!("{error:#}").contains("3 Insufficient cpu"),
        "{error:#}"
    );
    assert_eq!(took, 30);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_without_progress_is_told_when_its_deadline_is_over() {
    let (error, took) = fails(Trouble::ProgressDeadline, |films| films).await;
    assert!(matches!(failure(&error), Failure::ProgressDeadline { .. }));
    assert_eq!(took, 30);
}

#[tokio::test(start_paused = true)]
async fn where_nobody_says_what_is_wrong_the_start_ends_by_its_own_bound() {
    let (error, took) = fails(Trouble::Silent, |films| films.ready_within(secs(45))).await;
    assert!(matches!(error.kind(), ErrorKind::StartTimeout { .. }));
    assert_eq!(took, 45);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_is_not_there_is_told_at_once() {
    let world = World::new();
    let host = world.host("host", films(), secs(60));
    let error = host.call(ms(10)).await.unwrap_err();
    assert!(matches!(failure(&error), Failure::Missing));
}

#[tokio::test(start_paused = true)]
async fn room_that_comes_free_in_time_is_used() {
    let world = World::new();
    world.cluster.room(1);
    world.cluster.deployment("media", "songs", Plan::default());
    let songs = world.host("host", Workload::deployment("media", "songs"), secs(5));
    let films = world.host("host", world.films(), secs(60));
    songs.call(ms(10)).await.unwrap();
    films.call(ms(10)).await.unwrap();
    assert_eq!(world.cluster.peak(), 1);
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
}

// ===== The API server meanwhile =====

/// A cold start of 2 s, in whose midst something happens.
async fn cold_start(happens: impl FnOnce(&World)) -> (World, Host, u128) {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    let begun = Instant::now();
    let calling = tokio::spawn({
        let host = host.clone();
        async move { host.call(ms(10)).await }
    });
    sleep(secs(1)).await;
    happens(&world);
    calling.await.unwrap().unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 1,
            ..Saw::default()
        }
    );
    (world, host, begun.elapsed().as_millis())
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_in_a_start_goes_on_where_it_was() {
    let (world, _, took) = cold_start(|world| world.cluster.break_watches()).await;
    assert_eq!(took, 2_010, "nothing was missed, and nothing waited for");
    let calls = world.cluster.calls();
    let lists = |call: &&tower_on_demand_kubernetes::test_util::Call| {
        call.method == "GET" && !call.path.ends_with("/scale") && !call.is_watch()
    };
    assert_eq!(
        calls.iter().filter(lists).count(),
        3,
        "nothing was listed again"
    );
    assert_eq!(calls.iter().filter(|call| call.is_watch()).count(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_past_is_forgotten_lists_again() {
    let (world, _, _) = cold_start(|world| {
        world.cluster.forget_history();
        world.cluster.break_watches();
    })
    .await;
    let calls = world.cluster.calls();
    let lists = calls
        .iter()
        .filter(|call| call.path.ends_with("/endpointslices") && !call.is_watch());
    assert_eq!(lists.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_in_a_start_is_waited_for() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    world.cluster.away(true);
    let calling = tokio::spawn({
        let host = host.clone();
        async move { host.call(ms(10)).await }
    });
    sleep(secs(60)).await;
    world.cluster.away(false);
    calling.await.unwrap().unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 1,
            ..Saw::default()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_throttled_start_waits_as_long_as_it_is_told_and_then_succeeds() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    world.cluster.throttle(3, 1);
    let begun = Instant::now();
    host.call(ms(10)).await.unwrap();
    assert!(
        begun.elapsed() >= secs(5),
        "three waits of at least a second: {:?}",
        begun.elapsed()
    );
    assert!(begun.elapsed() < secs(10), "{:?}", begun.elapsed());
    let refused = world
        .cluster
        .calls()
        .iter()
        .filter(|call| call.status == 429)
        .count();
    assert_eq!(refused, 3);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_with_another_writer_is_read_again_and_patched_again() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    let cluster = world.cluster.clone();
    world.cluster.before("PATCH", "/films/scale", move || {
        cluster.scale("media", "films", 1);
        cluster.scale("media", "films", 0);
    });
    host.call(ms(10)).await.unwrap();
    let story = story(&world.cluster);
    assert!(
        story[1].ends_with("-> 409") && story[3].ends_with("-> 200"),
        "{story:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_the_slices_have_not_lost_yet_are_not_taken_for_ready() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(10));
    world
        .cluster
        .plan("media", "films", |plan| plan.lag = secs(3));
    host.call(ms(10)).await.unwrap();
    // Stopped by age, after the grace of its pod; the slices learn of that later.
    let gone = async {
        while world.cluster.pods("media", "films") > 0 {
            sleep(ms(10)).await;
        }
    };
    gone.await;
    host.call(ms(10)).await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_start_that_somebody_else_scales_to_zero_says_so() {
    let world = World::new();
    let host = world.host("host", world.films(), secs(60));
    let cluster = world.cluster.clone();
    tokio::spawn(async move {
        sleep(secs(1)).await;
        cluster.scale("media", "films", 0);
    });
    let error = host.call(ms(10)).await.unwrap_err();
    assert!(matches!(failure(&error), Failure::ScaledToZero));
}
