//! What is asked of a [`Space`] beside joining and leaving: to replace a flight, to forget one, to count, to
//! end them all.

use std::task::{Poll, Waker};

use super::{
    flight::{Flight, Home, Parcel, Shared},
    seat::Seat,
    shards::Space,
    table::{Body, Counts, Entry, Leader, Phase},
};
use crate::{
    sync::{Arc, lock},
    wakers::Key,
};

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
        let name = shard.name(hash);
        let Some(entry) = shard.table.find(old.name()) else {
            return Replaced::Landed;
        };
        if !entry.is_flying() {
            return Replaced::Landed;
        }
        let Body::Shared { successor, .. } = &mut entry.body else {
            return Replaced::Landed;
        };
        if let Some(flight) = successor.clone().filter(|flight| !flight.is_abandoned()) {
            if let Some(entry) = shard.table.find(flight.name()) {
                entry.callers += u32::from(entry.is_flying());
            }
            shard.counts.joined += 1;
            drop(guard);
            return Replaced::Joined(Seat::joined(flight));
        }
        if entry.phase == Phase::Closed {
            return Replaced::Closed;
        }
        let Some(key) = key.take_if(|_| self.admit()) else {
            return Replaced::Full;
        };
        // Open => Closed: nobody else has this key, so the new one takes its place unseen.
        entry.phase = Phase::Closed;
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
                let entry = shard.table.search(hash, |entry| {
                    matches!(entry.phase, Phase::Open | Phase::Kept)
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
        let (known, kept) = match shard.table.find(flight.name()) {
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
        match shard.table.find(flight.name()) {
            Some(entry) if entry.is_flying() => entry.callers as usize,
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
            sum.running += shard.running as usize;
            sum.entries += shard.table.len();
            for entry in shard.table.iter_mut() {
                match entry.phase {
                    Phase::Open | Phase::Closed => sum.waiting += entry.callers as usize,
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
    pub(crate) fn poll_ended(&self, place: &mut Key, waker: &Waker) -> Poll<()> {
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
    pub(crate) fn forget_ended(&self, place: &mut Key) {
        if place.is_some() {
            let old = lock(&self.ending).remove(place);
            drop(old);
        }
    }
}
