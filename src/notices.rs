//! Notices: who waits for what of a usage word, and how it is told.
//!
//! Wakers stand under a lock beside the word. Whoever changes the word does so *before* it takes that
//! lock, and whoever waits registers under the lock and *then* reads the word again: one of the two sees
//! the other.
//!
//! Nothing is woken, told or dropped under the lock.

use std::{any::Any, mem, task::Poll, task::Waker, time::Duration};

use crate::{
    seldom::Seldom,
    sync::{Arc, Mutex, Weak, lock},
    usage::{Claim, Eviction, Look, Refused, Usage},
    wakers::{Key, WakeList, Wakers},
};

/// Somebody who decides over instances, and knows each by a key.
///
/// Told outside of all locks, after the fact: what it is told of may be the past already, so it
/// looks at the word again.
pub(crate) trait Watch: Send + Sync {
    /// The instance was [wanted](Usage::want), and fell idle.
    fn fell_idle(&self, key: u64);
    /// The instance was closed, by whomever.
    fn closed(&self, key: u64);
    /// Whether the instance is pinned has changed.
    fn pinned(&self, key: u64);
    /// Its idle bound is to be `bound` from now on.
    fn set_idle_after(&self, key: u64, bound: Option<Duration>) {
        let _ = (key, bound);
    }
}

/// How an instance was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    /// By a policy, while it was idle.
    Evicted(Eviction),
    /// By its owner, whatever was in flight.
    ByOwner,
}

/// Those who wait.
#[derive(Default)]
pub(crate) struct Notices {
    /// Set once, after `CLOSED`.
    closed: Option<Closed>,
    watching: Vec<(Weak<dyn Watch>, u64)>,
    /// Those who wait for `closed`.
    closing: Wakers,
    /// Those who wait for `CLOSED` and count 0.
    draining: Wakers,
    /// Uses that must hear of `CUT`, and those that have not begun yet of `DEAD` as well.
    cutting: Wakers,
    rare: Seldom<Rare>,
}

/// What few instances ever have.
#[derive(Default)]
struct Rare {
    /// The backend whose start needs its room.
    room_for: Option<Arc<str>>,
    /// Those whose claim waits while `YIELDING`.
    yielding: Wakers,
    /// What is held until the last use has ended.
    parting: Vec<Box<dyn Any + Send>>,
    holdouts: Weak<Holdouts>,
}

impl Notices {
    fn take_yielding(&mut self) -> WakeList {
        let rare = self.rare.get_mut();
        rare.map_or_else(WakeList::default, |rare| rare.yielding.take())
    }

    fn holdouts(&self) -> Option<Arc<Holdouts>> {
        self.rare.get()?.holdouts.upgrade()
    }
}

