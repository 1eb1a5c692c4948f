//! The usage word of one instance: who uses it, and whether it may still be used.
//!
//! # One word
//!
//! Everything that decides between a call and an evictor stands in one atomic word:
//!
//! ```text
//! | epoch (32 bits) | flags (8) | count (24) |
//! ```
//!
//! - `count`: uses in progress. A claim raises it, the end of the use lowers it.
//! - `epoch`: +1 per claim. An evictor closes the *exact word* its decision saw. A use that came and
//!   went in between has moved the epoch, so the close is refused, whatever the clock's resolution.
//! - `CLOSED`: no more claims, for ever. With `count` 0: drained, for ever.
//! - `WANTED`: somebody waits for this instance to fall idle. It is in this word, not beside it, so the
//!   release that brings the count to 0 takes it in the same step: with two words, a release that
//!   reads "not wanted" and a wanter that reads "still busy" can both have read the past (loom finds
//!   that even with `SeqCst`).
//! - `BORN`: nobody has claimed it yet. Room is never made of a born instance: between "ready" and
//!   "used" it would be idle, and starters would take it from each other for ever.
//! - `YIELDING`: new claims wait; when the count falls to 0 it closes.
//! - `CUT`: uses in progress shall end now, and a claim that was not used for a call yet is void.
//! - `DEAD`: it was closed because it is no more. A claim that was not used for a call yet is void.
//! - `PINNED`: no policy may close it. It is in this word so that a close decided before it was pinned
//!   is refused.
//!
//! Waiting for any of it is slow-path, and stands beside the word: see `notices.rs`.

use std::{
    fmt,
    sync::OnceLock,
    task::{Poll, Waker},
};

use crate::{
    clock::Clock,
    notices::{Notices, Tell},
    sync::{Arc, Mutex, atomic::AtomicU64, atomic::Ordering},
    wakers::Key,
};

pub(crate) use crate::notices::{Closed, Holdouts, Telling};

const COUNT: u64 = (1 << 24) - 1;
const CLOSED: u64 = 1 << 24;
const WANTED: u64 = 1 << 25;
const BORN: u64 = 1 << 26;
const YIELDING: u64 = 1 << 27;
const CUT: u64 = 1 << 28;
const PINNED: u64 = 1 << 29;
const DEAD: u64 = 1 << 30;
const EPOCH: u64 = 1 << 32;

/// Why an instance must not be used any more.
///
/// With the feature `serde` it is [its word](Self::as_str).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Eviction {
    /// It was unused for its idle bound.
    Idle,
    /// A start needed its room.
    Room,
    /// A start had waited for its room past `yield_after`, and its last call in flight has ended.
    Yield,
    /// More was running than the limit allows.
    Over,
}

impl Eviction {
    /// The reason in one word, for logs and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Eviction::Idle => "idle",
            Eviction::Room => "room",
            Eviction::Yield => "yield",
            Eviction::Over => "over",
        }
    }
}

/// The usage of one instance, counted by its claims.
pub struct Usage {
    word: AtomicU64,
    /// When the last use ended (or when it became ready), by `clock`.
    ended: AtomicU64,
    clock: Clock,
    /// The backend's name, for the errors of its calls.
    name: OnceLock<Arc<str>>,
    pub(crate) notices: Mutex<Notices>,
}

/// Why a claim was not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Closed,
    /// Ask again when woken: see [`Usage::poll_claim`].
    Yielding,
}

/// One reading of the word, which a decision can be based on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look(u64);

impl Look {
    pub(crate) fn count(self) -> u32 {
        (self.0 & COUNT) as u32
    }
    pub(crate) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }
    pub(crate) fn is_born(self) -> bool {
        self.0 & BORN != 0
    }
    pub(crate) fn is_yielding(self) -> bool {
        self.0 & YIELDING != 0
    }
    pub(crate) fn is_cut(self) -> bool {
        self.0 & CUT != 0
    }
    /// A claim that was not used for a call yet must not be any more.
    pub(crate) fn is_void(self) -> bool {
        self.0 & (DEAD | CUT) != 0
    }
    pub(crate) fn is_pinned(self) -> bool {
        self.0 & PINNED != 0
    }
    /// Open and unused: a policy may close it.
    pub(crate) fn is_idle(self) -> bool {
        self.0 & (CLOSED | COUNT | PINNED) == 0
    }
    pub(crate) fn is_drained(self) -> bool {
        self.0 & (CLOSED | COUNT) == CLOSED
    }
}

