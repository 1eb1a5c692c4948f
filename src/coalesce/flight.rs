//! `Flight`: one call that several callers wait for, and which of them polls it.
//!
//! # Who drives
//!
//! Nobody owns a flight: its work (the inner call) is polled by its callers. The danger is the
//! stall: the one caller whose turn it is may be alive and never be polled again (a
//! `buffer_unordered` whose consumer is busy), and then all others wait for ever. So nobody's turn it
//! is. The inner call is polled with a waker of the flight's own, and
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
//! a task of our own, since no code of ours runs between the inner call's wake and a caller's poll.
//! ([`spawn_on`](super::CoalesceLayer::spawn_on) has the task.)
//!
//! # Landing
//!
//! In this order, by whoever drove: drop the inner call, so that what it held is released; unlink the
//! flight in the table, so that nobody joins any more (or mark until when it can be joined); set the
//! value; set `landed` and take the callers in one critical section; wake them. A panic of the inner
//! call lands the flight as well, from the driver's unwinding.
//!
//! The value is taken out to be cloned, as the work is to be polled: a caller that finds it lent waits
//! until it is back. The last caller takes it for good.
//!
//! `tests/loom.rs` runs this file and `shards.rs` through their interleavings.

use std::{
    pin::Pin,
    task::{Poll, Wake, Waker},
    time::Instant,
};

use super::shards::{Departure, Space, Unlinked, Who};
use crate::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        lock,
    },
    wakers::{WakeList, Wakers},
};

/// What keeps the table of flights alive, cheap to clone: an `Arc` around it and more.
pub(crate) trait Home: Clone {
    type Key;
    /// The future that does the work.
    type Work;
    /// The outcome, as each caller is given it.
    type Value;

    fn space(&self) -> &Space<Self>;

    /// The outcome of a flight that has none of its own.
    fn lost(&self, how: Lost) -> Self::Value;
}

/// How a flight ended without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The work panicked.
    Panicked,
    /// It was shut down, or the task that drove it vanished.
    ShutDown,
}

pub(crate) type Parcel<H> = Pin<Box<<H as Home>::Work>>;

/// A call in flight that more than one caller may wait for.
pub(crate) struct Flight<H: Home> {
    key: H::Key,
    hash: u64,
    id: u64,
    /// It took another's place for having been too slow, and nobody takes its own.
    replacement: bool,
    /// All its callers have left. Set under the shard's lock.
    abandoned: AtomicBool,
    signal: Arc<Signal>,
    /// Of `signal`.
    waker: Waker,
    cargo: Mutex<Cargo<H>>,
}

struct Cargo<H: Home> {
    /// Until it lands: a value that stays in the table must not keep the table.
    home: Option<H>,
    /// Out while it is polled; never here if a task has it.
    work: Option<Parcel<H>>,
    /// Since it landed; out while it is lent.
    value: Option<H::Value>,
    /// What only the caller that led may have.
    private: Option<H::Value>,
    /// The caller that led is still here.
    led: bool,
    /// Those who found the value lent.
    borrowers: WakeList,
}

/// Who waits for the flight, and whose turn it is. Without type parameters, since it is a waker.
struct Signal {
    /// Set in the critical section that takes the last callers.
    landed: AtomicBool,
    turns: Mutex<Turns>,
}

struct Turns {
    notified: bool,
    driven: bool,
    /// To be dropped unfinished.
    aborted: bool,
    waiting: Wakers,
    /// The task that drives, if one does.
    task: Option<Waker>,
}

/// The place of the caller that led among those who wait: there from the start.
const LEADER: usize = 0;

impl Signal {
    fn new(notified: bool, driven: bool, leader: Option<Waker>) -> Arc<Self> {
        let mut waiting = Wakers::default();
        let place = waiting.reserve(leader);
        debug_assert_eq!(place, LEADER);
        Arc::new(Self {
            landed: AtomicBool::new(false),
            turns: Mutex::new(Turns {
                notified,
                driven,
                aborted: false,
                waiting,
                task: None,
            }),
        })
    }

