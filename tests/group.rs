//! `Group`: every backend of a host by name, and the end of all of them.

mod support;

use support::{Caller, World, ms, secs};
use tower::{Layer, ServiceExt};
use tower_on_demand::{
    ErrorKind, Group, LazyStart, LazyStartLayer, Runtime, State,
    test_util::{self, Clock},
};

type Stack = LazyStart<String, Caller>;

struct Host {
    runtime: Runtime,
    clock: Clock,
    world: World,
    group: Group,
}

impl Host {
    fn new(seed: u64) -> Self {
        let (runtime, clock) = test_util::runtime(seed);
        Self {
            world: World::new(&runtime),
            runtime,
            clock,
            group: Group::new(),
        }
    }

    fn layer(&self, name: &str) -> LazyStartLayer<String> {
        LazyStartLayer::new(self.runtime.clone(), name.to_owned()).join(&self.group)
    }

    fn stack(&self, name: &str) -> Stack {
        self.layer(name).layer(self.world.maker())
    }

    fn serve(&self, stack: &Stack) {
        let call = stack.clone().oneshot(ms(0));
        self.clock.block_on(call).expect("served");
    }

    fn kind(&self, stack: &Stack) -> ErrorKind {
        let call = stack.clone().oneshot(ms(0));
        let error = self.clock.block_on(call).expect_err("refused");
        error.kind().clone()
    }
}

#[test]
fn backends_are_found_by_name_and_leave_with_their_last_handle() {
    let host = Host::new(1);
    let (a, b) = (host.stack("a"), host.stack("b"));
    assert!(host.group.handle("c").is_none());
    let handle = host.group.handle("b").expect("by name");
    host.clock.block_on(handle.start()).expect("it starts");
    assert_eq!(b.status().state, State::Running);
    let names: Vec<_> = host.group.status().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["a".into(), "b".into()]);
    drop((a, b));
    assert!(host.group.handle("a").is_none());
    assert!(host.group.handle("b").is_some(), "a handle holds it");
    drop(handle);
    host.clock.advance(secs(1));
    assert!(host.group.status().is_empty());
    assert_eq!((host.world.alive(), host.clock.tasks()), (0, 0));
}

#[test]
fn of_several_with_one_name_the_newest_is_found_and_all_are_shut_down() {
    let host = Host::new(1);
    let (old, new) = (host.stack("a"), host.stack("a"));
    host.serve(&old);
    host.serve(&new);
    host.serve(&new);
    let found = host.group.handle("a").expect("by name");
    host.clock.block_on(found.stop()).expect("stopped");
    assert_eq!(
        (old.status().state, new.status().state),
        (State::Running, State::Stopped)
    );
    host.clock.block_on(host.group.stopped(secs(1)));
    assert_eq!(host.world.alive(), 0);
}

#[test]
fn start_all_starts_all_and_tells_of_those_it_could_not() {
    let host = Host::new(1);
    let stacks: Vec<_> = ["a", "b", "c"].map(|name| host.stack(name)).into();
    host.world.plan("b", |plan| plan.failing = 1);
    let failed = host.clock.block_on(host.group.start_all());
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].backend(), Some("b"));
    let states: Vec<_> = stacks.iter().map(|stack| stack.status().state).collect();
    assert_eq!(states, [State::Running, State::BackingOff, State::Running]);
}

#[test]
fn l3_close_refuses_new_calls_and_lets_those_in_flight_end() {
    let host = Host::new(1);
    let stack = host.stack("a");
    host.serve(&stack);
    let mut long = host.clock.spawn(stack.clone().oneshot(secs(5)));
    host.clock.run();
    host.group.close();
    assert_eq!(host.kind(&stack), ErrorKind::ShutDown);
    host.clock.advance(secs(4));
    assert!(!long.is_finished());
    host.clock.advance(secs(2));
    long.take().expect("answered").expect("whole");
    let saw = host.world.saw("a");
    assert_eq!((saw.cut, saw.alive, host.clock.tasks()), (0, 0, 0));
    assert_eq!(stack.status().state, State::ShutDown);
}

