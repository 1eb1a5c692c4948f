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
//! `tests/loom` runs this file and its neighbours `caller`, `shards`, `signal` and `table` through their
//! interleavings.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Instant,
};

use super::{
    shards::{Departure, Space, Unlinked, Who},
    signal::{Note, Signal, Spot, Turned},
};
use crate::{
    sync::{
        Arc, Mutex, Slot,
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

    fn space(&self) -> &Space<Self>;

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
    name: Name,
    /// The caller that led has waited already.
    leader_waits: bool,
    /// It took another's place for having been too slow, and nobody takes its own.
    replacement: bool,
    /// All its callers have left. Set under the shard's lock.
    abandoned: AtomicBool,
    signal: Arc<Signal>,
    /// Of `signal`.
    waker: Waker,
    /// Since it landed; out while it is lent.
    value: Slot<H::Value>,
    /// Somebody found the value lent.
    wanted: AtomicBool,
    cargo: Mutex<Cargo<H>>,
}

struct Cargo<H: Home> {
    /// `None` once it is abandoned, or has landed to be kept in the table, which must not keep itself.
    home: Option<H>,
    /// Out while it is polled; never here if a task has it.
    work: Option<Parcel<H>>,
    /// What only the caller that led may have.
    private: Option<H::Value>,
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
            leader_waits,
            replacement: from.replacement,
            abandoned: AtomicBool::new(false),
            waker: Waker::from(signal.clone()),
            signal,
            value: Slot::empty(),
            wanted: AtomicBool::new(false),
            cargo: Mutex::new(Cargo {
                home: Some(home.clone()),
                work: from.work,
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

    pub(crate) fn is_replacement(&self) -> bool {
        self.replacement
    }

    /// The table, at least until it has landed.
    pub(crate) fn home(&self) -> Option<H> {
        lock(&self.cargo).home.clone()
    }

    /// Where the caller that led waits.
    fn leader_spot(&self) -> Spot {
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
    fn leader_left(&self) {
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
        let (work, home) = {
            let mut cargo = lock(&self.cargo);
            (cargo.work.take(), cargo.home.take())
        };
        drop(work);
        drop(home);
    }

    /// Sets the outcome, after the flight was unlinked, and tells all. `private` is for the caller that
    /// led, instead of `value`.
    fn publish(&self, value: H::Value, private: Option<H::Value>, kept: Option<Keep>) {
        self.value.swap(Some(Box::new(value)));
        let apart = private.is_some();
        let mut gone = (None, None);
        if apart || matches!(kept, Some(Keep::Until(_))) {
            let mut cargo = lock(&self.cargo);
            if cargo.led {
                cargo.private = private;
            } else {
                gone.0 = private;
            }
            if let Some(Keep::Until(_)) = kept {
                gone.1 = cargo.home.take();
            }
        }
        self.signal.land(apart);
        drop(gone);
    }

    /// It stays in the table, which it must not keep.
    pub(crate) fn forget_home(&self) {
        let home = lock(&self.cargo).home.take();
        drop(home);
    }

    /// Takes the value, to copy it. `None` while another caller does: then `waker` is woken after that.
    #[inline]
    fn borrow(&self, waker: &Waker) -> Option<Box<H::Value>> {
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
    fn wake_borrowers(&self) {
        let borrowers = {
            let mut cargo = lock(&self.cargo);
            self.wanted.store(false, Ordering::Relaxed);
            std::mem::take(&mut cargo.borrowers)
        };
        borrowers.wake();
    }

    /// The work is here again; nobody takes it before the signal says so.
    fn put_back(&self, driving: &mut Driving<'_, H>) {
        driving.armed = false;
        lock(&self.cargo).work = driving.work.take();
    }

    /// It was aborted while it was out: drops it and tells all.
    fn take_again(&self, mut driving: Driving<'_, H>) {
        driving.work = lock(&self.cargo).work.take();
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
            let work = lock(&self.cargo).work.take();
            Driving::of(home, self.name, work).give_up(Lost::ShutDown);
        }
    }
}

/// A caller's place in a shared flight. Dropping it leaves.
pub(crate) struct Seat<H: Home> {
    flight: Arc<Flight<H>>,
    spot: Spot,
}

/// What a caller is to do now.
pub(crate) enum Turn<H: Home> {
    /// Collect.
    Landed,
    /// Poll the work by [`Seat::drive`], then land or park it, with this waker.
    Drive(H, Option<Parcel<H>>, Waker),
    /// Registered. `driven`: somebody polls the work just now.
    Wait { driven: bool },
}

impl<H: Home> Seat<H> {
    /// Of one who does not know yet whether it has the same key. `full`: it is not counted in.
    pub(crate) fn joining(flight: Arc<Flight<H>>, full: bool) -> Self {
        let note = Note {
            led: false,
            departure: Departure::Mistaken,
            done: full,
        };
        let spot = Spot::new(note);
        Self { flight, spot }
    }

    /// It has the same key.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.spot.note.departure = Departure::Left;
    }

    /// Of the caller that led.
    pub(crate) fn leading(flight: Arc<Flight<H>>) -> Self {
        let spot = flight.leader_spot();
        Self { flight, spot }
    }

    pub(crate) fn flight(&self) -> &Arc<Flight<H>> {
        &self.flight
    }

    /// Whether this caller led.
    pub(crate) fn led(&self) -> bool {
        self.spot.note.led
    }

    /// Leaves, for another reason than being dropped.
    pub(crate) fn depart(mut self, how: Departure) {
        self.spot.note.departure = how;
    }

    #[inline]
    pub(crate) fn turn(&mut self, waker: &Waker) -> Turn<H> {
        let signal = &self.flight.signal;
        if signal.has_landed() {
            return Turn::Landed;
        }
        match signal.turn(&mut self.spot, waker) {
            Turned::Landed => Turn::Landed,
            Turned::NotOurs { driven } => Turn::Wait { driven },
            Turned::Ours(waker) => {
                let mut cargo = lock(&self.flight.cargo);
                let home = cargo.home.clone();
                let home = home.expect("what is driven has not landed");
                Turn::Drive(home, cargo.work.take(), waker)
            }
        }
    }

    /// Drives, with what it was given for it.
    pub(crate) fn drive<'a>(&self, home: &'a H, work: Option<Parcel<H>>) -> Driving<'a, H> {
        Driving::of(home, self.flight.name, work)
    }

    /// Unlinks the flight, or lets it be joined for a while; tells all.
    pub(crate) fn land(&self, driving: Driving<'_, H>, outcome: Outcome<H::Value>) {
        driving.land_shared(&self.flight, outcome);
    }

    /// The waker that the work is polled with.
    pub(crate) fn waker(&self) -> &Waker {
        &self.flight.waker
    }

    /// Puts the work back. `waker` is this caller's. False: it was aborted, and has landed.
    pub(crate) fn park(&mut self, mut driving: Driving<'_, H>, waker: Waker) -> bool {
        self.flight.put_back(&mut driving);
        let parked = self.flight.signal.park(&mut self.spot, waker);
        if !parked {
            self.flight.take_again(driving);
        }
        parked
    }

    /// Puts the work into a flight that was shared while this caller, which led, polled it alone.
    pub(crate) fn adopt(&mut self, mut driving: Driving<'_, H>) {
        self.flight.put_back(&mut driving);
        if !self.flight.signal.adopt() {
            self.flight.take_again(driving);
        }
    }

    /// Takes the outcome of a flight that has landed, made by `copy` unless nobody else can ask for
    /// it. Pending while another caller copies it.
    pub(crate) fn collect(
        &mut self,
        waker: &Waker,
        copy: impl FnOnce(&H::Value) -> H::Value,
    ) -> Poll<H::Value> {
        if self.spot.note.led && self.flight.signal.has_landed_apart() {
            let private = lock(&self.flight.cargo).private.take();
            if let Some(private) = private {
                self.spot.note.done = true;
                return Poll::Ready(private);
            }
        }
        let Some(value) = self.flight.borrow(waker) else {
            return Poll::Pending;
        };
        if Arc::strong_count(&self.flight) == 1 {
            // Nobody else is here, and nobody can join what is not in the table.
            self.spot.note.done = true;
            return Poll::Ready(*value);
        }
        let loan = Loan {
            flight: &self.flight,
            value: Some(value),
        };
        let copied = loan.value.as_deref().map(copy);
        drop(loan);
        self.spot.note.done = true;
        Poll::Ready(copied.expect("it is lent to us"))
    }
}

/// Leaves: the last to leave drops the work.
impl<H: Home> Drop for Seat<H> {
    fn drop(&mut self) {
        if self.spot.note.done {
            return;
        }
        let flight = &*self.flight;
        flight.signal.forget(&mut self.spot);
        if let Some(home) = flight.home() {
            let who = Who::Seat {
                led: self.spot.note.led,
            };
            home.space()
                .leave(flight.name, who, self.spot.note.departure);
        }
        if self.spot.note.led {
            flight.leader_left();
        }
    }
}

/// The value of a flight, out to be copied. Comes back when it is dropped.
struct Loan<'a, H: Home> {
    flight: &'a Flight<H>,
    value: Option<Box<H::Value>>,
}

