//! The keys that exist now.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::{
    error::{Error, ErrorKind},
    lifecycle::entrance::{Entrance, Remembered},
    runtime::Runtime,
    sync::lock,
};

/// One key and its backend.
pub(super) struct Entry<K, L> {
    key: K,
    place: Place,
    /// In the queue of resting entries. Changed under the map's lock.
    queued: AtomicBool,
    pub(super) entrance: Arc<dyn Entrance<L>>,
}

/// Finds an entry again without its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    hash: u64,
    id: u64,
}

/// How many keys there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) keys: usize,
    pub(super) failing: usize,
}

/// The keys that exist, found by hash. Keys are hashed, compared and dropped outside the lock.
pub(super) struct Map<K, L> {
    hasher: RandomState,
    limits: Limits,
    runtime: Runtime,
    next_id: AtomicU64,
    inner: Mutex<Inner<K, L>>,
}

type Entries<K, L> = Vec<Arc<Entry<K, L>>>;

struct Inner<K, L> {
    by_hash: HashMap<u64, Entries<K, L>>,
    count: usize,
    /// Entries that rest but are remembered, to be looked at again; each at most once.
    resting: VecDeque<Arc<Entry<K, L>>>,
}

/// How many resting entries each new key looks at again.
const LOOKS: usize = 2;
/// How many a key that rests looks at while there are too many.
const MOST_LOOKS: usize = 8;

impl<K: Eq + Hash, L> Map<K, L> {
    pub(super) fn new(runtime: Runtime, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            next_id: AtomicU64::new(0),
            hasher: RandomState::new(),
            limits,
            inner: Mutex::new(Inner {
                by_hash: HashMap::new(),
                count: 0,
                resting: VecDeque::new(),
            }),
        })
    }

    pub(super) fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The entry of `key`.
    ///
    /// The entry found is held outside the lock before its key is compared, and an entry that
    /// anybody holds is not forgotten.
    pub(super) fn get(&self, hash: u64, key: &K) -> Option<Arc<Entry<K, L>>> {
        let mut candidates = lock(&self.inner)
            .by_hash
            .get(&hash)
            .cloned()
            .unwrap_or_default();
        let found = candidates.iter().position(|entry| entry.key == *key)?;
        Some(candidates.swap_remove(found))
    }

    /// The entry of `key`, made by `open` if there is none. `open` may be called in vain: of two
    /// who make the same, the first stays.
    pub(super) fn get_or_insert(
        &self,
        hash: u64,
        key: K,
        open: impl FnOnce(&K, Place) -> Result<Arc<dyn Entrance<L>>, Error>,
    ) -> Result<Arc<Entry<K, L>>, Error> {
        let forgotten = self.look_again(LOOKS);
        drop(forgotten);
        if lock(&self.inner).count >= self.limits.keys {
            let forgotten = self.look_again(usize::MAX);
            drop(forgotten);
        }
        let place = Place {
            hash,
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
        };
        let new = Arc::new(Entry {
            entrance: open(&key, place)?,
            place,
            queued: AtomicBool::new(false),
            key,
        });
        let mut known = Vec::new();
        loop {
            let mut inner = lock(&self.inner);
            let now = inner.by_hash.get(&hash).cloned().unwrap_or_default();
            if same(&now, &known) {
                // Nobody came since the keys were compared.
                if inner.count >= self.limits.keys {
                    drop(inner);
                    let limit = self.limits.keys;
                    return Err(Error::new(ErrorKind::TooManyKeys { limit }));
                }
                inner.count += 1;
                inner.by_hash.entry(hash).or_default().push(new.clone());
                drop(inner);
                return Ok(new);
            }
            drop(inner);
            known = now;
            if let Some(first) = known.iter().find(|entry| entry.key == new.key) {
                return Ok(first.clone());
            }
        }
    }

    /// Somebody has the entry who may never start it, and who tells nobody when he lets go of it: it
    /// is looked at again.
    pub(super) fn watch(&self, entry: &Arc<Entry<K, L>>) {
        let mut inner = lock(&self.inner);
        if !entry.queued.swap(true, Ordering::Relaxed) {
            inner.resting.push_back(entry.clone());
        }
    }

    /// A call was refused before it waited: if it was the first of its key, nothing is left of it.
    pub(super) fn refused(&self, entry: Arc<Entry<K, L>>) {
        let place = entry.place;
        drop(entry);
        self.rested(place);
    }

    /// The backend at `place` rests. Forgets it, or keeps it to be looked at again.
    pub(super) fn rested(&self, place: Place) {
        let now = self.runtime.now();
        let mut forgotten = Vec::new();
        let mut inner = lock(&self.inner);
        let bucket = inner.by_hash.get(&place.hash);
        let entry = bucket.and_then(|bucket| {
            let mut entries = bucket.iter();
            entries.find(|entry| entry.place == place).cloned()
        });
        if let Some(entry) = entry.filter(|entry| !entry.queued.load(Ordering::Relaxed)) {
            inner.look_at(entry, now, &mut forgotten);
        }
        // Too many that only fail: the one that failed first is forgotten before its time.
        for _ in 0..MOST_LOOKS {
            if inner.resting.len() <= self.limits.failing {
                break;
            }
            let Some(oldest) = inner.resting.pop_front() else {
                break;
            };
            let failing = oldest.entrance.remembered(now) == Remembered::Failing;
            if failing && oldest.is_held_by_map_alone() {
                inner.forget(&oldest);
                forgotten.push(oldest);
            } else {
                inner.resting.push_back(oldest);
            }
        }
        drop(inner);
        drop(forgotten);
    }

    /// Looks at resting entries again, the one that rests longest first.
    fn look_again(&self, most: usize) -> Entries<K, L> {
        let now = self.runtime.now();
        let mut forgotten = Vec::new();
        let mut inner = lock(&self.inner);
        for _ in 0..most.min(inner.resting.len()) {
            let Some(entry) = inner.resting.pop_front() else {
                break;
            };
            // Those behind it failed later: a short look leaves them, and their order, as they are.
            if most < usize::MAX && entry.entrance.remembered(now) == Remembered::Failing {
                inner.resting.push_front(entry);
                break;
            }
            entry.queued.store(false, Ordering::Relaxed);
            inner.look_at(entry, now, &mut forgotten);
        }
        forgotten
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.inner).count
    }
}

