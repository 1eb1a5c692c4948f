//! The owner's story: one async function, from the first start to the last stop.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};

use super::{
    attend::{Beside, Either, Look, attend},
    core::Core,
    desk::{Desk, Halt, Reload, Supply},
    entrance::Borrowed,
    instance::{Handed, Instance, Lender},
    maker::{Caught, discard, panicked},
    reload::Reloaded,
    status::{StartTimes, State},
};
use crate::{
    backend::{Backend, Retired},
    error::{BoxError, Error, ErrorKind},
    events,
    sync::lock,
    target::Room,
    usage::Eviction,
};

/// An instance, and the owner's own lease of it: from "ready" to "used" it is busy.
pub(super) type Made<B> = (Lender<B>, Handed<<B as Backend>::Lease>);

/// Owns a backend from the moment somebody asked for it until it holds nothing any more.
///
/// On any other way out (a panic, an executor that drops the task) its `Drop` unpublishes, gives the
/// supply back and tells all who wait.
pub(crate) struct Owner<T: Clone + Send + 'static, B: Backend> {
    pub(super) core: Arc<Core<T, B>>,
    pub(super) supply: Option<Supply<T, B>>,
    pub(super) current: Option<Arc<Instance<B>>>,
    /// The end of the instance that a reload replaced.
    pub(super) beside: Beside,
    /// It crashed, or could not be started again, and must keep running.
    pub(super) restarting: bool,
    /// The room of the instance that crashed, for the next one.
    pub(super) room: Option<Room>,
}

/// How an instance's life came to its end.
pub(crate) enum End {
    Died(Option<Error>),
    /// By a policy, while it was idle.
    Evicted(Eviction),
    /// By order.
    Halted,
}

/// What an owner does when it holds nothing.
pub(super) enum Next {
    Start,
    StartAfter(Duration),
    Rest,
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
            room: None,
        }
    }

    /// The story.
    ///
    /// What takes a moment stands in a box while it lasts, so that what lasts for hours, being idle, keeps
    /// no room for it.
    #[expect(clippy::manual_async_fn, reason = "it would keep the owner twice")]
    pub(crate) fn run(mut self) -> impl Future<Output = ()> + Send {
        async move {
            loop {
                if Box::pin(self.come_up()).await {
                    let end = self.live().await;
                    self.unpublish(&end);
                    Box::pin(self.end(end)).await;
                }
                loop {
                    match self.next() {
                        Next::Start => break,
                        Next::StartAfter(pause) => {
                            if Box::pin(self.pause(pause)).await {
                                break;
                            }
                        }
                        Next::Rest => {
                            self.core.rests();
                            return;
                        }
                    }
                }
            }
        }
    }

    // ===== Stopped → Starting → Running =====

    /// True if an instance runs now.
    async fn come_up(&mut self) -> bool {
        let Some((lender, own)) = self.start().await else {
            return false;
        };
        self.publish(lender, own);
        true
    }

    /// Publishes the instance, once everybody who waits has a lease of it.
    ///
    /// Each lease is a claim, and the owner holds one of its own meanwhile: from "ready" to "used"
    /// the instance is busy, so no starter that waits for room can take it from its callers. Leases
    /// are made outside the lock; the slot is written in the critical section that finds nobody
    /// waiting, so nobody is left between the two.
    pub(super) fn publish(&mut self, lender: Lender<B>, own: Handed<B::Lease>) {
        let instance = lender.instance.clone();
        let core = &*self.core;
        let now = core.runtime.now();
        let mut leases = Vec::new();
        loop {
            let mut desk = lock(&core.desk);
            let told = desk.lobby.hand_out(instance.generation, &mut leases);
            let more = desk.lobby.waiting_for(instance.generation);
            if more == 0 {
                desk.generation = instance.generation;
                let took = now.saturating_duration_since(desk.since);
                // A reload tells of its own.
                let times = self.current.is_none().then(|| StartTimes {
                    took,
                    waited: desk.course.take().map_or(Duration::ZERO, |it| it.waited()),
                });
                let past = desk.past.make();
                past.counts.starts += 1;
                past.counts.restarts += u64::from(self.restarting);
                past.history.started();
                past.last_start = times.or(past.last_start);
                let shown = desk.enter(State::Running, now);
                let mut slot = core.slot.write().unwrap_or_else(PoisonError::into_inner);
                let old = slot.replace(lender);
                drop(slot);
                // An order that comes now finds the instance in the slot.
                let idle_after = desk.idle_after();
                drop(desk);
                drop(old);
                if let Some(bound) = idle_after {
                    instance.usage.set_idle_after(bound);
                }
                if let Some(times) = times {
                    let StartTimes { took, waited } = times;
                    events::ready(&core.name, instance.generation, took, waited);
                }
                told.wake();
                shown.wake();
                break;
            }
            drop(desk);
            told.wake();
            for _ in 0..more {
                match lend(&lender) {
                    Ok(lease) => leases.push(lease),
                    // As on the way of a call: whose lease it is has the panic.
                    Err(error) => {
                        let error = error.of(core.name.clone());
                        let told = lock(&core.desk).lobby.tell_one(instance.generation, error);
                        told.wake();
                    }
                }
            }
        }
        self.restarting = false;
        self.current = Some(instance);
        // Idle from here on, if nobody used it; room may be made of it.
        let _ = discard(leases);
        let _ = discard(own);
    }

    // ===== Running =====

    /// Until it is retired, dies or is told to stop. Reloads happen in here.
    async fn live(&mut self) -> End {
        enum Told<T> {
            Halt,
            Distrust(Error),
            Reload(Reload<T>),
        }
        let core = self.core.clone();
        loop {
            let instance = self.current.clone().expect("it was published");
            let generation = instance.generation;
            let mut retired = pin!(Caught::call(|| instance.backend.retired()));
            loop {
                let told = attend(&core, &mut self.beside, retired.as_mut(), |desk, _| {
                    if desk.must_stop() {
                        Look::Act(Told::Halt)
                    } else if let Some(error) = desk.take_distrust(generation) {
                        Look::Act(Told::Distrust(error))
                    } else if let Some(reload) = desk.next_reload() {
                        Look::Act(Told::Reload(reload))
                    } else {
                        Look::GoOn(None)
                    }
                })
                .await;
                match told {
                    Either::Done(retired) => return End::of(retired),
                    Either::Act(Told::Halt) => return End::Halted,
                    Either::Act(Told::Distrust(error)) => return End::Died(Some(error)),
                    Either::Act(Told::Reload(reload)) => {
                        match Box::pin(self.reload(reload, retired.as_mut())).await {
                            Reloaded::New => break,
                            Reloaded::Unchanged => {}
                            Reloaded::Over(end) => return end,
                        }
                    }
                }
            }
        }
    }
}

