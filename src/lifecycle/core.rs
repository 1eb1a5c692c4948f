//! What the owner, the callers and the handles of one backend share.

use std::{
    fmt,
    sync::PoisonError,
    task::Waker,
    time::{Duration, Instant},
};

use super::{
    backoff::Policy,
    control::Control,
    desk::{Counts, Desk, Halt, Past, Supply},
    entrance::{Borrowed, Entrance, Joined, Remembered, Verdict, Waiting},
    instance::Lender,
    owner::Owner,
    status::{State, Status},
};
use crate::{
    backend::Backend,
    error::Error,
    events,
    runtime::Runtime,
    sync::{Arc, Mutex, RwLock, Weak, lock},
    target::Urgency,
    usage::Usage,
    wakers::WakeList,
};

/// The settings of a backend, which all that have the same share.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) policy: Policy,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) drain_timeout: Duration,
    /// The backend's own word for it if `None`.
    pub(crate) stop_timeout: Option<Duration>,
    pub(crate) max_callers: usize,
    /// Whether a start is dropped when all who waited for it have left.
    pub(crate) cancel: bool,
    pub(crate) keep_running: bool,
}

pub(crate) struct Core<T, B: Backend> {
    pub(crate) runtime: Runtime,
    pub(crate) name: Arc<str>,
    pub(crate) config: Arc<Config>,
    /// The running instance. Written by the owner only, and only under the desk's lock; so whoever
    /// holds that lock sees state and slot agree.
    pub(crate) slot: RwLock<Option<Lender<B>>>,
    pub(crate) desk: Mutex<Desk<T, B>>,
    pub(crate) door: Weak<Door<T, B>>,
    /// Told when the owner rests: nothing is alive, and nobody waits.
    pub(crate) on_rest: Option<OnRest>,
}

/// Told when a backend rests.
pub(crate) type OnRest = Box<dyn Fn() + Send + Sync>;

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            start_timeout: None,
            drain_timeout: Duration::from_secs(30),
            stop_timeout: None,
            max_callers: 1024,
            cancel: false,
            keep_running: false,
        }
    }
}

impl<T, B: Backend> Core<T, B> {
    pub(crate) fn new(
        runtime: Runtime,
        name: Arc<str>,
        config: Arc<Config>,
        supply: Supply<T, B>,
        on_rest: Option<OnRest>,
        door: Weak<Door<T, B>>,
    ) -> Arc<Self> {
        let mut desk = Desk::new(supply, runtime.now());
        desk.keep_running = config.keep_running;
        Arc::new(Self {
            runtime,
            name,
            config,
            slot: RwLock::new(None),
            desk: Mutex::new(desk),
            door,
            on_rest,
        })
    }

    /// A lease of the running instance, unless it is the one `not`.
    ///
    /// The hot path. `lease()` runs under the slot's read lock, the one place where user code runs
    /// under a lock of ours: it saves a reference count per call, only the owner ever waits for
    /// readers, and a panic of it leaves a read lock whole.
    #[inline(always)]
    pub(crate) fn borrow(
        &self,
        not: Option<u64>,
        lend: impl FnOnce(&Lender<B>) -> Borrowed<B::Lease>,
    ) -> Borrowed<B::Lease> {
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        match slot.as_ref() {
            Some(lender) if Some(lender.instance.generation) != not => lend(lender),
            _ => Borrowed::Nothing,
        }
    }

    /// The running instance's usage word.
    pub(crate) fn usage(&self) -> Option<Arc<Usage>> {
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        Some(slot.as_ref()?.instance.usage.clone())
    }

    /// Asks the owner to take the instance down: its lease failed to become ready.
    pub(crate) fn distrust(&self, generation: u64, error: Error) {
        // One that is closed is on its way down already.
        if self.usage().is_some_and(|usage| usage.look().is_closed()) {
            return;
        }
        let mut desk = lock(&self.desk);
        if desk.state != State::Running || desk.generation != generation {
            return;
        }
        let old = desk.orders.make().distrusted.replace((generation, error));
        let owner = desk.owner.take();
        drop(desk);
        wake(owner);
        drop(old);
    }

