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

use std::{
    task::{Poll, Waker},
    time::Instant,
};

use super::{
    flight::{Driving, Flight, Home, Keep, Name, Parcel, Seat, Shared},
    table::{Body, Counts, Entry, Leader, Phase, Shard},
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
    shards: Box<[Padded<Mutex<Shard<H>>>]>,
    bits: u32,
    limits: Limits,
    /// Flights in existence, counted only if they are limited.
    flights: AtomicUsize,
    /// Those who wait for the end of all flights.
    ending: Mutex<Wakers>,
}

/// What is the same for all flights of a space.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Callers of one flight beside the first.
    pub(crate) max_joiners: usize,
    pub(crate) max_flights: usize,
    /// Tasks drive the flights, which outlive their callers.
    pub(crate) lasting: bool,
}

#[repr(align(128))]
struct Padded<T>(T);

/// How it stands now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) counts: Counts,
    /// Flights in existence.
    pub(crate) running: usize,
    /// Callers that wait for a flight.
    pub(crate) waiting: usize,
    /// Values that can still be joined.
    pub(crate) kept: usize,
    /// Everything that has an entry.
    pub(crate) entries: usize,
}

/// Who leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The caller that led, by its ticket.
    Ticket,
    /// Who has a seat; `led`: the caller that led.
    Seat { led: bool },
}

/// Why a caller leaves a flight before it has landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// It was dropped.
    Left,
    /// It goes elsewhere.
    Moved,
    /// It has another key.
    Mistaken,
}

/// What became of a newcomer.
pub(crate) enum Entered<H: Home> {
    /// It leads: the ticket.
    Led(Name),
    /// It leads, and a task is to do the work.
    Started(Seat<H>),
    Joined(Seat<H>),
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

/// What was unlinked.
pub(crate) enum Unlinked<H: Home> {
    Alone,
    /// `kept`: how long it can still be joined.
    Shared {
        flight: Arc<Flight<H>>,
        kept: Option<Keep>,
    },
}

/// What became of one who has waited too long.
pub(crate) enum Replaced<H: Home> {
    /// The flight has landed, or is about to.
    Landed,
    /// Somebody else has replaced it.
    Joined(Seat<H>),
    /// By this one; if tasks do the work, one is to do it.
    Led(Seat<H>),
    /// It could not be joined any more anyway: begin anew.
    Closed,
    /// As many flights as may be are here.
    Full,
}

impl<H: Home> Space<H> {
    /// `shards` is rounded up to a power of two.
    pub(crate) fn new(shards: usize, limits: Limits) -> Self {
        let shards = shards.next_power_of_two();
        Self {
            shards: (0..shards)
                .map(|_| Padded(Mutex::new(Shard::new())))
                .collect(),
            bits: shards.trailing_zeros(),
            limits,
            flights: AtomicUsize::new(0),
            ending: Mutex::new(Wakers::default()),
        }
    }

