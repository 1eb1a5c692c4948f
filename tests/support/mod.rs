//! Fake backends on virtual time that count themselves: what they saw is what the tests assert.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower_on_demand::{Backend, Error, ErrorKind, Retired, Runtime, Stopped};
use tower_service::Service;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// How a backend behaves.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) start: Duration,
    pub(crate) stop: Duration,
    /// So many starts fail, after `start`.
    pub(crate) failing: u32,
    /// So many starts panic, after `start`.
    pub(crate) panicking: u32,
    pub(crate) start_hangs: bool,
    pub(crate) stop_hangs: bool,
    /// Each instance dies by itself so long after its birth.
    pub(crate) lives: Option<Duration>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            start: ms(10),
            stop: ms(10),
            failing: 0,
            panicking: 0,
            start_hangs: false,
            stop_hangs: false,
            lives: None,
        }
    }
}

/// What the backends of one name saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Saw {
    /// Starts begun.
    pub(crate) begun: u64,
    /// Starts whose future was dropped before it was done.
    pub(crate) dropped: u64,
    pub(crate) ready: u64,
    pub(crate) stops: u64,
    pub(crate) gone: u64,
    pub(crate) calls: u64,
    pub(crate) answered: u64,
    /// Calls that reached an instance before it was ready or after its stop began.
    pub(crate) misdelivered: u64,
    /// Calls in flight when a stop began.
    pub(crate) cut: u64,
    /// Starting, running and stopping.
    pub(crate) alive: u64,
    pub(crate) peak: u64,
    pub(crate) in_flight: u64,
}

#[derive(Default)]
struct Inner {
    plans: BTreeMap<String, Plan>,
    saw: BTreeMap<String, Saw>,
    alive: u64,
    peak: u64,
    kills: BTreeMap<String, Vec<Arc<Switch>>>,
    log: Vec<(Duration, String)>,
}

/// All fake backends of a test.
#[derive(Clone)]
pub(crate) struct World {
    runtime: Runtime,
    born: std::time::Instant,
    inner: Arc<Mutex<Inner>>,
}

impl World {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self {
            runtime: runtime.clone(),
            born: runtime.now(),
            inner: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn plan(&self, name: &str, change: impl FnOnce(&mut Plan)) {
        change(self.lock().plans.entry(name.to_owned()).or_default());
    }

    pub(crate) fn saw(&self, name: &str) -> Saw {
        self.lock().saw.get(name).cloned().unwrap_or_default()
    }

    /// Of all names together.
    pub(crate) fn alive(&self) -> u64 {
        self.lock().alive
    }

    pub(crate) fn peak(&self) -> u64 {
        self.lock().peak
    }

    /// Lets every living instance of `name` die by itself.
    pub(crate) fn kill(&self, name: &str) {
        let switches = self.lock().kills.remove(name).unwrap_or_default();
        for switch in switches {
            switch.pull();
        }
    }

    /// What happened, in order: `"10 ready a"`, the time in milliseconds.
    pub(crate) fn log(&self) -> Vec<String> {
        let inner = self.lock();
        let lines = inner.log.iter();
        lines
            .map(|(at, what)| format!("{} {what}", at.as_millis()))
            .collect()
    }

    fn note(&self, name: &str, what: &str, change: impl FnOnce(&mut Saw)) {
        let at = self.runtime.now() - self.born;
        let mut inner = self.lock();
        let inner = &mut *inner;
        let saw = inner.saw.entry(name.to_owned()).or_default();
        let before = saw.alive;
        change(saw);
        saw.peak = saw.peak.max(saw.alive);
        inner.alive = inner.alive + saw.alive - before;
        inner.peak = inner.peak.max(inner.alive);
        inner.log.push((at, format!("{what} {name}")));
    }

    /// A maker of them all: the target is the name.
    pub(crate) fn maker(&self) -> Maker {
        Maker {
            world: self.clone(),
        }
    }
}

/// Something that happens once.
#[derive(Default)]
struct Switch {
    state: Mutex<(bool, Vec<Waker>)>,
}

impl Switch {
    fn pull(&self) {
        let wakers = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = true;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn pulled(self: Arc<Self>) {
        std::future::poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 {
                return Poll::Ready(());
            }
            state.1.push(waker);
            Poll::Pending
        })
        .await
    }
}

/// Counts a fake alive from the begin of its start until all of it is gone.
struct Life {
    world: World,
    name: String,
    ready: bool,
}

impl Drop for Life {
    fn drop(&mut self) {
        let ready = self.ready;
        self.world.note(&self.name, "gone", |saw| {
            saw.alive -= 1;
            if ready {
                saw.gone += 1;
            } else {
                saw.dropped += 1;
            }
        });
    }
}

