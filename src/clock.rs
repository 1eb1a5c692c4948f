//! The clocks that stamp the end of a use, and those that tell how long a start waits: a number each, for
//! words and heaps.

#[cfg(all(any(feature = "tokio", feature = "smol"), not(on_demand_loom)))]
use std::sync::atomic::{AtomicBool, Ordering};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::rt::Timer;

/// Nanoseconds since a fixed moment.
pub(crate) trait Recency: Send + Sync {
    /// Read at the end of every use, so it may be coarse.
    fn now(&self) -> u64;

    /// Read where a decision is made.
    fn checked(&self) -> u64 {
        self.now()
    }
}

/// A [`Recency`] to share. The one that is read most is known by its type: a call is so short that an
/// indirection is felt.
#[derive(Clone)]
pub(crate) enum Clock {
    #[cfg(all(any(feature = "tokio", feature = "smol"), not(on_demand_loom)))]
    Coarse(Arc<CoarseClock>),
    Other(Arc<dyn Recency>),
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            #[cfg(all(any(feature = "tokio", feature = "smol"), not(on_demand_loom)))]
            Clock::Coarse(clock) => clock.now(),
            Clock::Other(clock) => clock.now(),
        }
    }

    pub(crate) fn checked(&self) -> u64 {
        match self {
            #[cfg(all(any(feature = "tokio", feature = "smol"), not(on_demand_loom)))]
            Clock::Coarse(clock) => clock.checked(),
            Clock::Other(clock) => clock.checked(),
        }
    }
}

impl<R: Recency + 'static> From<Arc<R>> for Clock {
    fn from(clock: Arc<R>) -> Self {
        Clock::Other(clock)
    }
}

/// A timer's own reading, since this was made.
pub(crate) struct TimerClock {
    timer: Arc<dyn Timer + Send + Sync>,
    origin: Instant,
}

impl TimerClock {
    pub(crate) fn new(timer: Arc<dyn Timer + Send + Sync>) -> Self {
        Self {
            origin: timer.now(),
            timer,
        }
    }
}

impl Recency for TimerClock {
    fn now(&self) -> u64 {
        nanos(self.timer.now().saturating_duration_since(self.origin))
    }
}

/// A clock given by the user.
pub(crate) struct UserClock<F>(pub(crate) F);

impl<F: Fn() -> Duration + Send + Sync> Recency for UserClock<F> {
    fn now(&self) -> u64 {
        nanos((self.0)())
    }
}

/// The system's coarse monotonic clock: a few milliseconds of resolution at a fifth of the cost.
///
/// A timer may run on a time of its own: tokio's does while it is paused for a test. Where a decision
/// is made the two are compared, and once they have parted it is the timer's that counts.
#[cfg(all(any(feature = "tokio", feature = "smol"), not(on_demand_loom)))]
pub(crate) struct CoarseClock {
    timer: TimerClock,
    origin: coarsetime::Instant,
    parted: AtomicBool,
}

#[cfg(all(any(feature = "tokio", feature = "smol"), not(on_demand_loom)))]
impl CoarseClock {
    /// How far a coarse reading may be from the timer's.
    const SLACK: u64 = 100_000_000;

    pub(crate) fn new(timer: TimerClock) -> Self {
        Self {
            timer,
            origin: coarsetime::Instant::now_without_cache_update(),
            parted: AtomicBool::new(false),
        }
    }

    fn coarse(&self) -> u64 {
        let now = coarsetime::Instant::now_without_cache_update();
        now.duration_since(self.origin).as_nanos()
    }
}

#[cfg(all(any(feature = "tokio", feature = "smol"), not(on_demand_loom)))]
impl Recency for CoarseClock {
    #[inline]
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

/// All of it that 584 years hold.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
