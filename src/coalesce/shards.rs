//! `Space`: the table of flights, by identity.
//!
//! Locked in shards, each on cache lines of its own. A call that nobody has joined lives in its entry
//! alone: its key, the boxed inner call, its caller's waker. No `Arc`, no lock of its own; the first
//! to join turns it into a [`Flight`]. How many callers there are stands in the entry, so that the last
//! one to leave and a newcomer meet under the shard's lock, and nobody joins a dying flight.
//!
//! Entries are found by their hash and compared by a number of their own, never by their key: `Eq` is
//! user code. A newcomer is counted into a flight of the same hash, compares the keys outside the
//! lock, and leaves again if they differ. Nothing here clones, compares, polls, wakes or drops what is
//! not ours under a lock.

use std::{
    task::{Poll, Waker},
    time::Instant,
};

use super::flight::{Driving, Flight, Home, Parcel, Seat, Shared};
use crate::{
    sync::{
        Arc, HashTable, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
        lock,
    },
    wakers::Wakers,
};

/// Below this many places a table is not worth shrinking.
const SMALL: usize = 64;

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

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_joiners: usize::MAX,
            max_flights: usize::MAX,
            lasting: false,
        }
    }
}

#[repr(align(128))]
struct Padded<T>(T);

struct Shard<H: Home> {
    table: HashTable<Entry<H>>,
    next: u64,
    /// Flights in existence: led, and their work not dropped yet.
    running: usize,
    shut: bool,
    counts: Counts,
}

/// Sums since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) led: u64,
    pub(crate) joined: u64,
    pub(crate) left: u64,
}

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

struct Entry<H: Home> {
    hash: u64,
    id: u64,
    callers: usize,
    leader: Leader,
    phase: Phase,
    body: Body<H>,
    /// What has taken its place.
    successor: Option<Arc<Flight<H>>>,
}

enum Body<H: Home> {
    /// Nobody has joined. `work` is out while it is polled.
    Alone {
        key: H::Key,
        work: Option<Parcel<H>>,
        waker: Option<Waker>,
    },
    Shared(Arc<Flight<H>>),
    /// Between the two.
    Neither,
}

/// What the caller that led knows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leader {
    /// It has a ticket, and finds the flight by it.
    Ticket,
    /// It has a seat in the flight, or the outcome.
    Seat,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// In flight, to be joined.
    Open,
    /// In flight, for those who are in it.
    Closed,
    /// Landed, to be joined until then.
    Kept(Instant),
    /// Landed, here only for the one who has a ticket for it.
    Owed,
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
    Led(u64),
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
    Shared(Arc<Flight<H>>),
}

/// What became of one who has waited too long.
pub(crate) enum Replaced<H: Home> {
    /// The flight has landed, or is about to.
    Landed,
    /// Somebody else has replaced it.
    Joined(Seat<H>),
    /// By this one. `None`: a task is to do the work.
    Led(Seat<H>),
    /// It could not be joined any more anyway: begin anew.
    Closed,
    /// As many flights as may be are here.
    Full,
}

impl<H: Home> Entry<H> {
    fn joinable(&self, now: Option<Instant>) -> bool {
        match self.phase {
            Phase::Open => true,
            Phase::Kept(until) => now.is_some_and(|now| now < until),
            Phase::Closed | Phase::Owed => false,
        }
    }

    fn is_flying(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Closed)
    }

    /// Alone => Shared
    fn share(&mut self, home: &H) -> Arc<Flight<H>> {
        let flight = match std::mem::replace(&mut self.body, Body::Neither) {
            Body::Shared(flight) => flight,
            Body::Alone { key, work, waker } => Flight::share(
                home,
                Shared {
                    key,
                    hash: self.hash,
                    id: self.id,
                    replacement: false,
                    work,
                    waker,
                },
            ),
            Body::Neither => unreachable!("an entry has a body"),
        };
        self.body = Body::Shared(flight.clone());
        flight
    }
}

impl<H: Home> Shard<H> {
    fn find(&mut self, hash: u64, id: u64) -> Option<&mut Entry<H>> {
        self.table.find_mut(hash, |entry| entry.id == id)
    }

    fn remove(&mut self, hash: u64, id: u64) -> Option<Entry<H>> {
        let found = self.table.find_entry(hash, |entry| entry.id == id).ok()?;
        let (entry, _) = found.remove();
        let len = self.table.len();
        if self.table.capacity() > SMALL && len < self.table.capacity() / 8 {
            self.table.shrink_to(2 * len, |entry| entry.hash);
        }
        Some(entry)
    }