impl<H: Home> Drop for Loan<'_, H> {
    #[inline]
    fn drop(&mut self) {
        self.flight.value.swap(self.value.take());
        if self.flight.wanted.load(Ordering::Relaxed) {
            self.flight.wake_borrowers();
        }
    }
}

/// The work of a flight, out to be polled. Dropped before it is landed or put back, which is a panic
/// of the work's, it lands the flight as `Panicked`.
pub(crate) struct Driving<'a, H: Home> {
    home: &'a H,
    name: Name,
    /// By the caller that led, which does not know whether anybody joined.
    by_ticket: bool,
    work: Option<Parcel<H>>,
    armed: bool,
}

/// How a flight landed.
pub(crate) enum Landing<H: Home> {
    /// Nobody else has joined: the outcome is the driver's.
    Alone(H::Value),
    /// Everybody is told.
    Told(Arc<Flight<H>>),
}

impl<'a, H: Home> Driving<'a, H> {
    fn of(home: &'a H, name: Name, work: Option<Parcel<H>>) -> Self {
        Self {
            home,
            name,
            by_ticket: false,
            work,
            armed: true,
        }
    }

    /// Of a call that nobody has joined, as far as is known.
    #[inline]
    pub(crate) fn alone(home: &'a H, name: Name, work: Parcel<H>) -> Self {
        Self {
            home,
            name,
            by_ticket: true,
            work: Some(work),
            armed: true,
        }
    }

