//! The owner's story: one async function, from the first start to the last stop.

use std::{
    future::{Future, pending, poll_fn},
    mem,
    pin::pin,
    sync::{Arc, PoisonError},
    task::Poll,
    thread,
    time::Duration,
};

use super::{
    attend::{Beside, Either, Look, attend},
    core::{Core, Instance},
    desk::{Desk, Halt, Reload, Supply, refused},
    ending,
    maker::Caught,
    status::State,
};
use crate::{
    backend::{Backend, Retired},
    error::{BoxError, Clock, Error, ErrorKind},
    sync::lock,
    target::{Intent, StartId, Urgency},
    wakers::WakeList,
};

/// Owns a backend from the moment somebody asked for it until it holds nothing any more.
///
/// On any other way out (a panic, an executor that drops the task) its `Drop` unpublishes, gives the
/// supply back and tells all who wait.
pub(crate) struct Owner<T: Clone + Send + 'static, B: Backend> {
    core: Arc<Core<T, B>>,
    supply: Option<Supply<T, B>>,
    current: Option<Arc<Instance<B>>>,
    /// The end of the instance that a reload replaced.
    beside: Beside,
    /// It crashed, or could not be started again, and must keep running.
    restarting: bool,
}

/// How an instance's life came to its end.
enum End {
    Died(Option<Error>),
    /// By a policy, while it was idle.
    Evicted,
    Halted(Halt),
}

