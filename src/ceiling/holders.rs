//! Who holds room, by what may become of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use crate::{sync::Arc, usage::Usage};

/// Names a holder; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id(pub(super) u64);

/// What may become of the room that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Granted; there is no instance yet.
    Starting,
    /// An instance; whether its use is counted is about to turn out.
    Made,
    /// An instance whose use nobody counts, or one that takes no room: never a victim.
    Uncounted,
    /// Too young to be a victim. Whether it is used is not known.
    Fresh,
    /// A victim, as far as known: it was idle, or nobody has looked yet.
    Idle,
    /// It was in use, and tells when it falls idle.
    Busy,
    /// It closes when its last use ends.
    Yielding,
    /// Its owner said that it is never a victim.
    Pinned,
    /// Closed, or being stopped: its room comes back.
    Leaving,
}

const CLASSES: usize = Class::Leaving as usize + 1;

pub(super) struct Holder {
    pub(super) weight: u64,
    pub(super) class: Class,
    pub(super) start: Option<u64>,
    /// The backend's.
    pub(super) name: Option<Arc<str>>,
    /// Its room stays when it leaves: its successor is about to start.
    reserved: bool,
    /// There is an instance, or was one.
    pub(super) made: bool,
    /// When it was admitted.
    pub(super) since: u64,
    /// How long, once ready, it is no victim; and until when.
    pub(super) residency: u64,
    pub(super) fresh_until: u64,
    pub(super) usage: Option<Arc<Usage>>,
    /// From the clock that stamps its uses to the ceiling's.
    offset: i64,
    /// What it is filed under: for an idle or busy one a lower bound of when its last use ended.
    key: u64,
}

/// All holders.
///
/// A use that ends touches nothing here, so the order of coldness is kept lazily: an entry's key is a
/// lower bound of when the use of the instance last ended, which only ever moves on. The first entry
/// whose key is exact is the coldest of all. What is found in use leaves the order until it falls idle,
/// so it is looked at once and not at every decision. What is filed anew was used since it was filed,
/// and each use is paid for once: a decision costs O(log n) for each victim, and for each instance used
/// since.
#[derive(Default)]
pub(super) struct Holders {
    next: u64,
    all: BTreeMap<Id, Holder>,
    by_start: HashMap<u64, Id>,
    weights: [u64; CLASSES],
    /// By until when they are.
    fresh: BTreeSet<(u64, Id)>,
    /// By coldness.
    idle: BTreeSet<(u64, Id)>,
    busy: BTreeSet<(u64, Id)>,
    used: u64,
    since: u128,
    /// The last one that was taken.
    offset: Option<i64>,
}

/// By how much readings of two clocks that go alike may differ: a coarse one stands still for some milliseconds.
const JITTER: u64 = 20_000_000;

impl Holder {
    /// When its last use ended, by the ceiling's clock.
    fn ended(&self) -> u64 {
        let ended = self.usage.as_ref().map_or(0, |usage| usage.ended());
        ended.saturating_add_signed(self.offset)
    }
}

impl Holders {
    pub(super) fn admit(
        &mut self,
        weight: u64,
        start: Option<u64>,
        name: Option<Arc<str>>,
        residency: u64,
        now: u64,
    ) -> Id {
        let id = Id(self.next);
        self.next += 1;
        self.used += weight;
        self.since += u128::from(now);
        self.weights[Class::Starting as usize] += weight;
        if let Some(start) = start {
            self.by_start.insert(start, id);
        }
        let holder = Holder {
            weight,
            class: Class::Starting,
            start,
            name,
            reserved: false,
            made: false,
            since: now,
            residency,
            fresh_until: 0,
            usage: None,
            offset: 0,
            key: 0,
        };
        self.all.insert(id, holder);
        id
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<Holder> {
        self.set_class(id, Class::Leaving);
        let holder = self.all.remove(&id)?;
        self.weights[holder.class as usize] -= holder.weight;
        self.used -= holder.weight;
        self.since -= u128::from(holder.since);
        if let Some(start) = holder.start {
            if self.by_start.get(&start) == Some(&id) {
                self.by_start.remove(&start);
            }
        }
        Some(holder)
    }

    /// The uses of `id` are counted by `usage` from now on.
    pub(super) fn count(&mut self, id: Id, usage: Arc<Usage>, usage_now: u64, now: u64) {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.usage = Some(usage);
            // One offset for all that are stamped by the same clock, or of two that were used within its steps the later
            // one might seem the colder.
            let offset = now.wrapping_sub(usage_now) as i64;
            let known = self.offset.filter(|known| known.abs_diff(offset) < JITTER);
            holder.offset = known.unwrap_or(offset);
            self.offset = Some(holder.offset);
            holder.fresh_until = now.saturating_add(holder.residency);
        }
    }

