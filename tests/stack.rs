//! The four layers as one stack.

mod support;

use std::time::Duration;

use support::{Caller, Maker, World, ms, secs};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_on_demand::{
    BoxError, Ceiling, CeilingLayer, Error, ErrorKind, Group, IdleEvict, IdleEvictLayer, LazyStart,
    LazyStartLayer, Leased, Runtime, Target, UntilResponse, test_util,
};

type Stack = LazyStart<String, Leased<Caller, UntilResponse>>;

/// A host: its backends share a ceiling and a registry.
struct Host {
    runtime: Runtime,
    world: World,
    group: Group,
    ceiling: CeilingLayer,
    evictable: IdleEvictLayer<UntilResponse>,
}

impl Host {
    fn new(runtime: &Runtime, limit: u64, wait: Duration) -> (Self, IdleEvict) {
        let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let host = Self {
            runtime: runtime.clone(),
            world: World::new(runtime),
            group: Group::new(),
            ceiling: CeilingLayer::new(runtime.clone(), limit).wait(wait),
            evictable,
        };
        (host, sweeper)
    }

    fn stack(&self, name: &str) -> Stack {
        let maker: Ceiling<Maker, _> = self.ceiling.clone().layer(self.world.maker());
        let lazy = LazyStartLayer::new(self.runtime.clone(), name.to_owned()).join(&self.group);
        ServiceBuilder::new()
            .layer(lazy)
            .layer(self.evictable.clone().idle_after(secs(900)))
            .service(maker)
    }
}

#[test]
fn s10_c2_fifty_backends_at_once_peak_exactly_at_a_ceiling_of_two() {
    for seed in 0..10 {
        let (runtime, clock) = test_util::runtime(seed);
        let (host, _sweeper) = Host::new(&runtime, 2, secs(600));
        let stacks: Vec<_> = (0..50).map(|n| host.stack(&format!("b{n}"))).collect();
        let calls: Vec<_> = stacks
            .iter()
            .map(|stack| clock.spawn(stack.clone().oneshot(ms(5))))
            .collect();
        clock.advance(secs(60));
        for mut call in calls {
            call.take().expect("answered").expect("served");
        }
        assert_eq!((host.world.peak(), host.ceiling.occupancy().used), (2, 2));
        for n in 0..50 {
            let saw = host.world.saw(&format!("b{n}"));
            assert_eq!(
                (saw.begun, saw.calls, saw.cut, saw.misdelivered),
                (1, 1, 0, 0)
            );
        }
        clock.block_on(host.group.stopped(secs(1)));
        assert_eq!((host.world.alive(), host.ceiling.occupancy().used), (0, 0));
    }
}

#[test]
fn s48_four_backends_in_turn_under_a_ceiling_of_one_serve_every_call() {
    for seed in 0..20 {
        let (runtime, clock) = test_util::runtime(seed);
        let (host, _sweeper) = Host::new(&runtime, 1, secs(3600));
        let stacks: Vec<_> = (0..4).map(|n| host.stack(&format!("b{n}"))).collect();
        let calls: Vec<_> = (0..200)
            .map(|n| clock.spawn(stacks[n % 4].clone().oneshot(ms(n as u64 % 3))))
            .collect();
        clock.advance(secs(600));
        for mut call in calls {
            call.take().expect("answered").expect("served");
        }
        assert_eq!(host.world.peak(), 1);
        let starts: u64 = (0..4).map(|n| host.world.saw(&format!("b{n}")).begun).sum();
        assert!(starts <= 200, "{starts} starts for 200 calls");
    }
}

