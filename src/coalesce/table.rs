//! One shard of the table of flights, and its entries.

use std::{task::Waker, time::Instant};

use super::flight::{Flight, Home, Keep, Name, Parcel, Shared};
use crate::sync::{Arc, HashTable};

/// Below this many places a table is not worth shrinking.
const SMALL: usize = 64;

/// So many entries are looked through one by one.
const FEW: usize = 4;

pub(crate) struct Shard<H: Home> {
    pub(crate) table: Table<H>,
    pub(crate) next: u64,
    /// Flights in existence: led, and their work not dropped yet.
    pub(crate) running: usize,
    pub(crate) shut: bool,
    /// A box that held a work, for the next one.
    pub(crate) spare: Option<Parcel<H>>,
    pub(crate) counts: Counts,
}

/// Entries by hash. Most shards have few of them, and hashing is not free.
pub(crate) struct Table<H: Home> {
    few: Vec<Entry<H>>,
    many: HashTable<Entry<H>>,
}

/// Sums since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) led: u64,
    pub(crate) joined: u64,
    pub(crate) left: u64,
}

pub(crate) struct Entry<H: Home> {
    pub(crate) name: Name,
    pub(crate) callers: usize,
    pub(crate) leader: Leader,
    pub(crate) phase: Phase,
    pub(crate) body: Body<H>,
}

pub(crate) enum Body<H: Home> {
    /// Nobody has joined. `work` is out while it is polled.
    Alone {
        key: H::Key,
        work: Option<Parcel<H>>,
        waker: Option<Waker>,
    },
    Shared {
        flight: Arc<Flight<H>>,
        /// How long it can be joined, since it has landed.
        keep: Option<Keep>,
        /// What has taken its place.
        successor: Option<Arc<Flight<H>>>,
    },
    /// Between the two.
    Neither,
}

/// What the caller that led knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leader {
    /// It has a ticket, and finds the flight by it.
    Ticket,
    /// It has a seat in the flight, or the outcome.
    Seat,
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In flight, to be joined.
    Open,
    /// In flight, for those who are in it.
    Closed,
    /// Landed, and still to be joined.
    Kept,
    /// Landed, here only for the one who has a ticket for it.
    Owed,
}

impl<H: Home> Entry<H> {
    #[inline]
    pub(crate) fn is_joinable(&self, now: Option<Instant>) -> bool {
        match self.phase {
            Phase::Open => true,
            Phase::Kept => self.is_kept(now),
            Phase::Closed | Phase::Owed => false,
        }
    }

    #[cold]
    fn is_kept(&self, now: Option<Instant>) -> bool {
        match (&self.body, now) {
            (Body::Shared { keep, .. }, now) => match keep {
                Some(Keep::Until(until)) => now.is_some_and(|now| now < *until),
                Some(Keep::InUse) => true,
                None => false,
            },
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn is_flying(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Closed)
    }

    /// Whether its callers are counted: those who wait, or, if it has landed, who wait for it or use it.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        self.is_flying() || (self.phase == Phase::Kept && self.is_in_use())
    }

    #[cold]
    fn is_in_use(&self) -> bool {
        matches!(
            self.body,
            Body::Shared {
                keep: Some(Keep::InUse),
                ..
            }
        )
    }

    pub(crate) fn flight(&self) -> Option<&Arc<Flight<H>>> {
        match &self.body {
            Body::Shared { flight, .. } => Some(flight),
            Body::Alone { .. } | Body::Neither => None,
        }
    }

    /// Alone => Shared
    pub(crate) fn share(&mut self, home: &H) -> Arc<Flight<H>> {
        if let Body::Shared { flight, .. } = &self.body {
            return flight.clone();
        }
        let Body::Alone { key, work, waker } = std::mem::replace(&mut self.body, Body::Neither)
        else {
            unreachable!("an entry has a body")
        };
        let flight = Flight::share(
            home,
            Shared {
                key,
                name: self.name,
                replacement: false,
                work,
                waker,
            },
        );
        self.body = Body::Shared {
            flight: flight.clone(),
            keep: None,
            successor: None,
        };
        flight
    }
}

impl<H: Home> Table<H> {
    fn new() -> Self {
        Self {
            few: Vec::new(),
            many: HashTable::new(),
        }
    }

    #[inline]
    pub(crate) fn find(
        &mut self,
        hash: u64,
        is: impl Fn(&Entry<H>) -> bool,
    ) -> Option<&mut Entry<H>> {
        match self.few.iter().position(&is) {
            Some(index) => self.few.get_mut(index),
            None if self.many.is_empty() => None,
            None => self.many.find_mut(hash, is),
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry<H>) {
        if self.few.len() < FEW {
            self.few.push(entry);
        } else {
            self.many
                .insert_unique(entry.name.hash, entry, |entry| entry.name.hash);
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, name: Name) -> Option<Entry<H>> {
        match self.few.iter().position(|entry| entry.name.id == name.id) {
            Some(index) => Some(self.few.swap_remove(index)),
            None => self.remove_of_many(name),
        }
    }

    fn remove_of_many(&mut self, name: Name) -> Option<Entry<H>> {
        let found = self
            .many
            .find_entry(name.hash, |entry| entry.name.id == name.id);
        let (entry, _) = found.ok()?.remove();
        // Memory comes back when a burst of keys is over.
        let len = self.many.len();
        if self.many.capacity() > SMALL && len < self.many.capacity() / 8 {
            self.many.shrink_to(2 * len, |entry| entry.name.hash);
        }
        Some(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry<H>> {
        self.few.iter_mut().chain(&mut self.many)
    }
}

impl<H: Home> Shard<H> {
    pub(crate) fn new() -> Self {
        Self {
            table: Table::new(),
            next: 0,
            running: 0,
            shut: false,
            spare: None,
            counts: Counts::default(),
        }
    }

    #[inline]
    pub(crate) fn find(&mut self, name: Name) -> Option<&mut Entry<H>> {
        self.table.find(name.hash, |entry| entry.name.id == name.id)
    }

    /// Ends the time in which a landed flight can be joined.
    pub(crate) fn unkeep(&mut self, name: Name) -> Option<Entry<H>> {
        let entry = self.find(name)?;
        if entry.phase != Phase::Kept {
            return None;
        }
        if entry.leader == Leader::Ticket {
            // Kept => Owed
            entry.phase = Phase::Owed;
            return None;
        }
        self.table.remove(name)
    }

    /// The same, for one of this hash whose time is over, if there is one.
    pub(crate) fn unkeep_stale(&mut self, hash: u64, now: Instant) -> Option<Entry<H>> {
        let stale = self.table.find(hash, |entry| {
            entry.name.hash == hash && entry.phase == Phase::Kept && !entry.is_kept(Some(now))
        });
        let name = stale?.name;
        self.unkeep(name)
    }
}
