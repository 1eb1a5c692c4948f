//! What handles and groups can do to a backend whose types they do not know.

use std::{
    any::Any,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use hyper::rt::Sleep;

use super::{
    core::{Core, Door, wake},
    desk::{Halt, Reload},
    entrance::{Entrance, Joined},
    status::{State, Status},
};
use crate::{
    backend::Backend,
    error::{Error, ErrorKind},
    sync::lock,
    target::Urgency,
};

/// The outcome of an order.
pub(crate) type Outcome = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// What keeps an instance in use, or why there is none.
pub(crate) type Held = Pin<Box<dyn Future<Output = Result<Box<dyn Any + Send>, Error>> + Send>>;

/// A new target, of the backend's own type.
pub(crate) type AnyTarget = Option<Box<dyn Any + Send>>;

/// Orders, from whoever holds the backend.
pub(crate) trait Control: Send + Sync {
    fn status(&self) -> Status;
    fn start(self: Arc<Self>, urgency: Urgency) -> Outcome;
    /// Starts it as a call would, and keeps it in use until what it gives is dropped.
    fn hold(self: Arc<Self>) -> Held;
    fn stop(&self) -> Outcome;
    fn reload(&self, target: AnyTarget) -> Outcome;
    fn reload_in_place(self: Arc<Self>, target: AnyTarget) -> Outcome;
    fn unload(&self) -> Outcome;
    fn load(&self);
    fn reset(&self);
    fn keep_running(&self, keep: bool);
    fn set_idle_after(&self, bound: Option<Duration>);

    fn until(self: Arc<Self>, state: State) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// What a group keeps of its members, without keeping them.
pub(crate) trait Member: Send + Sync {
    fn status(&self) -> Status;
    /// `None` once the last handle is gone.
    fn control(&self) -> Option<Arc<dyn Control>>;
    /// Down for ever. Resolves when nothing of it is there.
    fn shut_down(&self, drain: Option<Duration>) -> oneshot::Receiver<()>;
}

impl<T, B> Door<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    fn halt(&self, halt: Halt, unload: bool, target: Option<T>) -> oneshot::Receiver<()> {
        let (done, halted) = oneshot::channel();
        let mut old = Vec::new();
        self.core.halt(halt, None, |desk| {
            desk.unloaded |= unload;
            let orders = desk.orders.make();
            orders.halted.push(done);
            if target.is_some() {
                // The reloads before it are not to be seen any more.
                old.extend(std::mem::replace(&mut orders.next_target, target));
                let before = orders.reloads.iter_mut();
                old.extend(before.filter_map(|it| it.target.take()));
            }
        });
        drop(old);
        halted
    }
}

fn own_type<T: 'static>(target: AnyTarget) -> Option<T> {
    target.map(|target| {
        *target
            .downcast::<T>()
            .expect("a handle has its backend's target type")
    })
}

/// The order was carried out, or the owner is gone with all it held: either way it is done.
fn done(halted: oneshot::Receiver<()>) -> Outcome {
    Box::pin(async move {
        let _ = halted.await;
        Ok(())
    })
}

