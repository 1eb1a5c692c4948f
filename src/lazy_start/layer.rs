//! `LazyStartLayer`: the settings of one backend.

use std::{
    fmt,
    sync::{Arc, LazyLock, Weak},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    handle::{Binding, Handle},
    service::LazyStart,
};
use crate::{
    backend::Backend,
    error::BoxError,
    group::Group,
    lifecycle::{
        Door,
        core::{Config, OnRest},
        desk::Supply,
    },
    matches::Nothing,
    runtime::Runtime,
    target::Target,
};

/// Starts a backend on its first call.
///
/// Put it over a maker, a `Service<T>` whose response is a [`Backend`]: the result is a service for
/// requests of any type that the backend's leases serve. Each [`layer`](Layer::layer) call makes one
/// backend; clones of the resulting service share it.
///
/// # Choosing the bounds
///
/// | option | default | bounds |
/// |---|---|---|
/// | [`start_timeout`](Self::start_timeout) | none | a start as a whole, the wait for room included |
/// | [`max_callers`](Self::max_callers) | 1,024 | how many wait for one start |
/// | [`backoff`](Self::backoff) | 100 ms to 30 s | how soon a failed start is tried again |
/// | [`restart_budget`](Self::restart_budget) | none | how many crashes in what time |
/// | [`drain_timeout`](Self::drain_timeout) | 30 s | calls in flight when it is stopped by order |
/// | [`stop_timeout`](Self::stop_timeout) | the backend's own | the stop itself |
///
/// # Example
///
/// ```
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_on_demand::{DropToStop, LazyStartLayer, Runtime};
///
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_on_demand::Error> {
/// let maker = service_fn(|factor: &'static str| async move {
///     let factor: u32 = factor.parse()?;
///     let service = service_fn(move |n: u32| async move { Ok::<_, std::io::Error>(n * factor) });
///     Ok::<_, std::num::ParseIntError>(DropToStop::new(service))
/// });
///
/// // "7" is what the maker gets, and the backend's name.
/// let times_seven = LazyStartLayer::new(Runtime::tokio(), "7").layer(maker);
///
/// assert_eq!(times_seven.oneshot(6).await?, 42);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct LazyStartLayer<T, P = Nothing> {
    runtime: Runtime,
    target: T,
    name: Arc<str>,
    config: Arc<Config>,
    group: Option<Group>,
    binding: Weak<Binding>,
    only_if_running: P,
}

impl<T: Target> LazyStartLayer<T> {
    /// A layer that starts what `target` describes, under its name.
    pub fn new(runtime: Runtime, target: T) -> Self {
        // One for all that are as they come.
        static DEFAULT: LazyLock<Arc<Config>> = LazyLock::new(Arc::default);
        Self {
            runtime,
            name: Arc::from(target.name()),
            target,
            config: DEFAULT.clone(),
            group: None,
            binding: Weak::new(),
            only_if_running: Nothing,
        }
    }
}