    /// Ends the time in which a landed flight can be joined.
    fn unkeep(&mut self, hash: u64, id: u64) -> Option<Entry<H>> {
        let entry = self.find(hash, id)?;
        if !matches!(entry.phase, Phase::Kept(_)) {
            return None;
        }
        if entry.leader == Leader::Ticket {
            // Kept => Owed
            entry.phase = Phase::Owed;
            return None;
        }
        self.remove(hash, id)
    }

    fn insert(&mut self, entry: Entry<H>) {
        self.running += 1;
        self.counts.led += 1;
        self.table
            .insert_unique(entry.hash, entry, |entry| entry.hash);
    }
}

impl<H: Home> Space<H> {
    /// `shards` is rounded up to a power of two.
    pub(crate) fn new(shards: usize, limits: Limits) -> Self {
        let shards = shards.next_power_of_two();
        Self {
            shards: (0..shards)
                .map(|_| {
                    Padded(Mutex::new(Shard {
                        table: HashTable::new(),
                        next: 0,
                        running: 0,
                        shut: false,
                        counts: Counts::default(),
                    }))
                })
                .collect(),
            bits: shards.trailing_zeros(),
            limits,
            flights: AtomicUsize::new(0),
            ending: Mutex::new(Wakers::default()),
        }
    }

    /// Bits of the hash that the tables use for nothing else.
    fn index(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<H>> {
        lock(&self.shards[self.index(hash)].0)
    }

    fn next_id(&self, shard: &mut Shard<H>, hash: u64) -> u64 {
        shard.next += 1;
        (shard.next << self.bits) | self.index(hash) as u64
    }

    /// Whether one more flight may be; if so it is counted.
    fn admit(&self) -> bool {
        let max = self.limits.max_flights;
        max == usize::MAX
            || self
                .flights
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |flights| {
                    (flights < max).then_some(flights + 1)
                })
                .is_ok()
    }

    /// A flight exists no more.
    fn ended(&self, shut: bool) {
        if self.limits.max_flights != usize::MAX {
            self.flights.fetch_sub(1, Ordering::Relaxed);
        }
        if shut {
            let wake = lock(&self.ending).take();
            wake.wake();
        }
    }

