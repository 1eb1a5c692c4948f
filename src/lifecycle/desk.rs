//! The desk of one backend: its state, who waits, and what was ordered. All of it under one lock, and
//! nothing of the user's runs under that lock: what must be dropped, woken or told comes back to the
//! caller, who does it outside.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use slab::Slab;

use super::{
    backoff::{History, NotYet, Policy},
    lobby::Lobby,
    maker::Make,
    status::{StartTimes, State},
};
use crate::{
    backend::Backend,
    error::{Error, ErrorKind},
    seldom::Seldom,
    target::{Course, Urgency},
    usage::Eviction,
    wakers::WakeList,
};

/// What a start needs. Whoever has it is the owner; it lies on the desk while there is none.
pub(crate) struct Supply<T, B> {
    pub(crate) maker: Box<dyn Make<T, B>>,
    pub(crate) target: T,
}

/// To stop, and what comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Halt {
    /// Down, and straight up again.
    Restart,
    /// Down, until the next call.
    Stop,
}

/// To replace the running instance by a new one.
pub(crate) struct Reload<T> {
    /// The target from now on; the old one if `None`.
    pub(crate) target: Option<T>,
    pub(crate) done: oneshot::Sender<Result<(), Error>>,
}

pub(crate) struct Desk<T, B: Backend> {
    // ===== what the owner writes =====
    pub(crate) supply: Option<Supply<T, B>>,
    pub(crate) state: State,
    pub(crate) since: Instant,
    pub(crate) generation: u64,
    pub(crate) past: Seldom<Past>,
    /// Where its start stands.
    pub(crate) course: Option<Arc<Course>>,
    /// The owner's task, to be woken by orders.
    pub(crate) owner: Option<Waker>,

    // ===== what callers and handles write =====
    pub(crate) lobby: Lobby<B>,
    pub(crate) halt: Option<Halt>,
    pub(crate) orders: Seldom<Orders<T>>,
    /// All who waited have left a start that is to be cancelled then.
    pub(crate) cancelled: bool,
    pub(crate) keep_running: bool,
    pub(crate) unloaded: bool,
    pub(crate) shut_down: bool,
    /// The last handle was dropped: it goes down, and the calls in flight end in their own time.
    pub(crate) abandoned: bool,
    watches: Seldom<Slab<Watch>>,
}

/// What became of its starts and instances so far.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) counts: Counts,
    pub(crate) history: History,
    pub(crate) last_error: Option<Error>,
    pub(crate) last_eviction: Option<Eviction>,
    pub(crate) evicted_for: Option<Arc<str>>,
    pub(crate) last_start: Option<StartTimes>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) starts: u64,
    pub(crate) restarts: u64,
    pub(crate) reloads: u64,
    pub(crate) evictions: u64,
    pub(crate) crashes: u64,
}

/// What handles and leases have asked for.
pub(crate) struct Orders<T> {
    pub(crate) halted: Vec<oneshot::Sender<()>>,
    /// Until when the calls in flight have, by the halts that say so.
    pub(crate) drain_until: Option<Instant>,
    pub(crate) reloads: VecDeque<Reload<T>>,
    pub(crate) next_target: Option<T>,
    /// An instance whose lease failed to become ready.
    pub(crate) distrusted: Option<(u64, Error)>,
    /// An idle bound ordered for this and all further instances.
    pub(crate) idle_after: Option<Option<Duration>>,
}

impl<T> Default for Orders<T> {
    fn default() -> Self {
        Self {
            halted: Vec::new(),
            drain_until: None,
            reloads: VecDeque::new(),
            next_target: None,
            distrusted: None,
            idle_after: None,
        }
    }
}

/// One who waits for a state.
struct Watch {
    state: State,
    seen: bool,
    waker: Option<Waker>,
}

impl<T, B: Backend> Desk<T, B> {
    /// Why a caller is refused before it waits.
    pub(crate) fn refused(&self, not_yet: NotYet) -> Error {
        let failures = not_yet.failures;
        let error = Error::new(ErrorKind::BackingOff { failures }).after(not_yet.left);
        match self.last_error() {
            Some(last) => error.because_of(last),
            None => error,
        }
    }

    pub(crate) fn new(supply: Supply<T, B>, now: Instant) -> Self {
        Self {
            supply: Some(supply),
            state: State::Stopped,
            since: now,
            generation: 0,
            past: Seldom::default(),
            course: None,
            owner: None,
            lobby: Lobby::new(),
            halt: None,
            orders: Seldom::default(),
            cancelled: false,
            keep_running: false,
            unloaded: false,
            shut_down: false,
            abandoned: false,
            watches: Seldom::default(),
        }
    }

    /// Whether anybody may wait for an instance now.
    pub(crate) fn admit(&self, policy: &Policy, now: Instant, most: usize) -> Result<(), Error> {
        if self.shut_down {
            return Err(Error::new(ErrorKind::ShutDown));
        }
        if self.unloaded {
            return Err(Error::new(ErrorKind::Unloaded));
        }
        // Nobody tries now. While somebody does, his outcome is awaited.
        if self.supply.is_some() || self.state == State::BackingOff {
            let checked = self.check(policy, now);
            checked.map_err(|not_yet| self.refused(not_yet))?;
        }
        if self.lobby.waiting() >= most {
            return Err(Error::new(ErrorKind::TooManyWaiting { limit: most }));
        }
        Ok(())
    }

