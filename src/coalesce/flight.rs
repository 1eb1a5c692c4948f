//! `Flight`: one call that several callers wait for.
//!
//! # Who drives
//!
//! Nobody owns a flight: its work (the inner call) is polled by its callers. The danger is the
//! stall: the one caller whose turn it is may be alive and never be polled again (a
//! `buffer_unordered` whose consumer is busy), and then all others wait for ever. So nobody's turn it
//! is. The work is polled with a waker of the flight's own, its `Signal`, and
//!
//! - a wake of it sets `notified`, takes *all* waiting callers and wakes them outside the lock;
//! - whoever is polled while the flight is *notified and not driven* drives: clears `notified`, sets
//!   `driven`, takes the work out, polls it without a lock and puts it back;
//! - whoever is polled otherwise registers, and never polls the work: extra polls of a caller cost the
//!   inner call nothing;
//! - a wake that comes while the flight is driven only sets `notified`, and takes effect when the work
//!   is back (*park*): then everybody who registered meanwhile is woken, the driver too.
//!
//! No wake is lost: `notified` and `driven` change under one lock, in which a caller also registers.
//! Either the caller sees `notified` and drives, or the wake sees the caller, or the flight is driven
//! and the driver sees both when it parks. And since each wake goes to all, one caller that is polled
//! at all is enough. The cost is a poll per caller and fruitless wake; there is no cheaper way without
//! a task of our own, since no code of ours runs between the work's wake and a caller's poll.
//! (`CoalesceLayer::spawn_on` has the task.)
//!
//! # Landing
//!
//! In this order, by whoever drove: drop the work, so that what it held is released; unlink the
//! flight in the table, so that nobody joins any more (or mark until when it can be joined); set the
//! value; set `landed` and take the callers in one critical section; wake them. A panic of the work
//! lands the flight as well, from the driver's unwinding.
//!
//! The value is taken out to be cloned, as the work is to be polled: a caller that finds it lent waits
//! until it is back. The last caller takes it for good.
//!
//! `tests/loom` runs this file and its neighbours (`caller`, `driving`, `orders`, `parting`, `seat`, `shards`,
//! `signal`, `table`: all that decide an interleaving) through their interleavings.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use super::{
    driving::Driving,
    parting::Departure,
    shards::Space,
    signal::{Note, Signal, Spot},
};
use crate::{
    sync::{
        Arc, BoxSlot, Mutex, Slot,
        atomic::{AtomicBool, Ordering},
        lock,
    },
    wakers::WakeList,
};

/// What keeps the table of flights alive, cheap to clone: an `Arc` around it and more.
pub(crate) trait Home: Clone {
    type Key;
    /// The future that does the work.
    type Work;
    /// The outcome, as each caller is given it.
    type Value;
    /// What each caller needs to know beside it.
    type Tag: Copy;

    fn space(&self) -> &Space<Self>;

    fn tag(&self) -> Self::Tag;

    /// Polls the work of a flight. Once it is done, drops it and says what came of it.
    fn fly(
        &self,
        flight: Name,
        work: Pin<&mut Self::Work>,
        cx: &mut Context<'_>,
    ) -> Poll<Outcome<Self::Value>>;

    /// Whether the box of a work that is done is worth keeping for another.
    const REUSE: bool;

    /// Whether this thread is within `fly` of this flight.
    fn is_flying_here(&self, flight: Name) -> bool;

    /// The outcome of a flight that has none of its own.
    fn lost(&self, how: Lost) -> Self::Value;

    /// What those are told who joined a flight whose outcome is for its leader alone.
    fn apart(&self) -> Self::Value;
}

/// The work, which whoever comes polls.
pub(crate) type Parcel<H> = Pin<Box<<H as Home>::Work>>;

/// Which flight of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) hash: u64,
    /// Of no other flight in this table, ever.
    pub(crate) id: u64,
}

/// What came of the work.
pub(crate) struct Outcome<V> {
    pub(crate) value: V,
    pub(crate) whose: Whose<V>,
    /// Whether it can still be joined.
    pub(crate) keep: Option<Keep>,
}

/// For whom a value is.
pub(crate) enum Whose<V> {
    All,
    /// For the caller that led alone; the others are told [`Home::apart`].
    Leaders,
    /// For all but the caller that led, who has one of its own.
    Others(Box<V>),
}

