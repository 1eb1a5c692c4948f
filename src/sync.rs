//! The one place that chooses between std's primitives and loom's.
//!
//! Memory is always std's `Arc` (loom's cannot be a trait object); what decides an interleaving,
//! locks and atomics, is loom's under `--cfg on_demand_loom`.

pub(crate) use std::sync::{Arc, Weak};

#[cfg(on_demand_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(on_demand_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(on_demand_loom)]
pub(crate) use loom::sync::RwLock;
#[cfg(all(feature = "lazy-start", not(on_demand_loom)))]
pub(crate) use std::sync::RwLock;

#[cfg(any(feature = "coalesce", on_demand_loom))]
pub(crate) use hashbrown::HashTable;
pub(crate) use slab::Slab;

/// A value that one takes out and brings back: one step each.
#[cfg(any(feature = "coalesce", on_demand_loom))]
pub(crate) struct Slot<T>(Mutex<Option<T>>);

#[cfg(any(feature = "coalesce", on_demand_loom))]
impl<T> Slot<T> {
    pub(crate) fn new(value: Option<T>) -> Self {
        Self(Mutex::new(value))
    }

    /// Exchanges what is in it. Each sees what was before the exchanges before it.
    #[inline]
    pub(crate) fn swap(&self, value: Option<T>) -> Option<T> {
        std::mem::replace(&mut *lock(&self.0), value)
    }
}

/// The same for what is boxed, in one atomic step and not two.
#[cfg(all(feature = "coalesce", not(on_demand_loom)))]
pub(crate) struct BoxSlot<T>(atomicbox::AtomicOptionBox<T>);

#[cfg(all(feature = "coalesce", not(on_demand_loom)))]
impl<T> BoxSlot<T> {
    pub(crate) const fn empty() -> Self {
        Self(atomicbox::AtomicOptionBox::none())
    }

    /// Exchanges what is in it. Each sees what was before the exchanges before it.
    #[inline]
    pub(crate) fn swap(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        self.0.swap(value, atomic::Ordering::AcqRel)
    }
}

#[cfg(on_demand_loom)]
pub(crate) struct BoxSlot<T>(Slot<Box<T>>);

#[cfg(on_demand_loom)]
impl<T> BoxSlot<T> {
    pub(crate) fn empty() -> Self {
        Self(Slot::new(None))
    }

    pub(crate) fn swap(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        self.0.swap(value)
    }
}

/// Locks, whoever panicked before: no user code runs under a lock of this crate, so what a
/// poisoned lock protects is whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
