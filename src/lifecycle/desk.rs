//! The desk of one backend: its state, who waits, and what was ordered. All of it under one lock, and
//! nothing of the user's runs under that lock: what must be dropped, woken or told comes back to the
//! caller, who does it outside.

use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use slab::Slab;

use super::{
    backoff::{History, NotYet, Policy},
    entrance::Verdict,
    instance::Handed,
    maker::Make,
    status::{StartTimes, State},
};
use crate::{
    backend::Backend,
    error::{Error, ErrorKind},
    target::{Course, Urgency},
    usage::Eviction,
    wakers::WakeList,
};

/// What a start needs. Whoever has it is the owner; it lies on the desk while there is none.
pub(crate) struct Supply<T, B> {
    pub(crate) maker: Box<dyn Make<T, B>>,
    pub(crate) target: T,
}

/// One who waits for an instance.
pub(crate) struct Ticket<B: Backend> {
    waker: Option<Waker>,
    outcome: Option<Verdict<B::Lease>>,
    /// Any instance but this one: it was found closed.
    not: Option<u64>,
    urgency: Urgency,
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
    pub(crate) counts: Counts,
    pub(crate) history: History,
    pub(crate) last_error: Option<Error>,
    pub(crate) last_eviction: Option<Eviction>,
    pub(crate) evicted_for: Option<Arc<str>>,
    pub(crate) last_start: Option<StartTimes>,
    /// Where its start stands.
    pub(crate) course: Option<Arc<Course>>,
    /// The owner's task, to be woken by orders.
    pub(crate) owner: Option<Waker>,

