//! `IdleEvictLayer`: counts uses, under one registry shared by all its clones.

use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use super::{registry::Live, service::MakeEvictable, status::Instance};
use crate::matches::Nothing;

/// Counts the uses of what is started, and retires what nobody uses.
///
/// It wraps the maker of a [`Backend`](crate::Backend), whose instances become
/// [`Evictable`](super::Evictable): each lease counts as a use, from before the request is handed over
/// until the response is done (what that means says the hold given to
/// [`IdleEvict::pair`](super::IdleEvict::pair)). An instance in use is never stopped by a policy: not
/// for age by the [`IdleEvict`](super::IdleEvict) of this layer, nor for room by a `Ceiling` below it.
///
/// It goes beneath `LazyStartLayer` (or `KeyedLayer`, `KeepLayer`) and above `CeilingLayer`, which learns
/// from it what is idle. Somebody must [run](super::IdleEvict::run) the other half of the pair: without
/// that nothing is retired for age.
///
/// Its registry belongs to the layer and is shared by its clones; the options belong to the clone they
/// are set on, so each stack can have its own.
pub struct IdleEvictLayer<H, P = Nothing> {
    live: Arc<Live>,
    options: Options<H, P>,
}

#[derive(Clone)]
pub(super) struct Options<H, P> {
    pub(super) hold: H,
    pub(super) not_use: P,
    pub(super) idle_after: Option<Duration>,
    pub(super) pinned: bool,
}

impl<H, P> Options<H, P> {
    /// By name or by its bound.
    pub(super) fn is_pinned(&self) -> bool {
        self.pinned || self.idle_after.is_some_and(|after| after.is_zero())
    }
}

impl<H> IdleEvictLayer<H> {
    pub(super) fn new(live: Arc<Live>, hold: H) -> Self {
        Self {
            live,
            options: Options {
                hold,
                not_use: Nothing,
                idle_after: None,
                pinned: false,
            },
        }
    }
}

impl<H, P> IdleEvictLayer<H, P> {
    /// How long an instance may be unused before it is retired. The clock starts when the instance is
    /// ready, and again when a use *ends*.
    ///
    /// `None`, the default, is never for age, but still for room; zero is [`pinned`](Self::pinned).
    #[must_use]
    pub fn idle_after(mut self, idle_after: impl Into<Option<Duration>>) -> Self {
        self.options.idle_after = idle_after.into();
        self
    }

    /// Never retired by a policy, neither for age nor for room. It counts under a ceiling all the same.
    #[must_use]
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.options.pinned = pinned;
        self
    }

    /// Requests that are no sign that anybody wants the backend, health checks for one: they count as
    /// use while they are in flight, but their end does not restart the idle clock.
    ///
    /// Any `Fn(&Req) -> bool`. It replaces what was declared before.
    #[must_use]
    pub fn not_use<Q>(self, not_use: Q) -> IdleEvictLayer<H, Q> {
        let options = self.options;
        IdleEvictLayer {
            live: self.live,
            options: Options {
                hold: options.hold,
                not_use,
                idle_after: options.idle_after,
                pinned: options.pinned,
            },
        }
    }
}

impl<H, P> IdleEvictLayer<H, P> {
    /// The instances under this layer and its clones, oldest first.
    pub fn status(&self) -> Vec<Instance> {
        self.live.0.status()
    }
}

impl<H: Clone, P: Clone> Clone for IdleEvictLayer<H, P> {
    fn clone(&self) -> Self {
        Self {
            live: self.live.clone(),
            options: self.options.clone(),
        }
    }
}

impl<M, H: Clone, P: Clone> Layer<M> for IdleEvictLayer<H, P> {
    type Service = MakeEvictable<M, H, P>;

    fn layer(&self, maker: M) -> Self::Service {
        MakeEvictable::new(maker, self.live.clone(), self.options.clone())
    }
}

impl<H, P> fmt::Debug for IdleEvictLayer<H, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleEvictLayer")
            .field("idle_after", &self.options.idle_after)
            .field("pinned", &self.options.pinned)
            .finish_non_exhaustive()
    }
}
