//! A host: backends by name, under one ceiling and one registry.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_on_demand::{
    CeilingLayer, Error, ErrorKind, Handle, IdleEvict, IdleEvictLayer, LazyStart, LazyStartLayer,
    Leased, NoRoom, Runtime, UntilResponse, test_util, test_util::Clock, test_util::Task,
};

use crate::support::{Caller, World, secs};

pub(crate) type Stack = LazyStart<String, Leased<Caller>>;

pub(crate) struct Host {
    pub(crate) runtime: Runtime,
    pub(crate) clock: Clock,
    pub(crate) world: World,
    pub(crate) evictable: IdleEvictLayer<UntilResponse>,
    /// Nobody sweeps: room is made without.
    _idle_evict: IdleEvict,
    pub(crate) ceiling: CeilingLayer,
}

/// The options of one stack.
pub(crate) struct Options {
    pub(crate) lazy: LazyStartLayer<String>,
    pub(crate) evictable: IdleEvictLayer<UntilResponse>,
    pub(crate) ceiling: CeilingLayer,
}

impl Host {
    pub(crate) fn new(seed: u64, limit: u64) -> Self {
        let (runtime, clock) = test_util::runtime(seed);
        Self::on(runtime, clock, limit)
    }

    pub(crate) fn on(runtime: Runtime, clock: Clock, limit: u64) -> Self {
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        Self {
            world: World::new(&runtime),
            evictable,
            _idle_evict: idle_evict,
            ceiling: CeilingLayer::new(runtime.clone(), limit).wait(secs(60)),
            runtime,
            clock,
        }
    }

    pub(crate) fn stack(&self, name: &str) -> Stack {
        self.stack_with(name, |_| {})
    }

    pub(crate) fn stack_with(&self, name: &str, change: impl FnOnce(&mut Options)) -> Stack {
        self.pair_with(name, change).0
    }

    pub(crate) fn pair_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut Options),
    ) -> (Stack, Handle<String>) {
        let mut options = Options {
            lazy: LazyStartLayer::new(self.runtime.clone(), name.to_owned()),
            evictable: self.evictable.clone(),
            ceiling: self.ceiling.clone(),
        };
        change(&mut options);
        let (lazy, handle) = options.lazy.pair();
        let maker = options.ceiling.layer(self.world.maker());
        (lazy.layer(options.evictable.layer(maker)), handle)
    }

    /// A call that takes `takes`, in the background.
    pub(crate) fn call(&self, stack: &Stack, takes: Duration) -> Call {
        self.clock.spawn(stack.clone().oneshot(takes))
    }

    /// A call to its end.
    pub(crate) fn served(&self, stack: &Stack, takes: Duration) {
        let call = self.call(stack, takes);
        self.clock.block_on(call).expect("it is served");
    }

    pub(crate) fn alive(&self, names: &[&str]) -> Vec<u64> {
        names
            .iter()
            .map(|name| self.world.saw(name).alive)
            .collect()
    }

    /// No call was cut or misdelivered, and nothing is left of room, waiters and timers once all is
    /// stopped.
    pub(crate) fn over(self, stacks: Vec<Stack>) {
        drop(stacks);
        self.clock.advance(secs(3600));
        let room = self.ceiling.occupancy();
        assert_eq!((room.used, room.waiting), (0, 0), "{room:?}");
        assert_eq!(self.world.alive(), 0);
        assert_eq!(self.clock.panics(), Vec::<String>::new());
        assert_eq!(self.clock.timers(), 0);
    }
}

pub(crate) type Call = Task<Result<(), Error>>;

/// The error of a call that is done.
pub(crate) fn error(call: &mut Call) -> Error {
    call.take().expect("it is done").expect_err("it failed")
}

pub(crate) fn no_room(error: &Error) -> NoRoom {
    match error.kind() {
        ErrorKind::NoRoom(numbers) => numbers.clone(),
        other => panic!("not NoRoom: {other:?}"),
    }
}

pub(crate) fn is_done(call: &Call) -> bool {
    call.is_finished()
}
