//! Several hosts in front of one workload.

mod support;

use support::{Host, Saw, World, films, ms, secs};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt as _;
use tower_on_demand::{Backend, ErrorKind};
use tower_on_demand_kubernetes::{Workload, hosts::Hosts, test_util::Plan};

const CLAIMS: &str = "deployments.apps.media.films";

/// Two hosts in front of the same workload, with idle bounds of a minute.
fn two() -> (World, Host, Host) {
    let world = World::new();
    world.films();
    let a = world.shared("a", films(), secs(60));
    let b = world.shared("b", films(), secs(60));
    (world, a, b)
}

fn replicas(world: &World) -> u64 {
    world.cluster.replicas("media", "films")
}

/// So many calls have patched the scale.
fn patches(world: &World) -> usize {
    let calls = world.cluster.calls();
    calls
        .iter()
        .filter(|call| call.method == "PATCH" && call.path.ends_with("/scale"))
        .filter(|call| call.status == 200)
        .count()
}

#[tokio::test(start_paused = true)]
async fn a_workload_is_stopped_only_when_no_host_has_used_it_within_its_bound() {
    let (world, a, b) = two();
    a.call(ms(10)).await.unwrap();
    b.call(ms(10)).await.unwrap();
    assert_eq!(patches(&world), 1, "the second found it running");
    // One of them goes on calling, for far longer than the bound of the other.
    for _ in 0..10 {
        sleep(secs(30)).await;
        b.call(ms(10)).await.unwrap();
    }
    assert_eq!(replicas(&world), 1);
    let status = a.group.handle("media/films").unwrap().status();
    assert_eq!(status.evictions, 1, "to the other it was idle");
    sleep(secs(70)).await;
    assert_eq!(replicas(&world), 0);
    assert_eq!(world.cluster.pods("media", "films"), 0);
    assert_eq!(
        world.saw(),
        Saw {
            served: 12,
            ..Saw::default()
        }
    );
    assert_eq!(
        world.cluster.leases(),
        ["host.a", "host.b"],
        "no claim is left"
    );
}