/// Leases whose claim was refused, and that still hold the service they would have used: no uses, but
/// they keep the instance's resources all the same, for as long as they wait for its claim or until they
/// are dropped. Each holds a clone of this, and with the last of them goes what is held for the
/// instance's end.
#[derive(Default)]
pub(crate) struct Holdouts {
    parting: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Usage {
    /// Claims the instance; while it is yielding, registers `waker` under `key` and is pending.
    pub(crate) fn poll_claim(
        self: &Arc<Self>,
        key: &mut Key,
        waker: &Waker,
    ) -> Poll<Result<Claim, Refused>> {
        match self.claim() {
            Err(Refused::Yielding) => {}
            decided => {
                self.forget_claim(key);
                return Poll::Ready(decided);
            }
        }
        let waker = waker.clone();
        let mut notices = lock(&self.notices);
        let old = notices.rare.make().yielding.register(key, waker);
        drop(notices);
        drop(old);
        match self.claim() {
            Err(Refused::Yielding) => Poll::Pending,
            decided => {
                self.forget_claim(key);
                Poll::Ready(decided)
            }
        }
    }

    /// Ends the registration of [`poll_claim`](Self::poll_claim).
    pub(crate) fn forget_claim(&self, key: &mut Key) {
        if key.is_some() {
            let old = lock(&self.notices).rare.make().yielding.remove(key);
            drop(old);
        }
    }

    /// Tells `watch` from now on what becomes of the instance, which it knows as `key`. What was
    /// before is in the word: look at it afterwards.
    pub(crate) fn watch(&self, watch: Weak<dyn Watch>, key: u64) {
        let mut notices = lock(&self.notices);
        // Few watch, for long.
        notices.watching.reserve_exact(1);
        notices.watching.push((watch, key));
    }

    /// Sets the idle bound, if anything keeps one for this instance: `None` is never for age, zero is
    /// pinned.
    pub(crate) fn set_idle_after(&self, bound: Option<Duration>) {
        self.tell_watching(|watch, key| watch.set_idle_after(key, bound));
    }

    /// Pending until uses in progress are to end now.
    pub(crate) fn poll_cut(&self, key: &mut Key, waker: &Waker) -> Poll<()> {
        self.poll_ending(key, waker, Look::is_cut)
    }

    /// Pending until claims that were not used for a call yet are void.
    pub(crate) fn poll_void(&self, key: &mut Key, waker: &Waker) -> Poll<()> {
        self.poll_ending(key, waker, Look::is_void)
    }

    fn poll_ending(&self, key: &mut Key, waker: &Waker, ended: fn(Look) -> bool) -> Poll<()> {
        if ended(self.look()) {
            return Poll::Ready(());
        }
        let waker = waker.clone();
        let old = lock(&self.notices).cutting.register(key, waker);
        drop(old);
        if ended(self.look()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Ends the registration of [`poll_cut`](Self::poll_cut) and [`poll_void`](Self::poll_void).
    pub(crate) fn forget_cut(&self, key: &mut Key) {
        if key.is_some() {
            let old = lock(&self.notices).cutting.remove(key);
            drop(old);
        }
    }

    /// Pending until the instance is closed.
    pub(crate) fn poll_closed(&self, key: &mut Key, waker: &Waker) -> Poll<Closed> {
        let waker = waker.clone();
        let mut notices = lock(&self.notices);
        let (old, poll) = match notices.closed {
            Some(closed) => (notices.closing.remove(key), Poll::Ready(closed)),
            None => (notices.closing.register(key, waker), Poll::Pending),
        };
        drop(notices);
        drop(old);
        poll
    }

    /// Ends the registration of [`poll_closed`](Self::poll_closed).
    pub(crate) fn forget_closed(&self, key: &mut Key) {
        if key.is_some() {
            let old = lock(&self.notices).closing.remove(key);
            drop(old);
        }
    }

    /// Pending until the instance is closed and its last use has ended.
    pub(crate) fn poll_drained(&self, key: &mut Key, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut notices = lock(&self.notices);
        let (old, poll) = if self.look().is_drained() {
            (notices.draining.remove(key), Poll::Ready(()))
        } else {
            (notices.draining.register(key, waker), Poll::Pending)
        };
        drop(notices);
        drop(old);
        poll
    }

    /// Ends the registration of [`poll_drained`](Self::poll_drained).
    pub(crate) fn forget_drained(&self, key: &mut Key) {
        if key.is_some() {
            let old = lock(&self.notices).draining.remove(key);
            drop(old);
        }
    }

    /// Holds `what` until the instance is closed, its last use has ended and no
    /// [holdout](Self::hold_out) is left.
    pub(crate) fn hold_until_drained(&self, what: Box<dyn Any + Send>) {
        let mut notices = lock(&self.notices);
        if self.look().is_drained() {
            let holdouts = notices.holdouts();
            drop(notices);
            Self::part(holdouts, vec![what]);
        } else {
            notices.rare.make().parting.push(what);
        }
    }

    /// For a lease whose claim was refused, to keep for as long as it keeps what it would have used.
    pub(crate) fn hold_out(&self) -> Arc<Holdouts> {
        let mut notices = lock(&self.notices);
        notices.holdouts().unwrap_or_else(|| {
            let holdouts = Arc::default();
            notices.rare.make().holdouts = Arc::downgrade(&holdouts);
            holdouts
        })
    }

    /// Drops `parting`, or has it dropped by the last of the holdouts. Not under a lock.
    fn part(holdouts: Option<Arc<Holdouts>>, parting: Vec<Box<dyn Any + Send>>) {
        match holdouts {
            Some(holdouts) => lock(&holdouts.parting).extend(parting),
            None => drop(parting),
        }
    }

    /// The backend whose start needed its room, once it was evicted for that.
    pub(crate) fn room_for(&self) -> Option<Arc<str>> {
        lock(&self.notices).rare.get()?.room_for.clone()
    }

    /// It may be evicted for a start of `whom`.
    pub(crate) fn set_room_for(&self, whom: Option<Arc<str>>) {
        if whom.is_some() {
            lock(&self.notices).rare.make().room_for = whom;
        }
    }

    pub(crate) fn tell_closed(&self, how: Closed, drained: bool) {
        let mut notices = lock(&self.notices);
        notices.closed = Some(how);
        let mut wake = notices.closing.take();
        wake.extend(notices.take_yielding());
        drop(notices);
        wake.wake();
        self.tell_watching(|watch, key| watch.closed(key));
        if drained {
            self.tell_drained();
        }
    }

    pub(crate) fn tell_drained(&self) {
        let mut notices = lock(&self.notices);
        let rare = notices.rare.get_mut();
        let parting = rare.map(|rare| mem::take(&mut rare.parting));
        let holdouts = notices.holdouts();
        let wake = notices.draining.take();
        drop(notices);
        Self::part(holdouts, parting.unwrap_or_default());
        wake.wake();
    }

    pub(crate) fn tell_cut(&self) {
        let wake = lock(&self.notices).cutting.take();
        wake.wake();
    }

    pub(crate) fn tell_watching(&self, tell: impl Fn(&dyn Watch, u64)) {
        let watching = lock(&self.notices).watching.clone();
        for (watch, key) in watching {
            if let Some(watch) = watch.upgrade() {
                tell(&*watch, key);
            }
        }
    }
}

/// A change of the word that was made under somebody's lock, and is still to be told. Dropping it
/// tells: outside of all locks, since it wakes and drops what others own.
#[must_use = "drop it outside of all locks"]
pub(crate) struct Telling {
    usage: Arc<Usage>,
    what: Tell,
}

pub(crate) enum Tell {
    Closed(Eviction, Option<Arc<str>>),
    Reopened,
}

impl Telling {
    pub(crate) fn new(usage: Arc<Usage>, what: Tell) -> Self {
        Self { usage, what }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        match &mut self.what {
            Tell::Closed(why, whom) => {
                if *why == Eviction::Room {
                    self.usage.set_room_for(whom.take());
                }
                self.usage.tell_closed(Closed::Evicted(*why), true);
            }
            Tell::Reopened => {
                let wake = lock(&self.usage.notices).take_yielding();
                wake.wake();
            }
        }
    }
}
