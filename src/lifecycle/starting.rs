//! The owner's story, Stopped → Starting: admission and making, and a start that comes to nothing.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Instant};

use super::{
    attend::{Either, Look, attend},
    core::Core,
    desk::Desk,
    instance::{Instance, Lender},
    maker::discard,
    owner::{Made, Owner, lend},
    status::State,
};
use crate::{
    backend::Backend,
    error::{Clock, Error, ErrorKind},
    events::{self, Standing},
    sync::lock,
    target::{Intent, StartId, Urgency},
    wakers::WakeList,
};

/// Why a start was left.
enum Left {
    Halted,
    Cancelled,
    TimedOut,
}

impl<T, B> Owner<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    /// Stopped → Starting. How urgent it is, and since when somebody waits.
    fn begin(&mut self) -> (Urgency, Instant, Standing) {
        let now = self.core.runtime.now();
        let mut desk = lock(&self.core.desk);
        // Those who asked for it may all have left before it began; a restart nobody asked for.
        desk.cancelled &= !self.restarting;
        // A restart stays one when callers come to wait for it.
        let urgency = if self.restarting {
            Urgency::Restart
        } else {
            desk.lobby.urgency().unwrap_or_default()
        };
        // One wait per start, begun with the first who waits, be it for the old one's end.
        let began = desk.lobby.since().unwrap_or(now);
        let target = desk.take_next_target();
        let told = desk.enter(State::Starting, now);
        let generation = desk.generation + 1;
        drop(desk);
        let name = &self.core.name;
        let starting = Standing::starting(name);
        events::starting(name, generation);
        told.wake();
        let supply = self.supply.as_mut().expect("the owner has the supply");
        if let Some(target) = target {
            supply.target = target;
        }
        (urgency, began, starting)
    }

    /// Waits for admission and makes. A start that fails is told to all who wait now.
    pub(super) async fn start(&mut self) -> Option<Made<B>> {
        let (urgency, began, _starting) = self.begin();
        let core = self.core.clone();
        let supply = self.supply.as_mut().expect("the owner has the supply");
        let deadline = core.start_deadline(began);
        let restarting = self.restarting;
        let look = |desk: &mut Desk<T, B>, now| {
            if desk.must_stop() {
                Look::Act(Left::Halted)
            } else if desk.cancelled && !restarting {
                Look::Act(Left::Cancelled)
            } else if deadline.is_some_and(|deadline| deadline <= now) {
                Look::Act(Left::TimedOut)
            } else {
                Look::GoOn(deadline)
            }
        };
        // What was ordered before it began asks nothing of the maker.
        let before = look(&mut lock(&core.desk), core.runtime.now());
        let made = match before {
            Look::Act(left) => Either::Act(left),
            Look::GoOn(_) => {
                let intent = Intent {
                    room: self.room.take(),
                    ..self::intent(&core, urgency, None)
                };
                let start = intent.start;
                let old = lock(&core.desk).course.replace(intent.course.clone());
                drop(old);
                let mut making = supply.maker.make(supply.target.clone(), intent);
                // What is ordered meanwhile goes before: nothing begins after an order to stop.
                let unless_stopped = poll_fn(|cx| {
                    if lock(&core.desk).must_stop() {
                        return Poll::Pending;
                    }
                    making.as_mut().poll(cx)
                });
                let made = attend(&core, &mut self.beside, unless_stopped, look).await;
                let _ = discard(making);
                match made {
                    Either::Done(made) => Either::Done(made.map(|backend| (backend, start))),
                    Either::Act(left) => Either::Act(left),
                }
            }
        };
        match made {
            Either::Done(Ok((backend, start))) => match self.instance(backend, start) {
                Ok(made) => return Some(made),
                Err((instance, error)) => {
                    // Starting → Stopping: it has failed once it is gone.
                    let told = lock(&core.desk).enter(State::Stopping, core.runtime.now());
                    told.wake();
                    self.discard(instance).await;
                    self.failed(error, urgency);
                }
            },
            Either::Done(Err(error)) => self.failed(error, urgency),
            Either::Act(Left::TimedOut) => {
                let timeout = Error::new(ErrorKind::StartTimeout {
                    clock: Clock::StartTimeout,
                    after: core.config.start_timeout.unwrap_or_default(),
                });
                self.failed(timeout, urgency);
            }
            // Nobody waits, and it says nothing of the backend's health.
            Either::Act(Left::Cancelled) => self.dropped("abandoned"),
            Either::Act(Left::Halted) => {
                self.dropped("stopped");
                self.halted();
            }
        }
        None
    }

    /// A started backend as the next generation, with the owner's own lease of it. One that cannot
    /// lend comes back with its error.
    pub(super) fn instance(
        &self,
        backend: B,
        start: StartId,
    ) -> Result<Made<B>, (Arc<Instance<B>>, Error)> {
        let core = &*self.core;
        let generation = lock(&core.desk).generation + 1;
        let name = core.name.clone();
        let instance = Instance::new(backend, generation, start, &core.runtime, name);
        let lender = Lender::new(instance);
        match lend(&lender) {
            Ok(own) => Ok((lender, own)),
            Err(error) => Err((lender.instance, error)),
        }
    }

    /// Starting → Stopped or BackingOff.
    fn failed(&mut self, error: Error, urgency: Urgency) {
        let core = &*self.core;
        let error = error.of(core.name.clone());
        let now = core.runtime.now();
        let mut desk = lock(&core.desk);
        let mut told;
        if error.is_refusal() {
            // A start that may take free room only speaks for those who asked for such a one.
            told = desk.lobby.tell(&error, |asked| {
                asked == urgency || urgency != Urgency::FreeOnly
            });
            if self.restarting {
                desk.past.make().history.restart_refused();
            }
        } else {
            let seed = (core.name.clone(), desk.generation, desk.starts());
            let history = &mut desk.past.make().history;
            history.start_failed(&core.config.policy, now, seed);
            told = desk.enter(State::BackingOff, now);
            told.extend(desk.lobby.tell(&error, |_| true));
        }
        let window = desk.check(&core.config.policy, now).err();
        let old = desk.set_last_error(error.clone());
        drop(desk);
        drop(old);
        if error.is_refusal() {
            events::start_refused(&core.name, &error);
        } else {
            events::start_failed(&core.name, &error);
            if let Some(window) = window {
                events::backing_off(&core.name, window.left);
            }
        }
        told.wake();
    }

    /// The start was left before its end.
    fn dropped(&self, reason: &'static str) {
        let generation = lock(&self.core.desk).generation + 1;
        events::start_dropped(&self.core.name, generation, reason);
    }

    /// A halt met a start: those who waited for it are told, unless it goes up again at once.
    fn halted(&mut self) {
        let mut desk = lock(&self.core.desk);
        let told = match desk.why_down() {
            Some(kind) => {
                let error = Error::new(kind).of(self.core.name.clone());
                desk.lobby.tell(&error, |_| true)
            }
            None => WakeList::default(),
        };
        drop(desk);
        told.wake();
    }
}

pub(super) fn intent<T, B: Backend>(
    core: &Core<T, B>,
    urgency: Urgency,
    replaces: Option<StartId>,
) -> Intent {
    Intent {
        name: core.name.clone(),
        urgency,
        start: StartId::next(),
        replaces,
        room: None,
        course: Arc::default(),
    }
}