impl Usage {
    pub(crate) fn new(clock: impl Into<Clock>) -> Arc<Self> {
        let clock = clock.into();
        Arc::new(Self {
            word: AtomicU64::new(BORN),
            ended: AtomicU64::new(clock.checked()),
            clock,
            name: OnceLock::new(),
            notices: Mutex::new(Notices::default()),
        })
    }

    pub(crate) fn set_name(&self, name: Arc<str>) {
        let _ = self.name.set(name);
    }

    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.name.get()
    }

    #[inline]
    pub(crate) fn look(&self) -> Look {
        Look(self.word.load(Ordering::Acquire))
    }

    /// When the last use ended; before the first one, when the instance became ready.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// The recency clock's now.
    pub(crate) fn now(&self) -> u64 {
        self.clock.checked()
    }

    /// Claims the instance for one use.
    #[inline]
    pub(crate) fn claim(self: &Arc<Self>) -> Result<Claim, Refused> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                return Err(Refused::Closed);
            }
            if word & YIELDING != 0 {
                return Err(Refused::Yielding);
            }
            assert!(word & COUNT != COUNT, "16,777,215 uses of one instance");
            let claimed = (word & !BORN).wrapping_add(EPOCH + 1);
            match self.swap(word, claimed) {
                Ok(()) => break,
                Err(now) => word = now,
            }
        }
        Ok(Claim {
            usage: self.clone(),
            cut: None,
            moves_recency: true,
        })
    }

    /// Closes the instance for `why` if the word is still the one `seen`, which must be idle. For those
    /// who decide under a lock: what comes back tells everybody, and must be dropped outside of it.
    pub(crate) fn start_closing(self: &Arc<Self>, seen: Look, why: Eviction) -> Option<Telling> {
        self.start_closing_for(seen, why, None)
    }

    /// The same, with the name of the backend whose start needs the room.
    pub(crate) fn start_closing_for(
        self: &Arc<Self>,
        seen: Look,
        why: Eviction,
        whom: Option<Arc<str>>,
    ) -> Option<Telling> {
        debug_assert!(seen.is_idle());
        let closed = (seen.0 | CLOSED) & !(WANTED | YIELDING);
        self.word
            .compare_exchange(seen.0, closed, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        Some(Telling::new(self.clone(), Tell::Closed(why, whom)))
    }

    /// Closes the instance at once: uses in progress go on, no new one begins. False if it was closed.
    pub(crate) fn close_now(self: &Arc<Self>) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                return false;
            }
            match self.swap(word, (word | CLOSED) & !(WANTED | YIELDING)) {
                Ok(()) => break,
                Err(now) => word = now,
            }
        }
        self.tell_closed(Closed::ByOwner, word & COUNT == 0);
        true
    }

    /// Closes the instance at once since it is no more: a claim in hand is no use.
    pub(crate) fn close_dead(self: &Arc<Self>) {
        self.word.fetch_or(DEAD, Ordering::AcqRel);
        self.close_now();
        self.tell_cut();
    }

    /// Asks for a notice to those who watch when the instance falls idle, and says how it stands now:
    /// if it is idle already there is no notice, and the caller may close it. An instance that nobody
    /// has used yet is not idle to those who ask here.
    pub(crate) fn want(&self) -> Look {
        self.set(WANTED, |word| {
            word & CLOSED != 0 || word & (COUNT | BORN) == 0
        })
    }

    /// Lets new claims wait; the end of the last use in progress closes the instance. If there is
    /// none nothing is changed, and the caller may close it.
    pub(crate) fn start_yielding(&self) -> Look {
        self.set(YIELDING, |word| {
            word & (CLOSED | PINNED) != 0 || word & COUNT == 0
        })
    }

    /// Takes [`start_yielding`](Self::start_yielding) back: those who wait may claim. What comes back
    /// tells them, and must be dropped outside of all locks.
    pub(crate) fn stop_yielding(self: &Arc<Self>) -> Telling {
        self.word.fetch_and(!YIELDING, Ordering::AcqRel);
        Telling::new(self.clone(), Tell::Reopened)
    }

    /// Whether policies may close the instance.
    pub(crate) fn set_pinned(&self, pinned: bool) {
        let before = if pinned {
            self.word.fetch_or(PINNED, Ordering::AcqRel)
        } else {
            self.word.fetch_and(!PINNED, Ordering::AcqRel)
        };
        if (before & PINNED != 0) != pinned {
            self.tell_watching(|watch, key| watch.pinned(key));
        }
    }

    /// Tells every use in progress to end now.
    pub(crate) fn cut(&self) {
        self.word.fetch_or(CUT, Ordering::AcqRel);
        self.tell_cut();
    }

    #[inline]
    fn swap(&self, seen: u64, next: u64) -> Result<(), u64> {
        // A failure may be what is decided on next: with the word comes when the last use ended.
        self.word
            .compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    /// Sets `flag` unless `refuse`, and says how the word stands then.
    fn set(&self, flag: u64, refuse: impl Fn(u64) -> bool) -> Look {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & flag != 0 || refuse(word) {
                return Look(word);
            }
            match self.swap(word, word | flag) {
                Ok(()) => return Look(word | flag),
                Err(now) => word = now,
            }
        }
    }

    /// The end of one use.
    #[inline]
    fn release(self: &Arc<Self>, moves_recency: bool) {
        if moves_recency {
            // Before the count falls: whoever sees the instance idle sees since when. A release that was
            // held up since it read the clock does not set back what a later one has stamped.
            let now = self.clock.now();
            if self.ended.load(Ordering::Relaxed) < now {
                self.ended.store(now, Ordering::Relaxed);
            }
        }
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let mut next = word - 1;
            if next & COUNT == 0 {
                if next & (YIELDING | PINNED) == YIELDING {
                    next = (next | CLOSED) & !YIELDING;
                }
                next &= !WANTED;
            }
            match self.swap(word, next) {
                Ok(()) => {
                    if next & COUNT == 0 && (word | next) & (CLOSED | WANTED) != 0 {
                        self.tell_unused(word, next);
                    }
                    return;
                }
                Err(now) => word = now,
            }
        }
    }

    /// The last use has ended, by the step from `word` to `next`: a flag that it cleared or set is its own
    /// to tell.
    #[cold]
    fn tell_unused(self: &Arc<Self>, word: u64, next: u64) {
        if word & CLOSED != 0 {
            self.tell_drained();
        } else if next & CLOSED != 0 {
            self.tell_closed(Closed::Evicted(Eviction::Yield), true);
        } else if word & WANTED != 0 {
            self.tell_watching(|watch, key| watch.fell_idle(key));
        }
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let look = self.look();
        f.debug_struct("Usage")
            .field("count", &look.count())
            .field("closed", &look.is_closed())
            .field("yielding", &look.is_yielding())
            .finish_non_exhaustive()
    }
}