#[test]
fn l3_stopped_cuts_what_is_left_when_its_drain_is_over_and_returns_when_nothing_is_alive() {
    let host = Host::new(1);
    let stack = host.stack("a");
    host.serve(&stack);
    let mut long = host.clock.spawn(stack.clone().oneshot(secs(500)));
    host.clock.run();
    let before = host.clock.elapsed();
    host.clock.block_on(host.group.stopped(secs(3)));
    assert_eq!(host.clock.elapsed() - before, secs(3) + ms(10));
    let error = long.take().expect("told").expect_err("cut");
    assert_eq!(
        (error.kind(), error.backend()),
        (&ErrorKind::Stopped, Some("a"))
    );
    assert_eq!((host.world.alive(), host.clock.tasks()), (0, 0));
}

#[test]
fn l3_nothing_appears_from_a_start_a_restart_or_a_late_join() {
    for seed in 0..20 {
        let host = Host::new(seed);
        let starting = host.stack("starting");
        let crashing = host
            .layer("crashing")
            .keep_running()
            .layer(host.world.maker());
        let failing = host.stack("failing");
        host.serve(&crashing);
        host.world.plan("failing", |plan| plan.failing = 1);
        let calls =
            [&starting, &failing].map(|stack| host.clock.spawn(stack.clone().oneshot(ms(0))));
        host.clock.advance(ms(seed % 12));
        host.world.kill("crashing");
        host.clock.advance(ms(seed / 4));
        host.clock.block_on(host.group.stopped(secs(1)));
        assert_eq!((host.world.alive(), host.clock.tasks()), (0, 0));
        for mut call in calls {
            host.clock.run();
            assert!(call.take().is_some(), "nobody hangs");
        }
        let begun = |name| host.world.saw(name).begun;
        let before = (begun("starting"), begun("crashing"), begun("failing"));
        let late = host.stack("late");
        for stack in [&starting, &crashing, &failing, &late] {
            assert_eq!(host.kind(stack), ErrorKind::ShutDown);
            let handle = stack.handle();
            assert!(host.clock.block_on(handle.start()).is_err());
            assert!(host.clock.block_on(handle.reload_in_place(None)).is_ok());
            handle.load();
            handle.reset();
        }
        host.clock.advance(secs(3600));
        assert_eq!(
            (begun("starting"), begun("crashing"), begun("failing")),
            before
        );
        assert_eq!((begun("late"), host.clock.tasks()), (0, 0));
    }
}

#[test]
fn closing_again_and_again_is_the_same() {
    let host = Host::new(1);
    let stack = host.stack("a");
    host.serve(&stack);
    let group = host.group.clone();
    let first = host
        .clock
        .spawn(async move { group.stopped(secs(60)).await });
    let group = host.group.clone();
    let second = host
        .clock
        .spawn(async move { group.stopped(secs(60)).await });
    host.group.close();
    host.clock.advance(secs(1));
    assert!(first.is_finished() && second.is_finished());
    host.clock.block_on(host.group.stopped(secs(60)));
    assert_eq!(host.world.saw("a").stops, 1);
}

#[test]
fn a_stop_that_hangs_does_not_hang_the_group() {
    let host = Host::new(1);
    let (a, b) = (host.stack("a"), host.stack("b"));
    host.world.plan("a", |plan| plan.stop_hangs = true);
    host.serve(&a);
    host.serve(&b);
    host.clock.block_on(host.group.stopped(secs(1)));
    assert_eq!(
        host.clock.elapsed().as_secs(),
        30,
        "a's own bound of its stop"
    );
    assert_eq!(host.world.alive(), 0);
    assert!(format!("{:#}", a.status().last_error.expect("reported")).contains("30s"));
}