    fn has_landed(&self) -> bool {
        self.landed.load(Ordering::Acquire)
    }

    fn turn(&self, place: &mut Option<usize>, waker: &Waker) -> Whose {
        if self.has_landed() {
            return Whose::Landed;
        }
        let waker = waker.clone();
        let mut turns = lock(&self.turns);
        if self.landed.load(Ordering::Relaxed) {
            drop(turns);
            return Whose::Landed;
        }
        if turns.notified && !turns.driven {
            // Notified => Driven
            turns.notified = false;
            turns.driven = true;
            let old = turns.waiting.empty(*place);
            drop(turns);
            drop(old);
            return Whose::Ours(waker);
        }
        let driven = turns.driven;
        let old = turns.waiting.register(place, waker);
        drop(turns);
        drop(old);
        Whose::NotOurs { driven }
    }

    /// The work is back. False if it is to be dropped: the caller drives on, to land it.
    fn park(&self, place: &mut Option<usize>, waker: Waker) -> bool {
        let mut turns = lock(&self.turns);
        if turns.aborted {
            drop(turns);
            return false;
        }
        turns.driven = false;
        if turns.notified {
            // Driven, woken meanwhile => Notified
            let wake = turns.waiting.take();
            drop(turns);
            wake.wake();
            waker.wake();
        } else {
            // Driven => Waiting
            let old = turns.waiting.register(place, waker);
            drop(turns);
            drop(old);
        }
        true
    }

    /// The work, polled before anybody joined, has come to the flight. False as of `park`.
    fn adopted(&self) -> bool {
        let mut turns = lock(&self.turns);
        if !turns.aborted {
            turns.driven = false;
        }
        !turns.aborted
    }

    /// Ends it unfinished. True: by the caller, who drives from now on; false: whoever drives does.
    fn abort(&self) -> bool {
        let mut turns = lock(&self.turns);
        if self.landed.load(Ordering::Relaxed) || turns.aborted {
            return false;
        }
        turns.aborted = true;
        let ours = !std::mem::replace(&mut turns.driven, true);
        let task = turns.task.take();
        drop(turns);
        if let Some(task) = task {
            task.wake();
        }
        ours
    }

    /// For the task that drives: ready when it is to end.
    fn poll_aborted(&self, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut turns = lock(&self.turns);
        if turns.aborted {
            drop(turns);
            return Poll::Ready(());
        }
        let old = turns.task.replace(waker);
        drop(turns);
        drop(old);
        Poll::Pending
    }

    fn land(&self) {
        let mut turns = lock(&self.turns);
        self.landed.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut turns.waiting);
        let task = turns.task.take();
        drop(turns);
        drop(task);
        waiting.into_list().wake();
    }

    fn forget(&self, place: &mut Option<usize>) {
        if place.is_none() || self.has_landed() {
            return;
        }
        let mut turns = lock(&self.turns);
        let old = if self.landed.load(Ordering::Relaxed) {
            None
        } else {
            turns.waiting.remove(place)
        };
        drop(turns);
        drop(old);
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut turns = lock(&self.turns);
        if self.landed.load(Ordering::Relaxed) {
            return;
        }
        turns.notified = true;
        if turns.driven {
            return;
        }
        // Waiting => Notified
        let waiting = turns.waiting.take();
        drop(turns);
        waiting.wake();
    }
}

enum Whose {
    Landed,
    /// The caller drives; its waker, to park with.
    Ours(Waker),
    NotOurs {
        driven: bool,
    },
}

/// How a flight comes to be shared.
pub(crate) struct Shared<H: Home> {
    pub(crate) key: H::Key,
    pub(crate) hash: u64,
    pub(crate) id: u64,
    pub(crate) replacement: bool,
    /// `None`: it is being polled.
    pub(crate) work: Option<Parcel<H>>,
    /// The waker with which it was polled last.
    pub(crate) waker: Option<Waker>,
}

