//! What one limit is decided on: holders, the line, and what follows from them.

use std::{task::Waker, time::Duration};

use super::{
    holders::{Class, Holder, Holders, Id},
    queue::{Outcome, Queue, Waiter},
    status::{Counted, Holding, Phase, Waiting},
};
use crate::{
    error::{Error, ErrorKind, NoRoom},
    sync::Arc,
    usage::Telling,
};

/// How many of those who hold room a refusal names.
const NAMED: usize = 4;

pub(super) struct State {
    pub(super) limit: u64,
    pub(super) holders: Holders,
    pub(super) queue: Queue,
    /// Those that are `Yielding`, in the order they were told.
    pub(super) yielding: Vec<Id>,
    /// For how long room is held, on average.
    pub(super) residency: Option<u64>,
    /// When time alone may make room for those in line.
    pub(super) look_at: Option<u64>,
}

/// How the room under a ceiling stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Occupancy {
    /// The limit, in units of weight. Serialized, `u64::MAX` is `null`: there is none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::limit"))]
    pub limit: u64,
    /// What is taken of it, by all of the below together.
    pub used: u64,
    /// Starts that were admitted.
    pub starting: usize,
    /// Instances that run.
    pub running: usize,
    /// Instances that were retired or are being stopped, and hold their room until they are gone.
    pub stopping: usize,
    /// Instances in use: those whose uses are counted.
    pub busy: usize,
    /// Starts that wait for room.
    pub waiting: usize,
}

/// What one start asks for.
#[derive(Debug, Clone, Default)]
pub(super) struct Ask {
    pub(super) weight: u64,
    /// The backend's name.
    pub(super) name: Option<Arc<str>>,
    /// Before all others.
    pub(super) first: bool,
    /// Takes free room or none.
    pub(super) free_only: bool,
    pub(super) start: Option<u64>,
    pub(super) replaces: Option<u64>,
    /// Room that is kept for it.
    pub(super) takes: Option<Id>,
    pub(super) max_waiting: Option<usize>,
    pub(super) strict: bool,
    /// How long the instance, once ready, is not evicted for room.
    pub(super) residency: u64,
}

/// What is to be done once the lock is given up.
#[derive(Default)]
pub(super) struct Out {
    pub(super) gone: Vec<Holder>,
    /// Wakers that are not needed any more.
    pub(super) old: Vec<Waker>,
    pub(super) telling: Vec<Telling>,
    pub(super) wake: Vec<Waker>,
}

impl Out {
    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        self.wake.extend(waker);
    }

    pub(super) fn done(self) {
        drop(self.gone);
        drop(self.old);
        drop(self.telling);
        self.wake.into_iter().for_each(Waker::wake);
    }
}

