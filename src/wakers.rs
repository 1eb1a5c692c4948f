//! A set of wakers under somebody else's lock.
//!
//! Cloning, waking and dropping a waker is user code. So nothing here does any of it: whoever holds
//! the lock clones before taking it, and drops or wakes what comes back after giving it up.

use std::{num::NonZeroU32, task::Waker};

use crate::sync::Slab;

/// Where a waiter stands, if it has registered. Small, since every call carries one.
pub(crate) type Key = Option<NonZeroU32>;

/// Wakers of tasks that wait for one event, each under a key its waiter keeps.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    slots: Slab<Option<Waker>>,
}

impl Wakers {
    /// Registers `waker` under `key`, a new one if it is `None`. Gives back the waker it replaces.
    #[must_use = "drop it outside the lock"]
    pub(crate) fn register(&mut self, key: &mut Key, waker: Waker) -> Option<Waker> {
        match *key {
            Some(key) => self.slots[key.get() as usize - 1].replace(waker),
            None => {
                if self.slots.is_empty() {
                    // Of most things only one waits.
                    self.slots.reserve_exact(1);
                }
                let index = self.slots.insert(Some(waker));
                let next = u32::try_from(index + 1).expect("fewer than four billion waiters");
                *key = NonZeroU32::new(next);
                None
            }
        }
    }

    /// Ends the registration `key`. Gives back its waker.
    #[must_use = "drop it outside the lock"]
    pub(crate) fn remove(&mut self, key: &mut Key) -> Option<Waker> {
        self.slots.remove(key.take()?.get() as usize - 1)
    }

    /// Takes every waker. The registrations stay, and register again when they are polled.
    pub(crate) fn take(&mut self) -> WakeList {
        let mut taken = Vec::with_capacity(self.slots.len());
        taken.extend(self.slots.iter_mut().filter_map(|(_, slot)| slot.take()));
        WakeList(taken)
    }
}

/// Wakers to be woken once the lock is given up.
#[derive(Debug, Default)]
#[must_use = "wake it outside the lock"]
pub(crate) struct WakeList(Vec<Waker>);

impl WakeList {
    pub(crate) fn push(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
    }

    pub(crate) fn extend(&mut self, other: WakeList) {
        self.0.extend(other.0);
    }

    pub(crate) fn wake(self) {
        wake_all(self.0.into_iter());
    }
}

/// Wakes them all, whichever of them panics.
pub(crate) fn wake_all(wakers: impl Iterator<Item = Waker>) {
    struct Rest<I: Iterator<Item = Waker>>(I);
    impl<I: Iterator<Item = Waker>> Drop for Rest<I> {
        fn drop(&mut self) {
            self.0.by_ref().for_each(Waker::wake);
        }
    }
    let mut rest = Rest(wakers);
    rest.0.by_ref().for_each(Waker::wake);
}
