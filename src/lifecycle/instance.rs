//! One started backend, and what is lent of it.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tower_service::Service;

use super::entrance::Borrowed;
use crate::{
    backend::Backend,
    busy::Share,
    error::{BoxError, Error, ErrorKind},
    events::Standing,
    runtime::Runtime,
    target::StartId,
    usage::Usage,
};

/// One started backend. Its owner has it, and while it is published the slot.
pub(crate) struct Instance<B> {
    pub(crate) backend: B,
    pub(crate) generation: u64,
    pub(crate) start: StartId,
    /// The backend's own word, or one of ours if its leases do not count themselves.
    pub(crate) usage: Arc<Usage>,
    counted: bool,
    _alive: Standing,
}

impl<B: Backend> Instance<B> {
    pub(crate) fn new(
        backend: B,
        generation: u64,
        start: StartId,
        runtime: &Runtime,
        name: Arc<str>,
    ) -> Arc<Self> {
        let own = backend.usage();
        let counted = own.is_some();
        let usage = own.unwrap_or_else(|| Usage::new(runtime.clock()));
        let _alive = Standing::alive(&name);
        usage.set_name(name);
        Arc::new(Self {
            backend,
            generation,
            start,
            usage,
            counted,
            _alive,
        })
    }
}

/// What leases are lent from, until the instance is unpublished.
pub(crate) struct Lender<B> {
    pub(crate) instance: Arc<Instance<B>>,
    /// Where leases do not count themselves, one use of our own word that all of them share: it lasts
    /// as long as this or any of them, and a share costs what a reference does.
    all: Share,
}

/// A lease that was handed out, and whose it is.
pub(crate) struct Handed<L> {
    pub(crate) lease: L,
    pub(crate) generation: u64,
    /// The use, where the lease does not count itself.
    pub(crate) share: Share,
}

impl<B: Backend> Lender<B> {
    pub(crate) fn new(instance: Arc<Instance<B>>) -> Self {
        let all = if instance.counted {
            Share::nothing()
        } else {
            Share::new(&instance.usage)
        };
        Self { instance, all }
    }

    /// A lease. Nothing if the instance is known to be closed; a lease that counts itself tells when
    /// it is asked whether it is ready.
    pub(crate) fn lend(&self) -> Borrowed<B::Lease> {
        self.with(Backend::lease)
    }

    /// The same, for one call.
    #[inline(always)]
    pub(crate) fn lend_once(&self) -> Borrowed<B::Lease> {
        self.with(Backend::lease_once)
    }

    #[inline(always)]
    fn with(&self, lease: impl FnOnce(&B) -> B::Lease) -> Borrowed<B::Lease> {
        let instance = &*self.instance;
        if !instance.counted && instance.usage.look().is_closed() {
            return Borrowed::Closed(instance.generation);
        }
        Borrowed::Lease(Handed {
            lease: lease(&instance.backend),
            generation: instance.generation,
            share: self.all.again(),
        })
    }

    /// The word to claim for a use that outlasts the lease's own, if the lease counts.
    pub(crate) fn counted(&self) -> Option<&Arc<Usage>> {
        self.instance.counted.then_some(&self.instance.usage)
    }

    /// Uses in progress.
    pub(crate) fn in_flight(&self) -> u32 {
        match self.all.others() {
            Some(others) => others,
            None => self.instance.usage.look().count(),
        }
    }
}

impl<L> Handed<L> {
    /// Polls the lease's readiness; an instance that died or was stopped meanwhile is as good as
    /// evicted.
    #[inline]
    pub(crate) fn poll_ready<Req>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>
    where
        L: Service<Req>,
        L::Error: Into<BoxError>,
    {
        if self.share.is_void() {
            return Poll::Ready(Err(Error::new(ErrorKind::Evicted)));
        }
        match self.lease.poll_ready(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map_err(Error::service)),
            Poll::Pending => {
                // It may never be ready any more.
                ready!(self.share.poll_void(cx));
                Poll::Ready(Err(Error::new(ErrorKind::Evicted)))
            }
        }
    }
}

impl<L> fmt::Debug for Handed<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
