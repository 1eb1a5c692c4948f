//! `Space`: the table of flights, by identity.
//!
//! Locked in shards, each on cache lines of its own. A call that nobody has joined lives in its entry
//! alone: its key, the boxed inner call, its caller's waker. No `Arc`, no lock of its own; the first
//! to join turns it into a [`Flight`]. How many callers there are stands in the entry, so that the last
//! one to leave and a newcomer meet under the shard's lock, and nobody joins a dying flight.
//!
//! Entries are found by their hash and told apart by a number of their own, never by their key: `Eq` is
//! user code. A newcomer is counted into a flight of the same hash, compares the keys outside the
//! lock, and leaves again if they differ. Nothing here clones, compares, polls, wakes or drops what is
//! not ours under a lock.

use std::{task::Waker, time::Instant};

use super::{
    driving::Driving,
    flight::{Flight, Home, Name, Parcel},
    parting::{Departure, Who},
    seat::Seat,
    table::{Body, Entry, Leader, Phase, Shard},
};
use crate::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
        lock,
    },
    wakers::Wakers,
};

/// The flights of one identity space.
pub(crate) struct Space<H: Home> {
    pub(super) shards: Box<[Padded<Mutex<Shard<H>>>]>,
    pub(super) limits: Limits,
    /// Flights in existence, counted only if they are limited. Apart from what is only read.
    flights: Padded<AtomicUsize>,
    /// Those who wait for the end of all flights.
    pub(super) ending: Mutex<Wakers>,
}

/// What is the same for all flights of a space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Callers of one flight beside the first.
    pub(crate) max_joiners: usize,
    pub(crate) max_flights: usize,
    /// Tasks drive the flights, which outlive their callers.
    pub(crate) lasting: bool,
    /// What has landed may be kept, to be joined.
    pub(crate) keeps: bool,
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// What became of a newcomer. Two words, so that it comes back in registers.
pub(crate) enum Entered<H: Home> {
    /// It leads: the [id](Name) of its flight.
    Led(u64),
    /// It leads, and a task is to do the work.
    Started(Arc<Flight<H>>),
    Joined(Arc<Flight<H>>),
    /// As many as may be here are here.
    Full(usize),
    Shut,
}

/// What the caller that led finds by its ticket.
pub(crate) enum Taken<H: Home> {
    /// The work, to be polled; the waker it was polled with last.
    Alone(Parcel<H>, Option<Waker>),
    Shared(Seat<H>),
    /// Its flight ended in its own hands, by a panic.
    Lost,
}

/// What came of the work being put back by ticket.
pub(crate) enum Parked<'a, H: Home> {
    Alone,
    /// Somebody has joined meanwhile: [adopt](Seat::adopt) it.
    Shared(Seat<H>, Driving<'a, H>),
}

/// A newcomer in a flight of which it does not know yet whether it has its key. Dropping it leaves.
struct Doubtful<'a, H: Home> {
    space: &'a Space<H>,
    name: Name,
    /// It is not counted in.
    full: bool,
}

impl<H: Home> Drop for Doubtful<'_, H> {
    #[cold]
    fn drop(&mut self) {
        if !self.full {
            let who = Who::Seat { led: false };
            self.space.leave(self.name, who, Departure::Mistaken);
            self.space.shard(self.name.hash).counts.joined -= 1;
        }
    }
}

impl<H: Home> Space<H> {
    /// `shards` is rounded up to a power of two.
    pub(crate) fn new(shards: usize, limits: Limits) -> Self {
        let shards = shards.next_power_of_two();
        Self {
            shards: (0..shards)
                .map(|index| Padded(Mutex::new(Shard::new(index, shards))))
                .collect(),
            limits,
            flights: Padded(AtomicUsize::new(0)),
            ending: Mutex::new(Wakers::default()),
        }
    }

