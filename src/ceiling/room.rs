//! The room under one limit: who holds it, who waits for it, who has to go for it.
//!
//! Everything is decided in [`settle`](State::settle), under one lock, after every change: a start asks, an
//! instance falls idle or closes, room comes back, a waiter leaves or loses its patience. Nothing is
//! looked at again by a timer, but where time itself changes the answer (`min_residency`).
//!
//! # Hand-over
//!
//! Room that comes back is given to the first in line there and then: it is out of the queue and a
//! holder in the same critical section, so nobody who arrives later can take it first. It learns of it
//! by one wake. If it has left meanwhile, its [`Place`] finds the grant when it is dropped and gives it
//! back, which settles again. A grant is therefore always in exactly one hand: the place's or the
//! [`Permit`]'s.
//!
//! # Victims
//!
//! A use that begins or ends touches only the word of its own instance. So what stands here of who is
//! idle is the past, and each decision looks at the word: closes exactly what it saw, or, if the
//! instance is in use, leaves the `WANTED` flag in that same word, so that the end of its last use
//! comes back here. Whatever becomes idle after a decision therefore settles anew.
//!
//! The lock is never held while anything is woken, told or dropped: see [`Out`].

use std::{
    task::{Poll, Waker},
    time::Duration,
};

use super::{
    holders::{Class, Id},
    queue::{Outcome, Rank},
    state::{Ask, Occupancy, Out, State, never_fits},
    status::Status,
};
use crate::{
    clock::Clock,
    error::Error,
    notices::Watch,
    sync::{Arc, Mutex, Weak, lock},
    usage::Usage,
};

pub(super) struct Room {
    me: Weak<Room>,
    /// Nanoseconds since a fixed moment.
    clock: Clock,
    state: Mutex<State>,
}

/// What the room answers at once.
pub(super) enum Asked {
    Granted(Permit),
    Waiting(Place),
    Refused(Error),
}

impl Room {
    pub(super) fn new(limit: u64, clock: impl Into<Clock>) -> Arc<Self> {
        let clock = clock.into();
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            clock,
            state: Mutex::new(State::new(limit)),
        })
    }

    fn with<R>(&self, change: impl FnOnce(&mut State, u64, &mut Out) -> R) -> R {
        let now = self.clock.checked();
        let mut out = Out::default();
        let result = change(&mut lock(&self.state), now, &mut out);
        out.done();
        result
    }

    fn settled<R>(&self, change: impl FnOnce(&mut State, u64, &mut Out) -> R) -> R {
        self.with(|state, now, out| {
            let result = change(state, now, out);
            state.settle(now, out);
            result
        })
    }

    /// Asks for room. The place in line is taken here and now.
    pub(super) fn ask(self: &Arc<Self>, ask: Ask) -> Asked {
        self.with(|state, now, out| match state.ask(ask, now, out) {
            Ok(Ok(id)) => Asked::Granted(Permit::new(self, id)),
            Ok(Err(key)) => Asked::Waiting(Place {
                room: self.clone(),
                key: Some(key),
                rank: state.queue.get(key).rank,
            }),
            Err(error) => Asked::Refused(error),
        })
    }

    pub(super) fn limit(&self) -> u64 {
        lock(&self.state).limit
    }

    pub(super) fn set_limit(&self, limit: u64) {
        self.settled(|state, _, out| {
            state.limit = limit;
            let mut next = state.queue.first();
            while let Some(key) = next {
                next = state.queue.after(key);
                let weight = state.queue.get(key).weight;
                if weight > limit {
                    let refused = Outcome::Refused(never_fits(weight, limit));
                    out.wake(state.queue.answer(key, refused));
                }
            }
        });
    }

    /// The numbers as they are.
    pub(super) fn occupancy(&self) -> Occupancy {
        self.with(|state, _, _| state.occupancy())
    }

    pub(super) fn status(&self) -> Status {
        let now = self.clock.checked();
        let state = lock(&self.state);
        let (limit, used) = (state.limit, state.holders.used());
        let (holders, waiting) = state.status(now);
        drop(state);
        Status::new(limit, used, holders, waiting)
    }

    /// Who waits at `rank`: how many are before it, what they weigh, and since when it waits.
    pub(super) fn queued(&self, rank: Rank) -> Option<(usize, u64, Duration)> {
        let now = self.clock.checked();
        let state = lock(&self.state);
        let (waiter, before, ahead) = state.queue.at(rank)?;
        let waited = Duration::from_nanos(now.saturating_sub(waiter.since));
        Some((before, ahead, waited))
    }

    fn release(&self, id: Id) {
        self.settled(|state, now, out| state.came_back(id, now, out));
    }
}

/// A place in line. Dropping it leaves the line, and gives back what was granted to it meanwhile.
pub(super) struct Place {
    room: Arc<Room>,
    key: Option<usize>,
    rank: Rank,
}

impl Place {
    /// Its room, and where it is there.
    pub(super) fn spot(&self) -> (Weak<Room>, Rank) {
        (self.room.me.clone(), self.rank)
    }

