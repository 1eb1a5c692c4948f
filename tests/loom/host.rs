//! What a model gives the layers to stand on: time that it moves itself, and one thread that runs their tasks.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hyper::rt::{Executor, Sleep, Timer};
use loom::{
    future::block_on,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use crate::{
    runtime::{BoxFuture, Runtime},
    with::Arc,
};

/// Nanoseconds since the model began, and the tasks that were spawned.
pub(crate) struct Host {
    origin: Instant,
    now: AtomicU64,
    passing: AtomicBool,
    sleepers: Mutex<Vec<Waker>>,
    tasks: Mutex<(Vec<BoxFuture>, bool)>,
    more: Condvar,
}

impl Host {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            now: AtomicU64::new(0),
            passing: AtomicBool::new(false),
            sleepers: Mutex::default(),
            tasks: Mutex::new((Vec::new(), false)),
            more: Condvar::new(),
        })
    }

    pub(crate) fn runtime(self: &Arc<Self>) -> Runtime {
        Runtime::new(Handle(self.clone()), Handle(self.clone()))
    }

    /// It is `nanos` now.
    pub(crate) fn set_time(&self, nanos: u64) {
        self.now.store(nanos, SeqCst);
        self.wake_sleepers();
    }

    /// From now on time passes: to the end of whatever is slept for.
    pub(crate) fn let_time_pass(&self) {
        self.passing.store(true, SeqCst);
        self.wake_sleepers();
    }

    fn wake_sleepers(&self) {
        let sleepers = std::mem::take(&mut *self.sleepers.lock().unwrap());
        sleepers.into_iter().for_each(Waker::wake);
    }

    /// The thread that runs the tasks, one after the other as they came: the next begins when the one before
    /// it is done.
    pub(crate) fn executor(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let host = self.clone();
        thread::spawn(move || {
            while let Some(task) = host.next_task() {
                block_on(task);
            }
        })
    }

    fn next_task(&self) -> Option<BoxFuture> {
        let mut tasks = self.tasks.lock().unwrap();
        while tasks.0.is_empty() && !tasks.1 {
            tasks = self.more.wait(tasks).unwrap();
        }
        (!tasks.0.is_empty()).then(|| tasks.0.remove(0))
    }

    /// The executor ends when it has run what was spawned.
    pub(crate) fn close(&self) {
        self.tasks.lock().unwrap().1 = true;
        self.more.notify_one();
    }
}

struct Handle(Arc<Host>);

impl Timer for Handle {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let host = self.0.clone();
        Box::pin(Until { host, deadline })
    }

    fn now(&self) -> Instant {
        self.0.origin + Duration::from_nanos(self.0.now.load(SeqCst))
    }
}

impl Executor<BoxFuture> for Handle {
    fn execute(&self, task: BoxFuture) {
        self.0.tasks.lock().unwrap().0.push(task);
        self.0.more.notify_one();
    }
}

struct Until {
    host: Arc<Host>,
    deadline: Instant,
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut sleepers = self.host.sleepers.lock().unwrap();
        let end = (self.deadline - self.host.origin).as_nanos() as u64;
        if self.host.passing.load(SeqCst) {
            self.host.now.fetch_max(end, SeqCst);
        }
        if self.host.now.load(SeqCst) >= end {
            drop(sleepers);
            drop(waker);
            return Poll::Ready(());
        }
        sleepers.push(waker);
        Poll::Pending
    }
}

/// A word from one thread to the task of another, once.
#[derive(Default)]
pub(crate) struct Signal(Mutex<(bool, Option<Waker>)>);

impl Signal {
    pub(crate) fn give(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) async fn given(&self) {
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut state = self.0.lock().unwrap();
            if state.0 {
                return Poll::Ready(());
            }
            let old = state.1.replace(waker);
            drop(state);
            drop(old);
            Poll::Pending
        })
        .await;
    }
}