    pub(crate) fn draw(&mut self, not: Option<u64>, urgency: Urgency, now: Instant) -> usize {
        self.cancelled = false;
        self.lobby.draw(not, urgency, now)
    }

    // ===== the past =====

    /// Whether a start may be tried now.
    pub(crate) fn check(&self, policy: &Policy, now: Instant) -> Result<(), NotYet> {
        let past = self.past.get();
        past.map_or(Ok(()), |past| past.history.check(policy, now))
    }

    pub(crate) fn last_error(&self) -> Option<&Error> {
        self.past.get()?.last_error.as_ref()
    }

    /// Gives back the one before, to be dropped outside the lock.
    pub(crate) fn set_last_error(&mut self, error: Error) -> Option<Error> {
        self.past.make().last_error.replace(error)
    }

    pub(crate) fn starts(&self) -> u64 {
        self.past.get().map_or(0, |past| past.counts.starts)
    }

    pub(crate) fn resets(&self) -> u32 {
        self.past.get().map_or(0, |past| past.history.resets())
    }

    // ===== states =====

    /// The next state. Those who wait for it are in the list.
    pub(crate) fn enter(&mut self, state: State, now: Instant) -> WakeList {
        self.state = state;
        self.since = now;
        self.seen()
    }

    /// The state as it is told: what holds a stopped backend down says more than `Stopped`.
    pub(crate) fn shown(&self, policy: &Policy, now: Instant) -> State {
        match self.state {
            State::Stopped | State::BackingOff if self.shut_down => State::ShutDown,
            State::Stopped | State::BackingOff if self.unloaded => State::Unloaded,
            State::BackingOff if self.check(policy, now).is_ok() => State::Stopped,
            state => state,
        }
    }

    /// Marks the watches whose state this is.
    pub(crate) fn seen(&mut self) -> WakeList {
        let shown = match self.state {
            State::Stopped | State::BackingOff if self.shut_down => State::ShutDown,
            State::Stopped | State::BackingOff if self.unloaded => State::Unloaded,
            state => state,
        };
        let mut wake = WakeList::default();
        for (_, watch) in self.watches.get_mut().into_iter().flatten() {
            if watch.state == shown {
                watch.seen = true;
                wake.push(watch.waker.take());
            }
        }
        wake
    }

    pub(crate) fn watch(&mut self, state: State) -> usize {
        self.watches.make().insert(Watch {
            state,
            seen: false,
            waker: None,
        })
    }

    /// Whether the watched state was there since; else the waker is kept. Gives back the other.
    pub(crate) fn watched(&mut self, key: usize, waker: Waker) -> (bool, Option<Waker>) {
        let watch = &mut self.watches.make()[key];
        if watch.seen {
            (true, Some(waker))
        } else {
            (false, watch.waker.replace(waker))
        }
    }

    pub(crate) fn unwatch(&mut self, key: usize) -> Option<Waker> {
        let watches = self.watches.make();
        let watch = watches.remove(key);
        if watches.is_empty() {
            self.watches.take();
        }
        watch.waker
    }

    // ===== orders =====

    /// What was said against `generation`.
    pub(crate) fn take_distrust(&mut self, generation: u64) -> Option<Error> {
        let distrusted = &mut self.orders.get_mut()?.distrusted;
        Some(distrusted.take_if(|it| it.0 == generation)?.1)
    }

    pub(crate) fn next_reload(&mut self) -> Option<Reload<T>> {
        self.orders.get_mut()?.reloads.pop_front()
    }

    pub(crate) fn drain_until(&self) -> Option<Instant> {
        self.orders.get()?.drain_until
    }

    pub(crate) fn idle_after(&self) -> Option<Option<Duration>> {
        self.orders.get()?.idle_after
    }

    /// What the next start is for, from now on.
    pub(crate) fn take_next_target(&mut self) -> Option<T> {
        self.orders.get_mut()?.next_target.take()
    }

    /// The strongest of this and what was ordered before.
    pub(crate) fn order_halt(&mut self, halt: Halt) -> Option<Waker> {
        self.halt = self.halt.max(Some(halt));
        self.owner.take()
    }

    /// No instance is there: the halts are done, and what else was ordered of it is void. What comes back
    /// is to be told and dropped outside the lock.
    pub(crate) fn settle(&mut self) -> Settled<T> {
        self.halt = None;
        let orders = self.orders.take().unwrap_or_default();
        if orders.next_target.is_some() || orders.idle_after.is_some() {
            let lasting = self.orders.make();
            lasting.next_target = orders.next_target;
            lasting.idle_after = orders.idle_after;
        }
        Settled {
            halted: orders.halted,
            reloads: orders.reloads,
            _stale: orders.distrusted,
        }
    }
}

/// Orders that an owner has done with.
pub(crate) struct Settled<T> {
    pub(crate) halted: Vec<oneshot::Sender<()>>,
    pub(crate) reloads: VecDeque<Reload<T>>,
    _stale: Option<(u64, Error)>,
}

impl<T> Settled<T> {
    /// Tells those who ordered a halt.
    pub(crate) fn tell_halted(&mut self) {
        for done in self.halted.drain(..) {
            let _ = done.send(());
        }
    }
}
