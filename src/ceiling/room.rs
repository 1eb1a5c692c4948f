//! The room under one limit: who holds it, who waits for it, who has to go for it.
//!
//! Everything is decided in [`State::settle`], under one lock, after every change: a start asks, an
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

use std::task::{Poll, Waker};

use super::{
    holders::{Class, Holder, Holders, Id},
    queue::{Outcome, Queue, Waiter},
};
use crate::{
    error::{Error, ErrorKind, NoRoom},
    sync::{Arc, Mutex, Weak, lock},
    usage::{Eviction, Look, Recency, Telling, Usage, Watch},
};

pub(super) struct Room {
    me: Weak<Room>,
    /// Nanoseconds since a fixed moment.
    clock: Arc<dyn Recency>,
    state: Mutex<State>,
}

struct State {
    limit: u64,
    holders: Holders,
    queue: Queue,
    /// Those that are `Yielding`, in the order they were told.
    yielding: Vec<Id>,
    /// For how long room is held, on average.
    residency: Option<u64>,
}

/// What one start asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ask {
    pub(super) weight: u64,
    /// Before all others.
    pub(super) first: bool,
    /// Takes free room or none.
    pub(super) free_only: bool,
    pub(super) start: Option<u64>,
    pub(super) replaces: Option<u64>,
    pub(super) max_waiting: Option<usize>,
    pub(super) strict: bool,
    /// How long the instance, once ready, is not evicted for room.
    pub(super) residency: u64,
}

/// What the room answers at once.
pub(super) enum Asked {
    Granted(Permit),
    Waiting(Place),
    Refused(Error),
}

/// What is to be done once the lock is given up.
#[derive(Default)]
struct Out {
    telling: Vec<Telling>,
    wake: Vec<Waker>,
    gone: Vec<Holder>,
    old: Vec<Waker>,
}

impl Out {
    fn wake(&mut self, waker: Option<Waker>) {
        self.wake.extend(waker);
    }

    fn done(self) {
        drop(self.gone);
        drop(self.old);
        drop(self.telling);
        self.wake.into_iter().for_each(Waker::wake);
    }
}

impl Room {
    pub(super) fn new(limit: u64, clock: Arc<dyn Recency>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            clock,
            state: Mutex::new(State {
                limit,
                holders: Holders::default(),
                queue: Queue::default(),
                yielding: Vec::new(),
                residency: None,
            }),
        })
    }

    fn with<R>(&self, change: impl FnOnce(&mut State, u64, &mut Out) -> R) -> R {
        let now = self.clock.now();
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
    pub(super) fn numbers(&self) -> NoRoom {
        self.with(|state, _, _| state.numbers())
    }

    fn release(&self, id: Id) {
        self.settled(|state, now, out| {
            if let Some(holder) = state.holders.remove(id) {
                let held = now.saturating_sub(holder.since);
                state.residency = Some(match state.residency {
                    Some(average) => average - average / 8 + held / 8,
                    None => held,
                });
                out.gone.push(holder);
            }
        });
    }
}

/// A place in line. Dropping it leaves the line, and gives back what was granted to it meanwhile.
pub(super) struct Place {
    room: Arc<Room>,
    key: Option<usize>,
}

impl Place {
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
        self.room.clock.now()
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.seat.room.release(self.seat.id);
    }
}

