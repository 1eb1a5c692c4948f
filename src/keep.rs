//! `KeepLayer`: a started backend as an ordinary service, owned by a task.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll, ready},
    thread,
    time::{Duration, Instant},
};

use futures_channel::oneshot;
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    backend::Backend,
    error::{BoxError, Error, ErrorKind},
    events,
    lifecycle::{
        calling::Calling,
        ending,
        entrance::Borrowed,
        instance::{Handed, Instance, Lender},
        maker::Caught,
        owner::End,
    },
    runtime::Runtime,
    target::{Course, Intent, StartId, Urgency},
    usage::Usage,
};

/// Turns what a maker makes, a [`Backend`], into an ordinary cloneable service: for parts that
/// manage services themselves, hyper-util's pools or `tower::reconnect`, over `Ceiling` and `IdleEvict`.
///
/// A task owns each instance. It stops it when the last clone of the service is dropped, its calls in flight having
/// ended, and at once when it is retired or dies; the service then fails its `poll_ready`, as tower
/// has it: discard it and make another.
///
/// ```
/// # use std::time::Duration;
/// # use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// # use tower_on_demand::{DropToStop, KeepLayer, Runtime};
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// # let connect = service_fn(|_: &'static str| async {
/// #     let echo = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(n) });
/// #     Ok::<_, std::io::Error>(DropToStop::new(echo))
/// # });
/// let mut maker = ServiceBuilder::new()
///     .layer(KeepLayer::new(Runtime::tokio()).name("echo"))
///     .service(connect);
///
/// let echo = maker.ready().await?.call("target").await?;
/// assert_eq!(echo.oneshot(42).await?, 42);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
#[derive(Debug, Clone)]
pub struct KeepLayer {
    settings: Settings,
}

#[derive(Debug, Clone)]
struct Settings {
    runtime: Runtime,
    name: Arc<str>,
    stop_timeout: Option<Duration>,
}

impl KeepLayer {
    /// A layer whose tasks run on `runtime`.
    pub fn new(runtime: Runtime) -> Self {
        Self {
            settings: Settings {
                runtime,
                name: Arc::from("backend"),
                stop_timeout: None,
            },
        }
    }

    /// The name that errors give what is made. Default: `backend`.
    #[must_use]
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// How long a stop may take before it is given up. Default: what [`Backend::stop_within`] says.
    #[must_use]
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.settings.stop_timeout = Some(timeout);
        self
    }
}

impl<M> Layer<M> for KeepLayer {
    type Service = Keep<M>;

    fn layer(&self, maker: M) -> Keep<M> {
        Keep {
            maker,
            settings: self.settings.clone(),
        }
    }
}

/// A maker of [`Kept`] services. Made by [`KeepLayer`].
#[derive(Debug, Clone)]
pub struct Keep<M> {
    maker: M,
    settings: Settings,
}

impl<M> Keep<M> {
    /// The maker.
    pub fn get_ref(&self) -> &M {
        &self.maker
    }

    /// The maker, to change it.
    pub fn get_mut(&mut self) -> &mut M {
        &mut self.maker
    }

    /// The maker, alone again.
    pub fn into_inner(self) -> M {
        self.maker
    }
}

impl<M, T> Service<T> for Keep<M>
where
    M: Service<T>,
    M::Response: Backend,
{
    type Response = Kept<<M::Response as Backend>::Lease>;
    type Error = M::Error;
    type Future = MakeKept<M::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), M::Error>> {
        self.maker.poll_ready(cx)
    }

    fn call(&mut self, target: T) -> Self::Future {
        let (start, course) = (StartId::next(), Arc::<Course>::default());
        let intent = Intent {
            name: self.settings.name.clone(),
            urgency: Urgency::Demand,
            start,
            replaces: None,
            room: None,
            course: course.clone(),
        };
        MakeKept {
            making: intent.scope(|| self.maker.call(target)),
            settings: self.settings.clone(),
            start,
            began: self.settings.runtime.now(),
            course,
        }
    }
}

/// Resolves to a [`Kept`] service. Dropping it drops the start.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct MakeKept<F> {
    #[pin]
    making: F,
    settings: Settings,
    start: StartId,
    began: Instant,
    course: Arc<Course>,
}

impl<F, B, E> Future for MakeKept<F>
where
    F: Future<Output = Result<B, E>>,
    B: Backend,
{
    type Output = Result<Kept<B::Lease>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let backend = ready!(this.making.poll(cx))?;
        let now = this.settings.runtime.now();
        let took = now.saturating_duration_since(*this.began);
        events::ready(&this.settings.name, ONLY, took, this.course.waited());
        Poll::Ready(Ok(keep(backend, this.settings, *this.start)))
    }
}

impl<F> fmt::Debug for MakeKept<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeKept")
            .field("name", &self.settings.name)
            .finish_non_exhaustive()
    }
}

/// There is one instance of each, so of no number.
const ONLY: u64 = 1;

fn keep<B: Backend>(backend: B, settings: &Settings, start: StartId) -> Kept<B::Lease> {
    let name = settings.name.clone();
    let instance = Instance::new(backend, ONLY, start, &settings.runtime, name.clone());
    let (held, released) = oneshot::channel();
    let shared = Arc::new(Shared {
        name,
        slot: RwLock::new(Some(Lender::new(instance.clone()))),
    });
    let keeper = Keeper {
        shared: shared.clone(),
        usage: instance.usage.clone(),
        instance: Some(instance),
        settings: settings.clone(),
    };
    settings.runtime.spawn(keeper.run(released));
    Kept {
        handle: Arc::new(Handle {
            lender: shared,
            _held: held,
        }),
        readied: None,
    }
}

