//! `Anchor`: what keeps the table of an identity space alive, counted apart by threads.
//!
//! Each handle holds the table, and each call until it is done. One `Arc` for all of them would have all
//! threads count in one cache line. So there are several, each on lines of its own: a handle that is
//! cloned takes that of the thread which clones it, and a call that of its handle.
//!
//! They keep the table, and it knows them without keeping them. The first, which is the one that a layer
//! and the services made by it have, keeps the others. When it is gone, those of them stay that are
//! still held, and whoever finds its own gone uses the one it came with.

use std::{
    cell::Cell,
    ops::Deref,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::sync::{Arc, Weak};

/// One of those that keep a `T`.
#[repr(align(128))]
pub(super) struct Anchor<T> {
    kept: Arc<T>,
    /// Which of the others it is.
    place: usize,
    /// The bits of a thread's number that say its place.
    places: usize,
    /// Of the first one only.
    others: Vec<Arc<Anchor<T>>>,
}

/// The others, as what they keep knows them.
pub(super) struct Anchors<T>(OnceLock<Vec<Weak<Anchor<T>>>>);

/// The place of the first one, which no thread has.
const FIRST: usize = usize::MAX;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Of this thread, counted from nought.
#[inline]
fn number() -> usize {
    match NUMBER.get() {
        usize::MAX => first_number(),
        number => number,
    }
}

#[cold]
fn first_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

impl<T> Anchors<T> {
    /// None yet.
    pub(super) fn new() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Anchor<T> {
    /// The first one of a power of two. `anchors` is where `kept` has the others.
    pub(super) fn first(
        kept: Arc<T>,
        others: usize,
        anchors: impl FnOnce(&T) -> &Anchors<T>,
    ) -> Arc<Self> {
        let count = others.next_power_of_two();
        let anchor = |place, others| {
            Arc::new(Self {
                kept: kept.clone(),
                place,
                places: count - 1,
                others,
            })
        };
        let others: Vec<_> = (0..count).map(|place| anchor(place, Vec::new())).collect();
        let known = others.iter().map(Arc::downgrade).collect();
        let unset = anchors(&kept).0.set(known);
        debug_assert!(unset.is_ok(), "there were none yet");
        anchor(FIRST, others)
    }

    /// The same table, held by the anchor of this thread.
    #[inline]
    pub(super) fn near(self: &Arc<Self>, anchors: impl FnOnce(&T) -> &Anchors<T>) -> Arc<Self> {
        let place = number() & self.places;
        if place == self.place {
            return self.clone();
        }
        match self.others.get(place) {
            Some(near) => near.clone(),
            None => self.known(place, anchors(&self.kept)),
        }
    }

    #[inline(never)]
    fn known(self: &Arc<Self>, place: usize, anchors: &Anchors<T>) -> Arc<Self> {
        let known = anchors.0.get().and_then(|known| known.get(place));
        let near = known.and_then(Weak::upgrade);
        near.unwrap_or_else(|| self.clone())
    }

    /// What it keeps, to be held weakly.
    pub(super) fn kept(&self) -> &Arc<T> {
        &self.kept
    }
}

impl<T> Deref for Anchor<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.kept
    }
}
