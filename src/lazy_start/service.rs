//! `LazyStart`: the service.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{future::ResponseFuture, handle::Handle, lend::Lending};
use crate::{
    error::{BoxError, Error},
    lifecycle::{entrance::Entrance, status::Status},
    matches::{Matches, Nothing},
};

/// A backend that its first call starts. Made by [`LazyStartLayer`](super::LazyStartLayer).
///
/// Cheap to clone; all clones share the backend. It is always ready: whatever a start has to say comes
/// out of the response future. Dropping the last clone and [`Handle`] stops the backend, once its
/// calls in flight have ended.
///
/// # Under tower's own parts
///
/// To be ready is to hold nothing here: no claim and no room. So `Balance`, which keeps every service it
/// may choose ready, starts only whom it calls and keeps nobody from being evicted; `LoadShed` sheds nothing,
/// since waiting for a start is no want of readiness (put a `ConcurrencyLimit` or
/// [`max_callers`](super::LazyStartLayer::max_callers) to bound it); and `Buffer` queues nothing. Not so for
/// services that hold an instance, a [`Leased`](crate::Leased) or one of a [`KeepLayer`](crate::KeepLayer)'s: once
/// ready they have claimed it, and it is not evicted until they are called or dropped.
///
/// `T` is the target's type, `L` that of the backend's [lease](crate::Backend::Lease).
pub struct LazyStart<T, L, P = Nothing> {
    entrance: Arc<dyn Entrance<L>>,
    only_if_running: P,
    target: PhantomData<fn(T)>,
}

impl<T, L, P> LazyStart<T, L, P> {
    pub(crate) fn new(entrance: Arc<dyn Entrance<L>>, only_if_running: P) -> Self {
        Self {
            entrance,
            only_if_running,
            target: PhantomData,
        }
    }

    /// A handle for orders from outside the stack.
    pub fn handle(&self) -> Handle<T> {
        Handle::of(self.entrance.clone().control())
    }

    /// One reading of the backend.
    pub fn status(&self) -> Status {
        self.entrance.status()
    }

    /// Lends the backend, started if need be, to whoever is no service call: a pool, a session.
    /// It is in use until the [`Lent`](super::Lent) is dropped.
    ///
    /// # Errors
    ///
    /// As a call's, without [`Service`](crate::ErrorKind::Service).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives its place and claim back.
    pub fn lend(&self) -> Lending<L> {
        Lending::new(self.entrance.clone())
    }
}

impl<T, L, P, Req> Service<Req> for LazyStart<T, L, P>
where
    L: Service<Req>,
    L::Error: Into<BoxError>,
    P: Matches<Req>,
{
    type Response = L::Response;
    type Error = Error;
    type Future = ResponseFuture<L, Req>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let may_start = !self.only_if_running.matches(&request);
        ResponseFuture::new(&self.entrance, request, may_start)
    }
}

impl<T, L, P: Clone> Clone for LazyStart<T, L, P> {
    fn clone(&self) -> Self {
        Self {
            entrance: self.entrance.clone(),
            only_if_running: self.only_if_running.clone(),
            target: PhantomData,
        }
    }
}

impl<T, L, P> fmt::Debug for LazyStart<T, L, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.entrance.status();
        f.debug_struct("LazyStart")
            .field("name", &status.name)
            .field("state", &status.state)
            .finish_non_exhaustive()
    }
}