    /// By a task, which has the work itself.
    pub(crate) fn by_task(home: &'a H, flight: &Flight<H>) -> Self {
        Self::of(home, flight.name, None)
    }

    #[inline]
    pub(crate) fn fly(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<H::Value>> {
        let work = self.work.as_mut().expect("the work is out");
        self.home.fly(self.name, work.as_mut(), cx)
    }

    /// A task's, between two polls.
    pub(crate) fn release(mut self) {
        self.armed = false;
    }

    /// Takes the work, to put it back into the table.
    #[inline]
    pub(crate) fn into_work(mut self) -> Option<Parcel<H>> {
        self.armed = false;
        self.work.take()
    }

    /// Unlinks the flight, or lets it be joined for a while; tells all.
    #[inline]
    pub(crate) fn land(mut self, outcome: Outcome<H::Value>) -> Landing<H> {
        match self.unlink(outcome.keep) {
            (None, _) => Landing::Alone(match outcome.whose {
                Whose::All | Whose::Leaders => outcome.value,
                Whose::Others(private) => *private,
            }),
            (Some(flight), kept) => {
                self.tell(&flight, outcome, kept);
                Landing::Told(flight)
            }
        }
    }

    /// The same, of a flight that is known.
    pub(crate) fn land_shared(mut self, flight: &Flight<H>, outcome: Outcome<H::Value>) {
        let (_, kept) = self.unlink(outcome.keep);
        self.tell(flight, outcome, kept);
    }

    fn tell(&self, flight: &Flight<H>, outcome: Outcome<H::Value>, kept: Option<Keep>) {
        let (value, private) = match outcome.whose {
            Whose::All => (outcome.value, None),
            Whose::Leaders => (self.home.apart(), Some(outcome.value)),
            Whose::Others(private) => (outcome.value, Some(*private)),
        };
        flight.publish(value, private, kept);
    }

    /// Lands it without an outcome.
    pub(crate) fn give_up(mut self, how: Lost) {
        self.work = None;
        self.lose(how);
    }

    /// The work is dropped.
    #[cold]
    fn lose(&mut self, how: Lost) {
        if let (Some(flight), _) = self.unlink(None) {
            flight.publish(self.home.lost(how), None, None);
        }
    }

    /// What was unlinked, if it is shared, and whether it is kept.
    #[inline]
    fn unlink(&mut self, keep: Option<Keep>) -> (Option<Arc<Flight<H>>>, Option<Keep>) {
        self.armed = false;
        let spent = if H::REUSE { self.work.take() } else { None };
        let space = self.home.space();
        match space.unlink(self.home, self.name, self.by_ticket, keep, spent) {
            Unlinked::Alone => (None, None),
            Unlinked::Shared { flight, kept } => (Some(flight), kept),
        }
    }
}

impl<H: Home> Drop for Driving<'_, H> {
    #[inline]
    fn drop(&mut self) {
        if self.armed {
            self.work = None;
            self.lose(Lost::Panicked);
        }
    }
}
