//! Virtual time: a number that only the clock moves, and the sleeps that wait for it.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hyper::rt::{Sleep, Timer};

use super::lock;

/// A sleep's deadline, in nanoseconds since the origin, and a number that tells it from others.
type Key = (u64, u64);

pub(super) struct Time {
    origin: Instant,
    /// Nanoseconds since the origin.
    now: AtomicU64,
    sleeps: Mutex<Sleeps>,
}

#[derive(Default)]
struct Sleeps {
    next_number: u64,
    waiting: BTreeMap<Key, Waker>,
}

impl Time {
    #[allow(
        clippy::disallowed_methods,
        reason = "an origin: there is no other way to an Instant"
    )]
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            now: AtomicU64::new(0),
            sleeps: Mutex::default(),
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.origin + self.elapsed()
    }

    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Acquire))
    }

    /// The earliest moment a sleep waits for, since the origin.
    pub(super) fn next(&self) -> Option<Duration> {
        let sleeps = lock(&self.sleeps);
        let (&(deadline, _), _) = sleeps.waiting.first_key_value()?;
        Some(Duration::from_nanos(deadline))
    }

    pub(super) fn sleeps(&self) -> usize {
        lock(&self.sleeps).waiting.len()
    }

    /// Moves the time to `moment` since the origin, never back, and wakes what is due.
    pub(super) fn set(&self, moment: Duration) {
        let moment = nanos(moment);
        let now = self.now.fetch_max(moment, Ordering::AcqRel).max(moment);
        let due = {
            let mut sleeps = lock(&self.sleeps);
            match now.checked_add(1) {
                Some(after) => {
                    let later = sleeps.waiting.split_off(&(after, 0));
                    std::mem::replace(&mut sleeps.waiting, later)
                }
                None => std::mem::take(&mut sleeps.waiting),
            }
        };
        due.into_values().for_each(Waker::wake);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// hyper's [`Timer`] on virtual time: see [`Clock::timer`](super::Clock::timer).
#[derive(Clone)]
pub struct VirtualTimer {
    time: Arc<Time>,
}

impl VirtualTimer {
    pub(super) fn new(time: &Arc<Time>) -> Self {
        Self { time: time.clone() }
    }

    pub(super) fn at(&self, deadline: u64) -> VirtualSleep {
        VirtualSleep {
            time: self.time.clone(),
            deadline,
            key: None,
        }
    }

    pub(super) fn after(&self, duration: Duration) -> VirtualSleep {
        self.at(nanos(self.time.elapsed()).saturating_add(nanos(duration)))
    }

    fn since_origin(&self, deadline: Instant) -> u64 {
        nanos(deadline.saturating_duration_since(self.time.origin))
    }
}

impl Timer for VirtualTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.after(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.at(self.since_origin(deadline)))
    }

    fn now(&self) -> Instant {
        self.time.now()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<VirtualSleep>() {
            Some(sleep) => {
                let sleep = sleep.get_mut();
                sleep.deregister();
                sleep.deadline = self.since_origin(new_deadline);
            }
            None => *sleep = self.sleep_until(new_deadline),
        }
    }
}

impl fmt::Debug for VirtualTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualTimer")
            .field("elapsed", &self.time.elapsed())
            .finish_non_exhaustive()
    }
}

/// Ready at a moment of virtual time. Dropping it leaves nothing behind with the clock.
#[must_use = "futures do nothing unless polled"]
pub struct VirtualSleep {
    time: Arc<Time>,
    deadline: u64,
    key: Option<Key>,
}

impl VirtualSleep {
    fn deregister(&mut self) {
        if let Some(key) = self.key.take() {
            let old = lock(&self.time.sleeps).waiting.remove(&key);
            drop(old);
        }
    }

    fn is_due(&self) -> bool {
        self.time.now.load(Ordering::Acquire) >= self.deadline
    }
}

impl Future for VirtualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.is_due() {
            let waker = cx.waker().clone();
            let mut sleeps = lock(&this.time.sleeps);
            let key = *this.key.get_or_insert_with(|| {
                sleeps.next_number += 1;
                (this.deadline, sleeps.next_number)
            });
            let old = sleeps.waiting.insert(key, waker);
            drop(sleeps);
            drop(old);
            // Another thread may have moved the time before we stood in the list.
            if !this.is_due() {
                return Poll::Pending;
            }
        }
        this.deregister();
        Poll::Ready(())
    }
}

impl Sleep for VirtualSleep {}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        self.deregister();
    }
}

impl fmt::Debug for VirtualSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualSleep")
            .field("deadline", &Duration::from_nanos(self.deadline))
            .finish_non_exhaustive()
    }
}