    /// The answer, if there is one.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<Result<Permit, Error>> {
        let key = self.key.expect("polled after its answer");
        let mut waker = Some(waker.clone());
        let outcome = self.room.with(|state, _, out| match state.queue.take(key) {
            Some((outcome, old)) => {
                out.old.extend(old);
                Some(outcome)
            }
            None => {
                std::mem::swap(&mut state.queue.get_mut(key).waker, &mut waker);
                None
            }
        });
        match outcome {
            None => Poll::Pending,
            Some(outcome) => {
                self.key = None;
                Poll::Ready(self.settle_for(outcome))
            }
        }
    }

    /// Leaves the line: with the room it was given just now, or else with the numbers.
    pub(super) fn give_up(&mut self) -> Result<Permit, Error> {
        let key = self.key.take().expect("gave up twice");
        let outcome = self.room.settled(|state, now, out| {
            let refused = state.no_room(key, now, false);
            let (outcome, waker) = state.queue.leave(key).into_outcome();
            out.old.extend(waker);
            outcome.unwrap_or(Outcome::Refused(refused))
        });
        self.settle_for(outcome)
    }

    /// It has waited so long that busy instances shall yield to it.
    pub(super) fn lose_patience(&self) {
        if let Some(key) = self.key {
            self.room
                .settled(|state, _, _| state.queue.get_mut(key).impatient = true);
        }
    }

    /// When to [look again](Self::look_again), by the room's clock: time alone may make room then.
    pub(super) fn look_at(&self) -> Option<u64> {
        let key = self.key?;
        lock(&self.room.state).queue.get(key).look_at
    }

    pub(super) fn now(&self) -> u64 {
        self.room.clock.checked()
    }

    pub(super) fn look_again(&self) {
        self.room.settled(|_, _, _| {});
    }

    fn settle_for(&self, outcome: Outcome) -> Result<Permit, Error> {
        match outcome {
            Outcome::Granted(id) => Ok(Permit::new(&self.room, id)),
            Outcome::Refused(error) => Err(error),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let granted = self.room.settled(|state, _, out| {
            let (outcome, waker) = state.queue.leave(key).into_outcome();
            out.old.extend(waker);
            outcome
        });
        if let Some(Outcome::Granted(id)) = granted {
            drop(Permit::new(&self.room, id));
        }
    }
}

/// Room that is held. Dropping it gives it back, and to the first in line at once.
pub(super) struct Permit {
    seat: Seat,
}

/// Names room that is held, or was.
#[derive(Clone)]
pub(super) struct Seat {
    room: Arc<Room>,
    id: Id,
}

impl Permit {
    fn new(room: &Arc<Room>, id: Id) -> Self {
        let room = room.clone();
        Self {
            seat: Seat { room, id },
        }
    }

    pub(super) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Its name, if it is of `room`.
    pub(super) fn of(&self, room: &Arc<Room>) -> Option<Id> {
        Arc::ptr_eq(&self.seat.room, room).then_some(self.seat.id)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.seat.room.release(self.seat.id);
    }
}

impl Seat {
    /// The start it was granted for has made an instance.
    pub(super) fn made(&self) {
        self.set_class(Class::Made);
    }

    /// The instance has an owner now: if nobody counts its uses, nobody will.
    pub(super) fn owned(&self) {
        self.room.settled(|state, _, _| {
            let holder = state.holders.get(self.id);
            if holder.is_some_and(|holder| holder.class == Class::Made) {
                state.holders.set_class(self.id, Class::Uncounted);
            }
        });
    }

    /// The instance's uses are counted by `usage`: it may be a victim.
    pub(super) fn count(&self, usage: &Arc<Usage>) {
        usage.watch(self.room.me.clone(), self.id.0);
        let usage_now = usage.now();
        self.room.settled(|state, now, _| {
            state.holders.count(self.id, usage.clone(), usage_now, now);
            state.file(self.id, now);
        });
    }

    /// The room is not on its way back when the instance is: it is its successor's.
    pub(super) fn reserve(&self) {
        self.room
            .settled(|state, _, _| state.holders.reserve(self.id));
    }

    /// The instance is being stopped.
    pub(super) fn leaving(&self) {
        self.set_class(Class::Leaving);
    }

    fn set_class(&self, class: Class) {
        self.room
            .settled(|state, _, _| state.holders.set_class(self.id, class));
    }
}

impl Watch for Room {
    fn fell_idle(&self, key: u64) {
        self.settled(|state, now, _| {
            let id = Id(key);
            if state
                .holders
                .get(id)
                .is_some_and(|holder| holder.class == Class::Busy)
            {
                state.file(id, now);
            }
        });
    }

    fn closed(&self, key: u64) {
        self.settled(|state, _, _| state.holders.set_class(Id(key), Class::Leaving));
    }

    fn pinned(&self, key: u64) {
        self.settled(|state, now, out| {
            let id = Id(key);
            match state.holders.get(id).map(|holder| holder.class) {
                Some(Class::Leaving) | None => {}
                Some(Class::Yielding) => state.reopen(id, now, out),
                Some(_) => state.file(id, now),
            }
        });
    }
}