    pub(super) fn reserve(&mut self, id: Id) {
        if let Some(holder) = self.all.get_mut(&id) {
            holder.reserved = true;
            self.set_class(id, Class::Leaving);
        }
    }

    pub(super) fn get(&self, id: Id) -> Option<&Holder> {
        self.all.get(&id)
    }

    pub(super) fn by_start(&self, start: u64) -> Option<&Holder> {
        self.all.get(self.by_start.get(&start)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.all.values()
    }

    /// How many hold room that can never be made, for nobody counts their uses.
    pub(super) fn uncounted(&self) -> usize {
        let uncounted = |holder: &&Holder| {
            holder.class == Class::Uncounted && holder.usage.is_none() && holder.weight > 0
        };
        self.iter().filter(uncounted).count()
    }

    /// All that is taken.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn weight(&self, class: Class) -> u64 {
        self.weights[class as usize]
    }

    /// How long the holders have held their room, on average.
    pub(super) fn average_age(&self, now: u64) -> Option<u64> {
        let count = self.all.len() as u128;
        let ages = (u128::from(now) * count).checked_sub(self.since)?;
        u64::try_from(ages.checked_div(count)?).ok()
    }

    /// Files `id` under `class`, at its present coldness.
    pub(super) fn set_class(&mut self, id: Id, class: Class) {
        let Some(holder) = self.all.get_mut(&id) else {
            return;
        };
        let class = match class {
            Class::Leaving if holder.reserved => Class::Starting,
            class => class,
        };
        match holder.class {
            Class::Fresh => self.fresh.remove(&(holder.key, id)),
            Class::Idle => self.idle.remove(&(holder.key, id)),
            Class::Busy => self.busy.remove(&(holder.key, id)),
            _ => false,
        };
        self.weights[holder.class as usize] -= holder.weight;
        self.weights[class as usize] += holder.weight;
        holder.class = class;
        holder.made |= !matches!(class, Class::Starting | Class::Leaving);
        holder.key = match class {
            Class::Fresh => holder.fresh_until,
            _ => holder.ended(),
        };
        match class {
            Class::Fresh => self.fresh.insert((holder.key, id)),
            Class::Idle => self.idle.insert((holder.key, id)),
            Class::Busy => self.busy.insert((holder.key, id)),
            _ => false,
        };
    }

    /// Files `id` anew if its last use ended later than it is filed for. True if it did.
    pub(super) fn moved(&mut self, id: Id) -> bool {
        let Some(holder) = self.all.get(&id) else {
            return true;
        };
        // Two ends at once may stamp in either order; the earlier stamp is as good.
        let moved = holder.class != Class::Fresh && holder.ended() > holder.key;
        if moved {
            self.set_class(id, holder.class);
        }
        moved
    }

    /// The first one filed under `class` after `after`.
    pub(super) fn next(&self, class: Class, after: Option<(u64, Id)>) -> Option<(u64, Id)> {
        let set = match class {
            Class::Fresh => &self.fresh,
            Class::Idle => &self.idle,
            _ => &self.busy,
        };
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        set.range((start, Bound::Unbounded)).next().copied()
    }
}