/// How long what has landed can be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Until(Instant),
    /// As long as anybody who has it uses it: each [leaves](Space::leave) when that is over.
    InUse,
}

/// How a flight ended without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The work panicked.
    Panicked,
    /// It was shut down, or the task that drove it vanished.
    ShutDown,
}

/// A call in flight that more than one caller may wait for.
pub(crate) struct Flight<H: Home> {
    key: H::Key,
    pub(super) name: Name,
    tag: H::Tag,
    /// The caller that led has waited already.
    leader_waits: bool,
    /// It took another's place for having been too slow, and nobody takes its own.
    replacement: bool,
    /// All its callers have left. Set under the shard's lock.
    abandoned: AtomicBool,
    pub(super) signal: Arc<Signal>,
    /// Of `signal`.
    pub(super) waker: Waker,
    /// Since it landed; out while it is lent.
    pub(super) value: BoxSlot<H::Value>,
    /// Somebody found the value lent.
    pub(super) wanted: AtomicBool,
    /// Out while it is polled; never here if a task has it.
    pub(super) work: Slot<Parcel<H>>,
    home: Mooring<H>,
    pub(super) cargo: Mutex<Cargo<H>>,
}

/// What ties a flight to its table.
enum Mooring<H> {
    /// As long as it exists: it leaves the table when it lands.
    Fast(H),
    /// `None` once it has landed to be kept in the table, which must not keep itself.
    Loose(Mutex<Option<H>>),
}

pub(super) struct Cargo<H: Home> {
    /// What only the caller that led may have.
    pub(super) private: Option<H::Value>,
    /// The caller that led is still here.
    led: bool,
    /// Those who found the value lent.
    borrowers: WakeList,
}

/// How a flight comes to be shared.
pub(crate) struct Shared<H: Home> {
    pub(crate) key: H::Key,
    pub(crate) name: Name,
    pub(crate) replacement: bool,
    /// `None`: it is being polled.
    pub(crate) work: Option<Parcel<H>>,
    /// The waker with which it was polled last.
    pub(crate) waker: Option<Waker>,
}

impl<H: Home> Flight<H> {
    /// Notified from the start: the work has not been polled with this flight's waker yet.
    pub(crate) fn share(home: &H, from: Shared<H>) -> Arc<Self> {
        let leader_waits = from.waker.is_some();
        let signal = Signal::new(from.work.is_none(), from.waker);
        Arc::new(Self {
            key: from.key,
            name: from.name,
            tag: home.tag(),
            leader_waits,
            replacement: from.replacement,
            abandoned: AtomicBool::new(false),
            waker: Waker::from(signal.clone()),
            signal,
            value: BoxSlot::empty(),
            wanted: AtomicBool::new(false),
            work: Slot::new(from.work),
            home: match home.space().limits.keeps {
                true => Mooring::Loose(Mutex::new(Some(home.clone()))),
                false => Mooring::Fast(home.clone()),
            },
            cargo: Mutex::new(Cargo {
                private: None,
                led: true,
                borrowers: WakeList::default(),
            }),
        })
    }

    pub(crate) fn key(&self) -> &H::Key {
        &self.key
    }

    pub(crate) fn name(&self) -> Name {
        self.name
    }

    pub(crate) fn tag(&self) -> H::Tag {
        self.tag
    }

    pub(crate) fn is_replacement(&self) -> bool {
        self.replacement
    }

    /// The table, at least until it has landed.
    pub(crate) fn home(&self) -> Option<H> {
        self.with_home(H::clone)
    }

    /// The same, to be looked at.
    #[inline]
    pub(super) fn with_home<R>(&self, look: impl FnOnce(&H) -> R) -> Option<R> {
        match &self.home {
            Mooring::Fast(home) => Some(look(home)),
            Mooring::Loose(home) => {
                let home = lock(home).clone();
                home.as_ref().map(look)
            }
        }
    }

    /// Where the caller that led waits.
    pub(super) fn leader_spot(&self) -> Spot {
        let note = Note {
            led: true,
            departure: Departure::Left,
            done: false,
        };
        match self.leader_waits {
            true => Spot::first(note),
            false => Spot::new(note),
        }
    }