impl<H: Home> Flight<H> {
    /// Notified from the start: the work has not been polled with this flight's waker yet.
    pub(crate) fn share(home: &H, from: Shared<H>) -> Arc<Self> {
        let signal = Signal::new(true, from.work.is_none(), from.waker);
        Arc::new(Self {
            key: from.key,
            hash: from.hash,
            id: from.id,
            replacement: from.replacement,
            abandoned: AtomicBool::new(false),
            waker: Waker::from(signal.clone()),
            signal,
            cargo: Mutex::new(Cargo {
                home: Some(home.clone()),
                work: from.work,
                value: None,
                private: None,
                led: true,
                borrowers: WakeList::default(),
            }),
        })
    }

    pub(crate) fn key(&self) -> &H::Key {
        &self.key
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn is_replacement(&self) -> bool {
        self.replacement
    }

    /// The table, until it has landed.
    pub(crate) fn home(&self) -> Option<H> {
        lock(&self.cargo).home.clone()
    }

    /// The caller that led is gone, and what only it might have with it.
    pub(crate) fn leader_left(&self) {
        let private = {
            let mut cargo = lock(&self.cargo);
            cargo.led = false;
            cargo.private.take()
        };
        drop(private);
    }

    /// The place of the caller that led is given up, by a leader that never took it.
    pub(crate) fn leader_forgotten(&self) {
        self.signal.forget(&mut Some(LEADER));
        self.leader_left();
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// All callers are gone.
    pub(crate) fn mark_abandoned(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Drops the work.
    pub(crate) fn abandon(&self) {
        let (work, home) = {
            let mut cargo = lock(&self.cargo);
            (cargo.work.take(), cargo.home.take())
        };
        drop(work);
        drop(home);
    }

    /// Sets the outcome, after the flight was unlinked, and tells all.
    fn publish(&self, value: H::Value, private: Option<H::Value>) {
        let (home, refused) = {
            let mut cargo = lock(&self.cargo);
            let home = cargo.home.take();
            cargo.value = Some(value);
            if cargo.led {
                cargo.private = private;
                (home, None)
            } else {
                (home, private)
            }
        };
        self.signal.land();
        drop(refused);
        drop(home);
    }

    /// The work is here again, before anybody may take it.
    fn put_back(&self, driving: &mut Driving<'_, H>) {
        driving.armed = false;
        lock(&self.cargo).work = driving.work.take();
    }

    /// Nobody may take it: it was aborted while it was out.
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
    pub(crate) fn abort(self: &Arc<Self>, home: &H) {
        if self.signal.abort() {
            let work = lock(&self.cargo).work.take();
            Driving::of(home, self, work).give_up(Lost::ShutDown);
        }
    }
}

/// A caller's place in a shared flight. Dropping it leaves.
pub(crate) struct Seat<H: Home> {
    flight: Arc<Flight<H>>,
    /// Among those who wait.
    place: Option<usize>,
    led: bool,
    departure: Departure,
    /// It has the outcome, or never was counted.
    done: bool,
}

/// What a caller is to do now.
pub(crate) enum Turn<H: Home> {
    /// Collect.
    Landed,
    /// Take the work by [`Seat::drive`], poll it, then land or park it, with this waker.
    Drive(H, Waker),
    /// Registered. `driven`: somebody polls the work just now.
    Wait { driven: bool },
}

impl<H: Home> Seat<H> {
    /// Of one who does not know yet whether it has the same key. `full`: it is not counted in.
    pub(crate) fn joining(flight: Arc<Flight<H>>, full: bool) -> Self {
        Self {
            flight,
            place: None,
            led: false,
            departure: Departure::Mistaken,
            done: full,
        }
    }

    /// It has the same key.
    pub(crate) fn settle(mut self) -> Self {
        self.departure = Departure::Left;
        self
    }

    /// Of the caller that led.
    pub(crate) fn leading(flight: Arc<Flight<H>>) -> Self {
        Self {
            flight,
            place: Some(LEADER),
            led: true,
            departure: Departure::Left,
            done: false,
        }
    }

    pub(crate) fn flight(&self) -> &Arc<Flight<H>> {
        &self.flight
    }

    /// Whether this caller led.
    pub(crate) fn led(&self) -> bool {
        self.led
    }

    /// Leaves, as if it had not been counted in.
    pub(crate) fn depart(mut self, how: Departure) {
        self.departure = how;
    }

    pub(crate) fn turn(&mut self, waker: &Waker) -> Turn<H> {
        match self.flight.signal.turn(&mut self.place, waker) {
            Whose::Landed => Turn::Landed,
            Whose::NotOurs { driven } => Turn::Wait { driven },
            Whose::Ours(waker) => {
                let home = self.flight.home();
                Turn::Drive(home.expect("what is driven has not landed"), waker)
            }
        }
    }

    /// The work, for a caller whose turn it is.
    pub(crate) fn drive<'a>(&self, home: &'a H) -> Driving<'a, H> {
        let work = lock(&self.flight.cargo).work.take();
        Driving::of(home, &self.flight, work)
    }

    /// The waker that the work is polled with.
    pub(crate) fn waker(&self) -> &Waker {
        &self.flight.waker
    }

    /// Puts the work back. `waker` is this caller's. False: it was aborted, and has landed.
    pub(crate) fn park(&mut self, mut driving: Driving<'_, H>, waker: Waker) -> bool {
        self.flight.put_back(&mut driving);
        let parked = self.flight.signal.park(&mut self.place, waker);
        if !parked {
            self.flight.take_again(driving);
        }
        parked
    }

    /// Puts the work into a flight that was shared while this caller, which led, polled it alone.
    pub(crate) fn adopt(&mut self, mut driving: Driving<'_, H>) {
        self.flight.put_back(&mut driving);
        if !self.flight.signal.adopted() {
            self.flight.take_again(driving);
        }
    }

    /// Takes the outcome of a flight that has landed: by `take` if nobody else can ask for it, else by
    /// `copy`, which must leave it as it was. Pending while another caller copies it.
    pub(crate) fn collect<T>(
        &mut self,
        waker: &Waker,
        take: impl FnOnce(H::Value) -> T,
        copy: impl FnOnce(&mut H::Value) -> T,
    ) -> Poll<T> {
        if let Some(flight) = Arc::get_mut(&mut self.flight) {
            let cargo = flight
                .cargo
                .get_mut()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let private = cargo.private.take().filter(|_| self.led);
            let value = private.or_else(|| cargo.value.take());
            self.done = true;
            return Poll::Ready(take(value.expect("the value of a flight that has landed")));
        }
        let mut spare = None;
        let value = loop {
            let mut cargo = lock(&self.flight.cargo);
            if self.led {
                if let Some(private) = cargo.private.take() {
                    drop(cargo);
                    self.done = true;
                    return Poll::Ready(take(private));
                }
            }
            if let Some(value) = cargo.value.take() {
                break value;
            }
            match spare.take() {
                Some(waker) => {
                    cargo.borrowers.push(Some(waker));
                    return Poll::Pending;
                }
                None => {
                    drop(cargo);
                    spare = Some(waker.clone());
                }
            }
        };
        let mut loan = Loan {
            flight: &self.flight,
            value: Some(value),
        };
        let copied = loan.value.as_mut().map(copy);
        drop(loan);
        self.done = true;
        Poll::Ready(copied.expect("lent"))
    }
}

/// Leaves: the last to leave drops the work.
impl<H: Home> Drop for Seat<H> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let flight = &*self.flight;
        flight.signal.forget(&mut self.place);
        if let Some(home) = flight.home() {
            let who = Who::Seat { led: self.led };
            home.space()
                .leave(flight.hash, flight.id, who, self.departure);
        }
        if self.led {
            flight.leader_left();
        }
    }
}

