//! `MakeEvictable`: a maker whose instances are `Evictable`.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pin_project::{pin_project, pinned_drop};
use tower_service::Service;

use super::{
    future::{Making, ResponseFuture},
    layer::Options,
    registry::{Live, Registration},
};
use crate::{
    backend::{Backend, Retired, Stopped},
    lease::Leased,
    matches::Nothing,
    target::{Intent, Urgency},
    usage::{Closed, Usage},
    wakers::Key,
};

/// A maker whose instances are [`Evictable`]: see [`IdleEvictLayer`](super::IdleEvictLayer).
///
/// Readiness and errors are the maker's own.
#[derive(Clone)]
pub struct MakeEvictable<M, H, P = Nothing> {
    maker: M,
    live: Arc<Live>,
    options: Options<H, P>,
}

impl<M, H, P> MakeEvictable<M, H, P> {
    pub(super) fn new(maker: M, live: Arc<Live>, options: Options<H, P>) -> Self {
        Self {
            maker,
            live,
            options,
        }
    }

    /// The maker.
    pub const fn get_ref(&self) -> &M {
        &self.maker
    }

    /// The maker, to change it.
    pub const fn get_mut(&mut self) -> &mut M {
        &mut self.maker
    }

    /// The maker, whose instances nobody counts.
    pub fn into_inner(self) -> M {
        self.maker
    }
}

impl<M, H, P, T> Service<T> for MakeEvictable<M, H, P>
where
    M: Service<T>,
    M::Response: Backend,
    H: Clone + Send + Sync + 'static,
    P: Clone + Send + Sync + 'static,
{
    type Response = Evictable<M::Response, H, P>;
    type Error = M::Error;
    type Future = ResponseFuture<M::Future, H, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), M::Error>> {
        self.maker.poll_ready(cx)
    }

    fn call(&mut self, target: T) -> Self::Future {
        let intent = Intent::current();
        let name = intent.as_ref().map(|intent| intent.name.clone());
        let pinned = self.options.is_pinned();
        let future = match intent {
            // To go before all others is for what must not stop.
            Some(intent) if intent.urgency == Urgency::Restart && !pinned => {
                let intent = Intent {
                    urgency: Urgency::Demand,
                    ..intent
                };
                intent.scope(|| self.maker.call(target))
            }
            _ => self.maker.call(target),
        };
        let making = Making {
            live: self.live.clone(),
            options: self.options.clone(),
            name,
        };
        ResponseFuture::new(future, making)
    }
}

impl<M: fmt::Debug, H, P> fmt::Debug for MakeEvictable<M, H, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeEvictable")
            .field("maker", &self.maker)
            .finish_non_exhaustive()
    }
}

/// An instance whose uses are counted.
///
/// Its leases are claims: they are refused, with [`Evicted`](crate::ErrorKind::Evicted), once it is
/// closed, and it is closed by a policy only while there are none. It is
/// [`retired`](Backend::retired) when it was closed, or when what it wraps says so.
pub struct Evictable<B, H, P = Nothing> {
    backend: B,
    usage: Arc<Usage>,
    hold: H,
    not_use: P,
    /// After the backend, so that it is gone when it is said to be.
    _registration: Registration,
    _live: Arc<Live>,
}

impl<B: Backend, H, P> Evictable<B, H, P> {
    pub(super) fn new(backend: B, making: Making<H, P>) -> Self {
        let Making {
            live,
            options,
            name,
        } = making;
        let registry = &live.0;
        let usage = Usage::new(registry.clock());
        usage.set_pinned(options.is_pinned());
        backend.attach(&usage);
        let registration = registry.register(&usage, name, options.idle_after, options.pinned);
        Self {
            backend,
            usage,
            hold: options.hold,
            not_use: options.not_use,
            _registration: registration,
            _live: live,
        }
    }
}

impl<B, H, P> Evictable<B, H, P> {
    /// The instance.
    pub const fn get_ref(&self) -> &B {
        &self.backend
    }
}

impl<B, H, P> Backend for Evictable<B, H, P>
where
    B: Backend,
    H: Clone + Send + Sync + 'static,
    P: Clone + Send + Sync + 'static,
{
    type Lease = Leased<B::Lease, H, P>;

    fn lease(&self) -> Self::Lease {
        let (hold, not_use) = (self.hold.clone(), self.not_use.clone());
        Leased::claimed(self.backend.lease(), &self.usage, hold, not_use)
    }

    #[inline]
    fn lease_once(&self) -> Self::Lease {
        let (hold, not_use) = (self.hold.clone(), self.not_use.clone());
        Leased::once(self.backend.lease_once(), &self.usage, hold, not_use)
    }

    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        UntilRetired {
            usage: self.usage.clone(),
            key: None,
            inner: self.backend.retired(),
        }
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        self.backend.stop()
    }

    fn stop_within(&self) -> Duration {
        self.backend.stop_within()
    }

    fn usage(&self) -> Option<Arc<Usage>> {
        Some(self.usage.clone())
    }

    fn room(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        // Whose instance may be stopped for room has no room of its own.
        let pinned = self.usage.look().is_pinned();
        if pinned { self.backend.room() } else { None }
    }

    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.backend.keep_until_gone(what)
    }
}

/// An instance without an owner is closed, and what was not used of it yet is void.
impl<B, H, P> Drop for Evictable<B, H, P> {
    fn drop(&mut self) {
        self.usage.close_dead();
    }
}

impl<B: fmt::Debug, H, P> fmt::Debug for Evictable<B, H, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evictable")
            .field("backend", &self.backend)
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}

/// Closed, or retired by itself, whichever is first.
#[pin_project(PinnedDrop)]
struct UntilRetired<F> {
    usage: Arc<Usage>,
    key: Key,
    #[pin]
    inner: F,
}

impl<F: Future<Output = Retired>> Future for UntilRetired<F> {
    type Output = Retired;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Retired> {
        let this = self.project();
        match this.usage.poll_closed(this.key, cx.waker()) {
            Poll::Ready(Closed::Evicted(why)) => Poll::Ready(Retired::Evicted(why)),
            Poll::Ready(Closed::ByOwner) => Poll::Ready(Retired::Closed),
            Poll::Pending => this.inner.poll(cx),
        }
    }
}

#[pinned_drop]
impl<F> PinnedDrop for UntilRetired<F> {
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        this.usage.forget_closed(this.key);
    }
}
