//! `CoalesceLayer`: the layer, and its options.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    thread::available_parallelism,
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    common::{Common, Here, Manner, MaxWait, Passage, Rules},
    handle::{CoalesceHandle, Hub, attach},
    lasting::Tying,
    linger::{Linger, LingerLimits},
    policy::{Alone, Policy, ShareAll, ShareIf},
    service::Coalesce,
    shards::{Limits, Space},
    share::Share,
    task::{ByCallers, ByTasks, Drive, Task},
};
use crate::{BoxError, Error, Runtime, identity::Identity, sync::atomic::AtomicU64};

/// How many successes linger at most, if nothing else is said.
const LINGERING: usize = 1024;

/// Makes identical calls once: callers with the same identity share one call in flight.
///
/// The first caller with a key *leads*: the inner service is called for it. Whoever comes with the
/// same key while that call is in flight *joins*, and gets the same outcome; it takes nothing of what is
/// below, no permit and no connection. Requests without a key pass by. A request is a call again as soon
/// as the one before it is done: this is no cache (see [`linger`](Self::linger) for the gap between).
///
/// - Leader and joiner are equals. Any caller may leave; the inner call goes on while one is left,
///   and is dropped when the last one leaves. A caller that is alive but not polled stalls nobody.
/// - Errors are shared too, of whatever type: as the source of an [`Error`] of the kind
///   [`Service`](crate::ErrorKind::Service). Nobody joins a call that has failed.
/// - If the inner call panics, whoever was polling it unwinds, and the others get
///   [`Panicked`](crate::ErrorKind::Panicked).
/// - A call made from within its own inner call is refused as
///   [`Reentrant`](crate::ErrorKind::Reentrant) where it would wait for itself. Through another task
///   it is not seen, and would wait for ever.
///
/// The calls in flight belong to the *layer*: all services made by one layer and its clones share
/// them. (axum calls `layer()` once per connection; state per service would share nothing.) So a layer
/// is for one type of service, which the compiler finds out by itself. Options come first: changing one
/// afterwards begins a space of its own.
///
/// ```
/// use std::time::Duration;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_on_demand::CoalesceLayer;
///
/// # let _ = async {
/// let service = ServiceBuilder::new()
///     .layer(CoalesceLayer::new(|path: &String| Some(path.clone())))
///     .concurrency_limit(4) // joiners take no permit
///     .service(service_fn(|path: String| async move { std::fs::metadata(path).map(|m| m.len()) }));
///
/// // One look at the disk for both.
/// let (one, two) = futures_util::join!(
///     service.clone().oneshot("/etc/hosts".to_owned()),
///     service.clone().oneshot("/etc/hosts".to_owned()),
/// );
/// assert_eq!(one?, two?);
/// # Ok::<_, tower_on_demand::Error>(())
/// # };
/// ```
///
/// # HTTP
///
/// With the feature `http`, `CoalesceLayer::http` is the preset: the same `GET`s and `HEAD`s share, unless
/// request or response says that it is somebody's own. What is shared is cloned, and a streamed body
/// cannot be: `http::ShareBodyLayer` beneath makes it one that each caller reads from its first byte.
///
/// ```
/// # #[cfg(all(feature = "http", feature = "tokio"))] {
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, service_fn};
/// use tower_on_demand::{CoalesceLayer, Runtime, http::ShareBodyLayer};
///
/// let service = ServiceBuilder::new()
///     .layer(CoalesceLayer::http().shared_bodies())
///     .layer(ShareBodyLayer::new(Runtime::tokio(), 256 * 1024))
///     .service(service_fn(|_: Request<String>| async {
///         Ok::<_, std::io::Error>(Response::new("streamed, say".to_owned()))
///     }));
/// # drop(service);
/// # }
/// ```
///
/// With a key of your own, give none to what is its caller's (other methods than `GET`, cookies,
/// `Authorization`), and put into it all that the answer depends on.
pub struct CoalesceLayer<I, Req, S, P = ShareAll, D = ByCallers>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    identity: I,
    policy: P,
    driver: D,
    options: Options,
    label: Option<fn(&mut S::Response, Passage)>,
    lasting: Option<Tying<S, I, Req, P, D>>,
    weigh: fn(&S::Response) -> u64,
    hub: Option<Arc<Hub<I::Key>>>,
    /// Tells the hub of a new space.
    attach: Option<Attach<S, I, Req, P, D>>,
    /// What the services share, since the first of them was made.
    space: Cell<S, I, Req, P, D>,
}