    // ===== what callers and handles write =====
    tickets: Slab<Ticket<B>>,
    /// How many of them have no outcome yet.
    waiting: usize,
    /// When the first of those who wait now began to.
    pub(crate) waiting_since: Option<Instant>,
    pub(crate) halt: Option<Halt>,
    pub(crate) halted: Vec<oneshot::Sender<()>>,
    /// Until when the calls in flight have, by the halts that say so.
    pub(crate) drain_until: Option<Instant>,
    pub(crate) reloads: VecDeque<Reload<T>>,
    pub(crate) next_target: Option<T>,
    /// All who waited have left a start that is to be cancelled then.
    pub(crate) cancelled: bool,
    /// An instance whose lease failed to become ready.
    pub(crate) distrusted: Option<(u64, Error)>,
    pub(crate) keep_running: bool,
    /// An idle bound ordered for this and all further instances.
    pub(crate) idle_after: Option<Option<Duration>>,
    pub(crate) unloaded: bool,
    pub(crate) shut_down: bool,
    /// The last handle was dropped: it goes down, and the calls in flight end in their own time.
    pub(crate) abandoned: bool,
    watches: Slab<Watch>,
}

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) starts: u64,
    pub(crate) restarts: u64,
    pub(crate) reloads: u64,
    pub(crate) evictions: u64,
    pub(crate) crashes: u64,
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
        match &self.last_error {
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
            counts: Counts::default(),
            history: History::default(),
            last_error: None,
            last_eviction: None,
            evicted_for: None,
            last_start: None,
            course: None,
            owner: None,
            tickets: Slab::new(),
            waiting: 0,
            waiting_since: None,
            halt: None,
            halted: Vec::new(),
            drain_until: None,
            reloads: VecDeque::new(),
            next_target: None,
            cancelled: false,
            distrusted: None,
            keep_running: false,
            idle_after: None,
            unloaded: false,
            shut_down: false,
            abandoned: false,
            watches: Slab::new(),
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
            let checked = self.history.check(policy, now);
            checked.map_err(|not_yet| self.refused(not_yet))?;
        }
        if self.waiting >= most {
            return Err(Error::new(ErrorKind::TooManyWaiting { limit: most }));
        }
        Ok(())
    }

    // ===== tickets =====

    pub(crate) fn draw(&mut self, not: Option<u64>, urgency: Urgency, now: Instant) -> usize {
        self.waiting += 1;
        self.waiting_since.get_or_insert(now);
        self.cancelled = false;
        self.tickets.insert(Ticket {
            waker: None,
            outcome: None,
            not,
            urgency,
        })
    }

    /// The ticket's outcome, which ends it; or its waker is kept. Gives back the waker not needed.
    pub(crate) fn collect(
        &mut self,
        ticket: usize,
        waker: Waker,
    ) -> (Option<Verdict<B::Lease>>, Option<Waker>) {
        let entry = &mut self.tickets[ticket];
        if entry.outcome.is_none() {
            return (None, entry.waker.replace(waker));
        }
        (self.remove(ticket).outcome, Some(waker))
    }

    /// Ends a ticket without looking. The ticket comes back, to be dropped outside the lock.
    pub(crate) fn leave(&mut self, ticket: usize) -> Ticket<B> {
        let entry = self.remove(ticket);
        if entry.outcome.is_none() {
            self.one_less();
        }
        entry
    }

    fn remove(&mut self, ticket: usize) -> Ticket<B> {
        let entry = self.tickets.remove(ticket);
        if self.tickets.is_empty() {
            // A backend that nobody waits for keeps no memory for those who did.
            self.tickets = Slab::new();
        }
        entry
    }

    fn one_less(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            self.waiting_since = None;
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// How many wait for an instance such as `generation`.
    pub(crate) fn waiting_for(&self, generation: u64) -> usize {
        self.open(generation).count()
    }

    fn open(&self, generation: u64) -> impl Iterator<Item = usize> {
        self.tickets
            .iter()
            .filter(move |(_, entry)| entry.outcome.is_none() && entry.not != Some(generation))
            .map(|(key, _)| key)
    }

    /// The most urgent of those who wait.
    pub(crate) fn urgency(&self) -> Option<Urgency> {
        let open = self.tickets.iter().filter(|(_, e)| e.outcome.is_none());
        open.map(|(_, entry)| entry.urgency)
            .reduce(|one, other| match (one, other) {
                (Urgency::FreeOnly, Urgency::FreeOnly) => Urgency::FreeOnly,
                _ => Urgency::Demand,
            })
    }

    /// Hands one of `leases` to each who waits for `generation`, and leaves in `leases` what is over.
    pub(crate) fn hand_out(
        &mut self,
        generation: u64,
        leases: &mut Vec<Handed<B::Lease>>,
    ) -> WakeList {
        let mut wake = WakeList::default();
        let open: Vec<usize> = self.open(generation).take(leases.len()).collect();
        for (key, handed) in open.iter().zip(leases.drain(..open.len())) {
            let entry = &mut self.tickets[*key];
            entry.outcome = Some(Ok(handed));
            wake.push(entry.waker.take());
            self.one_less();
        }
        wake
    }

    /// Tells `error` to one of those who wait for `generation`.
    pub(crate) fn tell_one(&mut self, generation: u64, error: Error) -> WakeList {
        let mut wake = WakeList::default();
        let first = self.open(generation).next();
        if let Some(key) = first {
            let entry = &mut self.tickets[key];
            entry.outcome = Some(Err(error));
            wake.push(entry.waker.take());
            self.one_less();
        }
        wake
    }

    /// Tells `error` to all who wait and for whom `which` holds.
    pub(crate) fn tell(&mut self, error: &Error, which: impl Fn(Urgency) -> bool) -> WakeList {
        let mut wake = WakeList::default();
        let mut told = 0;
        for (_, entry) in &mut self.tickets {
            if entry.outcome.is_none() && which(entry.urgency) {
                entry.outcome = Some(Err(error.clone()));
                wake.push(entry.waker.take());
                told += 1;
            }
        }
        for _ in 0..told {
            self.one_less();
        }
        wake
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
            State::BackingOff if self.history.check(policy, now).is_ok() => State::Stopped,
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
        for (_, watch) in &mut self.watches {
            if watch.state == shown {
                watch.seen = true;
                wake.push(watch.waker.take());
            }
        }
        wake
    }

    pub(crate) fn watch(&mut self, state: State) -> usize {
        self.watches.insert(Watch {
            state,
            seen: false,
            waker: None,
        })
    }

    /// Whether the watched state was there since; else the waker is kept. Gives back the other.
    pub(crate) fn watched(&mut self, key: usize, waker: Waker) -> (bool, Option<Waker>) {
        let watch = &mut self.watches[key];
        if watch.seen {
            (true, Some(waker))
        } else {
            (false, watch.waker.replace(waker))
        }
    }

    pub(crate) fn unwatch(&mut self, key: usize) -> Option<Waker> {
        self.watches.remove(key).waker
    }

    // ===== orders =====

    /// What was said against `generation`.
    pub(crate) fn take_distrust(&mut self, generation: u64) -> Option<Error> {
        let distrusted = self.distrusted.take_if(|it| it.0 == generation)?;
        Some(distrusted.1)
    }

    /// The strongest of this and what was ordered before.
    pub(crate) fn order_halt(&mut self, halt: Halt) -> Option<Waker> {
        self.halt = self.halt.max(Some(halt));
        self.owner.take()
    }

    /// What was ordered is done: those who ordered it, to be told.
    pub(crate) fn halt_done(&mut self) -> Vec<oneshot::Sender<()>> {
        self.halt = None;
        self.drain_until = None;
        mem::take(&mut self.halted)
    }
}