#[tokio::test(start_paused = true)]
async fn a_herd_on_two_hosts_scales_it_up_once() {
    let (world, a, b) = two();
    let calls = (0..200).map(|n| {
        let host = if n % 2 == 0 { a.clone() } else { b.clone() };
        tokio::spawn(async move { host.call(ms(10)).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    assert_eq!(
        world.saw(),
        Saw {
            served: 200,
            ..Saw::default()
        }
    );
    assert_eq!(world.cluster.peak(), 1);
    sleep(secs(120)).await;
    assert_eq!(replicas(&world), 0);
    assert_eq!(world.cluster.leases(), ["host.a", "host.b"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_lands_before_the_last_one_is_given_back_keeps_it_running() {
    let (world, a, b) = two();
    a.call(ms(10)).await.unwrap();
    // A's stop has read that nobody else claims it. Before it can say so, B's call comes in.
    let (to, calling) = tokio::sync::oneshot::channel();
    let of_b = b.clone();
    let land = move || {
        let call = tokio::spawn(async move { of_b.call(secs(100)).await });
        let _ = to.send(call);
    };
    sleep(secs(30)).await;
    world.cluster.latency("a", ms(20));
    world.cluster.before("GET", CLAIMS, land);
    calling.await.unwrap().await.unwrap().unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
    let conflicts = world.cluster.calls();
    let conflicts = conflicts
        .iter()
        .filter(|call| call.status == 409 && call.method == "PATCH");
    assert_eq!(
        conflicts.count(),
        1,
        "A was told that it had read an old state"
    );
    let status = a.group.handle("media/films").unwrap().status();
    assert_eq!(status.evictions, 1);
    assert_eq!(patches(&world), 1, "nobody has scaled it down");
    drop(b);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_lands_after_the_last_one_was_given_back_waits_and_starts_it_again() {
    for at in (0..400).step_by(10) {
        let (world, a, b) = two();
        world.cluster.latency("a", ms(20));
        world.cluster.latency("b", ms(20));
        a.call(ms(10)).await.unwrap();
        let stopping = a.group.clone();
        let stopping = tokio::spawn(async move { stopping.stopped(secs(60)).await });
        sleep(ms(at)).await;
        b.call(secs(20)).await.unwrap();
        stopping.await.unwrap();
        assert_eq!(
            world.saw(),
            Saw {
                served: 2,
                ..Saw::default()
            },
            "the call came after {at} ms"
        );
        assert_eq!(replicas(&world), 1);
        sleep(secs(120)).await;
        assert_eq!(replicas(&world), 0);
        assert_eq!(world.cluster.leases(), ["host.a", "host.b"]);
        a.falls_silent();
        b.falls_silent();
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_host_alone_used_is_scaled_to_zero_by_another() {
    let (world, a, b) = two();
    a.call(ms(10)).await.unwrap();
    b.call(ms(10)).await.unwrap();
    // B gives its claim back; A never does, for it is dead.
    sleep(secs(30)).await;
    world.cluster.cut_off("a", true);
    a.falls_silent();
    sleep(secs(29)).await;
    assert_eq!(replicas(&world), 1, "nobody can know yet");
    // 40 s without a sign of life, seen by a look that is due once in a minute or two.
    sleep(secs(300)).await;
    assert_eq!(replicas(&world), 0);
    assert_eq!(world.cluster.leases(), ["host.b"], "nothing of it is left");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_started_again_under_its_name_gives_back_what_its_last_life_claimed() {
    let world = World::new();
    world.films();
    world.cluster.deployment("media", "songs", Plan::default());
    let last_life = world.shared("a", films(), secs(3_600));
    last_life.call(ms(10)).await.unwrap();
    last_life.falls_silent();
    let songs = Workload::deployment("media", "songs");
    let a = world.shared("a", songs, secs(3_600));
    a.call(ms(10)).await.unwrap();
    sleep(secs(5)).await;
    assert_eq!(replicas(&world), 0, "nobody needs it");
    assert_eq!(
        world.cluster.replicas("media", "songs"),
        1,
        "this life's own"
    );
    assert_eq!(
        world.cluster.leases(),
        ["deployments.apps.media.songs", "host.a"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_host_that_dies_in_the_midst_of_a_stop_does_not_keep_others_from_starting() {
    let (world, a, b) = two();
    a.call(ms(10)).await.unwrap();
    let cluster = world.cluster.clone();
    // Its claim says that it stops the workload; it does not come to patch the scale.
    world
        .cluster
        .before("GET", "/films/scale", move || cluster.cut_off("a", true));
    let stopping = tokio::spawn({
        let a = a.clone();
        async move { a.group.stopped(secs(60)).await }
    });
    sleep(secs(1)).await;
    a.falls_silent();
    let begun = Instant::now();
    b.call(ms(10)).await.unwrap();
    let took = begun.elapsed();
    assert!(
        took > secs(30) && took < secs(60),
        "until its Lease was over: {took:?}"
    );
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
    stopping.abort();
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_slow_to_stop_is_not_taken_for_dead_by_one_whose_watches_were_lost() {
    let world = World::new();
    world.films();
    let a = world.shared("a", films(), secs(60));
    let b = world.shared("b", films().ready_within(secs(600)), secs(60));
    a.call(ms(10)).await.unwrap();
    world.cluster.latency("a", secs(9));
    // A has to read and patch the scale three times: for 54 s its claim says that it stops.
    for _ in 0..2 {
        let cluster = world.cluster.clone();
        let changes = move || cluster.scale("media", "films", 1);
        world.cluster.before("PATCH", "/films/scale", changes);
    }
    let stopping = a.group.clone();
    let stopping = tokio::spawn(async move { stopping.stopped(secs(60)).await });
    sleep(secs(20)).await;
    let calling = tokio::spawn({
        let b = b.clone();
        async move { b.call(ms(10)).await }
    });
    sleep(secs(1)).await;
    world.cluster.silence_watches("b");
    stopping.await.unwrap();
    calling.await.unwrap().unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 2,
            ..Saw::default()
        }
    );
    assert_eq!(patches(&world), 3, "up, down by A, and up again by B");
    assert_eq!(world.cluster.peak(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_cut_off_in_the_midst_of_a_stop_does_not_finish_it_later() {
    let (world, a, b) = two();
    a.call(ms(10)).await.unwrap();
    let cluster = world.cluster.clone();
    // It has read the scale, and its patch does not come through.
    world
        .cluster
        .before("PATCH", "/films/scale", move || cluster.cut_off("a", true));
    let stopping = a.group.clone();
    let stopping = tokio::spawn(async move { stopping.stopped(secs(60)).await });
    sleep(secs(1)).await;
    // B takes A for dead, and goes on with the pod that still runs.
    b.call(ms(10)).await.unwrap();
    world.cluster.cut_off("a", false);
    for _ in 0..20 {
        sleep(secs(10)).await;
        b.call(ms(10)).await.unwrap();
    }
    stopping.await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 22,
            ..Saw::default()
        }
    );
    assert_eq!(patches(&world), 1, "the first start, and nothing after it");
    let status = b.group.handle("media/films").unwrap().status();
    assert_eq!((status.starts, status.crashes), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_cut_off_goes_on_serving_and_claims_again_what_others_kept_running() {
    let (world, a, b) = two();
    let busy = |host: Host, times: u32| {
        tokio::spawn(async move {
            for _ in 0..times {
                host.call(ms(10)).await.unwrap();
                sleep(secs(10)).await;
            }
        })
    };
    let (of_a, of_b) = (busy(a.clone(), 75), busy(b.clone(), 46));
    sleep(secs(30)).await;
    world.cluster.cut_off("a", true);
    // Long enough to be taken for dead.
    sleep(secs(400)).await;
    assert_eq!(
        world.cluster.leases(),
        [CLAIMS, "host.b"],
        "A was forgotten"
    );
    world.cluster.cut_off("a", false);
    sleep(secs(15)).await;
    assert_eq!(world.cluster.leases(), [CLAIMS, "host.a", "host.b"]);
    // B gives its claim back long before A does.
    of_b.await.unwrap();
    of_a.await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 121,
            ..Saw::default()
        }
    );
    let status = a.group.handle("media/films").unwrap().status();
    assert_eq!((status.starts, status.crashes), (1, 0));
    sleep(secs(300)).await;
    assert_eq!(replicas(&world), 0);
    assert_eq!(world.cluster.leases(), ["host.a", "host.b"]);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_back_learns_that_its_workload_was_stopped() {
    let (world, a, _b) = two();
    let busy = tokio::spawn({
        let a = a.clone();
        async move {
            let mut failed = 0;
            for _ in 0..80 {
                failed += u32::from(a.call(ms(10)).await.is_err());
                sleep(secs(10)).await;
            }
            failed
        }
    });
    sleep(secs(30)).await;
    world.cluster.cut_off("a", true);
    sleep(secs(400)).await;
    assert_eq!(
        replicas(&world),
        0,
        "its only user is dead, as far as anybody can know"
    );
    world.cluster.cut_off("a", false);
    // Its watches pause for up to a minute after so many errors.
    sleep(secs(90)).await;
    assert_eq!(replicas(&world), 1, "started again");
    assert!(busy.await.unwrap() > 0, "those sent meanwhile have failed");
    let status = a.group.handle("media/films").unwrap().status();
    assert_eq!((status.starts, status.crashes), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_nobody_can_reach_makes_nobody_look_dead() {
    let (world, a, b) = two();
    a.call(ms(10)).await.unwrap();
    let a_goes_on = tokio::spawn({
        let a = a.clone();
        async move {
            for _ in 0..90 {
                a.call(ms(10)).await.unwrap();
                sleep(secs(10)).await;
            }
        }
    });
    for _ in 0..4 {
        sleep(secs(60)).await;
        world.cluster.away(true);
        sleep(secs(120)).await;
        world.cluster.away(false);
    }
    a_goes_on.await.unwrap();
    assert_eq!(
        world.saw(),
        Saw {
            served: 91,
            ..Saw::default()
        }
    );
    let status = a.group.handle("media/films").unwrap().status();
    assert_eq!((status.starts, status.crashes), (1, 0));
    drop(b);
}

#[tokio::test(start_paused = true)]
async fn a_host_without_a_heartbeat_starts_nothing_and_says_why() {
    let world = World::new();
    world.films();
    let (hosts, _heartbeat) = Hosts::pair(world.cluster.client("a"), "front", "a").unwrap();
    let scale = world.scale("a").shared(hosts);
    let error = scale
        .oneshot(films().ready_within(secs(5)))
        .await
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::StartTimeout { .. }));
    assert!(format!("{error:#}").contains("Heartbeat"), "{error:#}");
    assert_eq!(replicas(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shared_start_that_is_dropped_at_any_moment_leaves_no_claim() {
    for at in (0..3_000).step_by(50) {
        let world = World::new();
        world.films();
        world.cluster.latency("a", ms(50));
        let (hosts, heartbeat) = Hosts::pair(world.cluster.client("a"), "front", "a").unwrap();
        let heartbeat = tokio::spawn(heartbeat.run());
        let scale = world.scale("a").shared(hosts);
        if let Ok(scaled) = timeout(ms(at), scale.oneshot(films())).await {
            scaled.unwrap().stop().await;
        }
        sleep(secs(30)).await;
        assert_eq!(world.cluster.leases(), ["host.a"], "dropped after {at} ms");
        assert_eq!(
            world.cluster.pods("media", "films"),
            0,
            "dropped after {at} ms"
        );
        assert_eq!(world.cluster.watches(), 0, "dropped after {at} ms");
        heartbeat.abort();
    }
}

#[test]
fn a_host_is_called_as_a_label_may_be() {
    let rejected = [
        "",
        "-a",
        "a.",
        "a b",
        &"a".repeat(51),
        "a.sweep",
        "A",
        "a_b",
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _within = runtime.enter();
    let client = World::new().cluster.client("a");
    for id in rejected {
        let refused = Hosts::pair(client.clone(), "front", id).unwrap_err();
        assert!(refused.to_string().contains("cannot name a host"));
    }
    assert!(Hosts::pair(client, "front", "front-7c9f.a").is_ok());
}

/// The numbers of calls that `docs/scale.md` counts with.
#[tokio::test(start_paused = true)]
async fn a_life_from_zero_to_zero_costs_12_calls_alone_and_17_among_several_hosts() {
    for (shared, up, down) in [(false, 8, 4), (true, 10, 7)] {
        let world = World::new();
        world.films();
        let mut scale = world.scale("a");
        if shared {
            let (hosts, heartbeat) = Hosts::pair(world.cluster.client("a"), "front", "a").unwrap();
            tokio::spawn(heartbeat.run());
            scale = scale.shared(hosts);
        }
        let calls = || {
            let mut calls = world.cluster.calls();
            calls.retain(|call| {
                !call.path.ends_with("/host.a") && !call.body.contains("\"host.a\"")
            });
            calls.len()
        };
        let scaled = scale.oneshot(films()).await.unwrap();
        let before = calls();
        assert_eq!(before, up);
        scaled.stop().await;
        assert_eq!(calls() - before, down);
    }
}
