//! One started backend, and what is lent of it.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use crate::{
    backend::Backend,
    busy::Busy,
    error::{BoxError, Error, ErrorKind},
    runtime::Runtime,
    target::StartId,
    usage::Usage,
};

/// One started backend. Its owner and the published slot hold it, nobody else.
pub(crate) struct Instance<B> {
    pub(crate) backend: B,
    pub(crate) generation: u64,
    pub(crate) start: StartId,
    /// The backend's own word, or one of ours if it does not count.
    pub(crate) usage: Arc<Usage>,
    /// Whether the backend's leases count themselves.
    counted: bool,
}

/// A lease that was handed out, and whose it is.
pub(crate) struct Handed<L> {
    pub(crate) lease: L,
    pub(crate) generation: u64,
    /// The use, where the lease does not count itself.
    pub(crate) busy: Busy,
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
        usage.set_name(name);
        Arc::new(Self {
            backend,
            generation,
            start,
            usage,
            counted,
        })
    }

    /// A lease. `None` if this is known to be closed; a lease that counts itself tells when it is
    /// asked whether it is ready.
    pub(crate) fn lend(&self) -> Option<Handed<B::Lease>> {
        let busy = if self.counted {
            None
        } else {
            Some(self.usage.claim().ok()?)
        };
        Some(Handed {
            lease: self.backend.lease(),
            generation: self.generation,
            busy: Busy::new(busy),
        })
    }

    /// The word to claim for a use that outlasts the lease's own, if the lease counts.
    pub(crate) fn counted(&self) -> Option<&Arc<Usage>> {
        self.counted.then_some(&self.usage)
    }
}

impl<L> Handed<L> {
    /// Polls the lease's readiness; an instance that died meanwhile is as good as evicted.
    pub(crate) fn poll_ready<Req>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>>
    where
        L: Service<Req>,
        L::Error: Into<BoxError>,
    {
        if self.busy.is_dead() {
            return Poll::Ready(Err(Error::new(ErrorKind::Evicted)));
        }
        self.lease.poll_ready(cx).map_err(Error::service)
    }
}

impl<L> fmt::Debug for Handed<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
