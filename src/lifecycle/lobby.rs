//! Those who wait for an instance of one backend. Under the desk's lock: see `desk.rs`.

use std::{task::Waker, time::Instant};

use slab::Slab;

use super::{entrance::Verdict, instance::Handed};
use crate::{backend::Backend, error::Error, target::Urgency, wakers::WakeList};

/// One who waits for an instance.
pub(crate) struct Ticket<B: Backend> {
    waker: Option<Waker>,
    outcome: Option<Verdict<B::Lease>>,
    /// Any instance but this one: it was found closed.
    not: Option<u64>,
    urgency: Urgency,
}

/// Who waits. A backend that nobody waits for keeps no memory for those who did.
pub(crate) struct Lobby<B: Backend>(Option<Box<Waiters<B>>>);

struct Waiters<B: Backend> {
    tickets: Slab<Ticket<B>>,
    /// How many of them have no outcome yet.
    open: usize,
    /// When the first of those who wait now began to.
    since: Option<Instant>,
}

impl<B: Backend> Lobby<B> {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) fn draw(&mut self, not: Option<u64>, urgency: Urgency, now: Instant) -> usize {
        let waiters = self.0.get_or_insert_with(|| {
            Box::new(Waiters {
                tickets: Slab::new(),
                open: 0,
                since: None,
            })
        });
        waiters.open += 1;
        waiters.since.get_or_insert(now);
        waiters.tickets.insert(Ticket {
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
        let entry = &mut self.waiters().tickets[ticket];
        if entry.outcome.is_none() {
            return (None, entry.waker.replace(waker));
        }
        (self.remove(ticket).outcome, Some(waker))
    }

    /// Ends a ticket without looking. The ticket comes back, to be dropped outside the lock.
    pub(crate) fn leave(&mut self, ticket: usize) -> Ticket<B> {
        let waiters = self.waiters();
        if waiters.tickets[ticket].outcome.is_none() {
            waiters.one_less();
        }
        self.remove(ticket)
    }

    fn remove(&mut self, ticket: usize) -> Ticket<B> {
        let waiters = self.waiters();
        let entry = waiters.tickets.remove(ticket);
        if waiters.tickets.is_empty() {
            self.0 = None;
        }
        entry
    }

    fn waiters(&mut self) -> &mut Waiters<B> {
        self.0.as_mut().expect("whoever has a ticket is in here")
    }

    pub(crate) fn waiting(&self) -> usize {
        self.0.as_ref().map_or(0, |waiters| waiters.open)
    }

    /// When the first of those who wait now began to.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.0.as_ref()?.since
    }

    /// How many wait for an instance such as `generation`.
    pub(crate) fn waiting_for(&self, generation: u64) -> usize {
        let waiters = self.0.as_ref();
        waiters.map_or(0, |waiters| waiters.open(generation).count())
    }

    /// The most urgent of those who wait.
    pub(crate) fn urgency(&self) -> Option<Urgency> {
        let tickets = &self.0.as_ref()?.tickets;
        let open = tickets.iter().filter(|(_, entry)| entry.outcome.is_none());
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
        if let Some(waiters) = &mut self.0 {
            let open: Vec<usize> = waiters.open(generation).take(leases.len()).collect();
            for (key, handed) in open.iter().zip(leases.drain(..open.len())) {
                wake.push(waiters.decide(*key, Ok(handed)));
            }
        }
        wake
    }

    /// Tells `error` to one of those who wait for `generation`.
    pub(crate) fn tell_one(&mut self, generation: u64, error: Error) -> WakeList {
        let mut wake = WakeList::default();
        if let Some(waiters) = &mut self.0 {
            let first = waiters.open(generation).next();
            if let Some(key) = first {
                wake.push(waiters.decide(key, Err(error)));
            }
        }
        wake
    }

    /// Tells `error` to all who wait and for whom `which` holds.
    pub(crate) fn tell(&mut self, error: &Error, which: impl Fn(Urgency) -> bool) -> WakeList {
        let mut wake = WakeList::default();
        let Some(waiters) = &mut self.0 else {
            return wake;
        };
        let mut told = 0;
        for (_, entry) in &mut waiters.tickets {
            if entry.outcome.is_none() && which(entry.urgency) {
                entry.outcome = Some(Err(error.clone()));
                wake.push(entry.waker.take());
                told += 1;
            }
        }
        for _ in 0..told {
            waiters.one_less();
        }
        wake
    }
}

impl<B: Backend> Waiters<B> {
    fn open(&self, generation: u64) -> impl Iterator<Item = usize> {
        self.tickets
            .iter()
            .filter(move |(_, entry)| entry.outcome.is_none() && entry.not != Some(generation))
            .map(|(key, _)| key)
    }

    fn decide(&mut self, key: usize, outcome: Verdict<B::Lease>) -> Option<Waker> {
        let entry = &mut self.tickets[key];
        entry.outcome = Some(outcome);
        let waker = entry.waker.take();
        self.one_less();
        waker
    }

    fn one_less(&mut self) {
        self.open -= 1;
        if self.open == 0 {
            self.since = None;
        }
    }
}
