//! `Clock`: who moves the time and runs the tasks.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use super::{
    executor::{Next, Tasks, VirtualExecutor},
    task::Task,
    time::{Time, VirtualSleep, VirtualTimer},
};

/// Polls without time passing, after which something is taken to wake itself for ever.
const MANY_POLLS: u64 = 3_000_000;
/// Steps of time in one `block_on`, after which it is taken to wait for what never comes.
const MANY_STEPS: u64 = 10_000_000;

/// The clock of a virtual runtime, and the one who runs its tasks: see [`runtime`](super::runtime).
///
/// Nothing runs and no time passes but within `run`, `advance` and `block_on`. Clones are the same
/// clock; dropping the last one drops the tasks. (A task that holds a clone keeps them all alive.)
///
/// Everything is meant for one thread; then the seed alone decides. Wakes may come from other threads
/// and are seen when the clock runs next. Several threads may also run the clock at once, and share
/// its tasks; then their order is the machine's.
#[derive(Clone)]
pub struct Clock {
    time: Arc<Time>,
    tasks: Arc<Tasks>,
}

/// The future of one `block_on`.
struct Root {
    woken: AtomicBool,
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
    }
}

impl Clock {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            time: Time::new(),
            tasks: Tasks::new(seed),
        }
    }

    /// Its time as hyper's `Timer`, for code that takes one.
    pub fn timer(&self) -> VirtualTimer {
        VirtualTimer::new(&self.time)
    }

    /// Its tasks as hyper's `Executor`, for code that takes one.
    pub fn executor(&self) -> VirtualExecutor {
        VirtualExecutor::new(&self.tasks)
    }

    /// The virtual now.
    pub fn now(&self) -> Instant {
        self.time.now()
    }

    /// The virtual time since the clock was made.
    pub fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }

    /// A future that is ready after `duration`.
    pub fn sleep(&self, duration: Duration) -> VirtualSleep {
        self.timer().after(duration)
    }

    /// Runs the tasks until none is ready. No time passes.
    ///
    /// # Panics
    ///
    /// If they wake one another without end.
    pub fn run(&self) {
        let mut polls = 0;
        while let Next::Task(id) = self.tasks.next(false) {
            self.tasks.poll(id);
            count(&mut polls);
        }
    }

    /// Runs the tasks until none is ready, then moves the time on by `duration`, from one due timer to
    /// the next, and runs the tasks until none is ready after each.
    ///
    /// # Panics
    ///
    /// If the tasks wake one another without end.
    pub fn advance(&self, duration: Duration) {
        let target = self.time.elapsed().saturating_add(duration);
        self.run();
        while let Some(due) = self.time.next().filter(|due| *due <= target) {
            self.time.set(due);
            self.run();
        }
        self.time.set(target);
        self.run();
    }

    /// Runs `future` together with the tasks until it is done. Whenever none of them is ready the time
    /// moves to the next timer by itself.
    ///
    /// # Panics
    ///
    /// If `future` does; if nothing is left that could ever wake it; if it waits without end while
    /// timers go on and on. A panic in a background task is no panic here: see
    /// [`panics`](Self::panics).
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let root = Arc::new(Root {
            woken: AtomicBool::new(true),
        });
        let waker = Waker::from(root.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut polls, mut steps) = (0, 0);
        loop {
            match self.tasks.next(root.woken.load(Ordering::Acquire)) {
                Next::Root => {
                    root.woken.store(false, Ordering::Release);
                    if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                        return value;
                    }
                }
                Next::Task(id) => self.tasks.poll(id),
                Next::Stalled => {
                    let Some(due) = self.time.next() else {
                        panic!(
                            "block_on: nothing can wake this future any more: no task is ready, no timer is set ({self:?})"
                        );
                    };
                    self.time.set(due);
                    (polls, steps) = (0, steps + 1);
                    assert!(
                        steps < MANY_STEPS,
                        "block_on: {MANY_STEPS} timers fired and the future is not done ({self:?})"
                    );
                }
            }
            count(&mut polls);
        }
    }

    /// Spawns a task of the test's own. It runs when the clock does; dropping the handle cancels it.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        Task::spawn(&self.tasks, future)
    }

    /// Drops all tasks, and every later one where it is spawned: what an executor does that is shut
    /// down.
    pub fn shutdown(&self) {
        self.tasks.shutdown();
    }

    /// How many tasks are alive.
    pub fn tasks(&self) -> usize {
        self.tasks.live()
    }

    /// How many timers are set: sleeps that were polled and are not due, done or dropped.
    pub fn timers(&self) -> usize {
        self.time.sleeps()
    }

    /// In what time the next timer is due.
    pub fn next_timer(&self) -> Option<Duration> {
        let due = self.time.next()?;
        Some(due.saturating_sub(self.time.elapsed()))
    }

    /// How many times tasks were polled.
    pub fn polls(&self) -> u64 {
        self.tasks.polls()
    }

    /// What tasks panicked with, in order. The others go on.
    pub fn panics(&self) -> Vec<String> {
        self.tasks.panics()
    }
}

fn count(polls: &mut u64) {
    *polls += 1;
    assert!(
        *polls < MANY_POLLS,
        "{MANY_POLLS} polls and no time has passed: some task wakes itself for ever"
    );
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock")
            .field("elapsed", &self.elapsed())
            .field("tasks", &self.tasks())
            .field("timers", &self.timers())
            .field("panics", &self.panics())
            .finish()
    }
}