/// The value of a flight, out to be copied. Comes back when it is dropped.
struct Loan<'a, H: Home> {
    flight: &'a Flight<H>,
    value: Option<H::Value>,
}

impl<H: Home> Drop for Loan<'_, H> {
    fn drop(&mut self) {
        let borrowers = {
            let mut cargo = lock(&self.flight.cargo);
            cargo.value = self.value.take();
            std::mem::take(&mut cargo.borrowers)
        };
        borrowers.wake();
    }
}

/// The work of a flight, out to be polled. Dropped before it is landed or put back, which is a panic
/// of the work's, it lands the flight as `Panicked`.
pub(crate) struct Driving<'a, H: Home> {
    home: &'a H,
    hash: u64,
    id: u64,
    /// By the caller that led, which does not know whether anybody joined.
    by_ticket: bool,
    work: Option<Parcel<H>>,
    armed: bool,
}

/// How a flight landed.
pub(crate) enum Landing<H: Home> {
    /// Nobody else has joined: the outcome is the driver's.
    Alone {
        value: H::Value,
        private: Option<H::Value>,
    },
    /// Everybody is told.
    Told(Arc<Flight<H>>),
}

impl<'a, H: Home> Driving<'a, H> {
    fn of(home: &'a H, flight: &Flight<H>, work: Option<Parcel<H>>) -> Self {
        Self {
            home,
            hash: flight.hash,
            id: flight.id,
            by_ticket: false,
            work,
            armed: true,
        }
    }

