//! `Backend`: what a started instance can do for the one who owns it.

use std::{any::Any, fmt, future::Future, sync::Arc, time::Duration};

use crate::usage::{Eviction, Usage};

/// What a started instance can do for the one who owns it: lend itself, tell when it is over, stop.
///
/// Makers (`Service<Target>`) answer with one. It is not `Clone`: an instance has one owner, the
/// task that started it, and everybody else holds leases. Any cloneable service becomes a backend
/// with [`DropToStop`]; implement it yourself for what must be shut down in order.
///
/// Its futures do not borrow from it, since its owner waits for them beside its other work: clone what
/// they need, and write `impl Future` as here. An `async fn` would borrow, and is refused with "does not
/// fulfill the required lifetime".
///
/// ```
/// use std::sync::Arc;
/// use tower_on_demand::{Backend, Stopped};
/// # #[derive(Debug)] struct Connections;
/// # impl Connections { async fn close(&self) {} }
///
/// struct Pool {
///     connections: Arc<Connections>,
/// }
///
/// impl Backend for Pool {
///     type Lease = Arc<Connections>;
///
///     fn lease(&self) -> Arc<Connections> {
///         self.connections.clone()
///     }
///
///     fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
///         let connections = self.connections.clone();
///         async move {
///             connections.close().await;
///             Stopped::Gone
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Backend`",
    note = "a cloneable service becomes one with `.map_response(DropToStop::new)` on its maker; box others with `tower::util::BoxCloneSyncService` first",
    note = "if it is a response, the layers stand in the wrong order: `IdleEvictLayer` and `CeilingLayer` go below `LazyStartLayer`"
)]
pub trait Backend: Send + Sync + 'static {
    /// What serves one call: a `Service` for callers, or whatever the caller shall hold.
    type Lease: Send + 'static;

    /// Lends the instance. Holding what it gives is using the backend.
    ///
    /// Called with a read lock held, for every call: it must not block, and must not call into the
    /// layers.
    fn lease(&self) -> Self::Lease;

    /// Resolves when this instance must not be used any more. Default: never.
    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        std::future::pending()
    }

    /// Stops the instance, and resolves when that is done. Called once, after the calls in flight
    /// have ended or were given up. Default: dropping the last lease is what stops it.
    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        std::future::ready(Stopped::WithTheLastLease)
    }

    /// How long [`stop`](Self::stop) may take before it is reported and given up. Default: 30 s.
    fn stop_within(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Lends the instance for one call: the lease need not be good for a second.
    #[doc(hidden)]
    fn lease_once(&self) -> Self::Lease {
        self.lease()
    }

    /// Tells what is wrapped that its uses are counted by `usage`.
    #[doc(hidden)]
    fn attach(&self, usage: &Arc<Usage>) {
        let _ = usage;
    }

    /// The word that counts its uses, if anything does.
    #[doc(hidden)]
    fn usage(&self) -> Option<Arc<Usage>> {
        None
    }

    /// The room it holds, if that is to be its successor's: held until all this is dropped, or a start
    /// takes it over.
    #[doc(hidden)]
    fn room(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// Keeps `what` until the instance holds nothing any more, for an owner who goes first; gives it
    /// back if it cannot tell when that is.
    #[doc(hidden)]
    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        Some(what)
    }

    /// Wraps every lease by `map`; all else stays as it is.
    fn map_service<F, L>(self, map: F) -> MapService<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Lease) -> L + Send + Sync + 'static,
        L: Send + 'static,
    {
        MapService { backend: self, map }
    }
}

/// Why an instance must not be used any more.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Retired {
    /// It ended by itself; the error says how, where that is known.
    Died(Option<crate::Error>),
    /// It runs, but does not answer its health probe.
    Unhealthy(Option<crate::Error>),
    /// A policy closed it while it was idle.
    Evicted(Eviction),
    /// Its owner closed it.
    Closed,
}

/// What is left of a stopped instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stopped {
    /// Nothing: it holds no resource any more.
    Gone,
    /// Nothing, for it was killed: it did not stop in its time.
    Killed,
    /// It goes when the last lease is dropped.
    WithTheLastLease,
}

impl Stopped {
    /// The way in one word, for logs and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Stopped::Gone => "graceful",
            Stopped::Killed => "killed",
            Stopped::WithTheLastLease => "dropped",
        }
    }
}

/// A cloneable service as a [`Backend`]: each lease is a clone, and dropping the last clone is what
/// stops it.
///
/// ```
/// use tower::{ServiceExt, service_fn};
/// use tower_on_demand::DropToStop;
///
/// let maker = service_fn(|name: String| async move {
///     Ok::<_, std::io::Error>(service_fn(move |req: u32| {
///         let name = name.clone();
///         async move { Ok::<_, std::io::Error>(format!("{name}: {req}")) }
///     }))
/// })
/// .map_response(DropToStop::new);
/// # let _ = maker;
/// ```
#[derive(Debug, Clone, Copy)]
pub struct DropToStop<S>(S);

impl<S> DropToStop<S> {
    /// `service` as a backend.
    pub const fn new(service: S) -> Self {
        Self(service)
    }

    /// The service.
    pub const fn get_ref(&self) -> &S {
        &self.0
    }

    /// The service, alone again.
    pub fn into_inner(self) -> S {
        self.0
    }
}

impl<S> Backend for DropToStop<S>
where
    S: Clone + Send + Sync + 'static,
{
    type Lease = S;

    fn lease(&self) -> S {
        self.0.clone()
    }
}

/// A [`Backend`] whose leases are wrapped: see [`Backend::map_service`].
#[derive(Clone, Copy)]
pub struct MapService<B, F> {
    backend: B,
    map: F,
}

impl<B, F, L> Backend for MapService<B, F>
where
    B: Backend,
    F: Fn(B::Lease) -> L + Send + Sync + 'static,
    L: Send + 'static,
{
    type Lease = L;

    fn lease(&self) -> L {
        (self.map)(self.backend.lease())
    }

    fn lease_once(&self) -> L {
        (self.map)(self.backend.lease_once())
    }

    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        self.backend.retired()
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        self.backend.stop()
    }

    fn stop_within(&self) -> Duration {
        self.backend.stop_within()
    }

    fn attach(&self, usage: &Arc<Usage>) {
        self.backend.attach(usage);
    }

    fn usage(&self) -> Option<Arc<Usage>> {
        self.backend.usage()
    }

    fn room(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.backend.room()
    }

    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.backend.keep_until_gone(what)
    }
}

impl<B: fmt::Debug, F> fmt::Debug for MapService<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapService")
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