impl Seat {
    /// The start it was granted for has made an instance.
    pub(super) fn made(&self) {
        self.set_class(Class::Uncounted);
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

impl State {
    /// Room at once, or a place in line.
    fn ask(&mut self, ask: Ask, now: u64, out: &mut Out) -> Result<Result<Id, usize>, Error> {
        if ask.weight > self.limit {
            return Err(never_fits(ask.weight, self.limit));
        }
        let full = ask.max_waiting.filter(|max| self.queue.len() >= *max);
        let key = self.queue.join(ask.first, |rank| Waiter {
            start: ask.start,
            replaces: ask.replaces,
            strict: ask.strict || ask.free_only,
            residency: ask.residency,
            ..Waiter::new(rank, ask.weight, now)
        });
        let blocked = self.blocked_by_own(key);
        if full.is_some() || ask.free_only {
            // Room that is free, or none: nothing is stopped for it.
            self.grant(now, out);
        } else if !blocked {
            self.settle(now, out);
        }
        if let Some((outcome, _)) = self.queue.take(key) {
            return match outcome {
                Outcome::Granted(id) => Ok(Ok(id)),
                Outcome::Refused(error) => Err(error),
            };
        }
        let refused = match full {
            _ if blocked => self.no_room(key, now, true),
            _ if ask.free_only => self.no_room(key, now, false),
            Some(limit) => {
                let error = Error::new(ErrorKind::TooManyWaiting { limit });
                self.hint(error, key, now)
            }
            None => return Ok(Err(key)),
        };
        drop(self.queue.leave(key));
        self.settle(now, out);
        Err(refused)
    }

    /// Does all that can be done now: back under the limit, grants, room for those in line.
    fn settle(&mut self, now: u64, out: &mut Out) {
        while let Some((_, id)) = self
            .holders
            .next(Class::Fresh, None)
            .filter(|(until, _)| *until <= now)
        {
            self.holders.set_class(id, Class::Idle);
        }
        self.trim(out);
        self.grant(now, out);
        while self.make_room_for_those_in_line(now, out) {}
        self.look_later(out);
    }

    /// Room that stays taken if nobody else is stopped.
    fn staying(&self) -> u64 {
        self.holders.used() - self.holders.weight(Class::Leaving)
    }

    /// What is missing for `need` more, once all that is leaving is gone.
    fn missing(&self, need: u64) -> u64 {
        self.staying()
            .saturating_add(need)
            .saturating_sub(self.limit)
    }

    /// Over the limit, whatever is idle goes.
    fn trim(&mut self, out: &mut Out) {
        for class in [Class::Idle, Class::Fresh] {
            let mut after = None;
            while self.missing(0) > 0 {
                let Some((key, id)) = self.holders.next(class, after) else {
                    break;
                };
                after = Some((key, id));
                if let Some(look) = self.check(id) {
                    self.close(id, look, Eviction::Over, out);
                }
            }
        }
    }

    /// Hands room that is there to the first in line, and the next.
    fn grant(&mut self, now: u64, out: &mut Out) {
        while let Some(key) = self.queue.first() {
            let waiter = self.queue.get(key);
            let fits = self.holders.used().saturating_add(waiter.weight) <= self.limit;
            if !fits && (waiter.strict || self.blocked_by_own(key) || !self.hopeless()) {
                return;
            }
            let id = self
                .holders
                .admit(waiter.weight, waiter.start, waiter.residency, now);
            out.wake(self.queue.answer(key, Outcome::Granted(id)));
        }
    }

    /// Whether nothing could ever make room: all that holds it is pinned, and nobody starts or stops.
    fn hopeless(&self) -> bool {
        self.holders.used() > 0 && self.holders.used() == self.holders.weight(Class::Pinned)
    }

    /// Whether the waiter can never fit while the instance that it is to replace is there.
    fn blocked_by_own(&self, key: usize) -> bool {
        let waiter = self.queue.get(key);
        let Some(own) = waiter.replaces.and_then(|own| self.holders.by_start(own)) else {
            return false;
        };
        if own.class == Class::Leaving {
            return false;
        }
        let for_ever = [Class::Pinned, Class::Uncounted];
        let mut stays: u64 = for_ever
            .iter()
            .map(|class| self.holders.weight(*class))
            .sum();
        if !for_ever.contains(&own.class) {
            stays = stays.saturating_add(own.weight);
        }
        stays.saturating_add(waiter.weight) > self.limit
    }

    /// Stops what is idle for those in line, in their order, as far as that suffices; then tells what is
    /// busy to yield to those who lost their patience. True if it is worth another look.
    fn make_room_for_those_in_line(&mut self, now: u64, out: &mut Out) -> bool {
        let mut next = self.queue.first();
        let mut need: u64 = 0;
        let mut to_yield = 0;
        let mut enough = true;
        while let Some(key) = next {
            next = self.queue.after(key);
            let waiter = self.queue.get(key);
            let (weight, own, impatient) = (waiter.weight, waiter.replaces, waiter.impatient);
            need = need.saturating_add(weight);
            enough = enough && self.make_room(need, own, out);
            if enough {
                continue;
            }
            if self.blocked_by_own(key) {
                need -= weight;
                enough = true;
                let refused = Outcome::Refused(self.no_room(key, now, true));
                out.wake(self.queue.answer(key, refused));
                continue;
            }
            if !impatient {
                break;
            }
            to_yield = self
                .missing(need)
                .saturating_sub(self.holders.weight(Class::Idle));
        }
        self.yield_room(to_yield, now, out)
    }

    /// Closes as many idle ones, coldest first, as bring room for `need`, or none. True if that much
    /// room is there or on its way.
    fn make_room(&mut self, need: u64, own: Option<u64>, out: &mut Out) -> bool {
        loop {
            let missing = self.missing(need);
            if missing == 0 {
                return true;
            }
            let Some(chosen) = self.choose(missing, own) else {
                // What was found closed on the way is room as well.
                if self.missing(need) == missing {
                    return false;
                }
                continue;
            };
            for (id, look) in chosen {
                self.close(id, look, Eviction::Room, out);
            }
        }
    }

    /// The coldest idle ones that weigh at least `missing` together, none of them needless.
    fn choose(&mut self, missing: u64, own: Option<u64>) -> Option<Vec<(Id, Look)>> {
        let mut chosen: Vec<(Id, Look, u64)> = Vec::new();
        let mut sum: u64 = 0;
        let mut after = None;
        while sum < missing {
            if self.holders.weight(Class::Idle) < missing {
                return None;
            }
            let (key, id) = self.holders.next(Class::Idle, after)?;
            after = Some((key, id));
            let holder = self.holders.get(id)?;
            let weight = holder.weight;
            if weight == 0 || (own.is_some() && holder.start == own) {
                continue;
            }
            if let Some(look) = self.check(id) {
                sum = sum.saturating_add(weight);
                chosen.push((id, look, weight));
            }
        }
        // The last one is needed; of the others the warmest may not be.
        for index in (0..chosen.len().saturating_sub(1)).rev() {
            let weight = chosen[index].2;
            if sum - weight >= missing {
                sum -= weight;
                chosen.remove(index);
            }
        }
        Some(chosen.into_iter().map(|(id, look, _)| (id, look)).collect())
    }

    /// Looks at one that is filed as idle. If it is not, or if it is warmer than filed, it is filed anew.
    fn check(&mut self, id: Id) -> Option<Look> {
        let usage = self.holders.get(id)?.usage.as_ref()?;
        let mut look = usage.look();
        if !look.is_idle() || look.is_born() {
            look = usage.want();
        }
        let class = if look.is_closed() {
            Class::Leaving
        } else if look.is_pinned() {
            Class::Pinned
        } else if !look.is_idle() || look.is_born() {
            Class::Busy
        } else if self.holders.moved(id) {
            return None;
        } else {
            return Some(look);
        };
        self.holders.set_class(id, class);
        None
    }

    fn close(&mut self, id: Id, look: Look, why: Eviction, out: &mut Out) {
        let Some(usage) = self
            .holders
            .get(id)
            .and_then(|holder| holder.usage.as_ref())
        else {
            return;
        };
        // If somebody claimed it meanwhile, the next look finds it busy.
        if let Some(telling) = usage.start_closing(look, why) {
            out.telling.push(telling);
            self.holders.set_class(id, Class::Leaving);
        }
    }

    /// Files one whose use is not known.
    fn file(&mut self, id: Id, now: u64) {
        let Some(holder) = self.holders.get(id) else {
            return;
        };
        let Some(usage) = &holder.usage else { return };
        let look = usage.look();
        let class = if look.is_closed() {
            Class::Leaving
        } else if look.is_pinned() {
            Class::Pinned
        } else if now < holder.fresh_until {
            Class::Fresh
        } else {
            Class::Idle
        };
        self.holders.set_class(id, class);
    }

    /// Keeps as much yielding as is wanted: tells the coldest busy ones, reopens what is too much. True
    /// if something was reopened: it may have fallen idle meanwhile.
    fn yield_room(&mut self, wanted: u64, now: u64, out: &mut Out) -> bool {
        let own = self
            .queue
            .first()
            .and_then(|key| self.queue.get(key).replaces);
        let mut after = None;
        while self.holders.weight(Class::Yielding) < wanted {
            let Some((key, id)) = self.holders.next(Class::Busy, after) else {
                break;
            };
            after = Some((key, id));
            let Some(holder) = self.holders.get(id) else {
                break;
            };
            if holder.weight == 0
                || now < holder.fresh_until
                || (own.is_some() && holder.start == own)
                || self.holders.moved(id)
            {
                continue;
            }
            let holder = self.holders.get(id);
            let Some(usage) = holder.and_then(|holder| holder.usage.as_ref()) else {
                break;
            };
            if usage.start_yielding().is_yielding() {
                self.holders.set_class(id, Class::Yielding);
                self.yielding.push(id);
            }
            // Else it has just fallen idle or closed, and tells so.
        }
        let holders = &self.holders;
        self.yielding.retain(|id| {
            holders
                .get(*id)
                .is_some_and(|it| it.class == Class::Yielding)
        });
        let mut reopened = false;
        for index in (0..self.yielding.len()).rev() {
            let id = self.yielding[index];
            let weight = self.holders.get(id).map_or(0, |holder| holder.weight);
            if self.holders.weight(Class::Yielding) - weight >= wanted {
                self.yielding.remove(index);
                self.reopen(id, now, out);
                reopened = true;
            }
        }
        reopened
    }

    /// Takes the telling to yield back.
    fn reopen(&mut self, id: Id, now: u64, out: &mut Out) {
        if let Some(usage) = self.holders.get(id).and_then(|it| it.usage.as_ref()) {
            out.telling.push(usage.stop_yielding());
            self.file(id, now);
        }
    }

    /// If time alone may help the first in line, it sets a timer.
    fn look_later(&mut self, out: &mut Out) {
        let Some(key) = self.queue.first() else {
            return;
        };
        let look_at = self
            .holders
            .next(Class::Fresh, None)
            .map(|(until, _)| until);
        let waiter = self.queue.get_mut(key);
        if look_at.is_some() && waiter.look_at != look_at {
            out.wake.extend(waiter.waker.take());
        }
        waiter.look_at = look_at;
    }

    fn numbers(&self) -> NoRoom {
        let running = self.holders.iter().filter(|it| it.class != Class::Starting);
        let usage = self.holders.iter().filter_map(|it| it.usage.as_ref());
        NoRoom {
            limit: self.limit,
            used: self.holders.used(),
            running: running.count(),
            busy: usage.filter(|usage| usage.look().count() > 0).count(),
            waiting: self.queue.len(),
            ..NoRoom::default()
        }
    }

    fn no_room(&self, key: usize, now: u64, own: bool) -> Error {
        let waiter = self.queue.get(key);
        let numbers = NoRoom {
            weight: waiter.weight,
            waited: std::time::Duration::from_nanos(now.saturating_sub(waiter.since)),
            own,
            ..self.numbers()
        };
        let error = Error::new(ErrorKind::NoRoom(numbers));
        if own {
            error
        } else {
            self.hint(error, key, now)
        }
    }

    /// When to try again: all in line up to `key` get room at the rate at which it has come back.
    fn hint(&self, error: Error, key: usize, now: u64) -> Error {
        let average = self.residency.or_else(|| self.holders.average_age(now));
        let Some(average) = average else { return error };
        let ahead = u128::from(self.queue.ahead(key));
        let after = u128::from(average) * ahead / u128::from(self.limit.max(1));
        error.after(std::time::Duration::from_nanos(
            after.try_into().unwrap_or(u64::MAX),
        ))
    }
}

fn never_fits(weight: u64, limit: u64) -> Error {
    Error::new(ErrorKind::NeverFits { weight, limit })
}