/// Callers in real parallel, each for all four backends in turn.
async fn in_parallel(callers: usize, rounds: usize) {
    let runtime = Runtime::tokio();
    let (host, _sweeper) = Host::new(&runtime, 1, secs(60));
    for n in 0..4 {
        host.world.plan(&format!("b{n}"), |plan| {
            plan.start = Duration::ZERO;
            plan.stop = Duration::ZERO;
        });
    }
    let stacks: Vec<_> = (0..4).map(|n| host.stack(&format!("b{n}"))).collect();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let stacks = stacks.clone();
            tokio::spawn(async move {
                for round in 0..rounds {
                    let stack = stacks[(caller + round) % 4].clone();
                    stack.oneshot(Duration::ZERO).await?;
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic").expect("every call is served");
    }
    let calls = (callers * rounds) as u64;
    let (mut begun, mut seen) = (0, 0);
    for n in 0..4 {
        let saw = host.world.saw(&format!("b{n}"));
        assert_eq!((saw.misdelivered, saw.cut), (0, 0));
        begun += saw.begun;
        seen += saw.calls;
    }
    assert_eq!((host.world.peak(), seen), (1, calls));
    assert!(begun <= calls, "{begun} starts for {calls} calls");
    host.group.stopped(secs(10)).await;
    assert_eq!((host.world.alive(), host.ceiling.occupancy().used), (0, 0));
}

#[tokio::test(flavor = "current_thread")]
async fn s48_the_same_on_one_thread() {
    in_parallel(8, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s48_the_same_on_two_threads() {
    in_parallel(8, 250).await;
}

#[test]
fn s45_a_reload_that_only_its_own_old_instance_blocks_fails_at_once_and_names_the_way_out() {
    let (runtime, clock) = test_util::runtime(1);
    let (host, _sweeper) = Host::new(&runtime, 1, secs(600));
    let stack = host.stack("a");
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let before = clock.elapsed();
    let error = clock
        .block_on(stack.handle().reload(None))
        .expect_err("there is no room for two");
    assert_eq!(clock.elapsed(), before);
    assert!(
        matches!(error.kind(), ErrorKind::NoRoom(room) if room.own),
        "{error:?}"
    );
    assert!(error.to_string().contains("reload_in_place"), "{error}");
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("the old one serves on");
    assert_eq!(host.world.saw("a").begun, 1);

    let waiting = clock.spawn(stack.clone().oneshot(ms(0)));
    clock
        .block_on(stack.handle().reload_in_place(None))
        .expect("in place");
    clock.run();
    assert!(waiting.is_finished());
    assert_eq!((host.world.saw("a").begun, host.world.peak()), (2, 1));
}

#[test]
fn a_start_ahead_takes_free_room_only() {
    let (runtime, clock) = test_util::runtime(1);
    let (host, _sweeper) = Host::new(&runtime, 1, secs(600));
    let (a, b) = (host.stack("a"), host.stack("b"));
    clock.block_on(a.handle().start()).expect("there is room");
    let error = clock
        .block_on(b.handle().start())
        .expect_err("there is none");
    assert!(matches!(error.kind(), ErrorKind::NoRoom(_)));
    assert_eq!(host.world.saw("a").stops, 0);
    clock
        .block_on(b.handle().start_evicting())
        .expect("room is made");
    assert_eq!((host.world.saw("a").stops, host.world.peak()), (1, 1));
}

#[test]
fn s25_a_thousand_failed_starts_leave_the_whole_budget() {
    let (runtime, clock) = test_util::runtime(1);
    let (host, _sweeper) = Host::new(&runtime, 2, secs(600));
    let a = host.stack("a");
    host.world.plan("a", |plan| {
        plan.failing = 500;
        plan.start = ms(1);
    });
    let mut failed = 0;
    while failed < 1000 {
        if failed == 500 {
            host.world.plan("a", |plan| plan.panicking = 500);
        }
        a.handle().reset();
        clock
            .block_on(a.clone().oneshot(ms(0)))
            .expect_err("it fails");
        failed += 1;
    }
    assert_eq!(host.world.saw("a").begun, 1000);
    assert_eq!(host.ceiling.occupancy().used, 0);
    a.handle().reset();
    let (b, c) = (host.stack("b"), host.stack("c"));
    for stack in [&b, &c] {
        clock
            .block_on(stack.clone().oneshot(ms(0)))
            .expect("served");
    }
    assert_eq!((host.world.alive(), host.ceiling.occupancy().used), (2, 2));
}

#[test]
fn e8_an_eviction_is_no_crash_and_the_next_call_is_served_by_a_fresh_instance() {
    let (runtime, clock) = test_util::runtime(1);
    let (host, sweeper) = Host::new(&runtime, 2, secs(600));
    runtime.spawn(sweeper.run());
    let stack = host.stack("a");
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    clock.advance(secs(901));
    let status = stack.status();
    assert_eq!(
        (status.evictions, status.crashes, host.world.alive()),
        (1, 0, 0)
    );
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    assert_eq!(stack.status().generation, 2);
}

#[test]
fn l5_a_call_through_the_stack_dropped_at_any_poll_leaves_no_claim_permit_or_place() {
    let mut polls = 0;
    let mut done = false;
    while !done {
        let (runtime, clock) = test_util::runtime(polls);
        let (host, _sweeper) = Host::new(&runtime, 1, secs(600));
        let (a, b) = (host.stack("a"), host.stack("b"));
        clock.block_on(a.clone().oneshot(ms(0))).expect("served");
        let mut future = Box::pin(b.clone().oneshot(ms(3)));
        for _ in 0..=polls {
            if test_util::poll_once(&mut future).is_ready() {
                done = true;
                break;
            }
            clock.advance(ms(1));
        }
        drop(future);
        clock.advance(secs(1));
        let occupancy = host.ceiling.occupancy();
        assert_eq!(occupancy.waiting, 0);
        clock.block_on(a.clone().oneshot(ms(0))).expect("served");
        clock.block_on(b.clone().oneshot(ms(0))).expect("served");
        clock.block_on(host.group.stopped(secs(1)));
        assert_eq!((host.world.alive(), host.ceiling.occupancy().used), (0, 0));
        assert_eq!(clock.tasks(), 0);
        polls += 1;
    }
    assert!(polls > 10);
}

#[test]
fn what_is_lent_is_cut_by_an_order_and_by_nothing_else() {
    let (runtime, clock) = test_util::runtime(1);
    let (host, idle_evict) = Host::new(&runtime, 1, secs(10));
    runtime.spawn(idle_evict.run());
    let (a, b) = (host.stack("a"), host.stack("b"));
    let mut lent = clock.block_on(a.lend()).expect("lent");
    let borrower = clock.spawn(async move { lent.cut().await });
    // Neither for age nor for room.
    let refused = clock
        .block_on(b.oneshot(ms(1)))
        .expect_err("there is no room");
    assert!(matches!(refused.kind(), ErrorKind::NoRoom(_)), "{refused}");
    clock.advance(secs(3600));
    assert!(!borrower.is_finished());
    assert_eq!(host.world.saw("a").stops, 0);

    let begun = clock.elapsed();
    let stopped = clock.spawn({
        let group = host.group.clone();
        async move { group.stopped(secs(5)).await }
    });
    clock.advance(secs(5) - Duration::from_nanos(1));
    assert!(!borrower.is_finished());
    clock.block_on(stopped);
    assert!(borrower.is_finished());
    assert!(clock.elapsed() - begun < secs(6));
    assert_eq!((host.world.alive(), host.ceiling.occupancy().used), (0, 0));
}

/// A target that is wrong in itself.
#[derive(Clone)]
struct Wrong;

impl Target for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn validate(&self) -> Result<(), BoxError> {
        Err("it has no program".into())
    }
}

#[test]
fn nothing_is_stopped_for_what_is_sure_to_fail() {
    let (runtime, clock) = test_util::runtime(1);
    let (host, _sweeper) = Host::new(&runtime, 1, secs(10));
    let a = host.stack("a");
    clock.block_on(a.clone().oneshot(ms(1))).expect("served");

    let maker = host
        .world
        .maker()
        .map_request(|_: Wrong| "wrong".to_owned());
    let wrong = ServiceBuilder::new()
        .layer(LazyStartLayer::new(runtime.clone(), Wrong))
        .layer(host.evictable.clone())
        .layer(host.ceiling.clone())
        .service(maker);
    let error = clock
        .block_on(wrong.oneshot(ms(1)))
        .expect_err("it is wrong");
    assert_eq!(*error.kind(), ErrorKind::StartFailed);
    assert_eq!(
        format!("{error:#}"),
        "backend \"wrong\": could not be started: it has no program"
    );
    assert_eq!(
        (host.world.saw("a").alive, host.world.saw("a").stops),
        (1, 0)
    );
    assert_eq!(host.world.peak(), 1);
    drop(a);
}