/// A lease of an instance that nobody can have closed yet, or its `lease()`'s panic.
pub(super) fn lend<B: Backend>(lender: &Lender<B>) -> Result<Handed<B::Lease>, Error> {
    match catch_unwind(AssertUnwindSafe(|| lender.lend())) {
        Ok(Borrowed::Lease(handed)) => Ok(handed),
        Ok(Borrowed::Closed(_) | Borrowed::Nothing) => {
            unreachable!("nobody can close it before it is published")
        }
        Err(panic) => Err(panicked(&*panic)),
    }
}

impl End {
    /// What `retired()` came to, be it a panic.
    pub(crate) fn of(retired: Result<Retired, Error>) -> Self {
        match retired {
            Err(panicked) => End::Died(Some(panicked)),
            Ok(Retired::Died(error)) => End::Died(error),
            Ok(Retired::Unhealthy(error)) => {
                End::Died(Some(error.unwrap_or_else(|| {
                    Error::new(ErrorKind::Died).because("it is unhealthy")
                })))
            }
            Ok(Retired::Evicted(why)) => End::Evicted(why),
            Ok(Retired::Closed) => End::Halted,
        }
    }
}

impl<T, B: Backend> Desk<T, B> {
    /// Whether something says that no instance may run.
    pub(super) fn must_stop(&self) -> bool {
        self.halt.is_some() || self.is_held_down()
    }

    pub(super) fn is_held_down(&self) -> bool {
        self.unloaded || self.shut_down || self.abandoned
    }

    /// What those are told who wait while it goes down; `None` if it comes up again at once.
    pub(super) fn why_down(&self) -> Option<ErrorKind> {
        if self.shut_down {
            Some(ErrorKind::ShutDown)
        } else if self.unloaded {
            Some(ErrorKind::Unloaded)
        } else {
            match self.halt {
                Some(Halt::Stop) => Some(ErrorKind::Stopped),
                Some(Halt::Restart) | None => self.abandoned.then_some(ErrorKind::Stopped),
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
        .of(core.name.clone());
        let mut desk = lock(&core.desk);
        let generation = desk.generation + u64::from(desk.state == State::Starting);
        let shown = desk.enter(State::Stopping, core.runtime.now());
        let mut slot = core.slot.write().unwrap_or_else(PoisonError::into_inner);
        let lender = slot.take();
        drop(slot);
        drop(desk);
        shown.wake();
        if let Some(lender) = &lender {
            lender.instance.usage.close_dead();
        }
        // What is dropped is the user's. Its panic must not keep the news from those who wait.
        let held = (lender, self.current.take(), self.beside.take());
        let _ = discard(held);
        let mut desk = lock(&core.desk);
        let mut told = desk.enter(State::Stopped, core.runtime.now());
        told.extend(desk.lobby.tell(&error, |_| true));
        desk.supply = Some(supply);
        let settled = desk.settle();
        let owner = desk.owner.take();
        drop(desk);
        drop((owner, settled));
        told.wake();
        core.rests();
        // Whoever is told may be what panicked.
        if !thread::panicking() {
            events::lost(&core.name, generation, &error);
        }
    }
}
