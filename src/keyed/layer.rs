//! `KeyedLayer`: one service for backends known only at run time.

use std::{fmt, hash::Hash, sync::Arc};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    map::{Limits, Map},
    service::{Keyed, Opener},
};
use crate::{
    backend::Backend,
    error::{BoxError, Error, ErrorKind},
    identity::Identity,
    lazy_start::LazyStartLayer,
    lifecycle::entrance::Entrance,
    runtime::Runtime,
    target::Target,
};

/// Starts the backend that a request is for, on its first call.
///
/// Three things make it: an [`Identity`](crate::Identity) tells the key of a request (`None`: the call fails with
/// [`Unknown`](ErrorKind::Unknown)), a function tells the target of a key (an error of it: `Unknown`
/// too, with the error as its source, and nothing is kept), and the maker beneath makes each of them.
/// The maker is cloned per key; `Ceiling` and `IdleEvict` in it are shared by all keys. [`each`](Self::each) sets
/// the options of every backend.
///
/// The state belongs to each [`layer`](Layer::layer) call.
///
/// ```
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_on_demand::{DropToStop, KeyedLayer, Runtime};
///
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_on_demand::Error> {
/// struct Request { tenant: String, n: u32 }
///
/// let maker = service_fn(|tenant: String| async move {
///     let serve = service_fn(move |request: Request| {
///         let tenant = tenant.clone();
///         async move { Ok::<_, std::io::Error>(format!("{tenant}: {}", request.n)) }
///     });
///     Ok::<_, std::io::Error>(DropToStop::new(serve))
/// });
///
/// let tenants = KeyedLayer::new(
///     Runtime::tokio(),
///     |request: &Request| Some(request.tenant.clone()),
///     |tenant: &String| Ok::<_, std::io::Error>(tenant.clone()),
/// )
/// .max_keys(1_000)
/// .layer(maker);
///
/// let request = Request { tenant: "acme".into(), n: 7 };
/// assert_eq!(tenants.oneshot(request).await?, "acme: 7");
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
pub struct KeyedLayer<K, T, I> {
    runtime: Runtime,
    identity: I,
    target: Arc<TargetOf<K, T>>,
    each: Arc<Each<T>>,
    limits: Limits,
}

type TargetOf<K, T> = dyn Fn(&K) -> Result<T, BoxError> + Send + Sync;
type Each<T> = dyn Fn(LazyStartLayer<T>) -> LazyStartLayer<T> + Send + Sync;

impl<K: Target, I> KeyedLayer<K, K, I> {
    /// A layer whose keys are themselves what is started, under that name: see [`new`](Self::new).
    ///
    /// ```
    /// # use tower_on_demand::{KeyedLayer, Runtime};
    /// # fn layer(runtime: Runtime) -> impl Sized {
    /// KeyedLayer::by_key(runtime, |tenant: &String| Some(tenant.clone()))
    /// # }
    /// ```
    pub fn by_key<Req>(runtime: Runtime, identity: I) -> Self
    where
        I: Identity<Req, Key = K>,
    {
        Self::new(runtime, identity, |key: &K| Ok::<_, BoxError>(key.clone()))
    }
}

impl<K, T: Target, I> KeyedLayer<K, T, I> {
    /// A layer that finds the key of a request by `identity`, and what to start for it by `target`.
    pub fn new<F, E>(runtime: Runtime, identity: I, target: F) -> Self
    where
        F: Fn(&K) -> Result<T, E> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        Self {
            runtime,
            identity,
            target: Arc::new(move |key| target(key).map_err(Into::into)),
            each: Arc::new(|layer| layer),
            limits: Limits {
                keys: 10_000,
                failing: 1_000,
            },
        }
    }

    /// The options of each key's backend; it is named after its target, unless they say otherwise.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tower_on_demand::{Group, KeyedLayer, Runtime};
    /// # fn layer(runtime: Runtime, group: Group) -> impl Sized {
    /// KeyedLayer::new(runtime, |key: &String| Some(key.clone()), |key: &String| Ok::<_, String>(key.clone()))
    ///     .each(move |backend| backend.start_timeout(Duration::from_secs(20)).join(&group))
    /// # }
    /// ```
    #[must_use]
    pub fn each<F>(mut self, options: F) -> Self
    where
        F: Fn(LazyStartLayer<T>) -> LazyStartLayer<T> + Send + Sync + 'static,
    {
        self.each = Arc::new(options);
        self
    }

    /// How many keys there may be at a time, running or remembered; a call with one more fails with
    /// [`TooManyKeys`](ErrorKind::TooManyKeys). Default: 10,000.
    #[must_use]
    pub fn max_keys(mut self, most: usize) -> Self {
        self.limits.keys = most;
        self
    }

    /// How many keys are remembered for their failed starts; beyond that the one that failed first is
    /// forgotten before its time, so that keys which only fail crowd out no others. Default: 1,000.
    #[must_use]
    pub fn max_failing_keys(mut self, most: usize) -> Self {
        self.limits.failing = most;
        self
    }
}

impl<M, K, T, I> Layer<M> for KeyedLayer<K, T, I>
where
    M: Service<T> + Clone + Send + Sync + 'static,
    M::Response: Backend,
    M::Error: Into<BoxError>,
    M::Future: Send,
    K: Eq + Hash + Send + Sync + 'static,
    T: Target,
    I: Clone,
{
    type Service = Keyed<K, <M::Response as Backend>::Lease, I>;

    fn layer(&self, maker: M) -> Self::Service {
        let map = Map::new(self.runtime.clone(), self.limits);
        let (runtime, target, each) =
            (self.runtime.clone(), self.target.clone(), self.each.clone());
        let resting = Arc::downgrade(&map);
        let open: Arc<Opener<K, _>> = Arc::new(move |key: &K, place| {
            let target =
                target(key).map_err(|error| Error::new(ErrorKind::Unknown).because(error))?;
            let layer = each(LazyStartLayer::new(runtime.clone(), target));
            let map = resting.clone();
            let on_rest = Box::new(move || {
                if let Some(map) = map.upgrade() {
                    map.rested(place);
                }
            });
            let door = layer.open(maker.clone(), Some(on_rest));
            Ok(door as Arc<dyn Entrance<<M::Response as Backend>::Lease>>)
        });
        Keyed::new(map, open, self.identity.clone())
    }
}

impl<K, T, I: Clone> Clone for KeyedLayer<K, T, I> {
    fn clone(&self) -> Self {
        Self {
            runtime: self.runtime.clone(),
            identity: self.identity.clone(),
            target: self.target.clone(),
            each: self.each.clone(),
            limits: self.limits,
        }
    }
}

impl<K, T, I> fmt::Debug for KeyedLayer<K, T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLayer")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