/// What the service and the task that owns its instance share.
struct Shared<B> {
    name: Arc<str>,
    /// Emptied by the task, when the instance must not be used any more.
    slot: RwLock<Option<Lender<B>>>,
}

/// An instance, known by what it lends.
trait Lend<L>: Send + Sync {
    fn lend(&self) -> Option<Handed<L>>;
    fn name(&self) -> Arc<str>;
}

impl<B: Backend> Lend<B::Lease> for Shared<B> {
    fn lend(&self) -> Option<Handed<B::Lease>> {
        // As in `LazyStart`: `lease()` runs under a read lock that only the task ever waits for.
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        match slot.as_ref()?.lend_once() {
            Borrowed::Lease(handed) => Some(handed),
            Borrowed::Closed(_) | Borrowed::Nothing => None,
        }
    }

    fn name(&self) -> Arc<str> {
        self.name.clone()
    }
}

/// The task's side. On any way out the instance is no longer lent.
struct Keeper<B: Backend> {
    shared: Arc<Shared<B>>,
    instance: Option<Arc<Instance<B>>>,
    usage: Arc<Usage>,
    settings: Settings,
}

impl<B: Backend> Keeper<B> {
    /// Running, until it is retired, dies or nobody holds it; then closed, drained, stopped, dropped.
    async fn run(mut self, released: oneshot::Receiver<()>) {
        let instance = self.instance.clone().expect("it was just made");
        let born = self.settings.runtime.now();
        let end = {
            let mut retired = pin!(Caught::call(|| instance.backend.retired()));
            let mut released = pin!(released);
            poll_fn(|cx| {
                if let Poll::Ready(retired) = retired.as_mut().poll(cx) {
                    return Poll::Ready(End::of(retired));
                }
                // It resolves when the sending half is dropped, with the last handle.
                released.as_mut().poll(cx).map(|_| End::Halted)
            })
            .await
        };
        self.unpublish();
        self.instance = None;
        let runtime = &self.settings.runtime;
        let lived = runtime.now().saturating_duration_since(born);
        end.tell(&self.settings.name, ONLY, lived, &instance.usage);
        let died = matches!(end, End::Died(_));
        if died {
            instance.usage.close_dead();
        } else {
            ending::drain(runtime, &instance.usage, || None).await;
        }
        // What did not stop as it should is dropped all the same.
        let begun = runtime.now();
        match ending::stop(runtime, instance, self.settings.stop_timeout).await {
            Ok(ended) => {
                let took = runtime.now().saturating_duration_since(begun);
                let way = if died { "died" } else { ended.way.as_str() };
                events::stopped(&self.settings.name, ONLY, took, way);
            }
            Err(error) => {
                let error = error.of(self.settings.name.clone());
                events::stop_failed(&self.settings.name, ONLY, &error);
            }
        }
    }

    fn unpublish(&self) {
        let mut slot = self
            .shared
            .slot
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let old = slot.take();
        drop(slot);
        drop(old);
    }
}

impl<B: Backend> Drop for Keeper<B> {
    fn drop(&mut self) {
        self.unpublish();
        self.usage.close_dead();
        let instance = self.instance.take();
        let lost = instance.is_some() && !thread::panicking();
        drop(instance);
        if lost {
            let why = "the executor dropped the task that owned it";
            let error = Error::new(ErrorKind::ShutDown).because(why);
            let name = &self.settings.name;
            events::lost(name, ONLY, &error.of(name.clone()));
        }
    }
}

struct Handle<L> {
    lender: Arc<dyn Lend<L>>,
    _held: oneshot::Sender<()>,
}

/// A started backend as a service. Made by [`Keep`]; the last clone dropped stops it.
///
/// `poll_ready` takes a lease and fails with [`ErrorKind::Evicted`] once the instance was retired or
/// died. A clone of a readied service is not ready.
pub struct Kept<L> {
    handle: Arc<Handle<L>>,
    readied: Option<Handed<L>>,
}

impl<L, Req> Service<Req> for Kept<L>
where
    L: Service<Req>,
    L::Error: Into<BoxError>,
{
    type Response = L::Response;
    type Error = Error;
    type Future = KeptFuture<L::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let lender = &self.handle.lender;
        let error = |error: Error| error.of(lender.name());
        if self.readied.is_none() {
            self.readied = lender.lend();
        }
        let Some(handed) = &mut self.readied else {
            return Poll::Ready(Err(error(Error::new(ErrorKind::Evicted))));
        };
        let ready = ready!(handed.poll_ready(cx));
        if ready.is_err() {
            self.readied = None;
        }
        Poll::Ready(ready.map_err(error))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let handed = self.readied.take();
        let handed = handed.expect("a service was called that is not ready");
        KeptFuture {
            calling: Some(Calling::new(handed, request)),
        }
    }
}

impl<L> Clone for Kept<L> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            readied: None,
        }
    }
}

impl<L> fmt::Debug for Kept<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept")
            .field("name", &self.handle.lender.name())
            .finish_non_exhaustive()
    }
}

/// The response future of [`Kept`]. Dropping it ends the call and its use.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct KeptFuture<F> {
    #[pin]
    calling: Option<Calling<F>>,
}

impl<F, R, E> Future for KeptFuture<F>
where
    F: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
{
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut calling = self.project().calling;
        let call = calling.as_mut().as_pin_mut();
        let answer = ready!(call.expect("polled after it was done").poll(cx));
        calling.set(None);
        Poll::Ready(answer)
    }
}

impl<F> fmt::Debug for KeptFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptFuture").finish_non_exhaustive()
    }
}