type Attach<S, I, Req, P, D> = fn(&Hub<<I as Identity<Req>>::Key>, &Here<S, I, Req, P, D>);
type Cell<S, I, Req, P, D> = Arc<OnceLock<Here<S, I, Req, P, D>>>;

#[derive(Clone)]
struct Options {
    max_joiners: usize,
    max_flights: usize,
    max_wait: Option<MaxWait>,
    linger: Option<(Runtime, Duration)>,
    linger_limits: LingerLimits,
}

impl<I, Req, S> CoalesceLayer<I, Req, S>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// Calls whose `identity` is equal are one call.
    pub fn new(identity: I) -> Self {
        Self {
            identity,
            policy: ShareAll,
            driver: ByCallers,
            options: Options {
                max_joiners: usize::MAX,
                max_flights: usize::MAX,
                max_wait: None,
                linger: None,
                linger_limits: LingerLimits {
                    responses: LINGERING,
                    weight: u64::MAX,
                },
            },
            label: None,
            lasting: None,
            weigh: |_| 0,
            hub: None,
            attach: None,
            space: Arc::default(),
        }
    }
}

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
    pub(crate) fn lasting(mut self, lasting: super::Lasting<S::Response>) -> Self
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
        let knot = super::lasting::knot;
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

impl<I, Req, S, P, D> CoalesceLayer<I, Req, S, P, D>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    I: Identity<Req> + Clone,
    P: Policy<S::Response, S::Error> + Clone,
    D: Drive<Task<S, I, Req, P, D>> + Clone,
{
    fn make(&self) -> Here<S, I, Req, P, D> {
        let options = &self.options;
        let limits = Limits {
            max_joiners: options.max_joiners,
            max_flights: options.max_flights,
            lasting: D::TASKS,
        };
        let common = Arc::new(Common {
            space: Space::new(shards(), limits),
            hasher: DefaultHashBuilder::default(),
            identity: self.identity.clone(),
            policy: self.policy.clone(),
            driver: self.driver.clone(),
            rules: Rules {
                convert: |error| Error::service(error),
                shares_all: !P::ASKS,
                shares: P::shares,
                shares_error: P::shares_error,
                launch: if D::TASKS { Some(D::launch) } else { None },
                keeps_requests: P::ASKS || options.max_wait.is_some() || self.lasting.is_some(),
                manner: Manner {
                    label: self.label,
                    enlist: self.lasting.map(|tying| tying.lasting.enlist),
                },
                lasting: self.lasting,
                weigh: self.weigh,
            },
            linger: options
                .linger
                .clone()
                .map(|(runtime, after)| Linger::new(runtime, after, options.linger_limits)),
            max_wait: options.max_wait.clone(),
            observed: self.hub.is_some(),
            passed: AtomicU64::new(0),
        });
        if let (Some(hub), Some(attach)) = (&self.hub, self.attach) {
            attach(hub, &common);
        }
        common
    }
}

/// Enough that two threads rarely meet.
fn shards() -> usize {
    let threads = available_parallelism().map_or(1, usize::from);
    (4 * threads).clamp(8, 256)
}

impl<I, Req, S, P, D> Layer<S> for CoalesceLayer<I, Req, S, P, D>
where
    S: Service<Req> + Clone,
    S::Response: Share,
    S::Error: Into<BoxError>,
    I: Identity<Req> + Clone,
    P: Policy<S::Response, S::Error> + Clone,
    D: Drive<Task<S, I, Req, P, D>> + Clone,
{
    type Service = Coalesce<S, I, Req, P, D>;

    fn layer(&self, inner: S) -> Self::Service {
        let common = self.space.get_or_init(|| self.make());
        Coalesce::new(inner, common.clone())
    }
}

/// Clones share the calls in flight.
impl<I, Req, S, P, D> Clone for CoalesceLayer<I, Req, S, P, D>
where
    S: Service<Req>,
    I: Identity<Req> + Clone,
    P: Clone,
    D: Clone,
{
    fn clone(&self) -> Self {
        Self {
            identity: self.identity.clone(),
            policy: self.policy.clone(),
            driver: self.driver.clone(),
            options: self.options.clone(),
            label: self.label,
            lasting: self.lasting,
            weigh: self.weigh,
            hub: self.hub.clone(),
            attach: self.attach,
            space: self.space.clone(),
        }
    }
}

impl<I, Req, S, P, D> fmt::Debug for CoalesceLayer<I, Req, S, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoalesceLayer").finish_non_exhaustive()
    }
}
