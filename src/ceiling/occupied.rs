//! `Occupied`: an instance with the room it holds.

use std::{
    any::Any,
    fmt,
    future::Future,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use super::room::{Permit, Seat};
use crate::{
    backend::{Backend, Retired, Stopped},
    sync::lock,
    target::Room,
    usage::Usage,
};

/// An instance with the room it holds under a ceiling.
///
/// The room comes back when its `stop` says that it is [gone](Stopped::Gone), or was [killed](Stopped::Killed); otherwise when it is
/// dropped and the last use of it has ended. Not `Clone`: an instance holds its room once.
pub struct Occupied<B: Backend> {
    /// Taken when it is dropped.
    backend: Option<B>,
    seat: Seat,
    permit: Arc<Shared>,
    usage: OnceLock<Arc<Usage>>,
}

/// The permit, shared with the future that stops the instance.
struct Shared(Mutex<Option<Arc<Permit>>>);

impl Shared {
    fn take(&self) -> Option<Arc<Permit>> {
        lock(&self.0).take()
    }
}

impl<B: Backend> Occupied<B> {
    pub(super) fn new(backend: B, permit: Arc<Permit>) -> Self {
        let seat = permit.seat().clone();
        seat.made();
        Self {
            backend: Some(backend),
            seat,
            permit: Arc::new(Shared(Mutex::new(Some(permit)))),
            usage: OnceLock::new(),
        }
    }

    /// The instance.
    #[inline]
    pub fn get_ref(&self) -> &B {
        self.backend.as_ref().expect("there until it is dropped")
    }
}

impl<B: Backend> Backend for Occupied<B> {
    type Lease = B::Lease;

    fn lease(&self) -> B::Lease {
        self.get_ref().lease()
    }

    #[inline]
    fn lease_once(&self) -> B::Lease {
        self.get_ref().lease_once()
    }

    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        self.seat.owned();
        self.get_ref().retired()
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        // Its room is on its way back.
        self.seat.leaving();
        let stop = self.get_ref().stop();
        let permit = self.permit.clone();
        async move {
            let stopped = stop.await;
            if stopped != Stopped::WithTheLastLease {
                drop(permit.take());
            }
            stopped
        }
    }

    fn stop_within(&self) -> Duration {
        self.get_ref().stop_within()
    }

    fn attach(&self, usage: &Arc<Usage>) {
        self.get_ref().attach(usage);
        if self.usage.set(usage.clone()).is_ok() {
            self.seat.count(usage);
        }
    }

    fn usage(&self) -> Option<Arc<Usage>> {
        self.get_ref().usage()
    }

    fn room(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let permit = lock(&self.permit.0).clone()?;
        self.seat.reserve();
        Some(match self.get_ref().room() {
            Some(inner) => Arc::new((permit as Room, inner)),
            None => permit,
        })
    }

    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.get_ref().keep_until_gone(what)
    }
}

impl<B: Backend> Drop for Occupied<B> {
    fn drop(&mut self) {
        let permit = self.permit.take();
        let (Some(backend), Some(permit)) = (self.backend.take(), permit) else {
            return;
        };
        self.seat.leaving();
        // `None`: the instance keeps its room until it is gone.
        let permit = backend.keep_until_gone(Box::new(permit));
        let _last = Last(permit, self.usage.get());
        drop(backend);
    }
}

/// The room of an instance that is being dropped. It comes back after that, be it with a panic.
struct Last<'a>(Option<Box<dyn Any + Send>>, Option<&'a Arc<Usage>>);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        if let (Some(permit), Some(usage)) = (self.0.take(), self.1) {
            usage.hold_until_drained(permit);
        }
    }
}

impl<B: Backend + fmt::Debug> fmt::Debug for Occupied<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Occupied").field(self.get_ref()).finish()
    }
}
