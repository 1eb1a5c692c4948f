//! `Signal`: who waits for a flight, and whose turn it is to poll it. It is the waker of the work.
//!
//! Without type parameters, since a `Waker` must be `'static` and its flight need not be.

use std::task::{Poll, Wake, Waker};

use super::parting::Departure;
use crate::{
    sync::{
        Arc, Mutex, Slab,
        atomic::{AtomicU8, Ordering},
        lock,
    },
    wakers::wake_all,
};

pub(crate) struct Signal {
    /// Set in the critical section that takes the last callers: one of `FLYING`, `LANDED` and
    /// `LANDED_APART`.
    phase: AtomicU8,
    turns: Mutex<Turns>,
}

const FLYING: u8 = 0;
const LANDED: u8 = 1;
/// There is an outcome for the caller that led alone.
const LANDED_APART: u8 = 2;

struct Turns {
    notified: bool,
    driven: bool,
    /// To be dropped unfinished.
    aborted: bool,
    waiting: Waiting,
    /// The task that drives, if one does.
    task: Option<Waker>,
}

/// The callers that wait. They are woken all at once.
struct Waiting {
    /// +1 whenever all were taken.
    round: u64,
    wakers: Wakers,
    /// How many the last time were not the first.
    lately: usize,
}

#[derive(Default)]
struct Wakers {
    /// Most flights have few callers.
    first: [Option<Waker>; FEW],
    /// From index `FEW` on.
    more: Slab<Waker>,
}

const FEW: usize = 2;

/// Room for so many more is made at once.
const MORE: usize = 14;

/// Where a caller waits: nowhere, or at an index in some round. With room for what else a caller
/// knows of itself, in what would be padding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    round: u64,
    index: u32,
    pub(crate) note: Note,
}

/// What a caller knows of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Note {
    /// It led.
    pub(crate) led: bool,
    /// Why it goes, if it goes now.
    pub(crate) departure: Departure,
    /// It has the outcome, or was never counted in.
    pub(crate) done: bool,
}

/// Of one who is no caller of a flight.
#[cfg(feature = "http")]
impl Default for Spot {
    fn default() -> Self {
        Self::new(Note {
            led: false,
            departure: Departure::Left,
            done: false,
        })
    }
}

/// The first round; before it nobody is registered.
const FIRST: u64 = 1;

impl Spot {
    /// Nowhere.
    pub(crate) fn new(note: Note) -> Self {
        Self {
            round: 0,
            index: 0,
            note,
        }
    }

    /// Where one is who waited before there was a signal.
    pub(crate) fn first(note: Note) -> Self {
        Self {
            round: FIRST,
            index: 0,
            note,
        }
    }
}

/// Whose turn it is.
pub(crate) enum Turned {
    Landed,
    /// The caller's, who drives from now on; its waker, to park with.
    Ours(Waker),
    /// The caller is registered. `driven`: somebody drives just now.
    NotOurs {
        driven: bool,
    },
}

impl Waiting {
    /// Gives back the waker it replaces.
    #[inline(always)]
    fn register(&mut self, spot: &mut Spot, waker: Waker) -> Option<Waker> {
        if spot.round == self.round {
            if let Some(registered) = self.wakers.get(spot.index) {
                return Some(std::mem::replace(registered, waker));
            }
        }
        spot.round = self.round;
        spot.index = self.wakers.insert(waker, self.lately);
        None
    }

    fn remove(&mut self, spot: &mut Spot) -> Option<Waker> {
        if std::mem::replace(&mut spot.round, 0) == self.round {
            self.wakers.remove(spot.index)
        } else {
            None
        }
    }

    /// Those who are to be woken. They register again, or never.
    fn take(&mut self) -> Wakers {
        self.round += 1;
        self.lately = self.wakers.more.len();
        std::mem::take(&mut self.wakers)
    }
}

impl Wakers {
    #[inline]
    fn get(&mut self, index: u32) -> Option<&mut Waker> {
        let index = index as usize;
        match self.first.get_mut(index) {
            Some(first) => first.as_mut(),
            None => self.more.get_mut(index - FEW),
        }
    }

    #[inline(always)]
    fn insert(&mut self, waker: Waker, lately: usize) -> u32 {
        for (index, first) in self.first.iter_mut().enumerate() {
            if first.is_none() {
                *first = Some(waker);
                return index as u32;
            }
        }
        if self.more.capacity() == 0 {
            self.more = Slab::with_capacity(lately.max(MORE));
        }
        let index = FEW + self.more.insert(waker);
        u32::try_from(index).expect("4,294,967,296 callers of one flight")
    }

    fn remove(&mut self, index: u32) -> Option<Waker> {
        let index = index as usize;
        match self.first.get_mut(index) {
            Some(first) => first.take(),
            None => self.more.try_remove(index - FEW),
        }
    }

    fn wake(self) {
        let first = self.first.into_iter().flatten();
        if self.more.is_empty() {
            wake_all(first);
        } else {
            wake_all(first.chain(self.more.into_iter().map(|(_, waker)| waker)));
        }
    }
}