/// One use in progress. Dropping it ends the use.
pub(crate) struct Claim {
    usage: Arc<Usage>,
    /// Where it is registered to hear of its end.
    cut: Key,
    moves_recency: bool,
}

impl Claim {
    /// Ready when the use is to end now.
    pub(crate) fn poll_cut(&mut self, waker: &Waker) -> Poll<()> {
        self.usage.poll_cut(&mut self.cut, waker)
    }

    /// Hears of it no more, until it asks again.
    pub(crate) fn forget_cut(&mut self) {
        self.usage.forget_cut(&mut self.cut);
    }

    /// Ready when a use that has not begun yet must not begin any more.
    pub(crate) fn poll_void(&mut self, waker: &Waker) -> Poll<()> {
        self.usage.poll_void(&mut self.cut, waker)
    }

    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    pub(crate) fn moves_recency(&self) -> bool {
        self.moves_recency
    }

    /// This use counts while it lasts, but its end is no sign that anybody wants the instance.
    pub(crate) fn keep_recency(&mut self) {
        self.moves_recency = false;
    }
}

impl Drop for Claim {
    #[inline]
    fn drop(&mut self) {
        if self.cut.is_some() {
            self.forget_cut();
        }
        self.usage.release(self.moves_recency);
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.usage).finish()
    }
}