    /// Of a call that nobody has joined, as far as is known.
    pub(crate) fn alone(home: &'a H, hash: u64, id: u64, work: Parcel<H>) -> Self {
        Self {
            home,
            hash,
            id,
            by_ticket: true,
            work: Some(work),
            armed: true,
        }
    }

    /// By a task, which has the work itself.
    pub(crate) fn by_task(home: &'a H, flight: &Flight<H>) -> Self {
        Self::of(home, flight, None)
    }

    pub(crate) fn work(&mut self) -> Pin<&mut H::Work> {
        self.work.as_mut().expect("the work is out").as_mut()
    }

    /// Drops the work: the first step of landing.
    pub(crate) fn drop_work(&mut self) {
        self.work = None;
    }

    /// A task's, between two polls.
    pub(crate) fn release(mut self) {
        self.armed = false;
    }

    /// Takes the work, to put it back into the table.
    pub(crate) fn into_work(mut self) -> Parcel<H> {
        self.armed = false;
        self.work.take().expect("the work is out")
    }

    /// Unlinks the flight, or lets it be joined until `keep`; tells all. `private` is for the caller
    /// that led, instead of `value`.
    pub(crate) fn land(
        mut self,
        value: H::Value,
        private: Option<H::Value>,
        keep: Option<Instant>,
    ) -> Landing<H> {
        match self.unlink(keep) {
            Unlinked::Alone => Landing::Alone { value, private },
            Unlinked::Shared(flight) => {
                flight.publish(value, private);
                Landing::Told(flight)
            }
        }
    }

    /// Lands it without an outcome.
    pub(crate) fn give_up(mut self, how: Lost) {
        self.work = None;
        self.lose(how);
    }

    fn lose(&mut self, how: Lost) {
        if let Unlinked::Shared(flight) = self.unlink(None) {
            flight.publish(self.home.lost(how), None);
        }
    }

    fn unlink(&mut self, keep: Option<Instant>) -> Unlinked<H> {
        self.armed = false;
        let space = self.home.space();
        space.unlink(self.home, self.hash, self.id, self.by_ticket, keep)
    }
}

impl<H: Home> Drop for Driving<'_, H> {
    fn drop(&mut self) {
        if self.armed {
            self.work = None;
            self.lose(Lost::Panicked);
        }
    }
}
