//! Running → Stopping → Stopped, and what comes after.

use std::{
    future::{Future, pending},
    mem,
    pin::pin,
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{
    attend::{Either, Look, attend},
    desk::Halt,
    ending,
    instance::Instance,
    owner::{End, Next, Owner},
    status::State,
};
use crate::{
    backend::{Backend, Stopped},
    error::{Clock, Error, ErrorKind},
    events,
    sync::lock,
    usage::{Eviction, Usage},
    wakers::WakeList,
};

impl End {
    /// The backend whose start needed the room.
    fn room_for(&self, usage: &Usage) -> Option<Arc<str>> {
        match self {
            End::Evicted(Eviction::Room | Eviction::Yield) => usage.room_for(),
            _ => None,
        }
    }

    /// Tells that the life of an instance is over, and why.
    pub(crate) fn tell(&self, name: &Arc<str>, generation: u64, lived: Duration, usage: &Usage) {
        match self {
            End::Died(error) => {
                let error = error.clone().unwrap_or_else(|| Error::new(ErrorKind::Died));
                events::died(name, generation, &error.of(name.clone()), lived);
            }
            End::Halted => events::stopping(name, generation),
            End::Evicted(why) => {
                let idle = Duration::from_nanos(usage.now().saturating_sub(usage.ended()));
                let room_for = self.room_for(usage);
                events::evicted(name, generation, *why, idle, room_for.as_deref());
            }
        }
    }
}

impl<T, B> Owner<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    // ===== Running → Stopping → Stopped =====

    pub(super) fn unpublish(&mut self, end: &End) {
        let core = &*self.core;
        let now = core.runtime.now();
        let usage = self.current.as_ref().map(|instance| instance.usage.clone());
        let usage = usage.expect("it was published");
        let room_for = end.room_for(&usage);
        let mut desk = lock(&core.desk);
        let lived = now.saturating_duration_since(desk.since);
        let generation = desk.generation;
        let (mut old_error, mut old_for) = (None, None);
        match end {
            End::Died(error) => {
                let past = desk.past.make();
                past.counts.crashes += 1;
                past.history.crashed(&core.config.policy, now, lived);
                let error = error.clone().unwrap_or_else(|| Error::new(ErrorKind::Died));
                old_error = desk.set_last_error(error.of(core.name.clone()));
                self.restarting = desk.keep_running;
            }
            End::Evicted(why) => {
                let past = desk.past.make();
                past.counts.evictions += 1;
                past.last_eviction = Some(*why);
                old_for = mem::replace(&mut past.evicted_for, room_for.clone());
                past.history.good_life();
            }
            End::Halted => desk.past.make().history.good_life(),
        }
        let told = desk.enter(State::Stopping, now);
        let mut slot = core.slot.write().unwrap_or_else(PoisonError::into_inner);
        let instance = slot.take();
        drop(slot);
        // A restart has a pause of its own.
        let window = match end {
            End::Died(_) if !self.restarting => desk.check(&core.config.policy, now).err(),
            _ => None,
        };
        drop(desk);
        drop(instance);
        drop((old_error, old_for));
        let name = &core.name;
        end.tell(name, generation, lived, &usage);
        if let Some(window) = window {
            events::backing_off(name, window.left);
        }
        told.wake();
    }

    /// Drains, stops and drops the instance. Only then is what it held free.
    pub(super) async fn end(&mut self, end: End) {
        let core = self.core.clone();
        let instance = self.current.take().expect("it was published");
        let died = matches!(end, End::Died(_));
        if died {
            instance.usage.close_dead();
        } else {
            // Only orders bound it, also those that come while it drains.
            let until = || core.drain_until();
            let drained = ending::drain(&core.runtime, &instance.usage, until);
            self.attend_waiters(drained).await;
        }
        if self.restarting {
            self.room = instance.backend.room();
        }
        let (begun, generation) = (core.runtime.now(), instance.generation);
        if let Some(way) = self.discard(instance).await {
            let took = core.runtime.now().saturating_duration_since(begun);
            let way = if died { "died" } else { way.as_str() };
            events::stopped(&core.name, generation, took, way);
        }
        if let Some(last) = self.beside.take() {
            self.attend_waiters(last).await;
        }
    }

    /// Stops and drops an instance that nobody uses any more, and says how it went; `None` if it did not
    /// stop as it should.
    pub(super) async fn discard(&mut self, instance: Arc<Instance<B>>) -> Option<Stopped> {
        let core = self.core.clone();
        instance.usage.close_now();
        let generation = instance.generation;
        let bound = core.config.stop_timeout;
        let stopped = ending::stop(&core.runtime, instance, bound);
        let stopped = self.attend_waiters(stopped).await;
        if !stopped.as_ref().is_ok_and(|ended| ended.gone) {
            // It may be there still, and its room is not its successor's.
            self.room = None;
        }
        let error = match stopped {
            Ok(ended) => return Some(ended.way),
            Err(error) => error,
        };
        let error = error.of(core.name.clone());
        events::stop_failed(&core.name, generation, &error);
        let old = lock(&core.desk).set_last_error(error);
        drop(old);
        None
    }

    /// Awaits `work`. Those who wait for the next instance are told when their time is up.
    async fn attend_waiters<W: Future>(&mut self, work: W) -> W::Output {
        let core = self.core.clone();
        let late = Error::new(ErrorKind::StartTimeout {
            clock: Clock::StartTimeout,
            after: core.config.start_timeout.unwrap_or_default(),
        })
        .of(core.name.clone());
        let mut work = pin!(work);
        loop {
            let looked = attend(&core, &mut self.beside, work.as_mut(), |desk, now| {
                let since = desk.lobby.since();
                match since.and_then(|since| core.start_deadline(since)) {
                    Some(deadline) if deadline <= now => {
                        Look::Act(desk.lobby.tell(&late, |_| true))
                    }
                    deadline => Look::GoOn(deadline),
                }
            })
            .await;
            match looked {
                Either::Done(done) => return done,
                Either::Act(told) => told.wake(),
            }
        }
    }

    // ===== Stopped → Starting, or to rest =====

    pub(super) fn next(&mut self) -> Next {
        let core = self.core.clone();
        let policy = &core.config.policy;
        let now = core.runtime.now();
        let mut desk = lock(&core.desk);
        let mut told = WakeList::default();
        let again = desk.halt == Some(Halt::Restart) && desk.why_down().is_none();
        desk.cancelled &= !again;
        if let Some(kind) = desk.why_down().filter(|_| desk.is_held_down()) {
            let error = Error::new(kind).of(core.name.clone());
            told.extend(desk.lobby.tell(&error, |_| true));
        }
        if desk.must_stop() {
            self.restarting = false;
        }
        let mut settled = desk.settle();
        let mut next = Next::Rest;
        if desk.lobby.waiting() > 0 || again {
            match desk.check(policy, now) {
                Ok(()) => next = Next::Start,
                Err(not_yet) => {
                    let error = desk.refused(not_yet).of(core.name.clone());
                    told.extend(desk.lobby.tell(&error, |_| true));
                }
            }
        }
        let restarting = self.restarting && desk.keep_running && !desk.is_held_down();
        let room = self.room.take_if(|_| !restarting);
        let mut pause = None;
        if matches!(next, Next::Rest) && restarting {
            let seed = (core.name.clone(), desk.generation, desk.starts());
            let history = &desk.past.make().history;
            let after = history.restart_after(policy, now, seed);
            pause = Some(after).filter(|after| !after.is_zero());
            next = Next::StartAfter(after);
        }
        if matches!(next, Next::Rest) {
            let state = match desk.state {
                State::BackingOff => State::BackingOff,
                _ => State::Stopped,
            };
            told.extend(desk.enter(state, now));
            desk.supply = self.supply.take();
        } else if desk.state == State::Stopping
            || (desk.state == State::Starting && matches!(next, Next::StartAfter(_)))
        {
            told.extend(desk.enter(State::Stopped, now));
        }
        drop(desk);
        if let Some(pause) = pause {
            events::backing_off(&core.name, pause);
        }
        told.wake();
        drop(room);
        settled.tell_halted();
        // Nothing runs that could be replaced: they find the next start as they want it.
        for reload in settled.reloads {
            if let Some(target) = reload.target {
                let old = lock(&core.desk).orders.make().next_target.replace(target);
                drop(old);
            }
            drop(reload.done.send(Ok(())));
        }
        next
    }

    /// Waits before a crashed backend that must keep running is started again. True if it is time;
    /// a call, an order or a reset ends the wait before: then see what is [next](Self::next).
    pub(super) async fn pause(&mut self, pause: Duration) -> bool {
        let core = self.core.clone();
        let until = core.runtime.now().checked_add(pause);
        let resets = lock(&core.desk).resets();
        let looked = attend(&core, &mut self.beside, pending::<()>(), |desk, now| {
            if desk.must_stop() || !desk.keep_running || desk.lobby.waiting() > 0 {
                Look::Act(false)
            } else if until.is_some_and(|until| until <= now) {
                Look::Act(true)
            } else if desk.resets() != resets {
                Look::Act(false)
            } else {
                Look::GoOn(until)
            }
        })
        .await;
        matches!(looked, Either::Act(true))
    }
}
