//! One shard of the table of flights, and its entries.

use std::{task::Waker, time::Instant};

use super::flight::{Flight, Home, Keep, Name, Parcel, Shared};
use crate::sync::{Arc, HashTable};

/// Below this many places a table is not worth shrinking.
const SMALL: usize = 64;

/// So many entries have a place each, which their name says.
const FEW: usize = 4;

/// The bits of an id that say the place.
const PLACES: u64 = 7;

/// Two threads whose keys meet here hand each other every cache line that both write. So what each call
/// writes stands in one, that of the lock, which takes the first eight of its 64 bytes, and the first
/// entry begins the next.
#[repr(C)]
pub(crate) struct Shard<H: Home> {
    /// Numbers of entries, which no other shard has.
    next: u64,
    /// A box that held a work, for the next one.
    pub(crate) spare: Option<Parcel<H>>,
    pub(crate) counts: Counts,
    /// Flights in existence: led, and their work not dropped yet.
    pub(crate) running: u32,
    step: u16,
    pub(crate) shut: bool,
    pub(crate) table: Table<H>,
}

/// Entries. Most shards have few of them, and finding one by its place costs nothing.
#[repr(C)]
pub(crate) struct Table<H: Home> {
    /// A bit for each place that is taken.
    taken: u8,
    few: [Option<Entry<H>>; FEW],
    /// All others, by hash.
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
    pub(crate) callers: u32,
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
        self.phase == Phase::Open || (self.phase == Phase::Kept && self.is_kept(now))
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

    #[inline]
    pub(crate) fn share(&mut self, home: &H) -> Arc<Flight<H>> {
        match &self.body {
            Body::Shared { flight, .. } => flight.clone(),
            Body::Alone { .. } | Body::Neither => self.convert(home),
        }
    }

    /// Alone => Shared
    #[inline(never)]
    fn convert(&mut self, home: &H) -> Arc<Flight<H>> {
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
            taken: 0,
            few: [const { None }; FEW],
            many: HashTable::new(),
        }
    }

    /// The id of the entry that is inserted next.
    #[inline]
    pub(crate) fn id(&self, number: u64) -> u64 {
        let place = (!self.taken).trailing_zeros();
        (number * (PLACES + 1)) | u64::from(place)
    }

    /// One of this hash for which `is` holds.
    #[inline]
    pub(crate) fn search(
        &mut self,
        hash: u64,
        is: impl Fn(&Entry<H>) -> bool,
    ) -> Option<&mut Entry<H>> {
        let is = |entry: &Entry<H>| entry.name.hash == hash && is(entry);
        let mut rest = self.taken;
        while rest != 0 {
            let place = rest.trailing_zeros() as usize % FEW;
            if self.few[place].as_ref().is_some_and(&is) {
                return self.few[place].as_mut();
            }
            rest &= rest - 1;
        }
        match self.many.is_empty() {
            true => None,
            false => search_in(&mut self.many, hash, is),
        }
    }

    #[inline]
    pub(crate) fn find(&mut self, name: Name) -> Option<&mut Entry<H>> {
        match self.few.get_mut((name.id & PLACES) as usize) {
            Some(place) => place.as_mut().filter(|entry| entry.name.id == name.id),
            None => find_in(&mut self.many, name),
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, entry: Entry<H>) -> &mut Entry<H> {
        let place = (entry.name.id & PLACES) as usize;
        match self.few.get_mut(place) {
            Some(vacant) => {
                self.taken |= 1 << place;
                vacant.insert(entry)
            }
            None => insert_into(&mut self.many, entry),
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, name: Name) -> Option<Entry<H>> {
        let place = (name.id & PLACES) as usize;
        match self.few.get_mut(place) {
            Some(taken) => {
                let entry = taken.take_if(|entry| entry.name.id == name.id)?;
                self.taken &= !(1 << place);
                Some(entry)
            }
            None => self.remove_of_many(name),
        }
    }

    #[inline(never)]
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
        self.taken.count_ones() as usize + self.many.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry<H>> {
        self.few.iter_mut().flatten().chain(&mut self.many)
    }
}

// Apart, so that the usual way is inlined without them.

#[inline(never)]
fn search_in<H: Home>(
    many: &mut HashTable<Entry<H>>,
    hash: u64,
    is: impl Fn(&Entry<H>) -> bool,
) -> Option<&mut Entry<H>> {
    many.find_mut(hash, is)
}

#[inline(never)]
fn find_in<H: Home>(many: &mut HashTable<Entry<H>>, name: Name) -> Option<&mut Entry<H>> {
    many.find_mut(name.hash, |entry| entry.name.id == name.id)
}

#[inline(never)]
fn insert_into<H: Home>(many: &mut HashTable<Entry<H>>, entry: Entry<H>) -> &mut Entry<H> {
    many.insert_unique(entry.name.hash, entry, |entry| entry.name.hash)
        .into_mut()
}

impl<H: Home> Shard<H> {
    /// One of `step`.
    pub(crate) fn new(index: usize, step: usize) -> Self {
        Self {
            next: index as u64,
            spare: None,
            counts: Counts::default(),
            running: 0,
            step: u16::try_from(step).expect("fewer shards than that"),
            shut: false,
            table: Table::new(),
        }
    }

    /// The name of the entry that is inserted next.
    #[inline]
    pub(crate) fn name(&mut self, hash: u64) -> Name {
        self.next += u64::from(self.step);
        let id = self.table.id(self.next);
        Name { hash, id }
    }

    /// Ends the time in which a landed flight can be joined.
    pub(crate) fn unkeep(&mut self, name: Name) -> Option<Entry<H>> {
        let entry = self.table.find(name)?;
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
    #[cold]
    pub(crate) fn unkeep_stale(&mut self, hash: u64, now: Instant) -> Option<Entry<H>> {
        let stale = self.table.search(hash, |entry| {
            entry.phase == Phase::Kept && !entry.is_kept(Some(now))
        });
        let name = stale?.name;
        self.unkeep(name)
    }
}