impl<K, L> Entry<K, L> {
    /// No caller and no handle has it. True only under the map's lock, where callers take theirs,
    /// and beside the one reference of whoever asks.
    fn is_held_by_map_alone(self: &Arc<Self>) -> bool {
        Arc::strong_count(&self.entrance) == 1 && Arc::strong_count(self) <= 2
    }
}

impl<K, L> Inner<K, L> {
    /// Forgets an entry of which nothing is left to remember; keeps one that rests but is
    /// remembered; lets go of one that is in use, for it will rest again.
    fn look_at(&mut self, entry: Arc<Entry<K, L>>, now: Instant, forgotten: &mut Entries<K, L>) {
        match entry.entrance.remembered(now) {
            Remembered::Nothing if entry.is_held_by_map_alone() => {
                self.forget(&entry);
                forgotten.push(entry);
            }
            Remembered::InUse => forgotten.push(entry),
            Remembered::Nothing | Remembered::Failing | Remembered::Ordered => {
                entry.queued.store(true, Ordering::Relaxed);
                self.resting.push_back(entry);
            }
        }
    }

    fn forget(&mut self, entry: &Arc<Entry<K, L>>) {
        if let Some(bucket) = self.by_hash.get_mut(&entry.place.hash) {
            let before = bucket.len();
            bucket.retain(|other| !Arc::ptr_eq(other, entry));
            self.count -= before - bucket.len();
            if bucket.is_empty() {
                self.by_hash.remove(&entry.place.hash);
            }
        }
    }
}

fn same<K, L>(one: &Entries<K, L>, other: &Entries<K, L>) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(one, other)| Arc::ptr_eq(one, other))
}
