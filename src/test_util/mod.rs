//! A virtual clock and a deterministic executor: hours of timeouts in microseconds, the same way
//! every time.
//!
//! [`runtime`] gives a [`Runtime`] for the code under test and the [`Clock`] that drives it. Time
//! stands still until the test moves it, and which of several ready tasks runs next is chosen by a
//! seed: run a test over many seeds and it sees many interleavings; a failing seed fails again.
//!
//! # Testing your own code
//!
//! Whatever takes its time and its background tasks from a `Runtime` can be tested so. A cache that
//! refreshes itself every hour, watched for a day:
//!
//! ```
//! use std::{
//!     sync::{
//!         Arc,
//!         atomic::{AtomicU32, Ordering},
//!     },
//!     time::Duration,
//! };
//! use tower_on_demand::{Runtime, test_util};
//!
//! const HOUR: Duration = Duration::from_secs(3600);
//!
//! struct Cache(Arc<AtomicU32>);
//!
//! impl Cache {
//!     fn new(runtime: &Runtime) -> Self {
//!         let refreshed = Arc::new(AtomicU32::new(0));
//!         let (ours, timer) = (refreshed.clone(), runtime.clone());
//!         runtime.spawn(async move {
//!             loop {
//!                 timer.sleep(HOUR).await;
//!                 ours.fetch_add(1, Ordering::Relaxed);
//!             }
//!         });
//!         Self(refreshed)
//!     }
//! }
//!
//! for seed in 0..100 {
//!     let (runtime, clock) = test_util::runtime(seed);
//!     let cache = Cache::new(&runtime);
//!
//!     clock.advance(HOUR - Duration::from_nanos(1));
//!     assert_eq!(cache.0.load(Ordering::Relaxed), 0);
//!     clock.advance(Duration::from_nanos(1));
//!     assert_eq!(cache.0.load(Ordering::Relaxed), 1);
//!     clock.advance(23 * HOUR);
//!     assert_eq!(cache.0.load(Ordering::Relaxed), 24);
//!
//!     // It is alone, and it did not die on the way.
//!     assert_eq!((clock.tasks(), clock.timers()), (1, 1));
//!     assert!(clock.panics().is_empty());
//! }
//! ```
//!
//! Waiting for something moves the time by itself:
//!
//! ```
//! use std::time::Duration;
//! use tower_on_demand::test_util;
//!
//! let (runtime, clock) = test_util::runtime(7);
//! let slow = clock.spawn({
//!     let runtime = runtime.clone();
//!     async move {
//!         runtime.sleep(Duration::from_secs(60)).await;
//!         "done"
//!     }
//! });
//! assert_eq!(clock.block_on(slow), "done");
//! assert_eq!(clock.elapsed(), Duration::from_secs(60));
//! ```

mod clock;
mod counted;
mod executor;
mod task;
mod time;

use std::{
    future::Future,
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::Runtime;

pub use self::{
    clock::Clock,
    counted::{Counted, Counts},
    executor::VirtualExecutor,
    task::Task,
    time::{VirtualSleep, VirtualTimer},
};

/// A runtime on virtual time, and the clock that drives it. `seed` chooses which of several ready
/// tasks runs next: the same seed, the same run.
///
/// The tasks belong to the clock: dropping its last clone drops them, as an executor does that goes
/// away.
pub fn runtime(seed: u64) -> (Runtime, Clock) {
    let clock = Clock::new(seed);
    (Runtime::new(clock.timer(), clock.executor()), clock)
}

/// Polls `future` once, with a waker that does nothing, and keeps it: for futures that are `Unpin`,
/// a boxed or a pinned one for example.
///
/// [`Counted`] does the same and also counts the wakes.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// No user code runs under a lock here, so what a poisoned one protects is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
