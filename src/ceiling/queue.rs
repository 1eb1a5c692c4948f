//! Who waits for room, in which order.

use std::{collections::BTreeMap, task::Waker};

use super::holders::Id;
use crate::{
    error::Error,
    sync::{Arc, Slab},
};

/// A place in line: the head start of those who go first, then arrival.
pub(super) type Rank = (bool, u64);

pub(super) struct Waiter {
    pub(super) weight: u64,
    pub(super) start: Option<u64>,
    /// The backend's.
    pub(super) name: Option<Arc<str>>,
    pub(super) replaces: Option<u64>,
    pub(super) strict: bool,
    pub(super) residency: u64,
    /// It has waited past its `yield_after`.
    pub(super) impatient: bool,
    pub(super) since: u64,
    /// When time alone may change its prospects; its waiter sets a timer for that.
    pub(super) look_at: Option<u64>,
    pub(super) waker: Option<Waker>,
    pub(super) rank: Rank,
    pub(super) outcome: Option<Outcome>,
}

pub(super) enum Outcome {
    Granted(Id),
    Refused(Error),
}

/// All who wait, and those who have an answer that they have not taken yet.
#[derive(Default)]
pub(super) struct Queue {
    arrivals: u64,
    waiters: Slab<Waiter>,
    order: BTreeMap<Rank, usize>,
}

impl Queue {
    /// A place at the end, or, for those who go `first`, behind the others of that kind.
    pub(super) fn join(&mut self, first: bool, waiter: impl FnOnce(Rank) -> Waiter) -> usize {
        let rank = (!first, self.arrivals);
        self.arrivals += 1;
        let waiter = waiter(rank);
        let key = self.waiters.insert(waiter);
        self.order.insert(rank, key);
        key
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn first(&self) -> Option<usize> {
        self.order.values().next().copied()
    }

    pub(super) fn after(&self, key: usize) -> Option<usize> {
        let rank = self.waiters[key].rank;
        let next = (std::ops::Bound::Excluded(rank), std::ops::Bound::Unbounded);
        self.order.range(next).next().map(|(_, key)| *key)
    }

    pub(super) fn get(&self, key: usize) -> &Waiter {
        &self.waiters[key]
    }

    pub(super) fn get_mut(&mut self, key: usize) -> &mut Waiter {
        &mut self.waiters[key]
    }

    /// The weight of all in line up to `key`, and its own.
    pub(super) fn ahead(&self, key: usize) -> u64 {
        let rank = self.waiters[key].rank;
        let ahead = self.order.range(..=rank);
        ahead.fold(0, |sum, (_, key)| {
            sum.saturating_add(self.waiters[*key].weight)
        })
    }

    /// All in line, the next first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.order.values().map(|key| &self.waiters[*key])
    }

    /// The one who is in line at `rank`, with how many are before it and what they weigh.
    pub(super) fn at(&self, rank: Rank) -> Option<(&Waiter, usize, u64)> {
        let key = self.order.get(&rank)?;
        let (mut before, mut weight) = (0, 0_u64);
        for (_, key) in self.order.range(..rank) {
            before += 1;
            weight = weight.saturating_add(self.waiters[*key].weight);
        }
        Some((&self.waiters[*key], before, weight))
    }

    /// Takes `key` out of the line with its answer. Gives back whom to wake.
    #[must_use]
    pub(super) fn answer(&mut self, key: usize, outcome: Outcome) -> Option<Waker> {
        self.step_out(key);
        let waiter = &mut self.waiters[key];
        waiter.outcome = Some(outcome);
        waiter.waker.take()
    }

    /// The answer for `key`, if there is one; its place is then no more.
    pub(super) fn take(&mut self, key: usize) -> Option<(Outcome, Option<Waker>)> {
        self.waiters[key].outcome.as_ref()?;
        let waiter = self.waiters.remove(key);
        Some((waiter.outcome?, waiter.waker))
    }

    /// Ends the place of `key`, whatever it stands at.
    pub(super) fn leave(&mut self, key: usize) -> Waiter {
        self.step_out(key);
        self.waiters.remove(key)
    }

    fn step_out(&mut self, key: usize) {
        self.order.remove(&self.waiters[key].rank);
    }
}

impl Waiter {
    pub(super) fn new(rank: Rank, weight: u64, since: u64) -> Self {
        Self {
            weight,
            start: None,
            name: None,
            replaces: None,
            strict: false,
            residency: 0,
            impatient: false,
            since,
            look_at: None,
            waker: None,
            rank,
            outcome: None,
        }
    }

    pub(super) fn into_outcome(self) -> (Option<Outcome>, Option<Waker>) {
        (self.outcome, self.waker)
    }
}