impl<T, B> Control for Door<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    fn status(&self) -> Status {
        self.core.status()
    }

    fn start(self: Arc<Self>, urgency: Urgency) -> Outcome {
        // In place at once, as a call would be, whenever it is polled.
        let joined = self.join(None, urgency);
        Box::pin(async move {
            match joined? {
                Joined::Lease(_) => Ok(()),
                Joined::Wait(waiting) => waiting.await.map(drop),
            }
        })
    }

    fn hold(self: Arc<Self>) -> Held {
        let joined = self.join(None, Urgency::Demand);
        Box::pin(async move {
            let handed = match joined? {
                Joined::Lease(handed) => handed,
                Joined::Wait(waiting) => waiting.await?,
            };
            Ok(Box::new(handed) as Box<dyn Any + Send>)
        })
    }

    fn stop(&self) -> Outcome {
        done(self.halt(Halt::Stop, false, None))
    }

    fn reload(&self, target: AnyTarget) -> Outcome {
        let target = own_type(target);
        let (done, reloaded) = oneshot::channel();
        let mut desk = lock(&self.core.desk);
        let mut old = None;
        if desk.supply.is_some() {
            // Nothing runs: the next start is the new one.
            if target.is_some() {
                old = std::mem::replace(&mut desk.orders.make().next_target, target);
            }
            drop(desk);
            let _ = done.send(Ok(()));
        } else {
            let reload = Reload { target, done };
            desk.orders.make().reloads.push_back(reload);
            let owner = desk.owner.take();
            drop(desk);
            wake(owner);
        }
        drop(old);
        let name = self.core.name.clone();
        Box::pin(async move {
            match reloaded.await {
                Ok(result) => result,
                Err(_) => Err(Error::new(ErrorKind::ShutDown).of(name)),
            }
        })
    }

    fn reload_in_place(self: Arc<Self>, target: AnyTarget) -> Outcome {
        let owned = lock(&self.core.desk).supply.is_none();
        let halted = self.halt(Halt::Restart, false, own_type(target));
        Box::pin(async move {
            let _ = halted.await;
            if owned {
                self.start(Urgency::Demand).await
            } else {
                Ok(())
            }
        })
    }

    fn unload(&self) -> Outcome {
        done(self.halt(Halt::Stop, true, None))
    }

    fn load(&self) {
        let mut desk = lock(&self.core.desk);
        desk.unloaded = false;
        let told = desk.seen();
        drop(desk);
        told.wake();
    }

    fn reset(&self) {
        let now = self.core.runtime.now();
        let mut desk = lock(&self.core.desk);
        desk.past.make().history.reset();
        let told = match desk.state {
            State::BackingOff => desk.enter(State::Stopped, now),
            _ => desk.seen(),
        };
        let owner = desk.owner.take();
        drop(desk);
        told.wake();
        wake(owner);
    }

    fn keep_running(&self, keep: bool) {
        let mut desk = lock(&self.core.desk);
        desk.keep_running = keep;
        let owner = desk.owner.take();
        drop(desk);
        wake(owner);
    }

    fn set_idle_after(&self, bound: Option<Duration>) {
        lock(&self.core.desk).orders.make().idle_after = Some(bound);
        if let Some(usage) = self.core.usage() {
            usage.set_idle_after(bound);
        }
    }

    fn until(self: Arc<Self>, state: State) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let now = self.core.runtime.now();
        let mut desk = lock(&self.core.desk);
        let there = desk.shown(&self.core.config.policy, now) == state;
        let key = (!there).then(|| desk.watch(state));
        drop(desk);
        Box::pin(Until {
            door: self,
            state,
            key,
            sleep: None,
        })
    }
}

impl<T, B> Member for Core<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    fn status(&self) -> Status {
        Core::status(self)
    }

    fn control(&self) -> Option<Arc<dyn Control>> {
        let door = self.door.upgrade()?;
        Some(door)
    }

    fn shut_down(&self, drain: Option<Duration>) -> oneshot::Receiver<()> {
        let (done, halted) = oneshot::channel();
        self.halt(Halt::Stop, drain, |desk| {
            desk.shut_down = true;
            desk.orders.make().halted.push(done);
        });
        halted
    }
}

/// Resolves when a state is reached, however short.
struct Until<T, B: Backend> {
    door: Arc<Door<T, B>>,
    state: State,
    /// `None`: it was there already.
    key: Option<usize>,
    /// Until the end of a backoff window, which makes it stopped without anybody's doing.
    sleep: Option<(Instant, Pin<Box<dyn Sleep>>)>,
}

impl<T, B: Backend> Future for Until<T, B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(key) = this.key else {
            return Poll::Ready(());
        };
        let core = &*this.door.core;
        loop {
            let (now, waker) = (core.runtime.now(), cx.waker().clone());
            let mut desk = lock(&core.desk);
            let (seen, old) = desk.watched(key, waker);
            let backing_off = desk.state == State::BackingOff && this.state == State::Stopped;
            let over = match desk.check(&core.config.policy, now) {
                Err(not_yet) if backing_off => now.checked_add(not_yet.left),
                Ok(()) | Err(_) => None,
            };
            let stopped = backing_off && desk.shown(&core.config.policy, now) == State::Stopped;
            drop(desk);
            drop(old);
            if seen || stopped {
                return Poll::Ready(());
            }
            let Some(over) = over else {
                this.sleep = None;
                return Poll::Pending;
            };
            let sleep = match &mut this.sleep {
                Some((until, sleep)) if *until == over => sleep,
                sleep => &mut sleep.insert((over, core.runtime.sleep_until(over))).1,
            };
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.sleep = None;
        }
    }
}

impl<T, B: Backend> Drop for Until<T, B> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let old = lock(&self.door.core.desk).unwatch(key);
            drop(old);
        }
    }
}
