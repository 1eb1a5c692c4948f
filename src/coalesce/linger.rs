//! `Linger`: how long, and of how many calls, a success can be joined after it has landed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{flight::Name, shards::Padded};
use crate::{
    Runtime,
    sync::{Mutex, lock},
};

/// Says which landed flights are kept, and until when. The values stand in the table.
///
/// No task and no timer: what has expired is never served, and is dropped when the next success lands
/// or is asked for.
#[derive(Debug)]
pub(super) struct Linger {
    runtime: Runtime,
    after: Duration,
    limits: LingerLimits,
    /// Apart from what is only read.
    kept: Padded<Mutex<Kept>>,
}

/// How much lingers at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct LingerLimits {
    pub(super) responses: usize,
    pub(super) weight: u64,
}

#[derive(Debug, Default)]
struct Kept {
    /// In the order in which they expire.
    flights: VecDeque<Lingering>,
    weight: u64,
}

#[derive(Debug)]
struct Lingering {
    until: Instant,
    flight: Name,
    weight: u64,
}

impl Linger {
    pub(super) fn new(runtime: Runtime, after: Duration, limits: LingerLimits) -> Self {
        Self {
            runtime,
            after,
            limits,
            kept: Padded(Mutex::default()),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// Until when a flight that lands now can be joined, if it is kept at all. Expired ones go first.
    pub(super) fn keep(&self, flight: Name, weight: u64, expire: impl Fn(Name)) -> Option<Instant> {
        let now = self.now();
        let until = now + self.after;
        let mut expired = Vec::new();
        let keep = {
            let mut kept = lock(&self.kept.0);
            while kept.flights.front().is_some_and(|first| first.until <= now) {
                if let Some(first) = kept.flights.pop_front() {
                    kept.weight -= first.weight;
                    expired.push(first.flight);
                }
            }
            let weighs = kept.weight.checked_add(weight);
            let keep = self.after > Duration::ZERO
                && kept.flights.len() < self.limits.responses
                && weighs.is_some_and(|weighs| weighs <= self.limits.weight);
            if keep {
                kept.weight += weight;
                kept.flights.push_back(Lingering {
                    until,
                    flight,
                    weight,
                });
            }
            keep
        };
        expired.into_iter().for_each(expire);
        keep.then_some(until)
    }
}
