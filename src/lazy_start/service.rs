//! `LazyStart`: the service.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{future::ResponseFuture, handle::Handle, lend::Lending};
use crate::{
    backend::Backend,
    error::{BoxError, Error},
    lifecycle::{Door, status::Status},
    matches::{Matches, Nothing},
};

/// A backend that its first call starts. Made by [`LazyStartLayer`](super::LazyStartLayer).
///
/// Cheap to clone; all clones share the backend. It is always ready: whatever a start has to say comes
/// out of the response future. Dropping the last clone and [`Handle`] stops the backend, once its
/// calls in flight have ended.
pub struct LazyStart<T, B: Backend, P = Nothing> {
    door: Arc<Door<T, B>>,
    only_if_running: P,
}

impl<T, B: Backend, P> LazyStart<T, B, P> {
    pub(crate) fn new(door: Arc<Door<T, B>>, only_if_running: P) -> Self {
        Self {
            door,
            only_if_running,
        }
    }
}

impl<T, B, P> LazyStart<T, B, P>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    /// A handle for orders from outside the stack.
    pub fn handle(&self) -> Handle<T> {
        Handle::of(self.door.clone())
    }

    /// One reading of the backend.
    pub fn status(&self) -> Status {
        self.door.core.status()
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
    pub fn lend(&self) -> Lending<T, B> {
        Lending::new(self.door.clone())
    }
}

impl<T, B, P, Req> Service<Req> for LazyStart<T, B, P>
where
    T: Clone + Send + 'static,
    B: Backend,
    B::Lease: Service<Req>,
    <B::Lease as Service<Req>>::Error: Into<BoxError>,
    P: Matches<Req>,
{
    type Response = <B::Lease as Service<Req>>::Response;
    type Error = Error;
    type Future = ResponseFuture<T, B, Req>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let may_start = !self.only_if_running.matches(&request);
        ResponseFuture::new(&self.door, request, may_start)
    }
}

impl<T, B: Backend, P: Clone> Clone for LazyStart<T, B, P> {
    fn clone(&self) -> Self {
        Self {
            door: self.door.clone(),
            only_if_running: self.only_if_running.clone(),
        }
    }
}

impl<T, B: Backend, P> fmt::Debug for LazyStart<T, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyStart").field(&self.door.core).finish()
    }
}
