//! `Backend`: what a started instance can do for the one who owns it.

use std::{
    any::Any,
    fmt,
    future::Future,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use crate::{
    busy::UntilResponse,
    lease::Leased,
    matches::Nothing,
    sync::lock,
    usage::{Eviction, Usage},
};

/// What a started instance can do for the one who owns it: lend itself, tell when it is over, stop.
///
/// Makers (`Service<Target>`) answer with one. It is not `Clone`: an instance has one owner, the
/// task that started it, and everybody else holds leases. Any cloneable service becomes a backend
/// with [`DropToStop`]; implement it yourself for what must be shut down in order.
///
/// ```
/// use tower_on_demand::{Backend, Retired, Stopped};
///
/// struct Pool(/* … */);
/// # impl Pool { fn handle(&self) -> Handle { Handle } async fn close(&self) {} }
/// # #[derive(Clone)] struct Handle;
///
/// impl Backend for Pool {
///     type Lease = Handle;
///
///     fn lease(&self) -> Handle {
///         self.handle()
///     }
///
///     fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
///         std::future::pending() // it does not end by itself
///     }
///
///     fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
///         async { Stopped::Gone }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Backend`",
    note = "a cloneable service becomes one with `.map_response(DropToStop::new)` on its maker; box others with `tower::util::BoxCloneSyncService` first"
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
    /// It goes when the last lease is dropped.
    WithTheLastLease,
}

/// A cloneable service as a [`Backend`]: each lease is a clone, and dropping the last clone is what
/// stops it.
///
/// It counts the leases it gave, unless an `IdleEvict` layer above it counts already.
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
pub struct DropToStop<S> {
    service: S,
    /// After the service: what is kept for it goes when it is gone.
    counted: Counted,
}

impl<S> DropToStop<S> {
    /// `service` as a backend.
    pub const fn new(service: S) -> Self {
        Self {
            service,
            counted: Counted::new(),
        }
    }

    /// The service.
    pub const fn get_ref(&self) -> &S {
        &self.service
    }
}

impl<S> Backend for DropToStop<S>
where
    S: Clone + Send + Sync + 'static,
{
    type Lease = Leased<S>;

    fn lease(&self) -> Leased<S> {
        self.counted.lease(self.service.clone(), UntilResponse)
    }

    fn attach(&self, usage: &Arc<Usage>) {
        self.counted.attach(usage);
    }

    fn usage(&self) -> Option<Arc<Usage>> {
        Some(self.counted.usage().clone())
    }

    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.counted.keep(what);
        None
    }
}

impl<S: fmt::Debug> fmt::Debug for DropToStop<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DropToStop").field(&self.service).finish()
    }
}

/// Who counts the uses of a backend: somebody above, by a word that is attached, or else the
/// backend by its own, made at the first need.
pub(crate) struct Counted {
    counting: OnceLock<Counting>,
    /// What is kept until the backend is dropped and its last use has ended.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

enum Counting {
    Attached(Arc<Usage>),
    Own(Arc<Usage>),
}

/// The clock of usage words that nobody asks for recency.
struct NoClock;

impl crate::usage::Recency for NoClock {
    fn now(&self) -> u64 {
        0
    }
}

impl Counted {
    pub(crate) const fn new() -> Self {
        Self {
            counting: OnceLock::new(),
            kept: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn attach(&self, usage: &Arc<Usage>) {
        let _ = self.counting.set(Counting::Attached(usage.clone()));
    }

    fn counting(&self) -> &Counting {
        self.counting
            .get_or_init(|| Counting::Own(Usage::new(Arc::new(NoClock))))
    }

    pub(crate) fn usage(&self) -> &Arc<Usage> {
        match self.counting() {
            Counting::Attached(usage) | Counting::Own(usage) => usage,
        }
    }

    pub(crate) fn keep(&self, what: Box<dyn Any + Send>) {
        lock(&self.kept).push(what);
    }

    /// A lease of `service`, counted here unless somebody above counts.
    pub(crate) fn lease<S, H>(&self, service: S, hold: H) -> Leased<S, H> {
        match self.counting() {
            Counting::Attached(_) => Leased::uncounted(service, hold),
            Counting::Own(usage) => Leased::claimed(service, usage, hold, Nothing),
        }
    }
}

/// An instance without an owner is closed: what its last lease keeps can go with that.
impl Drop for Counted {
    fn drop(&mut self) {
        let kept = std::mem::take(&mut *lock(&self.kept));
        let Some(counting) = self.counting.get() else {
            return;
        };
        let usage = match counting {
            Counting::Attached(usage) => usage,
            Counting::Own(usage) => {
                usage.close_now();
                usage
            }
        };
        for what in kept {
            usage.hold_until_drained(what);
        }
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
