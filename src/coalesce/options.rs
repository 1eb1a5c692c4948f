//! The options of [`CoalesceLayer`].

use std::{sync::Arc, time::Duration};

use tower_service::Service;

use super::{
    common::MaxWait,
    handle::{CoalesceHandle, Hub, attach},
    layer::CoalesceLayer,
    policy::{Alone, ShareIf},
    task::ByTasks,
};
#[cfg(feature = "http")]
use super::{
    common::Passage,
    lasting::{Lasting, Tying, knot},
};
use crate::{Runtime, identity::Identity};

impl<I, Req, S, P, D> CoalesceLayer<I, Req, S, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// Shares a response only if `predicate` says so. It is asked once per response, by whichever
    /// caller was polling.
    ///
    /// Where it says no, the response goes to the caller that led, alone, or to nobody if that has left,
    /// and those who joined make calls of their own, all at once, as if they had had no key. So joiners
    /// keep their request until the outcome is there.
    ///
    /// # Panics
    ///
    /// If the layer has a handle already.
    #[must_use]
    pub fn share_if<F>(self, predicate: F) -> CoalesceLayer<I, Req, S, ShareIf<P, F>, D>
    where
        F: Fn(&S::Response) -> bool,
    {
        self.rebuild(|rest| ShareIf { rest, predicate }, |driver| driver)
    }

    /// Does not share the errors of the inner service that `predicate` is for: such an error goes to
    /// the caller that led, alone, and those who joined make calls of their own, all at once.
    ///
    /// For errors that are about one caller, not about what was asked for. Without it every error
    /// is shared.
    ///
    /// # Panics
    ///
    /// If the layer has a handle already.
    #[must_use]
    pub fn alone<F>(self, predicate: F) -> CoalesceLayer<I, Req, S, Alone<P, F>, D>
    where
        F: Fn(&S::Error) -> bool,
    {
        self.rebuild(|rest| Alone { rest, predicate }, |driver| driver)
    }

    /// Lets a success be joined for `after` more, from the moment the inner call ended. Zero: not at
    /// all, the default.
    ///
    /// For stragglers: one who asks just after the answer is given it, instead of asking anew. Failures
    /// never linger, nor what [`share_if`](Self::share_if) keeps from sharing, nor what was
    /// [forgotten](CoalesceHandle::forget). At most 1,024 responses linger; see
    /// [`linger_at_most`](Self::linger_at_most).
    #[must_use]
    pub fn linger(mut self, runtime: Runtime, after: Duration) -> Self {
        self.options.linger = Some((runtime, after));
        self.anew()
    }

    /// How many responses linger at most. Beyond that the newest do not.
    #[must_use]
    pub fn linger_at_most(mut self, responses: usize) -> Self {
        self.options.linger_limits.responses = responses;
        self.anew()
    }

    /// How much the responses that linger weigh at most, each as `weigh` says. What would be too much
    /// does not linger.
    ///
    /// For HTTP responses, `linger_bytes` (feature `http`) counts bytes.
    #[must_use]
    pub fn linger_weight(mut self, most: u64, weigh: fn(&S::Response) -> u64) -> Self {
        self.options.linger_limits.weight = most;
        self.weigh = weigh;
        self.anew()
    }

    /// How many callers may join one call. Others get
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting); the call in flight does not notice.
    #[must_use]
    pub fn max_joiners(mut self, callers: usize) -> Self {
        self.options.max_joiners = callers;
        self.anew()
    }

    /// How many calls with different keys may be in flight. Those who would lead one more get
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting); joining is always possible.
    #[must_use]
    pub fn max_flights(mut self, flights: usize) -> Self {
        self.options.max_flights = flights;
        self.anew()
    }

    /// A joiner that has waited for `after` gives the call in flight up for wedged: it leads another,
    /// with its own request, which is from then on the one that newcomers join, and to which the
    /// others come over when their time comes. The old one goes on for those who stay: the caller that
    /// led, for one.
    ///
    /// The new call is not given up in its turn, so that a slow backend is asked twice, not without
    /// end. Joiners keep their request, and have a timer.
    #[must_use]
    pub fn max_wait(mut self, runtime: Runtime, after: Duration) -> Self {
        self.options.max_wait = Some(MaxWait { runtime, after });
        self.anew()
    }

    /// Every inner call is made by a task of `runtime`'s, to its end, whoever waits for it.
    ///
    /// For calls that are worth finishing, and for services that must not be polled by whatever
    /// task their callers happen to be. Everything must be `Send + 'static` then. If the task vanishes
    /// (its runtime is shut down) all who wait get [`ShutDown`](crate::ErrorKind::ShutDown);
    /// [`CoalesceHandle::shutdown`] ends them on purpose. Bound the inner call by a timeout beneath this
    /// layer: nobody's leaving ends it.
    ///
    /// # Panics
    ///
    /// If the layer has a handle already. A call panics where the executor does.
    #[must_use]
    pub fn spawn_on(self, runtime: Runtime) -> CoalesceLayer<I, Req, S, P, ByTasks> {
        self.rebuild(|policy| policy, |_| ByTasks { runtime })
    }

    /// The layer, with a handle on all that it will share. Comes last: the options that change the
    /// layer's type do not change the handle's.
    pub fn with_handle(mut self) -> (Self, CoalesceHandle<I::Key>)
    where
        S: Send + 'static,
        S::Future: Send + 'static,
        S::Response: Send + 'static,
        S::Error: 'static,
        I: Send + Sync + 'static,
        I::Key: Send + Sync + 'static,
        Req: Send + 'static,
        P: Send + Sync + 'static,
        D: Send + Sync + 'static,
    {
        let hub = Hub::new();
        self.hub = Some(hub.clone());
        self.attach = Some(attach);
        (self.anew(), CoalesceHandle::new(hub))
    }

    /// Says to each response by which flight it came.
    #[cfg(feature = "http")]
    pub(crate) fn labelled(mut self, label: fn(&mut S::Response, Passage)) -> Self {
        self.label = Some(label);
        self.anew()
    }

    /// Responses can be joined while they are in use.
    #[cfg(feature = "http")]
    pub(crate) fn lasting(mut self, lasting: Lasting<S::Response>) -> Self
    where
        S: Send + 'static,
        S::Future: Send + 'static,
        S::Response: Send + 'static,
        S::Error: 'static,
        I: Send + Sync + 'static,
        I::Key: Send + Sync + 'static,
        Req: Send + 'static,
        P: Send + Sync + 'static,
        D: Send + Sync + 'static,
    {
        self.lasting = Some(Tying { lasting, knot });
        self.anew()
    }

    /// A changed layer does not share with what it was before.
    fn anew(mut self) -> Self {
        self.space = Arc::default();
        self
    }

    pub(crate) fn rebuild<P2, D2>(
        self,
        policy: impl FnOnce(P) -> P2,
        driver: impl FnOnce(D) -> D2,
    ) -> CoalesceLayer<I, Req, S, P2, D2> {
        assert!(
            self.hub.is_none() && self.lasting.is_none(),
            "shared_bodies and with_handle come after the options that change the layer's type"
        );
        CoalesceLayer {
            identity: self.identity,
            policy: policy(self.policy),
            driver: driver(self.driver),
            options: self.options,
            label: self.label,
            lasting: None,
            weigh: self.weigh,
            hub: None,
            attach: None,
            space: Arc::default(),
        }
    }
}
