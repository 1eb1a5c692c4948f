//! `Runtime`: where time comes from and where background tasks go.

#[cfg(any(feature = "tokio", feature = "smol"))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::rt::{Executor, Sleep, Timer};

use crate::usage::Recency;

/// A boxed future that an executor runs to its end: what a [`Runtime`]'s executor must accept.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Where this crate's time comes from and where its background tasks run.
///
/// A cheap handle over hyper's own [`Timer`] and [`Executor`], which tokio (hyper-util), smol
/// (smol-hyper) and others implement; `Runtime::tokio()` and `Runtime::smol()` (features of the same
/// names) put the usual pair together. Every bound, timeout and idle clock of the crate reads this
/// timer and nothing else, so a virtual one (feature `test-util`) tests hours in microseconds.
///
/// Executors are `Send + Sync` and get `Send` futures. A thread-per-core runtime needs an executor
/// that sends the future to its own thread.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use hyper_util::rt::{TokioExecutor, TokioTimer};
/// use tower_on_demand::Runtime;
///
/// let runtime = Runtime::new(TokioTimer::new(), TokioExecutor::new());
/// # }
/// ```
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    timer: Arc<dyn Timer + Send + Sync>,
    executor: Arc<dyn Executor<BoxFuture> + Send + Sync>,
    clock: Arc<dyn Recency>,
}

/// The timer's own reading, since the runtime was made.
struct TimerClock {
    timer: Arc<dyn Timer + Send + Sync>,
    origin: Instant,
}

impl Recency for TimerClock {
    fn now(&self) -> u64 {
        nanos(self.timer.now().saturating_duration_since(self.origin))
    }
}

/// A recency clock given by the user.
struct UserClock<F>(F);

impl<F: Fn() -> Duration + Send + Sync> Recency for UserClock<F> {
    fn now(&self) -> u64 {
        nanos((self.0)())
    }
}

/// The system's coarse monotonic clock: a few milliseconds of resolution at a fifth of the cost.
///
/// A timer may run on a time of its own: tokio's does while it is paused for a test. Where a decision
/// is made the two are compared, and once they have parted it is the timer's that counts.
#[cfg(any(feature = "tokio", feature = "smol"))]
struct CoarseClock {
    timer: TimerClock,
    origin: coarsetime::Instant,
    parted: AtomicBool,
}

#[cfg(any(feature = "tokio", feature = "smol"))]
impl CoarseClock {
    /// How far a coarse reading may be from the timer's.
    const SLACK: u64 = 100_000_000;

    fn coarse(&self) -> u64 {
        let now = coarsetime::Instant::now_without_cache_update();
        now.duration_since(self.origin).as_nanos()
    }
}

#[cfg(any(feature = "tokio", feature = "smol"))]
impl Recency for CoarseClock {
    fn now(&self) -> u64 {
        if self.parted.load(Ordering::Relaxed) {
            self.timer.now()
        } else {
            self.coarse()
        }
    }

    fn checked(&self) -> u64 {
        let (coarse, exact) = (self.coarse(), self.timer.now());
        if coarse.abs_diff(exact) > Self::SLACK {
            self.parted.store(true, Ordering::Relaxed);
        }
        self.now()
    }
}

/// smol's global executor.
#[cfg(feature = "smol")]
struct Global;

#[cfg(feature = "smol")]
impl Executor<BoxFuture> for Global {
    fn execute(&self, future: BoxFuture) {
        smol::spawn(future).detach();
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Runtime {
    /// A runtime over `timer` and `executor`.
    pub fn new<T, E>(timer: T, executor: E) -> Self
    where
        T: Timer + Send + Sync + 'static,
        E: Executor<BoxFuture> + Send + Sync + 'static,
    {
        let timer: Arc<dyn Timer + Send + Sync> = Arc::new(timer);
        let clock = TimerClock {
            origin: timer.now(),
            timer: timer.clone(),
        };
        Self {
            inner: Arc::new(Inner {
                timer,
                executor: Arc::new(executor),
                clock: Arc::new(clock),
            }),
        }
    }

    /// tokio's timer and executor. Tasks are spawned on the runtime of the calling thread, so the
    /// layers must be called from within one. Recency is stamped by the system's coarse clock.
    #[cfg(feature = "tokio")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub fn tokio() -> Self {
        Self::new(
            hyper_util::rt::TokioTimer::new(),
            hyper_util::rt::TokioExecutor::new(),
        )
        .coarse()
    }

    /// smol's timer and its global executor. Recency is stamped by the system's coarse clock.
    #[cfg(feature = "smol")]
    #[cfg_attr(docsrs, doc(cfg(feature = "smol")))]
    pub fn smol() -> Self {
        Self::new(smol_hyper::rt::SmolTimer::new(), Global).coarse()
    }

    #[cfg(any(feature = "tokio", feature = "smol"))]
    fn coarse(self) -> Self {
        let timer = TimerClock {
            origin: self.inner.timer.now(),
            timer: self.inner.timer.clone(),
        };
        self.with_clock(Arc::new(CoarseClock {
            timer,
            origin: coarsetime::Instant::now_without_cache_update(),
            parted: AtomicBool::new(false),
        }))
    }

    fn with_clock(&self, clock: Arc<dyn Recency>) -> Self {
        Self {
            inner: Arc::new(Inner {
                timer: self.inner.timer.clone(),
                executor: self.inner.executor.clone(),
                clock,
            }),
        }
    }

    /// Stamps when a use ended with `clock` instead of the timer: a monotonic reading since any
    /// fixed moment. It is read once per call, so a coarse clock (milliseconds are enough) saves
    /// most of what a call costs here. It must advance with the timer: idle times are differences
    /// of its readings, the moment to look again is the timer's.
    #[must_use]
    pub fn recency<F>(self, clock: F) -> Self
    where
        F: Fn() -> Duration + Send + Sync + 'static,
    {
        self.with_clock(Arc::new(UserClock(clock)))
    }

    /// The timer's now.
    pub fn now(&self) -> Instant {
        self.inner.timer.now()
    }

    /// A future that resolves after `duration`.
    pub fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.inner.timer.sleep(duration)
    }

    /// A future that resolves at `deadline`.
    pub fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.inner.timer.sleep_until(deadline)
    }

    /// Runs `future` in the background.
    ///
    /// # Panics
    ///
    /// Where the executor does: tokio's, for one, outside a tokio runtime.
    pub fn spawn<F>(&self, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.inner.executor.execute(Box::pin(future));
    }

    /// The clock that stamps the end of a use.
    pub(crate) fn clock(&self) -> Arc<dyn Recency> {
        self.inner.clock.clone()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}