impl<T, P> LazyStartLayer<T, P> {
    fn config(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config)
    }

    /// Names the backend, for errors, status and its group. Default: the target's name.
    #[must_use]
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Makes the backend a member of `group`.
    #[must_use]
    pub fn join(mut self, group: &Group) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Bounds a start as a whole, from the first caller's wait (be it for the old instance's end, or for
    /// room) to ready. Who joins late shares what is left. Default: none; the wait for room and the time to
    /// ready have bounds of their own.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.config().start_timeout = Some(timeout);
        self
    }

    /// Bounds how many callers wait for one start; the next ones fail with
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 1,024.
    #[must_use]
    pub fn max_callers(mut self, most: usize) -> Self {
        self.config().max_callers = most;
        self
    }

    /// After a failed start, calls fail at once for `first`, doubled by each further failure up to
    /// `longest`, less up to a quarter, so that backends which failed together do not try together. The
    /// next call then is a trial. An instance that lived as long as `longest`, or ended by order or
    /// eviction, starts the count anew. Default: 100 ms, 30 s.
    #[must_use]
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.config().policy.set_backoff(first, longest);
        self
    }

    /// Refuses starts while the last `most` crashes are all younger than `per`. Default: no bound.
    #[must_use]
    pub fn restart_budget(mut self, most: u32, per: Duration) -> Self {
        self.config().policy.set_budget(most, per);
        self
    }

    /// Drops a start when all who waited for it have left. Default: it is finished, and the
    /// instance's idle clock starts there.
    #[must_use]
    pub fn cancel_when_abandoned(mut self) -> Self {
        self.config().cancel = true;
        self
    }

    /// Starts it again after a crash without waiting for a call; see [`Handle::keep_running`].
    /// Default: the next call does.
    #[must_use]
    pub fn keep_running(mut self) -> Self {
        self.config().keep_running = true;
        self
    }

    /// How long the calls in flight have when the backend is stopped, reloaded, unloaded or shut
    /// down. Those left then are cut with [`Stopped`](crate::ErrorKind::Stopped). Evictions have no such bound:
    /// they cut nothing. Default: 30 s.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.config().drain_timeout = timeout;
        self
    }

    /// How long the stop itself may take before it is reported and given up. Default: what
    /// [`Backend::stop_within`] says.
    #[must_use]
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.config().stop_timeout = Some(timeout);
        self
    }

    /// Requests that a running instance serves but that never start one: health checks, scrapes.
    /// Without one they fail with [`NotRunning`](crate::ErrorKind::NotRunning). Default: none.
    ///
    /// ```
    /// # use tower_on_demand::{LazyStartLayer, Runtime};
    /// # fn layer(runtime: Runtime) -> impl Sized {
    /// LazyStartLayer::new(runtime, "probe").only_if_running(|path: &String| path == "/metrics")
    /// # }
    /// ```
    pub fn only_if_running<Q>(self, requests: Q) -> LazyStartLayer<T, Q> {
        LazyStartLayer {
            runtime: self.runtime,
            target: self.target,
            name: self.name,
            config: self.config,
            group: self.group,
            binding: self.binding,
            only_if_running: requests,
        }
    }

    /// Also gives the handle of the backend that the first [`layer`](Layer::layer) call makes. Until
    /// then its orders fail with [`Unknown`](crate::ErrorKind::Unknown).
    pub fn pair(mut self) -> (Self, Handle<T>) {
        let handle = Handle::unbound(self.name.clone());
        self.binding = handle.binding();
        (self, handle)
    }
}

impl<T, P> LazyStartLayer<T, P>
where
    T: Target,
{
    /// A backend of its own for `maker`.
    pub(crate) fn open<M>(&self, maker: M, on_rest: Option<OnRest>) -> Arc<Door<T, M::Response>>
    where
        M: Service<T> + Send + 'static,
        M::Response: Backend,
        M::Error: Into<BoxError>,
        M::Future: Send,
    {
        let supply = Supply {
            maker: Box::new(maker),
            target: self.target.clone(),
        };
        let (runtime, config) = (self.runtime.clone(), self.config.clone());
        let door = Door::open(runtime, self.name.clone(), config, supply, on_rest);
        if let Some(binding) = self.binding.upgrade() {
            binding.bind(door.clone());
        }
        if let Some(group) = &self.group {
            group.add(self.name.clone(), door.core.clone());
        }
        door
    }
}

impl<M, T, P> Layer<M> for LazyStartLayer<T, P>
where
    M: Service<T> + Send + 'static,
    M::Response: Backend,
    M::Error: Into<BoxError>,
    M::Future: Send,
    T: Target,
    P: Clone,
{
    type Service = LazyStart<T, <M::Response as Backend>::Lease, P>;

    fn layer(&self, maker: M) -> Self::Service {
        LazyStart::new(self.open(maker, None), self.only_if_running.clone())
    }
}

impl<T: fmt::Debug, P> fmt::Debug for LazyStartLayer<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyStartLayer")
            .field("target", &self.target)
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
