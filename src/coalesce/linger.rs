//! `Linger`: how long, and of how many calls, a success can be joined after it has landed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::flight::Name;
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
    most: usize,
    /// In the order in which they expire.
    kept: Mutex<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    until: Instant,
    flight: Name,
}

impl Linger {
    pub(super) fn new(runtime: Runtime, after: Duration, most: usize) -> Self {
        Self {
            runtime,
            after,
            most,
            kept: Mutex::new(VecDeque::new()),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// Until when a flight that lands now can be joined, if it is kept at all. Expired ones go first.
    pub(super) fn keep(&self, flight: Name, expire: impl Fn(Name)) -> Option<Instant> {
        let now = self.now();
        let until = now + self.after;
        let mut expired = Vec::new();
        let keep = {
            let mut kept = lock(&self.kept);
            while kept.front().is_some_and(|first| first.until <= now) {
                expired.extend(kept.pop_front());
            }
            let keep = self.after > Duration::ZERO && kept.len() < self.most;
            if keep {
                kept.push_back(Kept { until, flight });
            }
            keep
        };
        expired.into_iter().for_each(|kept| expire(kept.flight));
        keep.then_some(until)
    }
}
