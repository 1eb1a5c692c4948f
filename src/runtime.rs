//! `Runtime`: where time comes from and where background tasks go.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::rt::{Executor, Sleep, Timer};

#[cfg(any(feature = "tokio", feature = "smol"))]
use crate::clock::CoarseClock;
use crate::clock::{Clock, TimerClock, UserClock};

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
    clock: Clock,
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

impl Runtime {
    /// A runtime over `timer` and `executor`.
    pub fn new<T, E>(timer: T, executor: E) -> Self
    where
        T: Timer + Send + Sync + 'static,
        E: Executor<BoxFuture> + Send + Sync + 'static,
    {
        let timer: Arc<dyn Timer + Send + Sync> = Arc::new(timer);
        Self {
            inner: Arc::new(Inner {
                clock: Arc::new(TimerClock::new(timer.clone())).into(),
                timer,
                executor: Arc::new(executor),
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
        let timer = TimerClock::new(self.inner.timer.clone());
        self.with_clock(Clock::Coarse(Arc::new(CoarseClock::new(timer))))
    }

    fn with_clock(&self, clock: Clock) -> Self {
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
        self.with_clock(Arc::new(UserClock(clock)).into())
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

    /// A clock of the timer's time, which is not coarse.
    #[cfg(feature = "ceiling")]
    pub(crate) fn timer_clock(&self) -> TimerClock {
        TimerClock::new(self.inner.timer.clone())
    }

    /// The clock that stamps the end of a use.
    pub(crate) fn clock(&self) -> Clock {
        self.inner.clock.clone()
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}