#[derive(Clone)]
pub(crate) struct Maker {
    world: World,
}

impl Service<String> for Maker {
    type Response = Fake;
    type Error = std::io::Error;
    type Future = BoxFuture<Result<Fake, std::io::Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: String) -> Self::Future {
        let world = self.world.clone();
        let plan = {
            let mut inner = world.lock();
            let plan = inner.plans.entry(name.clone()).or_default();
            let now = plan.clone();
            plan.failing = plan.failing.saturating_sub(1);
            plan.panicking = plan.panicking.saturating_sub(1);
            now
        };
        world.note(&name, "start", |saw| {
            saw.begun += 1;
            saw.alive += 1;
        });
        let mut life = Life {
            world: world.clone(),
            name: name.clone(),
            ready: false,
        };
        Box::pin(async move {
            if plan.start_hangs {
                std::future::pending::<()>().await;
            }
            world.runtime.sleep(plan.start).await;
            if plan.failing > 0 {
                world.note(&name, "fail", |_| {});
                return Err(std::io::Error::other("exit status 1"));
            }
            assert!(plan.panicking == 0, "the maker of {name} panics");
            life.ready = true;
            let switch = Arc::new(Switch::default());
            if plan.lives.is_none() {
                let mut inner = world.lock();
                let kills = inner.kills.entry(name.clone()).or_default();
                kills.push(switch.clone());
            }
            world.note(&name, "ready", |saw| saw.ready += 1);
            let state = FakeState {
                stopping: false,
                in_flight: 0,
            };
            Ok(Fake {
                plan,
                switch,
                shared: Arc::new(Shared {
                    life,
                    state: Mutex::new(state),
                }),
            })
        })
    }
}

struct FakeState {
    stopping: bool,
    in_flight: u64,
}

struct Shared {
    life: Life,
    state: Mutex<FakeState>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &str, change: impl FnOnce(&mut Saw)) {
        self.life.world.note(&self.life.name, what, change);
    }
}

/// A started fake.
pub(crate) struct Fake {
    plan: Plan,
    switch: Arc<Switch>,
    shared: Arc<Shared>,
}

impl Backend for Fake {
    type Lease = Caller;

    fn lease(&self) -> Caller {
        Caller {
            shared: self.shared.clone(),
        }
    }

    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        let (switch, lives) = (self.switch.clone(), self.plan.lives);
        let runtime = self.shared.life.world.runtime.clone();
        async move {
            match lives {
                Some(lives) => runtime.sleep(lives).await,
                None => switch.pulled().await,
            }
            let error = std::io::Error::other("signal 9");
            Retired::Died(Some(Error::new(ErrorKind::Died).because(error)))
        }
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let (shared, plan) = (self.shared.clone(), self.plan.clone());
        async move {
            let in_flight = {
                let mut state = shared.state();
                state.stopping = true;
                state.in_flight
            };
            shared.note("stop", |saw| {
                saw.stops += 1;
                saw.cut += in_flight;
            });
            if plan.stop_hangs {
                std::future::pending::<()>().await;
            }
            let runtime = shared.life.world.runtime.clone();
            runtime.sleep(plan.stop).await;
            Stopped::Gone
        }
    }
}

/// A lease of a fake: a service whose request is how long the call takes.
#[derive(Clone)]
pub(crate) struct Caller {
    shared: Arc<Shared>,
}

/// One call in flight.
struct InFlight(Arc<Shared>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
        self.0.note("end", |saw| saw.in_flight -= 1);
    }
}

impl Caller {
    /// The time it lives in.
    pub(crate) fn runtime(&self) -> Runtime {
        self.shared.life.world.runtime.clone()
    }
}

impl Service<Duration> for Caller {
    type Response = ();
    type Error = std::io::Error;
    type Future = BoxFuture<Result<(), std::io::Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, takes: Duration) -> Self::Future {
        let shared = self.shared.clone();
        let stopping = {
            let mut state = shared.state();
            state.in_flight += 1;
            state.stopping
        };
        shared.note("call", |saw| {
            saw.calls += 1;
            saw.in_flight += 1;
            saw.misdelivered += u64::from(stopping);
        });
        let in_flight = InFlight(shared);
        Box::pin(async move {
            if !takes.is_zero() {
                in_flight.0.life.world.runtime.sleep(takes).await;
            }
            in_flight.0.note("answer", |saw| saw.answered += 1);
            drop(in_flight);
            Ok(())
        })
    }
}