/// What an owner does when it holds nothing.
enum Next {
    Start,
    StartAfter(Duration),
    Rest,
}

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
    pub(crate) fn new(core: Arc<Core<T, B>>, supply: Supply<T, B>) -> Self {
        Self {
            core,
            supply: Some(supply),
            current: None,
            beside: None,
            restarting: false,
        }
    }

    /// The story.
    pub(crate) async fn run(mut self) {
        loop {
            if let Some(instance) = self.start().await {
                self.publish(instance);
                let end = self.live().await;
                self.unpublish(&end);
                self.end(end).await;
            }
            match self.next() {
                Next::Start => {}
                Next::StartAfter(pause) => self.pause(pause).await,
                Next::Rest => return,
            }
        }
    }

    // ===== Stopped → Starting =====

    /// Waits for admission and makes. A start that fails is told to all who wait now.
    async fn start(&mut self) -> Option<Arc<Instance<B>>> {
        let now = self.core.runtime.now();
        let mut desk = lock(&self.core.desk);
        desk.cancelled = false;
        let urgency = match desk.urgency() {
            Some(urgency) => urgency,
            None if self.restarting => Urgency::Restart,
            None => Urgency::Demand,
        };
        // One wait per start, begun with the first who waits, be it for the old one's end.
        let began = desk.waiting_since.unwrap_or(now);
        let target = desk.next_target.take();
        let told = desk.enter(State::Starting, now);
        drop(desk);
        told.wake();

        let core = self.core.clone();
        let supply = self.supply.as_mut().expect("the owner has the supply");
        if let Some(target) = target {
            supply.target = target;
        }
        let deadline = core.config.start_timeout.map(|timeout| began + timeout);
        let intent = self::intent(&core, urgency, None);
        let start = intent.start;
        let making = supply.maker.make(supply.target.clone(), intent);
        let made = attend(&core, &mut self.beside, making, |desk, now| {
            if desk.must_stop() {
                Look::Act(Left::Halted)
            } else if desk.cancelled {
                Look::Act(Left::Cancelled)
            } else if deadline.is_some_and(|deadline| deadline <= now) {
                Look::Act(Left::TimedOut)
            } else {
                Look::GoOn(deadline)
            }
        })
        .await;
        match made {
            Either::Done(Ok(backend)) => return Some(self.instance(backend, start)),
            Either::Done(Err(error)) => self.failed(error, urgency),
            Either::Act(Left::TimedOut) => {
                let timeout = Error::new(ErrorKind::StartTimeout {
                    clock: Clock::StartTimeout,
                    after: core.config.start_timeout.unwrap_or_default(),
                });
                self.failed(timeout, urgency);
            }
            // Nobody waits, and it says nothing of the backend's health.
            Either::Act(Left::Cancelled) => {}
            Either::Act(Left::Halted) => self.halted(),
        }
        None
    }

    fn instance(&self, backend: B, start: StartId) -> Arc<Instance<B>> {
        let usage = backend.usage();
        if let Some(usage) = &usage {
            usage.set_name(self.core.config.name.clone());
        }
        Arc::new(Instance {
            generation: lock(&self.core.desk).generation + 1,
            usage,
            backend,
            start,
        })
    }

    /// Starting → Stopped or BackingOff.
    fn failed(&mut self, error: Error, urgency: Urgency) {
        let core = &*self.core;
        let error = error.of(core.config.name.clone());
        let now = core.runtime.now();
        let mut desk = lock(&core.desk);
        let mut told;
        if error.is_refusal() {
            // A start that may take free room only speaks for those who asked for such a one.
            told = desk.tell(&error, |asked| asked == urgency || urgency != Urgency::FreeOnly);
        } else {
            let seed = (core.config.name.clone(), desk.generation, desk.counts.starts);
            desk.history.start_failed(&core.config.policy, now, seed);
            told = desk.enter(State::BackingOff, now);
            told.extend(desk.tell(&error, |_| true));
        }
        let old = desk.last_error.replace(error);
        drop(desk);
        drop(old);
        told.wake();
    }

    /// A halt met a start: those who waited for it are told, unless it goes up again at once.
    fn halted(&mut self) {
        let mut desk = lock(&self.core.desk);
        let told = match desk.why_down() {
            Some(kind) => {
                let error = Error::new(kind).of(self.core.config.name.clone());
                desk.tell(&error, |_| true)
            }
            None => WakeList::default(),
        };
        drop(desk);
        told.wake();
    }

    // ===== Starting → Running =====

    /// Publishes the instance, once everybody who waits has a lease of it.
    ///
    /// Each lease is a claim, and the owner holds one of its own meanwhile: from "ready" to "used"
    /// the instance is busy, so no starter that waits for room can take it from its callers. Leases
    /// are made outside the lock; the slot is written in the critical section that finds nobody
    /// waiting, so nobody is left between the two.
    fn publish(&mut self, instance: Arc<Instance<B>>) {
        let own = instance.backend.lease();
        let core = &*self.core;
        let now = core.runtime.now();
        let mut leases = Vec::new();
        loop {
            let mut desk = lock(&core.desk);
            let told = desk.hand_out(instance.generation, &instance.usage, &mut leases);
            let more = desk.waiting_for(instance.generation);
            if more == 0 {
                desk.generation = instance.generation;
                desk.counts.starts += 1;
                desk.counts.restarts += u64::from(self.restarting);
                desk.history.started();
                let shown = desk.enter(State::Running, now);
                let mut slot = core.slot.write().unwrap_or_else(PoisonError::into_inner);
                let old = slot.replace(instance.clone());
                drop(slot);
                drop(desk);
                drop(old);
                told.wake();
                shown.wake();
                break;
            }
            drop(desk);
            told.wake();
            leases.extend((0..more).map(|_| instance.backend.lease()));
        }
        self.restarting = false;
        self.current = Some(instance);
        // Idle from here on, if nobody used it; room may be made of it.
        drop(leases);
        drop(own);
    }

    // ===== Running =====

    /// Until it is retired, dies or is told to stop. Reloads happen in here.
    async fn live(&mut self) -> End {
        enum Told<T> {
            Halt(Halt),
            Distrust(Error),
            Reload(Reload<T>),
        }
        let core = self.core.clone();
        loop {
            let instance = self.current.clone().expect("it was published");
            let generation = instance.generation;
            let mut retired = pin!(Caught::new(instance.backend.retired()));
            loop {
                let told = attend(&core, &mut self.beside, retired.as_mut(), |desk, _| {
                    if desk.must_stop() {
                        Look::Act(Told::Halt(desk.halt.unwrap_or(Halt::Stop)))
                    } else if desk.distrusted.as_ref().is_some_and(|d| d.0 == generation) {
                        let (_, error) = desk.distrusted.take().expect("it is there");
                        Look::Act(Told::Distrust(error))
                    } else if let Some(reload) = desk.reloads.pop_front() {
                        Look::Act(Told::Reload(reload))
                    } else {
                        Look::GoOn(None)
                    }
                })
                .await;
                match told {
                    Either::Done(Ok(retired)) => return End::from(retired),
                    Either::Done(Err(panicked)) => return End::Died(Some(panicked)),
                    Either::Act(Told::Halt(halt)) => return End::Halted(halt),
                    Either::Act(Told::Distrust(error)) => return End::Died(Some(error)),
                    Either::Act(Told::Reload(reload)) => {
                        match self.reload(reload, retired.as_mut()).await {
                            Reloaded::New => break,
                            Reloaded::Unchanged => {}
                            Reloaded::Over(end) => return end,
                        }
                    }
                }
            }
        }
    }

    /// Makes a new instance beside the running one, and moves the calls over once it is ready. If
    /// anything goes wrong nothing has changed.
    async fn reload(
        &mut self,
        reload: Reload<T>,
        mut retired: std::pin::Pin<&mut Caught<impl Future<Output = Retired>>>,
    ) -> Reloaded {
        let core = self.core.clone();
        let old = self.current.clone().expect("it was published");
        let Reload { target, done } = reload;
        let answer = |result: Result<(), Error>| {
            let name = core.config.name.clone();
            drop(done.send(result.map_err(|error| error.of(name))));
        };
        // At most two live at a time: the one that the last reload replaced must be gone.
        if self.beside.is_some() {
            let mut last = self.beside.take();
            let gone = poll_fn(|cx| match &mut last {
                Some(last) => last.as_mut().poll(cx),
                None => Poll::Ready(()),
            });
            let looked = attend(&core, &mut self.beside, gone, |desk, _| {
                if desk.must_stop() { Look::Act(()) } else { Look::GoOn(None) }
            })
            .await;
            if let Either::Act(()) = looked {
                self.beside = last;
                answer(Err(Error::new(ErrorKind::Stopped)));
                return Reloaded::Unchanged;
            }
        }
        // The calls that come meanwhile are served by the old one, so it must not be evicted.
        let held = old.backend.lease();
        let supply = self.supply.as_mut().expect("the owner has the supply");
        let began = core.runtime.now();
        let deadline = core.config.start_timeout.map(|timeout| began + timeout);
        let intent = self::intent(&core, Urgency::Demand, Some(old.start));
        let start = intent.start;
        let next = target.clone().unwrap_or_else(|| supply.target.clone());
        let mut making = supply.maker.make(next, intent);
        let first = poll_fn(|cx| {
            if let Poll::Ready(made) = making.as_mut().poll(cx) {
                return Poll::Ready(Either::Done(made));
            }
            retired.as_mut().poll(cx).map(Either::Act)
        });
        let made = attend(&core, &mut self.beside, first, |desk, now| {
            if desk.must_stop() {
                Look::Act(Left::Halted)
            } else if deadline.is_some_and(|deadline| deadline <= now) {
                Look::Act(Left::TimedOut)
            } else {
                Look::GoOn(deadline)
            }
        })
        .await;
        drop(making);
        match made {
            Either::Done(Either::Done(Ok(backend))) => {
                if let Some(target) = target {
                    self.supply.as_mut().expect("it is here").target = target;
                }
                let instance = self.instance(backend, start);
                self.publish(instance);
                lock(&core.desk).counts.reloads += 1;
                drop(held);
                self.beside = Some(Box::pin(replaced(core.clone(), old)));
                answer(Ok(()));
                Reloaded::New
            }
            Either::Done(Either::Done(Err(error))) => {
                answer(Err(error));
                Reloaded::Unchanged
            }
            Either::Act(Left::TimedOut) => {
                answer(Err(Error::new(ErrorKind::StartTimeout {
                    clock: Clock::StartTimeout,
                    after: core.config.start_timeout.unwrap_or_default(),
                })));
                Reloaded::Unchanged
            }
            // The old one's end is what counts now.
            Either::Done(Either::Act(retired)) => {
                answer(Err(Error::new(ErrorKind::Died)));
                Reloaded::Over(match retired {
                    Ok(retired) => End::from(retired),
                    Err(panicked) => End::Died(Some(panicked)),
                })
            }
            Either::Act(Left::Halted | Left::Cancelled) => {
                answer(Err(Error::new(ErrorKind::Stopped)));
                Reloaded::Unchanged
            }
        }
    }

    // ===== Running → Stopping → Stopped =====

    fn unpublish(&mut self, end: &End) {
        let core = &*self.core;
        let now = core.runtime.now();
        let mut desk = lock(&core.desk);
        let lived = now.saturating_duration_since(desk.since);
        let mut old_error = None;
        match end {
            End::Died(error) => {
                desk.counts.crashes += 1;
                desk.history.crashed(&core.config.policy, now, lived);
                let error = error.clone().unwrap_or_else(|| Error::new(ErrorKind::Died));
                old_error = desk.last_error.replace(error.of(core.config.name.clone()));
                self.restarting = desk.keep_running;
            }
            End::Evicted => {
                desk.counts.evictions += 1;
                desk.history.good_life();
            }
            End::Halted(_) => desk.history.good_life(),
        }
        let told = desk.enter(State::Stopping, now);
        let mut slot = core.slot.write().unwrap_or_else(PoisonError::into_inner);
        let instance = slot.take();
        drop(slot);
        drop(desk);
        drop(instance);
        drop(old_error);
        told.wake();
    }

    /// Drains, stops and drops the instance. Only then is what it held free.
    async fn end(&mut self, end: End) {
        let core = self.core.clone();
        let instance = self.current.take().expect("it was published");
        match (&instance.usage, &end) {
            (Some(usage), End::Died(_)) => drop(usage.close_now()),
            (Some(usage), End::Evicted | End::Halted(_)) => {
                let mut bounded = false;
                loop {
                    let bound = bounded.then(|| core.drain_bound());
                    let drained = ending::drain(&core.runtime, usage, bound);
                    // An order to stop bounds a drain that had no bound.
                    match self.attend_waiters(drained, !bounded).await {
                        Either::Done(()) => break,
                        Either::Act(()) => bounded = true,
                    }
                }
            }
            (None, _) => {}
        }
        let bound = core.config.stop_timeout;
        let stopped = ending::stop(&core.runtime, instance, bound);
        if let Either::Done(Err(error)) = self.attend_waiters(stopped, false).await {
            let error = error.of(core.config.name.clone());
            let old = lock(&core.desk).last_error.replace(error);
            drop(old);
        }
        if let Some(last) = self.beside.take() {
            self.attend_waiters(last, false).await;
        }
    }

    /// Awaits `work`. Those who wait for the next instance are told when their time is up; if
    /// `halts` matters, an order to stop ends it.
    async fn attend_waiters<W: Future>(&mut self, work: W, halts: bool) -> Either<W::Output, ()> {
        let core = self.core.clone();
        let timeout = core.config.start_timeout;
        let late = Error::new(ErrorKind::StartTimeout {
            clock: Clock::StartTimeout,
            after: timeout.unwrap_or_default(),
        })
        .of(core.config.name.clone());
        let mut work = pin!(work);
        loop {
            let looked = attend(&core, &mut self.beside, work.as_mut(), |desk, now| {
                if halts && desk.must_stop() && desk.halt != Some(Halt::Abandoned) {
                    return Look::Act(None);
                }
                let deadline = desk
                    .waiting_since
                    .and_then(|since| Some(since + timeout?));
                match deadline {
                    Some(deadline) if deadline <= now => {
                        Look::Act(Some(desk.tell(&late, |_| true)))
                    }
                    deadline => Look::GoOn(deadline),
                }
            })
            .await;
            match looked {
                Either::Done(done) => return Either::Done(done),
                Either::Act(None) => return Either::Act(()),
                Either::Act(Some(told)) => told.wake(),
            }
        }
    }

    // ===== Stopped → Starting, or to rest =====

    fn next(&mut self) -> Next {
        let core = self.core.clone();
        let policy = &core.config.policy;
        let now = core.runtime.now();
        let mut desk = lock(&core.desk);
        let mut told = WakeList::default();
        let again = desk.halt == Some(Halt::Restart) && desk.why_down().is_none();
        if let Some(kind) = desk.why_down().filter(|_| desk.is_held_down()) {
            let error = Error::new(kind).of(core.config.name.clone());
            told.extend(desk.tell(&error, |_| true));
        }
        if desk.halt.is_some() {
            self.restarting = false;
        }
        let halted = desk.halt_done();
        let reloads = mem::take(&mut desk.reloads);
        let stale = desk.distrusted.take();
        let mut next = Next::Rest;
        if desk.waiting() > 0 || again {
            match desk.history.check(policy, now) {
                Ok(()) => next = Next::Start,
                Err(not_yet) => {
                    let error = refused(not_yet).of(core.config.name.clone());
                    told.extend(desk.tell(&error, |_| true));
                }
            }
        }
        let restarting = self.restarting && desk.keep_running && !desk.is_held_down();
        if matches!(next, Next::Rest) && restarting {
            let seed = (core.config.name.clone(), desk.generation, desk.counts.starts);
            next = Next::StartAfter(desk.history.restart_after(policy, now, seed));
        }
        if matches!(next, Next::Rest) {
            let state = match desk.state {
                State::BackingOff => State::BackingOff,
                _ => State::Stopped,
            };
            told.extend(desk.enter(state, now));
            desk.supply = self.supply.take();
        } else if desk.state == State::Stopping {
            told.extend(desk.enter(State::Stopped, now));
        }
        drop(desk);
        told.wake();
        drop(stale);
        for done in halted {
            drop(done.send(()));
        }
        // Nothing runs that could be replaced: they find the next start as they want it.
        for reload in reloads {
            if let Some(target) = reload.target {
                lock(&core.desk).next_target = Some(target);
            }
            drop(reload.done.send(Ok(())));
        }
        next
    }

    /// Waits before a crashed backend that must keep running is started again. A call ends the wait.
    async fn pause(&mut self, pause: Duration) {
        let core = self.core.clone();
        let until = core.runtime.now() + pause;
        let _ = attend(&core, &mut self.beside, pending::<()>(), |desk, now| {
            let over = until <= now || desk.must_stop() || desk.waiting() > 0;
            if over || !desk.keep_running {
                Look::Act(())
            } else {
                Look::GoOn(Some(until))
            }
        })
        .await;
    }
}

