//! `Task`: a flight that a task of the runtime's drives; `Drive`: who drives.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project::{pin_project, pinned_drop};
use tower_service::Service;

use super::{
    common::Here,
    driving::Driving,
    flight::{Flight, Lost},
    work::Work,
};
use crate::{Runtime, identity::Identity, sync::Arc};

/// Who polls a flight.
pub trait Drive<T>: sealed::Sealed {
    #[doc(hidden)]
    const TASKS: bool;

    #[doc(hidden)]
    fn launch(&self, task: T);
}

/// The callers poll it, whichever of them is polled: the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByCallers;

/// A task polls it: see [`CoalesceLayer::spawn_on`](super::CoalesceLayer::spawn_on).
#[derive(Debug, Clone)]
pub struct ByTasks {
    pub(super) runtime: Runtime,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ByCallers {}
    impl Sealed for super::ByTasks {}
}

impl<T> Drive<T> for ByCallers {
    const TASKS: bool = false;

    fn launch(&self, _task: T) {}
}

impl<T> Drive<T> for ByTasks
where
    T: Future<Output = ()> + Send + 'static,
{
    const TASKS: bool = true;

    fn launch(&self, task: T) {
        self.runtime.spawn(task);
    }
}

pub(super) type InFlight<S, I, Req, P, D> = Arc<Flight<Here<S, I, Req, P, D>>>;
type Driven<'a, S, I, Req, P, D> = Driving<'a, Here<S, I, Req, P, D>>;
type Post<S, I, Req, P, D> = (Here<S, I, Req, P, D>, InFlight<S, I, Req, P, D>);

/// A flight as a task. It runs to its end, whoever waits; dropped before, it tells `ShutDown`.
#[pin_project(PinnedDrop)]
pub struct Task<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// `None` once it has landed.
    post: Option<Post<S, I, Req, P, D>>,
    #[pin]
    work: Work<S, Req>,
}

impl<S, I, Req, P, D> Task<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    pub(super) fn new(
        common: Here<S, I, Req, P, D>,
        flight: InFlight<S, I, Req, P, D>,
        service: S,
        request: Req,
    ) -> Self {
        Self {
            post: Some((common, flight)),
            work: Work::Seed { service, request },
        }
    }
}

/// A poll of the work; if it unwinds, the work is dropped before anybody is told.
struct Watched<'a, S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    work: Pin<&'a mut Work<S, Req>>,
    driving: Option<Driven<'a, S, I, Req, P, D>>,
}

impl<S, I, Req, P, D> Drop for Watched<'_, S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn drop(&mut self) {
        if let Some(driving) = self.driving.take() {
            self.work.set(Work::Empty);
            driving.give_up(Lost::Panicked);
        }
    }
}

impl<S, I, Req, P, D> Future for Task<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some((common, flight)) = this.post.as_ref() else {
            return Poll::Ready(());
        };
        let driving = Driving::by_task(common, flight);
        if flight.poll_aborted(cx.waker()).is_ready() {
            this.work.set(Work::Empty);
            driving.give_up(Lost::ShutDown);
        } else {
            let mut watched = Watched {
                work: this.work,
                driving: Some(driving),
            };
            let polled = {
                let _polling = common.mark(flight.name()).polling();
                let polled = watched.work.as_mut().poll(cx);
                polled.map(|result| {
                    watched.work.set(Work::Empty);
                    common.judge(flight.name(), result)
                })
            };
            match polled {
                Poll::Pending => {
                    if let Some(driving) = watched.driving.take() {
                        driving.release();
                    }
                    return Poll::Pending;
                }
                Poll::Ready(outcome) => {
                    if let Some(driving) = watched.driving.take() {
                        driving.land_shared(flight, outcome);
                    }
                }
            }
        }
        *this.post = None;
        Poll::Ready(())
    }
}

#[pinned_drop]
impl<S, I, Req, P, D> PinnedDrop for Task<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn drop(self: Pin<&mut Self>) {
        let mut this = self.project();
        if let Some((common, flight)) = this.post.take() {
            let driving = Driving::by_task(&common, &flight);
            this.work.set(Work::Empty);
            driving.give_up(Lost::ShutDown);
        }
    }
}

impl<S, I, Req, P, D> fmt::Debug for Task<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}