impl Signal {
    /// Notified from the start. `first` waits already, at [`Spot::first`].
    pub(crate) fn new(driven: bool, first: Option<Waker>) -> Arc<Self> {
        let mut waiting = Waiting {
            round: FIRST,
            wakers: Wakers::default(),
            lately: 0,
        };
        if let Some(first) = first {
            waiting.wakers.insert(first, 0);
        }
        Arc::new(Self {
            phase: AtomicU8::new(FLYING),
            turns: Mutex::new(Turns {
                notified: true,
                driven,
                aborted: false,
                waiting,
                task: None,
            }),
        })
    }

    #[inline]
    pub(crate) fn has_landed(&self) -> bool {
        self.phase.load(Ordering::Acquire) != FLYING
    }

    /// Whether it has landed with an outcome for the caller that led alone.
    #[inline]
    pub(crate) fn has_landed_apart(&self) -> bool {
        self.phase.load(Ordering::Acquire) == LANDED_APART
    }

    /// The same as `has_landed`, under the lock.
    #[inline]
    fn landed(&self) -> bool {
        self.phase.load(Ordering::Relaxed) != FLYING
    }

    /// Asks whose turn it is, and registers unless something is to be done.
    #[inline(always)]
    pub(crate) fn turn(&self, spot: &mut Spot, waker: &Waker) -> Turned {
        let waker = waker.clone();
        let mut turns = lock(&self.turns);
        if self.landed() {
            drop(turns);
            return Turned::Landed;
        }
        if turns.notified && !turns.driven {
            // Notified => Driven
            turns.notified = false;
            turns.driven = true;
            let old = turns.waiting.remove(spot);
            drop(turns);
            drop(old);
            return Turned::Ours(waker);
        }
        let driven = turns.driven;
        let old = turns.waiting.register(spot, waker);
        drop(turns);
        drop(old);
        Turned::NotOurs { driven }
    }

    /// The work is back. False if it is to be dropped: the caller drives on, to land it.
    pub(crate) fn park(&self, spot: &mut Spot, waker: Waker) -> bool {
        let mut turns = lock(&self.turns);
        if turns.aborted {
            drop(turns);
            return false;
        }
        turns.driven = false;
        if turns.notified {
            // Driven, woken meanwhile => Notified
            let waiting = turns.waiting.take();
            drop(turns);
            waiting.wake();
            waker.wake();
        } else {
            // Driven => Waiting
            let old = turns.waiting.register(spot, waker);
            drop(turns);
            drop(old);
        }
        true
    }

    /// The work, polled before anybody had joined, is back. As `park`, but the caller asks for its
    /// turn next.
    pub(crate) fn adopt(&self) -> bool {
        let mut turns = lock(&self.turns);
        turns.driven = turns.aborted;
        !turns.aborted
    }

    /// There is something for those who wait, and for whoever drives next.
    #[cfg(feature = "http")]
    pub(crate) fn renew(&self) {
        let mut turns = lock(&self.turns);
        // Driven => Notified
        turns.driven = false;
        turns.notified = true;
        let waiting = turns.waiting.take();
        drop(turns);
        waiting.wake();
    }

    /// Registers, whoever drives.
    #[cfg(feature = "http")]
    pub(crate) fn wait(&self, spot: &mut Spot, waker: &Waker) {
        let waker = waker.clone();
        let old = lock(&self.turns).waiting.register(spot, waker);
        drop(old);
    }

    /// Wakes those who wait, who look again.
    #[cfg(feature = "http")]
    pub(crate) fn rouse(&self) {
        let waiting = lock(&self.turns).waiting.take();
        waiting.wake();
    }

    /// Ends it unfinished. True: by the caller, who drives from now on; false: whoever drives does.
    pub(crate) fn abort(&self) -> bool {
        let mut turns = lock(&self.turns);
        if self.landed() || turns.aborted {
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
    pub(crate) fn poll_aborted(&self, waker: &Waker) -> Poll<()> {
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

    /// The outcome is there: tells all, in one critical section.
    pub(crate) fn land(&self, apart: bool) {
        let phase = if apart { LANDED_APART } else { LANDED };
        let mut turns = lock(&self.turns);
        self.phase.store(phase, Ordering::Release);
        let waiting = turns.waiting.take();
        let task = turns.task.take();
        drop(turns);
        drop(task);
        waiting.wake();
    }

    /// The caller waits no more.
    pub(crate) fn forget(&self, spot: &mut Spot) {
        if spot.round == 0 || self.has_landed() {
            return;
        }
        let old = lock(&self.turns).waiting.remove(spot);
        drop(old);
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut turns = lock(&self.turns);
        turns.notified = true;
        if turns.driven || self.landed() {
            // It is seen when the work is back.
            return;
        }
        // Waiting => Notified
        let waiting = turns.waiting.take();
        drop(turns);
        waiting.wake();
    }
}
