//! One child as it is seen from outside, and its owner.

#[cfg(target_os = "linux")]
use std::io;
use std::{any::Any, fmt, future::Future, process::ExitStatus, sync::Arc, time::Duration};

use nix::sys::signal::Signal;
use tokio::sync::watch;

use super::{address::Address, group::signal, output::Output};
use crate::{
    error::{Error, ErrorKind},
    sync::{Mutex, lock},
};

/// One child process, as it is seen from outside: cheap to clone, and keeps nothing alive.
#[derive(Clone)]
pub struct Process {
    inner: Arc<Inner>,
}

struct Inner {
    name: Arc<str>,
    pid: u32,
    address: Address,
    output: Arc<Output>,
    state: watch::Sender<State>,
    /// What is kept until it is gone; `None` then.
    kept: Mutex<Option<Vec<Box<dyn Any + Send>>>>,
}

/// What became of it; each is said once and stays.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) exit: Option<Exit>,
    /// All it printed is read.
    pub(super) drained: bool,
    sick: Option<Error>,
    /// It did not end in its grace.
    pub(super) killed: bool,
    gone: bool,
}

/// How it ended; `None` if the system does not say.
pub(super) type Exit = Option<ExitStatus>;

/// What the keeper is asked to do; a later one overrules an earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Run,
    Stop,
    Kill,
}

/// Whose child it is. When this is dropped the child is stopped, or killed.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) process: Process,
    pub(super) on_drop: Order,
    pub(super) grace: Duration,
    orders: watch::Sender<Order>,
}

impl Owner {
    /// Of a child whose start is not done: dropping this kills it.
    pub(super) fn new(process: Process, grace: Duration) -> (Self, watch::Receiver<Order>) {
        let (orders, receiver) = watch::channel(Order::Run);
        let owner = Self {
            process,
            on_drop: Order::Kill,
            grace,
            orders,
        };
        (owner, receiver)
    }

    pub(super) fn order(&self, order: Order) {
        self.orders.send_if_modified(|now| {
            let overrules = *now < order;
            if overrules {
                *now = order;
            }
            overrules
        });
        if order == Order::Kill {
            // At once, not when the keeper gets to it: the room may be given away next.
            self.process.kill();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        {
            let mut ending = lock(&ENDING);
            if !self.process.is_gone() {
                ending.push(self.process.clone());
            }
        }
        self.order(self.on_drop);
    }
}

/// Children without an owner that are not gone yet.
static ENDING: Mutex<Vec<Process>> = Mutex::new(Vec::new());

/// Waits until none of them is at `address` any more.
pub(super) async fn gone_from(address: &Address) {
    loop {
        let last = {
            let ending = lock(&ENDING);
            let last = ending.iter().find(|process| process.address() == address);
            last.cloned()
        };
        match last {
            Some(last) => last.gone().await,
            None => return,
        }
    }
}
impl Process {
    pub(super) fn new(name: Arc<str>, pid: u32, address: Address, output: Arc<Output>) -> Self {
        Self {
            inner: Arc::new(Inner {
                name,
                pid,
                address,
                output,
                state: watch::Sender::default(),
                kept: Mutex::new(Some(Vec::new())),
            }),
        }
    }

    /// The name of the backend.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The process's id, which is its group's as well. Another process may have it once this one is
    /// gone.
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.inner.address
    }

    /// The last lines it printed, 64 at most, the oldest first.
    pub fn last_lines(&self) -> Vec<String> {
        self.inner.output.last()
    }

    /// How it ended; `None` while it runs, or if the system does not say.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        self.inner.state.borrow().exit.flatten()
    }

    /// Whether it is gone: ended, reaped, its group empty.
    pub fn is_gone(&self) -> bool {
        self.inner.state.borrow().gone
    }

    /// Resolves when it is gone.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + 'static {
        let reached = self.reached(|state| state.gone);
        async move {
            reached.await;
        }
    }

    /// What the processes of its group use at this moment.
    ///
    /// # Errors
    ///
    /// What the system says; `NotFound` once the process is gone. Only on Linux.
    #[cfg(target_os = "linux")]
    #[cfg_attr(docsrs, doc(cfg(target_os = "linux")))]
    pub fn stats(&self) -> io::Result<super::Stats> {
        super::linux::stats(self.inner.pid)
    }

    pub(super) fn output(&self) -> &Output {
        &self.inner.output
    }

    /// Whether it had to be killed.
    pub(super) fn was_killed(&self) -> bool {
        self.inner.state.borrow().killed
    }

    pub(super) fn has_ended(&self) -> bool {
        self.inner.state.borrow().exit.is_some()
    }

    /// Resolves when it is seen to have ended.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let reached = self.reached(|state| state.exit.is_some());
        async move {
            reached.await;
        }
    }

    /// Resolves when it has ended and all it printed is read.
    pub(super) fn drained(&self) -> impl Future<Output = Option<ExitStatus>> + Send + 'static {
        let reached = self.reached(|state| state.drained);
        async move { reached.await.exit.flatten() }
    }

    /// Resolves when it must not be used any more.
    pub(super) fn retired(&self) -> impl Future<Output = crate::Retired> + Send + 'static {
        let reached = self.reached(|state| state.drained || state.sick.is_some());
        let process = self.clone();
        async move {
            match reached.await.sick {
                Some(sick) => crate::Retired::Unhealthy(Some(sick)),
                None => crate::Retired::Died(Some(process.died())),
            }
        }
    }

    /// The error that says how it ended.
    pub(super) fn died(&self) -> Error {
        Error::new(ErrorKind::Died)
            .of(self.inner.name.clone())
            .because(self.ending())
            .seen(self.inner.output.told())
    }

    /// How it ended, in words.
    pub(super) fn ending(&self) -> String {
        match self.exit_status() {
            Some(status) => format!("it ended with {status}"),
            None => "it ended".to_owned(),
        }
    }

    pub(super) fn fell_sick(&self, error: Error) {
        self.inner
            .state
            .send_modify(|state| state.sick = Some(error));
    }

    /// Keeps `what` until it is gone.
    pub(super) fn keep(&self, what: Box<dyn Any + Send>) {
        let late = match &mut *lock(&self.inner.kept) {
            Some(kept) => {
                kept.push(what);
                None
            }
            None => Some(what),
        };
        drop(late);
    }

    fn reached(&self, what: fn(&State) -> bool) -> impl Future<Output = State> + Send + 'static {
        let mut state = self.inner.state.subscribe();
        let process = self.clone();
        async move {
            // The sender is `process`'s: it cannot be gone.
            let reached = state.wait_for(what).await.map(|s| s.clone());
            drop(process);
            reached.unwrap_or_default()
        }
    }

    fn kill(&self) {
        if !self.has_ended() {
            signal(self.inner.pid, Signal::SIGKILL);
        }
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut State)) {
        self.inner.state.send_modify(change);
    }

    pub(super) fn is_gone_now(&self) {
        let kept = lock(&self.inner.kept).take();
        drop(kept);
        self.set(|state| state.gone = true);
        let mut ending = lock(&ENDING);
        let me = |process: &Process| Arc::ptr_eq(&process.inner, &self.inner);
        let last = ending.iter().position(me).map(|n| ending.swap_remove(n));
        drop(ending);
        drop(last);
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("name", &self.inner.name)
            .field("pid", &self.inner.pid)
            .field("address", &self.inner.address)
            .field("state", &*self.inner.state.borrow())
            .finish_non_exhaustive()
    }
}