    /// Bits of the hash that the tables use for nothing else.
    #[inline]
    fn index(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<H>> {
        lock(&self.shards[self.index(hash)].0)
    }

    #[inline]
    fn name(&self, next: &mut u64, hash: u64) -> Name {
        *next += 1;
        let id = (*next << self.bits) | self.index(hash) as u64;
        Name { hash, id }
    }

    /// Whether one more flight may be; if so it is counted.
    #[inline]
    fn admit(&self) -> bool {
        self.limits.max_flights == usize::MAX || self.count_in()
    }

    fn count_in(&self) -> bool {
        let max = self.limits.max_flights;
        let one_more = |flights| (flights < max).then_some(flights + 1);
        self.flights
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }

    /// A flight exists no more.
    #[inline]
    fn ended(&self, shut: bool) {
        if shut || self.limits.max_flights != usize::MAX {
            self.count_out(shut);
        }
    }

    fn count_out(&self, shut: bool) {
        if self.limits.max_flights != usize::MAX {
            self.flights.fetch_sub(1, Ordering::Relaxed);
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
            let mut stale = None;
            let mut guard = self.shard(hash);
            let shard = &mut *guard;
            if shard.shut {
                return Entered::Shut;
            }
            if let Some(now) = now {
                stale = shard.unkeep_stale(hash, now);
            }
            let found = shard.table.find(hash, |entry| {
                entry.name.hash == hash
                    && entry.is_joinable(now)
                    && (others.is_empty() || !others.contains(&entry.name))
            });
            if let Some(entry) = found {
                let counted = entry.is_counted();
                let full = counted && entry.callers > self.limits.max_joiners;
                let flight = entry.share(home);
                if !full {
                    entry.callers += usize::from(counted);
                    shard.counts.joined += 1;
                }
                drop(guard);
                drop(stale);
                match self.compare(flight, &key, full) {
                    Ok(entered) => return entered,
                    Err(other) => others.push(other),
                }
                continue;
            }
            if !self.admit() {
                drop(guard);
                drop(stale);
                return Entered::Full(self.limits.max_flights);
            }
            let name = self.name(&mut shard.next, hash);
            let mut entry = Entry {
                name,
                callers: 1,
                leader: Leader::Ticket,
                phase: Phase::Open,
                body: Body::Alone {
                    key,
                    work: work(shard.spare.take()),
                    waker: None,
                },
            };
            let entered = if self.limits.lasting {
                entry.leader = Leader::Seat;
                Entered::Started(Seat::leading(entry.share(home)))
            } else {
                Entered::Led(name)
            };
            shard.table.insert(entry);
            shard.running += 1;
            shard.counts.led += 1;
            drop(guard);
            drop(stale);
            return entered;
        }
    }

    /// Whether a flight that a newcomer has been counted into is of its key. If not, its name.
    #[inline]
    fn compare(&self, flight: Arc<Flight<H>>, key: &H::Key, full: bool) -> Result<Entered<H>, Name>
    where
        H::Key: Eq,
    {
        let mut seat = Seat::joining(flight, full);
        if seat.flight().key() == key {
            seat.settle();
            return Ok(match full {
                true => Entered::Full(self.limits.max_joiners),
                false => Entered::Joined(seat),
            });
        }
        let name = seat.flight().name();
        drop(seat);
        if !full {
            self.shard(name.hash).counts.joined -= 1;
        }
        Err(name)
    }

    /// The work, for the caller that led.
    #[inline]
    pub(crate) fn take(&self, name: Name) -> Taken<H> {
        let mut shard = self.shard(name.hash);
        let Some(entry) = shard.find(name) else {
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
        let entry = shard.find(name).expect("what is driven is here");
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

    /// A flight has its outcome, and its work is dropped. From now on nobody joins it, or, if nobody
    /// has closed it, only as long as `keep` says. `spent` is the box of the work.
    #[inline]
    pub(crate) fn unlink(
        &self,
        home: &H,
        name: Name,
        by_ticket: bool,
        keep: Option<Keep>,
        spent: Option<Parcel<H>>,
    ) -> Unlinked<H> {
        let mut guard = self.shard(name.hash);
        let shard = &mut *guard;
        let Some(entry) = shard
            .table
            .find(name.hash, |entry| entry.name.id == name.id)
        else {
            return Unlinked::Alone;
        };
        shard.running -= 1;
        let shut = shard.shut;
        let spent = match spent {
            Some(spent) => shard.spare.replace(spent),
            None => None,
        };
        if by_ticket {
            entry.leader = Leader::Seat;
        }
        let open = entry.phase == Phase::Open && !shut;
        // (A task's flight may have no callers.)
        let keep = keep.filter(|keep| open && (*keep != Keep::InUse || entry.callers > 0));
        if keep.is_none() && entry.leader != Leader::Ticket {
            // Open, Closed => gone
            let removed = shard.table.remove(name);
            drop(guard);
            drop(spent);
            self.ended(shut);
            return match removed.map(|entry| entry.body) {
                Some(Body::Shared { flight, .. }) => Unlinked::Shared { flight, kept: None },
                Some(Body::Alone { .. } | Body::Neither) | None => Unlinked::Alone,
            };
        }
        // Open => Kept; Open, Closed => Owed
        entry.phase = match keep {
            Some(_) => Phase::Kept,
            None => Phase::Owed,
        };
        let flight = entry.share(home);
        let replaced = match &mut entry.body {
            Body::Shared {
                keep: until,
                successor,
                ..
            } => {
                *until = keep;
                successor.take()
            }
            Body::Alone { .. } | Body::Neither => None,
        };
        drop(guard);
        drop(spent);
        self.ended(shut);
        drop(replaced);
        Unlinked::Shared { flight, kept: keep }
    }

    /// A caller goes before it has the outcome, or is done with one that is kept while it is in use. The
    /// last one takes it along.
    pub(crate) fn leave(&self, name: Name, who: Who, why: Departure) {
        let mut guard = self.shard(name.hash);
        let shard = &mut *guard;
        let Some(entry) = shard
            .table
            .find(name.hash, |entry| entry.name.id == name.id)
        else {
            return;
        };
        if who != (Who::Seat { led: false }) {
            entry.leader = Leader::Gone;
        }
        let unknowing = match who {
            Who::Ticket => entry.flight().cloned(),
            Who::Seat { .. } => None,
        };
        let mut removed = None;
        let flying = entry.is_flying();
        if entry.is_counted() {
            entry.callers -= 1;
            shard.counts.left += u64::from(flying && why == Departure::Left);
            let lasting = flying && self.limits.lasting;
            if entry.callers == 0 && !lasting {
                if let Some(flight) = entry.flight() {
                    flight.mark_abandoned();
                }
                removed = shard.table.remove(name);
            }
        } else if entry.phase == Phase::Owed && who == Who::Ticket {
            removed = shard.table.remove(name);
        }
        drop(guard);
        if let Some(flight) = unknowing {
            flight.leader_left_early();
        }
        if let (true, Some(entry)) = (flying, &removed) {
            // Its work is dropped here, outside the table: a call with the same key leads anew.
            let _ending = Ending {
                space: self,
                hash: name.hash,
            };
            if let Some(flight) = entry.flight() {
                flight.abandon();
            }
            drop(removed);
        }
    }

    /// What was kept while it is in use is kept until `until` now, or not at all.
    pub(crate) fn keep_on(&self, name: Name, until: Option<Instant>) {
        let mut shard = self.shard(name.hash);
        let Some(until) = until else {
            let kept = shard.unkeep(name);
            drop(shard);
            drop(kept);
            return;
        };
        let flight = match shard.find(name).map(|entry| &mut entry.body) {
            Some(Body::Shared { flight, keep, .. }) if *keep == Some(Keep::InUse) => {
                *keep = Some(Keep::Until(until));
                Some(flight.clone())
            }
            _ => None,
        };
        drop(shard);
        if let Some(flight) = flight {
            flight.forget_home();
        }
    }

    /// Closes `old`, which was too slow for somebody, and leads another in its place, with `key`, the
    /// same one, which is taken only then, and `work`.
    pub(crate) fn replace(
        &self,
        home: &H,
        old: &Flight<H>,
        key: &mut Option<H::Key>,
        work: impl FnOnce() -> Option<Parcel<H>>,
    ) -> Replaced<H> {
        let hash = old.name().hash;
        let mut guard = self.shard(hash);
        let shard = &mut *guard;
        let Some(entry) = shard.table.find(hash, |entry| entry.name == old.name()) else {
            return Replaced::Landed;
        };
        if !entry.is_flying() {
            return Replaced::Landed;
        }
        let Body::Shared { successor, .. } = &mut entry.body else {
            return Replaced::Landed;
        };
        if let Some(flight) = successor.clone().filter(|flight| !flight.is_abandoned()) {
            if let Some(entry) = shard.find(flight.name()) {
                entry.callers += usize::from(entry.is_flying());
            }
            shard.counts.joined += 1;
            drop(guard);
            let mut seat = Seat::joining(flight, false);
            seat.settle();
            return Replaced::Joined(seat);
        }
        if entry.phase == Phase::Closed {
            return Replaced::Closed;
        }
        let Some(key) = key.take_if(|_| self.admit()) else {
            return Replaced::Full;
        };
        // Open => Closed: nobody else has this key, so the new one takes its place unseen.
        entry.phase = Phase::Closed;
        let name = self.name(&mut shard.next, hash);
        let flight = Flight::share(
            home,
            Shared {
                key,
                name,
                replacement: true,
                work: work(),
                waker: None,
            },
        );
        *successor = Some(flight.clone());
        let entry = Entry {
            name,
            callers: 1,
            leader: Leader::Seat,
            phase: Phase::Open,
            body: Body::Shared {
                flight: flight.clone(),
                keep: None,
                successor: None,
            },
        };
        shard.table.insert(entry);
        shard.running += 1;
        shard.counts.led += 1;
        Replaced::Led(Seat::leading(flight))
    }

    /// The flight, or what is kept of it, that a newcomer with this key would join.
    fn search(
        &self,
        home: &H,
        hash: u64,
        is_key: impl Fn(&H::Key) -> bool,
    ) -> Option<Arc<Flight<H>>> {
        let mut others = Vec::new();
        loop {
            let flight = {
                let mut shard = self.shard(hash);
                let entry = shard.table.find(hash, |entry| {
                    entry.name.hash == hash
                        && matches!(entry.phase, Phase::Open | Phase::Kept)
                        && !others.contains(&entry.name)
                });
                entry?.share(home)
            };
            if is_key(flight.key()) {
                return Some(flight);
            }
            others.push(flight.name());
        }
    }

    /// Nobody joins the flight of this key any more, nor what is kept of it.
    pub(crate) fn forget(&self, home: &H, hash: u64, is_key: impl Fn(&H::Key) -> bool) -> bool {
        let Some(flight) = self.search(home, hash, is_key) else {
            return false;
        };
        let mut shard = self.shard(hash);
        let (known, kept) = match shard.find(flight.name()) {
            Some(entry) if entry.phase == Phase::Open => {
                entry.phase = Phase::Closed;
                (true, None)
            }
            Some(_) => (true, shard.unkeep(flight.name())),
            None => (false, None),
        };
        drop(shard);
        drop(kept);
        known
    }

    /// How many callers wait for the flight of this key.
    pub(crate) fn waiting(&self, home: &H, hash: u64, is_key: impl Fn(&H::Key) -> bool) -> usize {
        let Some(flight) = self.search(home, hash, is_key) else {
            return 0;
        };
        let mut shard = self.shard(hash);
        match shard.find(flight.name()) {
            Some(entry) if entry.is_flying() => entry.callers,
            _ => 0,
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        let mut sum = Standing::default();
        for shard in &self.shards {
            let mut shard = lock(&shard.0);
            sum.counts.led += shard.counts.led;
            sum.counts.joined += shard.counts.joined;
            sum.counts.left += shard.counts.left;
            sum.running += shard.running;
            sum.entries += shard.table.len();
            for entry in shard.table.iter_mut() {
                match entry.phase {
                    Phase::Open | Phase::Closed => sum.waiting += entry.callers,
                    Phase::Kept => sum.kept += 1,
                    Phase::Owed => {}
                }
            }
        }
        sum
    }

    /// Ends every flight unfinished, telling all, and lets nobody in any more.
    pub(crate) fn shut(&self, home: &H) {
        for shard in &self.shards {
            let mut guard = lock(&shard.0);
            let shard = &mut *guard;
            shard.shut = true;
            let mut flights = Vec::new();
            let mut kept = Vec::new();
            for entry in shard.table.iter_mut() {
                match entry.phase {
                    Phase::Open | Phase::Closed => {
                        entry.phase = Phase::Closed;
                        flights.push(entry.share(home));
                    }
                    Phase::Kept => kept.push(entry.name),
                    Phase::Owed => {}
                }
            }
            let kept: Vec<_> = kept.into_iter().map(|name| shard.unkeep(name)).collect();
            drop(guard);
            drop(kept);
            for flight in flights {
                flight.abort(home);
            }
        }
    }

    /// Pending until no flight is in existence, in a space that was shut.
    pub(crate) fn poll_ended(&self, place: &mut Option<usize>, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let old = lock(&self.ending).register(place, waker);
        drop(old);
        if self.standing().running > 0 {
            return Poll::Pending;
        }
        self.forget_ended(place);
        Poll::Ready(())
    }

    /// Ends the registration of [`poll_ended`](Self::poll_ended).
    pub(crate) fn forget_ended(&self, place: &mut Option<usize>) {
        if place.is_some() {
            let old = lock(&self.ending).remove(place);
            drop(old);
        }
    }
}

/// A flight whose callers are all gone, until its work is dropped.
struct Ending<'a, H: Home> {
    space: &'a Space<H>,
    hash: u64,
}

impl<H: Home> Drop for Ending<'_, H> {
    fn drop(&mut self) {
        let shut = {
            let mut shard = self.space.shard(self.hash);
            shard.running -= 1;
            shard.shut
        };
        self.space.ended(shut);
    }
}
