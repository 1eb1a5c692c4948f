//! A host: backends by name under one registry, swept in the background or by the test.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_on_demand::{
    Error, IdleEvict, IdleEvictLayer, LazyStart, LazyStartLayer, Leased, Matches, Nothing, Runtime,
    UntilResponse,
    test_util::{self, Clock, Task},
};

use crate::support::{Caller, World, ms};

pub(crate) type Stack<P = Nothing> = LazyStart<String, Leased<Caller, UntilResponse, P>>;
pub(crate) type Evictable<P = Nothing> = IdleEvictLayer<UntilResponse, P>;

pub(crate) struct Host {
    pub(crate) runtime: Runtime,
    pub(crate) clock: Clock,
    pub(crate) world: World,
    pub(crate) evictable: Evictable,
}

impl Host {
    /// The sweeper comes back, to be run or not.
    pub(crate) fn new(seed: u64) -> (Self, IdleEvict) {
        let (runtime, clock) = test_util::runtime(seed);
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let host = Self {
            world: World::new(&runtime),
            evictable,
            runtime,
            clock,
        };
        (host, idle_evict)
    }

    /// With a sweeper in the background.
    pub(crate) fn swept(seed: u64) -> Self {
        let (host, idle_evict) = Self::new(seed);
        host.runtime.spawn(idle_evict.run());
        host
    }

    /// Instances that start and stop in no time.
    pub(crate) fn prompt(&self, name: &str) {
        self.world
            .plan(name, |plan| (plan.start, plan.stop) = (ms(0), ms(0)));
    }

    pub(crate) fn stack(&self, name: &str, bound: impl Into<Option<Duration>>) -> Stack {
        self.stack_of(name, self.evictable.clone().idle_after(bound))
    }

    pub(crate) fn stack_of<P>(&self, name: &str, evictable: Evictable<P>) -> Stack<P>
    where
        P: Matches<Duration>,
    {
        LazyStartLayer::new(self.runtime.clone(), name.to_owned())
            .layer(evictable.layer(self.world.maker()))
    }

    pub(crate) fn call<P: Matches<Duration>>(
        &self,
        stack: &Stack<P>,
        takes: Duration,
    ) -> Task<Result<(), Error>> {
        self.clock.spawn(stack.clone().oneshot(takes))
    }

    pub(crate) fn served<P: Matches<Duration>>(&self, stack: &Stack<P>, takes: Duration) {
        self.clock
            .block_on(stack.clone().oneshot(takes))
            .expect("it is served");
    }

    /// When the first stop of `name` began.
    pub(crate) fn stopped_at(&self, name: &str) -> Option<Duration> {
        let what = format!(" stop {name}");
        let log = self.world.log();
        let line = log.iter().find(|line| line.ends_with(&what))?;
        let at = line.split(' ').next()?.parse().ok()?;
        Some(ms(at))
    }

    pub(crate) fn alive(&self, name: &str) -> u64 {
        self.world.saw(name).alive
    }

    pub(crate) fn stops(&self, name: &str) -> u64 {
        self.world.saw(name).stops
    }
}
