//! `IdleEvict`: who retires what is due.

use std::{
    fmt,
    future::{Future, Ready, poll_fn, ready},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::rt::Sleep;
use tower_service::Service;

use super::{
    layer::IdleEvictLayer,
    registry::{Gone, Live, Next, Registry, UntilGone},
};
use crate::{
    error::{Error, ErrorKind},
    runtime::Runtime,
    usage::Eviction,
};

/// Retires the instances under its layer that have been idle for their bound.
///
/// It is a `Service<Sweep>`: `poll_ready` is pending until some instance is due, `call(Sweep)` closes
/// what is due and tells which. [`run`](Self::run) is the loop of the two; poll it yourself to decide
/// when. Ready stays ready until `call`. One timer is set, for the earliest that may be due.
///
/// It is not `Clone`, and it keeps nothing alive: when the last clone of the layer, the last maker and
/// the last instance are gone, `poll_ready` fails with [`ShutDown`](ErrorKind::ShutDown), and `run`
/// ends.
#[must_use = "nothing is retired for age unless it runs"]
pub struct IdleEvict {
    runtime: Runtime,
    registry: Arc<Registry>,
    /// For when it is set, and the timer.
    timer: Option<(u64, Pin<Box<dyn Sleep>>)>,
}

/// The request to an [`IdleEvict`]: retire what is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sweep;

impl IdleEvict {
    /// A layer, and who retires what is idle under it.
    ///
    /// `hold` says how long a response keeps its instance in use:
    /// [`UntilResponse`](crate::UntilResponse) for values, `http::UntilBodyEnd` for HTTP and gRPC. There
    /// is no default: the wrong one cuts streams.
    ///
    /// Run what comes second, by [`run`](Self::run) or as a service: while nobody does, nothing is stopped for age. (Room for
    /// others is made all the same.)
    ///
    /// ```
    /// # #[cfg(feature = "tokio")]
    /// # async fn example() {
    /// use std::time::Duration;
    /// use tower_on_demand::{IdleEvict, Runtime, UntilResponse};
    ///
    /// let runtime = Runtime::tokio();
    /// let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
    /// let evictable = evictable.idle_after(Duration::from_secs(900));
    /// runtime.spawn(idle_evict.run());
    /// # let _ = evictable;
    /// # }
    /// ```
    pub fn pair<H>(runtime: Runtime, hold: H) -> (IdleEvictLayer<H>, Self) {
        let registry = Registry::new(runtime.clock());
        let layer = IdleEvictLayer::new(Arc::new(Live(registry.clone())), hold);
        let idle_evict = Self {
            runtime,
            registry,
            timer: None,
        };
        (layer, idle_evict)
    }

    /// Sweeps whenever something is due, until nothing can ever be due again.
    pub async fn run(self) {
        self.run_until(std::future::pending::<()>()).await;
    }

    /// As [`run`](Self::run), and ends after `signal`: when what its sweeps have retired by then is
    /// stopped.
    pub async fn run_until(mut self, signal: impl Future) {
        let mut signal = pin!(signal);
        let mut under_way: Vec<Arc<Gone>> = Vec::new();
        loop {
            let go_on = poll_fn(|cx| {
                if signal.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(false);
                }
                self.poll_ready(cx).map(|ready| ready.is_ok())
            });
            if !go_on.await {
                break;
            }
            under_way.retain(|gone| !gone.is_set());
            under_way.extend(self.sweep().gone);
        }
        for gone in under_way {
            UntilGone::new(gone).await;
        }
    }

    fn sweep(&mut self) -> Swept {
        let (retired, gone) = self.registry.sweep();
        Swept { retired, gone }
    }
}

impl Service<Sweep> for IdleEvict {
    type Response = Swept;
    type Error = Error;
    type Future = Ready<Result<Swept, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            match self.registry.next(cx.waker()) {
                Next::Due => return Poll::Ready(Ok(())),
                Next::Over => return Poll::Ready(Err(Error::new(ErrorKind::ShutDown))),
                Next::Nothing => {
                    self.timer = None;
                    return Poll::Pending;
                }
                Next::At { due, after } => {
                    let timer = match &mut self.timer {
                        Some((set, timer)) if *set == due => timer,
                        _ => &mut self.timer.insert((due, self.runtime.sleep(after))).1,
                    };
                    if timer.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    // A coarse recency clock may lag behind the timer: then another short sleep.
                    self.timer = None;
                }
            }
        }
    }

    fn call(&mut self, _: Sweep) -> Self::Future {
        ready(Ok(self.sweep()))
    }
}

impl fmt::Debug for IdleEvict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleEvict")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

/// What one sweep has retired.
///
/// They are closed: no call reaches them any more, and none was in flight. Their owners stop them;
/// [`gone`](Self::gone) waits for that.
pub struct Swept {
    retired: Vec<Retiree>,
    gone: Vec<Arc<Gone>>,
}

/// One retired instance.
#[derive(Debug, Clone)]
pub struct Retiree {
    name: Option<Arc<str>>,
    why: Eviction,
    idle: Duration,
}

impl Swept {
    /// Who was retired, coldest first.
    pub fn retired(&self) -> &[Retiree] {
        &self.retired
    }

    /// Resolves when all of them are stopped.
    pub async fn gone(self) {
        for gone in self.gone {
            UntilGone::new(gone).await;
        }
    }
}

impl fmt::Debug for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swept")
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}

impl Retiree {
    pub(super) fn new(name: Option<Arc<str>>, why: Eviction, idle: Duration) -> Self {
        Self { name, why, idle }
    }

    /// The backend it is an instance of, where its starter named it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Why.
    pub fn why(&self) -> Eviction {
        self.why
    }

    /// How long nobody had used it.
    pub fn idle(&self) -> Duration {
        self.idle
    }
}