    /// Asks the owner to bring it down. The calls in flight have `drain`, from now.
    pub(crate) fn halt(
        &self,
        halt: Halt,
        drain: Option<Duration>,
        change: impl FnOnce(&mut Desk<T, B>),
    ) {
        let usage = self.usage();
        let drain = drain.unwrap_or(self.config.drain_timeout);
        let until = self.runtime.now().checked_add(drain);
        let mut desk = lock(&self.desk);
        change(&mut desk);
        let orders = desk.orders.make();
        orders.drain_until = match (orders.drain_until, until) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let owner = desk.order_halt(halt);
        let mut told = WakeList::default();
        let mut settled = None;
        if desk.supply.is_some() {
            // Nobody owns it, so nothing of it is there, and this is all there is to do.
            told = desk.seen();
            settled = Some(desk.settle());
        }
        drop(desk);
        if let Some(usage) = usage {
            // Calls that come now are not served by it any more.
            usage.close_now();
        }
        wake(owner);
        told.wake();
        if let Some(mut settled) = settled {
            settled.tell_halted();
        }
    }

    /// The owner rests.
    pub(crate) fn rests(&self) {
        if let Some(on_rest) = &self.on_rest {
            on_rest();
        }
    }

    /// Until when the calls in flight have while it is brought down by order.
    pub(crate) fn drain_until(&self) -> Option<Instant> {
        lock(&self.desk).drain_until()
    }

    /// When a start that began at `began` is late.
    pub(crate) fn start_deadline(&self, began: Instant) -> Option<Instant> {
        began.checked_add(self.config.start_timeout?)
    }

    pub(crate) fn status(&self) -> Status {
        let now = self.runtime.now();
        let (in_flight, usage) = {
            let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
            match slot.as_ref() {
                Some(lender) => (Some(lender.in_flight()), lender.counted().cloned()),
                None => (None, None),
            }
        };
        let desk = lock(&self.desk);
        let course = desk.course.clone();
        let past = desk.past.get();
        let counts = past.map_or_else(Counts::default, |past| past.counts);
        let mut status = Status {
            name: self.name.clone(),
            state: desk.shown(&self.config.policy, now),
            generation: desk.generation,
            since: now.saturating_duration_since(desk.since),
            in_flight,
            last_use: usage
                .as_ref()
                .map(|usage| Duration::from_nanos(usage.now().saturating_sub(usage.ended()))),
            waiting: desk.lobby.waiting(),
            queued: None,
            last_start: past.and_then(|past| past.last_start),
            starts: counts.starts,
            restarts: counts.restarts,
            reloads: counts.reloads,
            evictions: counts.evictions,
            last_eviction: past.and_then(|past| past.last_eviction),
            evicted_for: past.and_then(|past| past.evicted_for.clone()),
            crashes: counts.crashes,
            last_error: desk.last_error().cloned(),
        };
        drop(desk);
        status.queued = course.and_then(|course| course.queued());
        status
    }
}

/// A handle that keeps the backend: services, handles and waiting calls share one. When the last is
/// dropped the backend is stopped.
pub(crate) struct Door<T, B: Backend> {
    pub(crate) core: Arc<Core<T, B>>,
    /// Every call counts a reference here. Without these the counts of two backends, or this one and a
    /// neighbour's usage word, stand in one cache line (64 bytes, with the counts), and calls to the two by two threads hinder each
    /// other: four times the cost was measured.
    _apart: [u64; 5],
}

impl<T, B> Door<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    /// The first handle of a new backend.
    pub(crate) fn open(
        runtime: Runtime,
        name: Arc<str>,
        config: Arc<Config>,
        supply: Supply<T, B>,
        on_rest: Option<OnRest>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|door| Self {
            core: Core::new(runtime, name, config, supply, on_rest, door.clone()),
            _apart: [0; 5],
        })
    }
}