/// What came of a reload.
enum Reloaded {
    New,
    Unchanged,
    Over(End),
}

impl From<Retired> for End {
    fn from(retired: Retired) -> Self {
        match retired {
            Retired::Died(error) => End::Died(error),
            Retired::Unhealthy(error) => End::Died(Some(
                error.unwrap_or_else(|| Error::new(ErrorKind::Died).because("it is unhealthy")),
            )),
            Retired::Evicted(_) => End::Evicted,
            Retired::Closed => End::Halted(Halt::Stop),
        }
    }
}

/// The end of an instance whose calls have moved to a new one.
async fn replaced<T, B>(core: Arc<Core<T, B>>, old: Arc<Instance<B>>)
where
    T: Clone + Send + 'static,
    B: Backend,
{
    if let Some(usage) = &old.usage {
        ending::drain(&core.runtime, usage, Some(core.config.drain_timeout)).await;
    }
    let bound = core.config.stop_timeout;
    if let Err(error) = ending::stop(&core.runtime, old, bound).await {
        let error = error.of(core.config.name.clone());
        let old = lock(&core.desk).last_error.replace(error);
        drop(old);
    }
}

fn intent<T, B: Backend>(
    core: &Core<T, B>,
    urgency: Urgency,
    replaces: Option<StartId>,
) -> Intent {
    Intent {
        name: core.config.name.clone(),
        urgency,
        start: StartId::next(),
        replaces,
    }
}