    /// Joins the flight of `key`, or leads one with `work`; `None`: a task has it. `now`: to join what
    /// has landed, if that is kept.
    pub(crate) fn enter(
        &self,
        home: &H,
        hash: u64,
        key: H::Key,
        now: Option<Instant>,
        work: impl FnOnce() -> Option<Parcel<H>>,
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
            let mut found = None;
            for entry in shard.table.iter_hash_mut(hash) {
                if entry.hash != hash || others.contains(&entry.id) {
                    continue;
                }
                if entry.joinable(now) {
                    found = Some(entry);
                    break;
                }
                if matches!(entry.phase, Phase::Kept(_)) {
                    stale = Some(entry.id);
                }
            }
            if let Some(entry) = found {
                let open = entry.phase == Phase::Open;
                let full = open && entry.callers > self.limits.max_joiners;
                if !full {
                    entry.callers += usize::from(open);
                    shard.counts.joined += 1;
                }
                let flight = entry.share(home);
                drop(guard);
                let seat = Seat::joining(flight, full);
                if *seat.flight().key() != key {
                    others.push(seat.flight().id());
                    drop(seat);
                    if !full {
                        self.shard(hash).counts.joined -= 1;
                    }
                    continue;
                }
                return if full {
                    Entered::Full(self.limits.max_joiners)
                } else {
                    Entered::Joined(seat.settle())
                };
            }
            let stale = stale.and_then(|id| shard.unkeep(hash, id));
            if !self.admit() {
                drop(guard);
                drop(stale);
                return Entered::Full(self.limits.max_flights);
            }
            let id = self.next_id(shard, hash);
            let work = work();
            let mut entry = Entry {
                hash,
                id,
                callers: 1,
                leader: Leader::Ticket,
                phase: Phase::Open,
                body: Body::Neither,
                successor: None,
            };
            entry.body = Body::Alone {
                key,
                work,
                waker: None,
            };
            let entered = if self.limits.lasting {
                entry.leader = Leader::Seat;
                Entered::Started(Seat::leading(entry.share(home)))
            } else {
                Entered::Led(id)
            };
            shard.insert(entry);
            drop(guard);
            drop(stale);
            return entered;
        }
    }

    /// The work, for the caller that led.
    pub(crate) fn take(&self, hash: u64, id: u64) -> Taken<H> {
        let mut shard = self.shard(hash);
        let Some(entry) = shard.find(hash, id) else {
            return Taken::Lost;
        };
        match &mut entry.body {
            Body::Alone { work, waker, .. } => match work.take() {
                Some(work) => Taken::Alone(work, waker.take()),
                None => Taken::Lost,
            },
            Body::Shared(flight) => {
                entry.leader = Leader::Seat;
                let seat = Seat::leading(flight.clone());
                let owed = match entry.phase {
                    Phase::Owed => shard.remove(hash, id),
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
        hash: u64,
        id: u64,
        driving: Driving<'a, H>,
        polled_with: Waker,
    ) -> Parked<'a, H> {
        let mut shard = self.shard(hash);
        let entry = shard.find(hash, id).expect("a flight that is driven");
        match &mut entry.body {
            Body::Alone { work, waker, .. } => {
                *work = Some(driving.into_work());
                *waker = Some(polled_with);
                Parked::Alone
            }
            Body::Shared(flight) => {
                entry.leader = Leader::Seat;
                let seat = Seat::leading(flight.clone());
                drop(shard);
                Parked::Shared(seat, driving)
            }
            Body::Neither => unreachable!("an entry has a body"),
        }
    }

    /// A flight has its outcome, and its work is dropped. From now on nobody joins it, or, if `keep`
    /// says so and nobody closed it, only until then.
    pub(crate) fn unlink(
        &self,
        home: &H,
        hash: u64,
        id: u64,
        by_ticket: bool,
        keep: Option<Instant>,
    ) -> Unlinked<H> {
        let mut guard = self.shard(hash);
        let shard = &mut *guard;
        let shut = shard.shut;
        let Some(entry) = shard.table.find_mut(hash, |entry| entry.id == id) else {
            return Unlinked::Alone;
        };
        shard.running -= 1;
        if by_ticket {
            entry.leader = Leader::Seat;
        }
        let successor = entry.successor.take();
        let keep = keep.filter(|_| entry.phase == Phase::Open && !shut);
        let (unlinked, removed) = if let Some(until) = keep {
            entry.phase = Phase::Kept(until);
            (Unlinked::Shared(entry.share(home)), None)
        } else {
            let unlinked = match &entry.body {
                Body::Shared(flight) => Unlinked::Shared(flight.clone()),
                Body::Alone { .. } | Body::Neither => Unlinked::Alone,
            };
            if entry.leader == Leader::Ticket {
                entry.phase = Phase::Owed;
                (unlinked, None)
            } else {
                (unlinked, shard.remove(hash, id))
            }
        };
        drop(guard);
        self.ended(shut);
        drop(removed);
        drop(successor);
        unlinked
    }

    /// A caller goes before it has the outcome. The last one takes the flight with it.
    pub(crate) fn leave(&self, hash: u64, id: u64, who: Who, why: Departure) {
        let mut guard = self.shard(hash);
        let shard = &mut *guard;
        let Some(entry) = shard.table.find_mut(hash, |entry| entry.id == id) else {
            return;
        };
        if who != (Who::Seat { led: false }) {
            entry.leader = Leader::Gone;
        }
        // A leader's place in the flight, which it has not taken.
        let placed = match &entry.body {
            Body::Shared(flight) if who == Who::Ticket => Some(flight.clone()),
            _ => None,
        };
        let mut removed = None;
        let flying = entry.is_flying();
        if flying {
            entry.callers -= 1;
            let empty = entry.callers == 0 && !self.limits.lasting;
            shard.counts.left += u64::from(why == Departure::Left);
            if empty {
                if let Body::Shared(flight) = &entry.body {
                    flight.mark_abandoned();
                }
                removed = shard.remove(hash, id);
            }
        } else if entry.phase == Phase::Owed && who == Who::Ticket {
            removed = shard.remove(hash, id);
        }
        drop(guard);
        if let Some(flight) = placed {
            flight.leader_forgotten();
        }
        if let (true, Some(entry)) = (flying, removed) {
            // Its work is dropped here, outside the table: a call with the same key leads anew.
            let _ending = Ending { space: self, hash };
            if let Body::Shared(flight) = &entry.body {
                flight.abandon();
            }
            drop(entry);
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
        let hash = old.hash();
        let mut guard = self.shard(hash);
        let shard = &mut *guard;
        let Some(entry) = shard.find(hash, old.id()) else {
            return Replaced::Landed;
        };
        if !entry.is_flying() {
            return Replaced::Landed;
        }
        let successor = entry.successor.clone();
        if let Some(flight) = successor.filter(|flight| !flight.is_abandoned()) {
            if let Some(entry) = shard.find(hash, flight.id()) {
                entry.callers += usize::from(entry.is_flying());
            }
            shard.counts.joined += 1;
            drop(guard);
            return Replaced::Joined(Seat::joining(flight, false).settle());
        }
        if entry.phase == Phase::Closed {
            return Replaced::Closed;
        }
        let Some(key) = key.take_if(|_| self.admit()) else {
            return Replaced::Full;
        };
        // Open => Closed: nobody else has this key, so the new one takes its place unseen.
        entry.phase = Phase::Closed;
        let id = self.next_id(shard, hash);
        let work = work();
        let flight = Flight::share(
            home,
            Shared {
                key,
                hash,
                id,
                replacement: true,
                work,
                waker: None,
            },
        );
        if let Some(entry) = shard.find(hash, old.id()) {
            entry.successor = Some(flight.clone());
        }
        shard.insert(Entry {
            hash,
            id,
            callers: 1,
            leader: Leader::Seat,
            phase: Phase::Open,
            body: Body::Shared(flight.clone()),
            successor: None,
        });
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
                let entry = shard.table.iter_hash_mut(hash).find(|entry| {
                    entry.hash == hash
                        && matches!(entry.phase, Phase::Open | Phase::Kept(_))
                        && !others.contains(&entry.id)
                });
                entry?.share(home)
            };
            if is_key(flight.key()) {
                return Some(flight);
            }
            others.push(flight.id());
        }
    }

    /// Nobody joins the flight of this key any more, nor what is kept of it.
    pub(crate) fn forget(&self, home: &H, hash: u64, is_key: impl Fn(&H::Key) -> bool) -> bool {
        let Some(flight) = self.search(home, hash, is_key) else {
            return false;
        };
        let mut shard = self.shard(hash);
        let (known, kept) = match shard.find(hash, flight.id()) {
            Some(entry) if entry.phase == Phase::Open => {
                entry.phase = Phase::Closed;
                (true, None)
            }
            Some(_) => (true, shard.unkeep(hash, flight.id())),
            None => (false, None),
        };
        drop(shard);
        drop(kept);
        known
    }

    /// Forgets what is kept of a flight.
    pub(crate) fn expire(&self, hash: u64, id: u64) {
        let kept = self.shard(hash).unkeep(hash, id);
        drop(kept);
    }

    /// How many callers wait for the flight of this key.
    pub(crate) fn waiting(&self, home: &H, hash: u64, is_key: impl Fn(&H::Key) -> bool) -> usize {
        let Some(flight) = self.search(home, hash, is_key) else {
            return 0;
        };
        let mut shard = self.shard(hash);
        match shard.find(hash, flight.id()) {
            Some(entry) if entry.is_flying() => entry.callers,
            _ => 0,
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        let mut sum = Standing::default();
        for shard in &self.shards {
            let shard = lock(&shard.0);
            sum.counts.led += shard.counts.led;
            sum.counts.joined += shard.counts.joined;
            sum.counts.left += shard.counts.left;
            sum.running += shard.running;
            sum.entries += shard.table.len();
            for entry in &shard.table {
                match entry.phase {
                    Phase::Open | Phase::Closed => sum.waiting += entry.callers,
                    Phase::Kept(_) => sum.kept += 1,
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
            for entry in &mut shard.table {
                match entry.phase {
                    Phase::Open | Phase::Closed => {
                        entry.phase = Phase::Closed;
                        flights.push(entry.share(home));
                    }
                    Phase::Kept(_) => kept.push((entry.hash, entry.id)),
                    Phase::Owed => {}
                }
            }
            let kept: Vec<_> = kept
                .into_iter()
                .map(|(hash, id)| shard.unkeep(hash, id))
                .collect();
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