impl<T, B> Entrance<B::Lease> for Door<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    fn name(&self) -> Arc<str> {
        self.core.name.clone()
    }

    fn status(&self) -> Status {
        self.core.status()
    }

    fn control(self: Arc<Self>) -> Arc<dyn Control> {
        self
    }

    fn counted(&self, generation: u64) -> Option<Option<Arc<Usage>>> {
        let slot = self.core.slot.read();
        let slot = slot.unwrap_or_else(PoisonError::into_inner);
        let lender = slot.as_ref()?;
        (lender.instance.generation == generation).then(|| lender.counted().cloned())
    }

    fn borrow_once(&self) -> Borrowed<B::Lease> {
        self.core.borrow(None, Lender::lend_once)
    }

    fn join(
        self: Arc<Self>,
        mut not: Option<u64>,
        urgency: Urgency,
    ) -> Result<Joined<B::Lease>, Error> {
        let core = self.core.clone();
        let config = &core.config;
        loop {
            match core.borrow(not, Lender::lend) {
                Borrowed::Lease(handed) => return Ok(Joined::Lease(handed)),
                Borrowed::Closed(generation) => not = Some(generation),
                Borrowed::Nothing => {}
            }
            let now = core.runtime.now();
            let mut desk = lock(&core.desk);
            if desk.state == State::Running && Some(desk.generation) != not {
                continue; // published since we looked
            }
            if let Err(error) = desk.admit(&config.policy, now, config.max_callers) {
                drop(desk);
                let error = error.of(core.name.clone());
                events::caller_refused(&core.name, &error);
                return Err(error);
            }
            let ticket = desk.draw(not, urgency, now);
            let supply = desk.supply.take();
            let told = match supply {
                Some(_) => desk.enter(State::Starting, now),
                None => WakeList::default(),
            };
            // The first who waits sets the clock, and ends a pause.
            let owner = match desk.lobby.waiting() {
                1 => desk.owner.take(),
                _ => None,
            };
            drop(desk);
            told.wake();
            wake(owner);
            // From here on the ticket is given back whatever happens.
            let waiting = Waiting::new(self, ticket);
            if let Some(supply) = supply {
                core.runtime.spawn(Owner::new(core.clone(), supply).run());
            }
            return Ok(Joined::Wait(waiting));
        }
    }

    fn distrust(&self, generation: u64, error: Error) {
        self.core.distrust(generation, error);
    }

    fn collect(&self, ticket: usize, waker: Waker) -> Option<Verdict<B::Lease>> {
        let mut desk = lock(&self.core.desk);
        let (outcome, old) = desk.lobby.collect(ticket, waker);
        drop(desk);
        drop(old);
        outcome
    }

    fn remembered(&self, now: Instant) -> Remembered {
        let desk = lock(&self.core.desk);
        let kept = desk.keep_running != self.core.config.keep_running;
        let is_recent = |past: &Past| past.history.is_recent(&self.core.config.policy, now);
        if desk.supply.is_none() || desk.lobby.waiting() > 0 {
            Remembered::InUse
        } else if desk.unloaded || kept || desk.idle_after().is_some() {
            Remembered::Ordered
        } else if desk.past.get().is_some_and(is_recent) {
            Remembered::Failing
        } else {
            Remembered::Nothing
        }
    }

    fn leave(&self, ticket: usize) {
        let mut desk = lock(&self.core.desk);
        let left = desk.lobby.leave(ticket);
        let mut owner = None;
        if self.core.config.cancel && desk.lobby.waiting() == 0 {
            desk.cancelled = true;
            owner = desk.owner.take();
        }
        drop(desk);
        // First, for the drop of a lease may panic.
        wake(owner);
        drop(left);
    }
}

impl<T, B: Backend> Drop for Door<T, B> {
    fn drop(&mut self) {
        let owner = {
            let mut desk = lock(&self.core.desk);
            desk.abandoned = true;
            desk.owner.take()
        };
        wake(owner);
    }
}

impl<T, B: Backend> fmt::Debug for Core<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.desk).state;
        f.debug_struct("Core")
            .field("name", &self.name)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

pub(crate) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
