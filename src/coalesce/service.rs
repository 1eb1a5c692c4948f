//! `Coalesce`: the service.

use std::{
    fmt,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{
    common::Here, future::ResponseFuture, policy::ShareAll, share::Share, task::ByCallers,
};
use crate::{Error, identity::Identity};

/// Makes identical calls once: see [`CoalesceLayer`](super::CoalesceLayer).
///
/// `poll_ready` is always ready and does not touch the inner service: each call readies its own clone,
/// and only calls that are really made do. Clones share the calls in flight.
pub struct Coalesce<S, I, Req, P = ShareAll, D = ByCallers>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    inner: S,
    common: Here<S, I, Req, P, D>,
}

impl<S, I, Req, P, D> Coalesce<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    pub(super) fn new(inner: S, common: Here<S, I, Req, P, D>) -> Self {
        Self { inner, common }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it for the calls that this clone will lead.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, I, Req, P, D> Clone for Coalesce<S, I, Req, P, D>
where
    S: Service<Req> + Clone,
    I: Identity<Req>,
{
    #[inline]
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.common.here())
    }
}

impl<S, I, Req, P, D> Service<Req> for Coalesce<S, I, Req, P, D>
where
    S: Service<Req> + Clone,
    S::Response: Share,
    I: Identity<Req>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = ResponseFuture<S, I, Req, P, D>;

    #[inline]
    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let common = &self.common;
        match common.identity.identity(&request) {
            None => {
                common.passed_by();
                ResponseFuture::passing(self.inner.clone(), request, common.rules.manner.convert)
            }
            Some(key) => ResponseFuture::entering(common, self.inner.clone(), request, key),
        }
    }
}

impl<S, I, Req, P, D> fmt::Debug for Coalesce<S, I, Req, P, D>
where
    S: Service<Req> + fmt::Debug,
    I: Identity<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalesce")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}
