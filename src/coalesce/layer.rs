//! `CoalesceLayer`: the layer. Its options are in `options`.

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
    anchor::{Anchor, Anchors},
    common::{Common, Here, Manner, MaxWait, Passage, Rules},
    handle::Hub,
    lasting::Tying,
    linger::{Linger, LingerLimits},
    policy::{Policy, ShareAll},
    service::Coalesce,
    shards::{Limits, Padded, Space},
    share::Share,
    task::{ByCallers, Drive, Task},
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
/// is for one type of service, which the compiler finds out by itself, and for one backend: **in the stack of another a clone of it
/// would give its callers this one's answers**, unless the key tells the two apart. Options come first: changing one
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
    pub(super) identity: I,
    pub(super) policy: P,
    pub(super) driver: D,
    pub(super) options: Options,
    pub(super) label: Option<fn(&mut S::Response, Passage)>,
    pub(super) lasting: Option<Tying<S, I, Req, P, D>>,
    pub(super) weigh: fn(&S::Response) -> u64,
    pub(super) hub: Option<Arc<Hub<I::Key>>>,
    /// Tells the hub of a new space.
    pub(super) attach: Option<Attach<S, I, Req, P, D>>,
    /// What the services share, since the first of them was made.
    pub(super) space: Cell<S, I, Req, P, D>,
}

pub(super) type Attach<S, I, Req, P, D> =
    fn(&Hub<<I as Identity<Req>>::Key>, &Here<S, I, Req, P, D>);
pub(super) type Cell<S, I, Req, P, D> = Arc<OnceLock<Here<S, I, Req, P, D>>>;

#[derive(Clone)]
pub(super) struct Options {
    pub(super) max_joiners: usize,
    pub(super) max_flights: usize,
    pub(super) max_wait: Option<MaxWait>,
    pub(super) linger: Option<(Runtime, Duration)>,
    pub(super) linger_limits: LingerLimits,
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
            keeps: options.linger.is_some() || self.lasting.is_some(),
        };
        let threads = available_parallelism().map_or(1, usize::from);
        let common = Arc::new(Common {
            space: Space::new(shards(threads), limits),
            anchors: Anchors::new(),
            hasher: DefaultHashBuilder::default(),
            identity: self.identity.clone(),
            policy: self.policy.clone(),
            driver: self.driver.clone(),
            rules: Rules {
                shares_all: !P::ASKS,
                shares: P::shares,
                shares_error: P::shares_error,
                launch: if D::TASKS { Some(D::launch) } else { None },
                keeps_requests: P::ASKS || options.max_wait.is_some() || self.lasting.is_some(),
                manner: Manner {
                    convert: |error| Error::service(error),
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
            passed: Padded(AtomicU64::new(0)),
        });
        let common = Anchor::first(common, anchors(threads), |common| &common.anchors);
        if let (Some(hub), Some(attach)) = (&self.hub, self.attach) {
            attach(hub, &common);
        }
        common
    }
}

/// Enough that two threads rarely meet.
fn shards(threads: usize) -> usize {
    (16 * threads).clamp(16, 1024)
}

/// One for each thread that is likely to call.
fn anchors(threads: usize) -> usize {
    (2 * threads).clamp(4, 128)
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
