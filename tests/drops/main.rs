//! Every public future, dropped at each of its await points, exhaustively: no claim, permit, place or
//! entry is left, and the next who comes is served.
#![cfg(feature = "full")]

mod coalesce;
mod http;
mod layers;
mod lazy_start;
#[path = "../support/mod.rs"]
mod support;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use support::{BoxFuture, Caller, World, ms, secs};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_on_demand::{
    CeilingLayer, Error, Group, IdleEvict, IdleEvictLayer, LazyStart, LazyStartLayer, Leased,
    Runtime, State, UntilResponse,
    test_util::{self, Clock, Counted, Task},
};

type Stack = LazyStart<String, Leased<Caller, UntilResponse>>;

/// A host with room for one, and what each of its parts still holds.
struct Host {
    clock: Clock,
    runtime: Runtime,
    world: World,
    group: Group,
    ceiling: CeilingLayer,
    evictable: IdleEvictLayer<UntilResponse>,
    sweeper: Option<IdleEvict>,
    /// What goes on beside the future that is dropped.
    beside: Vec<Task<Result<(), Error>>>,
    stacks: Vec<Stack>,
}

impl Host {
    fn new(seed: u64) -> Self {
        let (runtime, clock) = test_util::runtime(seed);
        let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        Self {
            world: World::new(&runtime),
            group: Group::new(),
            ceiling: CeilingLayer::new(runtime.clone(), 1)
                .wait(secs(60))
                .yield_after(ms(200)),
            evictable: evictable.idle_after(secs(600)),
            sweeper: Some(sweeper),
            beside: Vec::new(),
            stacks: Vec::new(),
            clock,
            runtime,
        }
    }

    fn layer(&self, name: &str) -> LazyStartLayer<String> {
        LazyStartLayer::new(self.runtime.clone(), name.to_owned()).join(&self.group)
    }

    /// A full stack, remembered.
    fn stack(&mut self, name: &str) -> Stack {
        let layer = self.layer(name);
        self.stack_of(layer)
    }

    fn stack_of(&mut self, layer: LazyStartLayer<String>) -> Stack {
        let stack = ServiceBuilder::new()
            .layer(layer)
            .layer(self.evictable.clone())
            .layer(self.ceiling.clone())
            .service(self.world.maker());
        self.stacks.push(stack.clone());
        stack
    }

    fn call(&self, stack: &Stack, takes: Duration) -> Task<Result<(), Error>> {
        self.clock.spawn(stack.clone().oneshot(takes))
    }

    fn serve(&self, stack: &Stack) {
        self.clock
            .block_on(stack.clone().oneshot(ms(0)))
            .expect("served");
    }

    /// Nobody has anything any more, everybody is served, and all of it can be brought down.
    fn has_nothing_left(self, point: &str) {
        let beside = self.beside.len();
        self.clock.advance(secs(120));
        for task in self.beside {
            assert!(task.is_finished(), "{point}: somebody else is held up");
        }
        for stack in &self.stacks {
            let status = stack.status();
            assert_eq!(status.waiting, 0, "{point}: {status:?}");
            if status.state == State::Running {
                assert_eq!(status.in_flight, Some(0), "{point}: {status:?}");
            }
        }
        let room = self.ceiling.occupancy();
        assert_eq!((room.waiting, room.busy), (0, 0), "{point}: {room:?}");
        assert_eq!(room.used, self.world.alive(), "{point}: {room:?}");
        for stack in &self.stacks {
            stack.handle().load();
            self.world
                .plan(&stack.status().name, |plan| plan.failing = 0);
            stack.handle().reset();
            let served = self.clock.block_on(stack.clone().oneshot(ms(0)));
            served.unwrap_or_else(|error| panic!("{point}: {error:?}"));
        }
        assert_eq!(self.world.peak(), self.ceiling.limit(), "{point}");
        self.clock.block_on(self.group.stopped(secs(1)));
        drop(self.sweeper);
        self.clock.run();
        let left = (self.world.alive(), self.ceiling.occupancy().used);
        assert_eq!(left, (0, 0), "{point}");
        let left = (self.clock.tasks(), self.clock.timers());
        assert_eq!(left, (0, 0), "{point}, {beside} beside");
        assert!(self.clock.panics().is_empty(), "{point}");
    }
}

/// Drops a future at each of its await points, one after the other, each in a host of its own: right
/// after it was polled, and once more when it has just been woken again. Says how many there are.
fn at_each_await<T>(scene: impl Fn(&mut Host) -> BoxFuture<T>) -> u64 {
    let mut points = 0;
    for woken in [false, true] {
        for at in 0.. {
            let mut host = Host::new(at);
            let mut future = Counted::new(scene(&mut host));
            if polled(&host.clock, &mut future, at, woken) {
                drop(future);
                host.has_nothing_left("done");
                break;
            }
            drop(future);
            host.has_nothing_left(&format!("after poll {at}, woken: {woken}"));
            points += 1;
        }
    }
    println!("{points} points");
    points
}

/// Polls the future so often, each time when it has been woken; true if it is done before.
fn polled<F: Future>(clock: &Clock, future: &mut Counted<F>, times: u64, woken: bool) -> bool {
    for poll in 1..=times {
        let wakes = future.wakes();
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut *future).poll(&mut cx).is_ready() {
            return true;
        }
        if poll < times || woken {
            wait_for(clock, || future.wakes() > wakes);
        }
    }
    false
}

/// Lets time pass until something has happened.
fn wait_for(clock: &Clock, happened: impl Fn() -> bool) {
    clock.run();
    while !happened() {
        let next = clock.next_timer().expect("something can still happen");
        clock.advance(next);
    }
}

fn boxed<F: Future + Send + 'static>(future: F) -> BoxFuture<F::Output> {
    Box::pin(future)
}

/// Two stacks, of which the first is started, used and idle.
fn idle_and_cold(host: &mut Host) -> (Stack, Stack) {
    let (a, b) = (host.stack("a"), host.stack("b"));
    host.serve(&a);
    (a, b)
}

/// Polls a future once, when it must not be done yet.
fn begin<F: Future + Unpin>(future: &mut F) {
    let pending = test_util::poll_once(future).is_pending();
    assert!(pending, "it has only begun");
}
