//! The future of a start whose instance will be evictable.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project::pin_project;

use super::{layer::Options, registry::Live, service::Evictable};
use crate::backend::Backend;

/// The response future of [`MakeEvictable`](super::MakeEvictable).
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<F, H, P> {
    #[pin]
    future: F,
    making: Option<Making<H, P>>,
}

/// What the instance is made evictable with.
pub(super) struct Making<H, P> {
    pub(super) live: Arc<Live>,
    pub(super) options: Options<H, P>,
    pub(super) name: Option<Arc<str>>,
}

impl<F, H, P> ResponseFuture<F, H, P> {
    pub(super) fn new(future: F, making: Making<H, P>) -> Self {
        Self {
            future,
            making: Some(making),
        }
    }
}

impl<F, B, E, H, P> Future for ResponseFuture<F, H, P>
where
    F: Future<Output = Result<B, E>>,
    B: Backend,
{
    type Output = Result<Evictable<B, H, P>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.future.poll(cx));
        let making = this.making.take().expect("polled after it was done");
        Poll::Ready(result.map(|backend| Evictable::new(backend, making)))
    }
}

impl<F, H, P> fmt::Debug for ResponseFuture<F, H, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