impl<T, B: Backend> Desk<T, B> {
    /// Whether something says that no instance may run.
    fn must_stop(&self) -> bool {
        self.halt.is_some() || self.is_held_down()
    }

    fn is_held_down(&self) -> bool {
        self.unloaded || self.shut_down
    }

    /// What those are told who wait while it goes down; `None` if it comes up again at once.
    fn why_down(&self) -> Option<ErrorKind> {
        if self.shut_down {
            Some(ErrorKind::ShutDown)
        } else if self.unloaded {
            Some(ErrorKind::Unloaded)
        } else {
            match self.halt {
                Some(Halt::Stop | Halt::Abandoned) => Some(ErrorKind::Stopped),
                Some(Halt::Restart) | None => None,
            }
        }
    }
}

impl<T: Clone + Send + 'static, B: Backend> Drop for Owner<T, B> {
    fn drop(&mut self) {
        let Some(supply) = self.supply.take() else {
            return; // it rests: the supply is back
        };
        // Starting, Running or Stopping → Stopped, at once: nobody is left to do it in order.
        let core = &*self.core;
        let error = if thread::panicking() {
            Error::new(ErrorKind::Panicked)
        } else {
            let why: BoxError = "the executor dropped the task that owned it".into();
            Error::new(ErrorKind::ShutDown).because(why)
        }
        .of(core.config.name.clone());
        let now = core.runtime.now();
        let mut desk = lock(&core.desk);
        let mut told = desk.enter(State::Stopped, now);
        told.extend(desk.tell(&error, |_| true));
        desk.supply = Some(supply);
        let halted = desk.halt_done();
        let reloads = mem::take(&mut desk.reloads);
        let owner = desk.owner.take();
        let mut slot = core.slot.write().unwrap_or_else(PoisonError::into_inner);
        let instance = slot.take();
        drop(slot);
        drop(desk);
        if let Some(usage) = instance.as_ref().and_then(|instance| instance.usage.as_ref()) {
            usage.close_now();
        }
        drop((instance, self.current.take(), self.beside.take()));
        drop((owner, reloads, halted));
        told.wake();
    }
}