    /// Bits of the hash that the tables use for nothing else.
    #[inline]
    fn index(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    pub(super) fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<H>> {
        lock(&self.shards[self.index(hash)].0)
    }

    /// Whether one more flight may be; if so it is counted.
    #[inline]
    pub(super) fn admit(&self) -> bool {
        self.limits.max_flights == usize::MAX || self.count_in()
    }

    fn count_in(&self) -> bool {
        let max = self.limits.max_flights;
        let one_more = |flights| (flights < max).then_some(flights + 1);
        self.flights
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }

    /// A flight exists no more.
    #[inline]
    pub(super) fn ended(&self, shut: bool) {
        if shut || self.limits.max_flights != usize::MAX {
            self.count_out(shut);
        }
    }

    fn count_out(&self, shut: bool) {
        if self.limits.max_flights != usize::MAX {
            self.flights.0.fetch_sub(1, Ordering::Relaxed);
        }
        if shut {
            let wake = lock(&self.ending).take();
            wake.wake();
        }
    }

    /// Joins the flight of `key`, or leads one with `work`, which is given a box to use if there is one;
    /// `None`: a task has it. `now`: to join what has landed, if that is kept.
    #[inline]
    pub(crate) fn enter(
        &self,
        home: &H,
        hash: u64,
        key: H::Key,
        now: Option<Instant>,
        work: impl FnOnce(Option<Parcel<H>>) -> Option<Parcel<H>>,
    ) -> Entered<H>
    where
        H::Key: Eq,
    {
        // Of another key with the same hash.
        let mut others = Vec::new();
        loop {
            let mut guard = self.shard(hash);
            let shard = &mut *guard;
            if shard.shut {
                return Entered::Shut;
            }
            if let Some(stale) = now.and_then(|now| shard.unkeep_stale(hash, now)) {
                drop(guard);
                drop(stale);
                continue;
            }
            let found = shard.table.search(hash, |entry| {
                entry.is_joinable(now) && (others.is_empty() || !others.contains(&entry.name))
            });
            if let Some(entry) = found {
                let counted = entry.is_counted();
                let full = counted && entry.callers as usize > self.limits.max_joiners;
                let flight = entry.share(home);
                if !full {
                    entry.callers += u32::from(counted);
                    shard.counts.joined += 1;
                }
                drop(guard);
                match self.compare(flight, &key, full) {
                    Ok(entered) => return entered,
                    Err(other) => others.push(other),
                }
                continue;
            }
            if !self.admit() {
                drop(guard);
                return Entered::Full(self.limits.max_flights);
            }
            let name = shard.name(hash);
            let work = work(shard.spare.take());
            let entry = shard.table.insert(Entry {
                name,
                callers: 1,
                leader: Leader::Ticket,
                phase: Phase::Open,
                body: Body::Alone {
                    key,
                    work,
                    waker: None,
                },
            });
            let entered = if self.limits.lasting {
                entry.leader = Leader::Seat;
                Entered::Started(entry.share(home))
            } else {
                Entered::Led(name.id)
            };
            shard.running += 1;
            shard.counts.led += 1;
            drop(guard);
            return entered;
        }
    }

    /// Whether a flight that a newcomer has been counted into is of its key. If not, its name.
    #[inline]
    fn compare(&self, flight: Arc<Flight<H>>, key: &H::Key, full: bool) -> Result<Entered<H>, Name>
    where
        H::Key: Eq,
    {
        let doubtful = Doubtful {
            space: self,
            name: flight.name(),
            full,
        };
        if flight.key() == key {
            std::mem::forget(doubtful);
            return Ok(match full {
                true => Entered::Full(self.limits.max_joiners),
                false => Entered::Joined(flight),
            });
        }
        Err(doubtful.name)
    }

    /// The work, for the caller that led.
    #[inline]
    pub(crate) fn take(&self, name: Name) -> Taken<H> {
        let mut shard = self.shard(name.hash);
        let Some(entry) = shard.table.find(name) else {
            return Taken::Lost;
        };
        match &mut entry.body {
            Body::Alone { work, waker, .. } => match work.take() {
                Some(work) => Taken::Alone(work, waker.take()),
                None => Taken::Lost,
            },
            Body::Shared { flight, .. } => {
                entry.leader = Leader::Seat;
                let seat = Seat::leading(flight.clone());
                let owed = match entry.phase {
                    Phase::Owed => shard.table.remove(name),
                    _ => None,
                };
                drop(shard);
                drop(owed);
                Taken::Shared(seat)
            }
            Body::Neither => unreachable!("an entry has a body"),
        }
    }

    /// Puts the work back, with the waker it was polled with.
    pub(crate) fn park<'a>(
        &self,
        name: Name,
        driving: Driving<'a, H>,
        polled_with: Waker,
    ) -> Parked<'a, H> {
        let mut shard = self.shard(name.hash);
        let entry = shard.table.find(name).expect("what is driven is here");
        match &mut entry.body {
            Body::Alone { work, waker, .. } => {
                *work = driving.into_work();
                *waker = Some(polled_with);
                Parked::Alone
            }
            Body::Shared { flight, .. } => {
                entry.leader = Leader::Seat;
                let seat = Seat::leading(flight.clone());
                drop(shard);
                Parked::Shared(seat, driving)
            }
            Body::Neither => unreachable!("an entry has a body"),
        }
    }
}