    /// The caller that led is gone, and what only it might have with it.
    pub(super) fn leader_left(&self) {
        let private = {
            let mut cargo = lock(&self.cargo);
            cargo.led = false;
            cargo.private.take()
        };
        drop(private);
    }

    /// The same, of one that never knew that the flight was shared.
    pub(crate) fn leader_left_early(&self) {
        self.signal.forget(&mut self.leader_spot());
        self.leader_left();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// All its callers are gone.
    pub(crate) fn mark_abandoned(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Drops the work of an abandoned flight.
    pub(crate) fn abandon(&self) {
        let work = self.work.swap(None);
        drop(work);
    }

    /// Sets the outcome, after the flight was unlinked, and tells all. `private` is for the caller that
    /// led, instead of `value`.
    pub(super) fn publish(&self, value: H::Value, private: Option<H::Value>, kept: Option<Keep>) {
        self.value.swap(Some(Box::new(value)));
        let apart = private.is_some();
        let mut gone = None;
        if apart {
            let mut cargo = lock(&self.cargo);
            if cargo.led {
                cargo.private = private;
            } else {
                gone = private;
            }
        }
        self.signal.land(apart);
        drop(gone);
        if let Some(Keep::Until(_)) = kept {
            self.forget_home();
        }
    }

    /// It stays in the table, which it must not keep.
    pub(crate) fn forget_home(&self) {
        match &self.home {
            Mooring::Fast(_) => unreachable!("such a table keeps nothing"),
            Mooring::Loose(home) => {
                let home = lock(home).take();
                drop(home);
            }
        }
    }

    /// Takes the value, to copy it. `None` while another caller does: then `waker` is woken after that.
    #[inline]
    pub(super) fn borrow(&self, waker: &Waker) -> Option<Box<H::Value>> {
        self.value.swap(None).or_else(|| self.wait_for_loan(waker))
    }

    /// Whoever brings the value back swaps it in and then looks whether it is wanted; this one says so
    /// and then swaps: the later of the two swaps sees what was before the earlier.
    #[cold]
    fn wait_for_loan(&self, waker: &Waker) -> Option<Box<H::Value>> {
        let waker = waker.clone();
        {
            let mut cargo = lock(&self.cargo);
            cargo.borrowers.push(Some(waker));
            self.wanted.store(true, Ordering::Relaxed);
        }
        self.value.swap(None)
    }

    #[cold]
    pub(super) fn wake_borrowers(&self) {
        let borrowers = {
            let mut cargo = lock(&self.cargo);
            self.wanted.store(false, Ordering::Relaxed);
            std::mem::take(&mut cargo.borrowers)
        };
        borrowers.wake();
    }

    /// The work is here again; nobody takes it before the signal says so.
    pub(super) fn put_back(&self, driving: &mut Driving<'_, H>) {
        driving.armed = false;
        let before = self.work.swap(driving.work.take());
        debug_assert!(before.is_none(), "it was out");
    }

    /// Puts the work back. `waker` is the caller's who drove. Ready: it was aborted, and has landed.
    pub(super) fn park(
        &self,
        spot: &mut Spot,
        mut driving: Driving<'_, H>,
        waker: Waker,
    ) -> Poll<()> {
        self.put_back(&mut driving);
        if self.signal.park(spot, waker) {
            return Poll::Pending;
        }
        self.take_again(driving);
        Poll::Ready(())
    }

    /// It was aborted while it was out: drops it and tells all.
    pub(super) fn take_again(&self, mut driving: Driving<'_, H>) {
        driving.work = self.work.swap(None);
        driving.armed = true;
        driving.give_up(Lost::ShutDown);
    }

    /// For the task that drives: ready when it is to end.
    pub(crate) fn poll_aborted(&self, waker: &Waker) -> Poll<()> {
        self.signal.poll_aborted(waker)
    }

    /// Ends the flight unfinished, telling all: now, or when whoever drives it comes back.
    pub(crate) fn abort(&self, home: &H) {
        if self.signal.abort() {
            let work = self.work.swap(None);
            Driving::of(home, self.name, work).give_up(Lost::ShutDown);
        }
    }
}
