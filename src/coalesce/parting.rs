//! How flights and their callers leave a [`Space`].

use std::time::Instant;

use super::{
    flight::{Flight, Home, Keep, Name, Parcel},
    shards::Space,
    table::{Body, Leader, Phase},
};
use crate::sync::Arc;

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

/// What was unlinked.
pub(crate) enum Unlinked<H: Home> {
    Alone,
    /// `kept`: how long it can still be joined.
    Shared {
        flight: Arc<Flight<H>>,
        kept: Option<Keep>,
    },
}

impl<H: Home> Space<H> {
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
        let Some(entry) = shard.table.find(name) else {
            return Unlinked::Alone;
        };
        shard.running -= 1;
        let shut = shard.shut;
        let spent = match spent {
            Some(spent) => shard.spare.replace(spent),
            None => None,
        };
        let owed = entry.leader == Leader::Ticket && !by_ticket;
        let open = entry.phase == Phase::Open && !shut;
        // (A task's flight may have no callers.)
        let keep = keep.filter(|keep| open && (*keep != Keep::InUse || entry.callers > 0));
        if keep.is_none() && !owed {
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
        if by_ticket {
            entry.leader = Leader::Seat;
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
        let Some(entry) = shard.table.find(name) else {
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
        let flight = match shard.table.find(name).map(|entry| &mut entry.body) {
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