impl State {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            holders: Holders::default(),
            queue: Queue::default(),
            yielding: Vec::new(),
            residency: None,
            look_at: None,
        }
    }

    /// Room at once, or a place in line.
    pub(super) fn ask(
        &mut self,
        ask: Ask,
        now: u64,
        out: &mut Out,
    ) -> Result<Result<Id, usize>, Error> {
        if ask.weight > self.limit {
            return Err(never_fits(ask.weight, self.limit));
        }
        if let Some(own) = ask.takes {
            self.came_back(own, now, out);
            if self.fits(ask.weight) == Some(true) {
                let (start, residency) = (ask.start, ask.residency);
                let id = self
                    .holders
                    .admit(ask.weight, start, ask.name, residency, now);
                self.settle(now, out);
                return Ok(Ok(id));
            }
        }
        let full = ask.max_waiting.filter(|max| self.queue.len() >= *max);
        let key = self.queue.join(ask.first, |rank| Waiter {
            start: ask.start,
            name: ask.name,
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

    /// Room came back; the instance is gone.
    pub(super) fn came_back(&mut self, id: Id, now: u64, out: &mut Out) {
        let Some(holder) = self.holders.remove(id) else {
            return;
        };
        // Starts that fail come and go, and say nothing of how long instances stay.
        if holder.made {
            let held = now.saturating_sub(holder.since);
            self.residency = Some(match self.residency {
                Some(average) => average - average / 8 + held / 8,
                None => held,
            });
        }
        out.gone.push(holder);
    }

    /// Does all that can be done now: back under the limit, grants, room for those in line.
    pub(super) fn settle(&mut self, now: u64, out: &mut Out) {
        while let Some((_, id)) = self
            .holders
            .next(Class::Fresh, None)
            .filter(|(until, _)| *until <= now)
        {
            self.holders.set_class(id, Class::Idle);
        }
        loop {
            self.trim(out);
            self.grant(now, out);
            let fresh = self.holders.next(Class::Fresh, None);
            self.look_at = fresh.map(|(until, _)| until);
            if !self.make_room_for_those_in_line(now, out) {
                break;
            }
        }
    }

    /// Room that stays taken if nobody else is stopped.
    fn staying(&self) -> u64 {
        self.holders.used() - self.holders.weight(Class::Leaving)
    }

    /// What is missing for `need` more, once all that is leaving is gone.
    pub(super) fn missing(&self, need: u64) -> u64 {
        let wanted = u128::from(self.staying()) + u128::from(need);
        let missing = wanted.saturating_sub(u128::from(self.limit));
        u64::try_from(missing).unwrap_or(u64::MAX)
    }

    /// Whether `weight` more is within the limit. `None`: it cannot even be counted.
    fn fits(&self, weight: u64) -> Option<bool> {
        let used = self.holders.used().checked_add(weight)?;
        Some(used <= self.limit)
    }

    /// Hands room that is there to the first in line, and the next.
    fn grant(&mut self, now: u64, out: &mut Out) {
        while let Some(key) = self.queue.first() {
            let waiter = self.queue.get(key);
            let Some(fits) = self.fits(waiter.weight) else {
                return;
            };
            if !fits && (waiter.strict || self.blocked_by_own(key) || !self.hopeless()) {
                return;
            }
            let (weight, start, name) = (waiter.weight, waiter.start, waiter.name.clone());
            let residency = waiter.residency;
            let id = self.holders.admit(weight, start, name, residency, now);
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
        // Whom nothing is on its way for, and what shall yield to it and to those behind it.
        let mut stuck = None;
        let mut to_yield = (0, None);
        while let Some(key) = next {
            next = self.queue.after(key);
            let waiter = self.queue.get(key);
            let (own, impatient) = (waiter.replaces, waiter.impatient);
            need = need.saturating_add(waiter.weight);
            let whom = waiter.name.clone();
            if stuck.is_none() && self.make_room(need, own, whom.as_ref(), out) {
                continue;
            }
            if self.blocked_by_own(key) {
                let refused = Outcome::Refused(self.no_room(key, now, true));
                out.wake(self.queue.answer(key, refused));
                return true;
            }
            stuck = stuck.or(Some(key));
            let wanted = self
                .missing(need)
                .saturating_sub(self.holders.weight(Class::Idle));
            if !impatient || wanted > self.could_yield(own) {
                break;
            }
            to_yield = (wanted, own.or(to_yield.1));
        }
        let whom = stuck.and_then(|key| self.queue.get(key).name.clone());
        let again = self.yield_room(to_yield.0, to_yield.1, whom.as_ref(), now, out);
        if let Some(stuck) = stuck {
            self.look_later(stuck, out);
        }
        again
    }

    /// If time alone may help `key`, it sets a timer.
    fn look_later(&mut self, key: usize, out: &mut Out) {
        let waiter = self.queue.get_mut(key);
        if self.look_at.is_some() && waiter.look_at != self.look_at {
            out.wake.extend(waiter.waker.take());
        }
        waiter.look_at = self.look_at;
    }

    pub(super) fn occupancy(&self) -> Occupancy {
        let mut now = Occupancy {
            limit: self.limit,
            used: self.holders.used(),
            waiting: self.queue.len(),
            ..Occupancy::default()
        };
        for holder in self.holders.iter() {
            match holder.class {
                Class::Starting => now.starting += 1,
                Class::Leaving => now.stopping += 1,
                _ => now.running += 1,
            }
            let usage = holder.usage.as_ref();
            now.busy += usize::from(usage.is_some_and(|usage| usage.look().count() > 0));
        }
        now
    }

    /// The holders, oldest first, each with what counts its uses, and those in line.
    pub(super) fn status(&self, now: u64) -> (Vec<Counted>, Vec<Waiting>) {
        let since = |then: u64| Duration::from_nanos(now.saturating_sub(then));
        let holders = self.holders.iter().map(|holder| {
            let holding = Holding {
                name: holder.name.clone(),
                weight: holder.weight,
                phase: match holder.class {
                    Class::Starting => Phase::Starting,
                    Class::Leaving => Phase::Stopping,
                    _ if holder.usage.is_some() => Phase::Idle,
                    _ => Phase::Uncounted,
                },
                pinned: false,
                held: since(holder.since),
                in_flight: None,
                idle: None,
            };
            (holding, holder.usage.clone())
        });
        let mut ahead: u64 = 0;
        let waiting = self.queue.iter().map(|waiter| {
            let before = ahead;
            ahead = ahead.saturating_add(waiter.weight);
            Waiting {
                name: waiter.name.clone(),
                weight: waiter.weight,
                ahead: before,
                waited: since(waiter.since),
            }
        });
        (holders.collect(), waiting.collect())
    }

    pub(super) fn no_room(&self, key: usize, now: u64, own: bool) -> Error {
        let waiter = self.queue.get(key);
        let occupancy = self.occupancy();
        let takes_room = self.holders.iter().filter(|holder| holder.weight > 0);
        let names = takes_room.filter_map(|holder| holder.name.clone());
        let numbers = NoRoom {
            limit: occupancy.limit,
            used: occupancy.used,
            weight: waiter.weight,
            running: occupancy.running + occupancy.stopping,
            busy: occupancy.busy,
            uncounted: self.holders.uncounted(),
            waiting: occupancy.waiting,
            waited: Duration::from_nanos(now.saturating_sub(waiter.since)),
            holders: names.take(NAMED).collect(),
            own,
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
        error.after(Duration::from_nanos(after.try_into().unwrap_or(u64::MAX)))
    }
}

pub(super) fn never_fits(weight: u64, limit: u64) -> Error {
    Error::new(ErrorKind::NeverFits { weight, limit })
}
