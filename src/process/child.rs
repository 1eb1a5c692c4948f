//! One child and its keeper: the task that sees it end, stops it, and reaps it.
//!
//! The keeper is spawned together with the child and outlives everybody who wants something of it:
//! they ask, by an [`Order`], and read what became of it. So a start that is dropped, or an owner
//! that goes first, leaves no process behind.

use std::{any::Any, fmt, future::Future, io, process::ExitStatus, sync::Arc, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use process_wrap::tokio::ChildWrapper;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    address::Address,
    guard::Slot,
    output::{Output, Reading},
    place::Held,
};
use crate::{
    error::{Error, ErrorKind},
    sync::{Mutex, lock},
};

/// How long to wait for the processes of a killed group to be gone.
const KILLED: Duration = Duration::from_secs(1);
/// After how long a child that was killed and does not end is reported.
const UNKILLABLE: Duration = Duration::from_secs(5);

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
struct State {
    exit: Option<Exit>,
    /// All it printed is read.
    drained: bool,
    sick: Option<Error>,
    gone: bool,
}

/// How it ended; `None` if the system does not say.
type Exit = Option<ExitStatus>;

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

    pub(super) fn has_ended(&self) -> bool {
        self.inner.state.borrow().exit.is_some()
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

    fn set(&self, change: impl FnOnce(&mut State)) {
        self.inner.state.send_modify(change);
    }

    fn is_gone_now(&self) {
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

/// The group's processes. Dropping it kills them.
struct Group {
    child: Box<dyn ChildWrapper>,
    id: u32,
    reaped: bool,
    slot: Option<Slot>,
}

impl Group {
    /// Waits for the leader, and for no other.
    async fn leader(&mut self) -> Exit {
        self.child.inner_mut().wait().await.ok()
    }

    fn signal(&self, what: Signal) {
        signal(self.id, what);
    }

    fn kill(&mut self) {
        if !self.reaped {
            let _ = self.child.start_kill();
        }
    }

    /// Reaps whoever is the host's child by now: it may be the one who adopts orphans.
    async fn reap(&mut self) {
        let _ = timeout(KILLED, self.child.wait()).await;
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        while is_alive(self.id).await && began.elapsed() < KILLED {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        self.reaped = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(group: u32, signal: Signal) {
    if let Ok(group) = i32::try_from(group) {
        // The one error there is: the group is empty.
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// Whether any process of the group runs.
async fn is_alive(group: u32) -> bool {
    let Ok(id) = i32::try_from(group) else {
        return false;
    };
    if killpg(Pid::from_raw(id), None).is_err() {
        return false;
    }
    // An orphan that nobody reaps is still there for `kill`.
    #[cfg(target_os = "linux")]
    let alive = tokio::task::spawn_blocking(move || super::linux::is_alive(group))
        .await
        .unwrap_or(false);
    #[cfg(not(target_os = "linux"))]
    let alive = true;
    alive
}

/// What keeps one child.
struct Keeper {
    group: Group,
    process: Process,
    orders: watch::Receiver<Order>,
    grace: Duration,
    reading: Option<Reading>,
    /// Where it listens: free again when it is gone.
    held: Option<Held>,
}

/// Has `child` kept by a task. Must be called within a tokio runtime.
pub(super) fn keep(
    name: Arc<str>,
    mut child: Box<dyn ChildWrapper>,
    mut slot: Slot,
    awaited: Option<Arc<str>>,
    held: Held,
    grace: Duration,
) -> io::Result<Owner> {
    let pid = child
        .id()
        .ok_or_else(|| io::Error::other("it has no pid"))?;
    slot.guards(pid);
    let output = Output::new(name.clone(), pid, awaited);
    let reading = output.read(child.stdout().take(), child.stderr().take());
    let process = Process {
        inner: Arc::new(Inner {
            name,
            pid,
            address: held.address.clone(),
            output,
            state: watch::Sender::default(),
            kept: Mutex::new(Some(Vec::new())),
        }),
    };
    let (orders, receiver) = watch::channel(Order::Run);
    let keeper = Keeper {
        group: Group {
            child,
            id: pid,
            reaped: false,
            slot: Some(slot),
        },
        process: process.clone(),
        orders: receiver,
        grace,
        reading: Some(reading),
        held: Some(held),
    };
    tokio::spawn(keeper.run());
    Ok(Owner {
        process,
        on_drop: Order::Kill,
        grace,
        orders,
    })
}

impl Keeper {
    async fn run(mut self) {
        let ended = tokio::select! {
            biased;
            exit = self.group.leader() => Some(exit),
            () = ordered(&mut self.orders, Order::Stop) => None,
        };
        let exit = match ended {
            Some(exit) => exit,
            None => self.stop().await,
        };
        // Running, or stopping => ended. Whoever is left of the group has nobody to work for.
        self.process.set(|state| state.exit = Some(exit));
        self.group.signal(Signal::SIGKILL);
        if let Some(reading) = self.reading.take() {
            reading.finish().await;
        }
        self.process.set(|state| state.drained = true);
        // Ended => gone.
        self.group.reap().await;
        drop(self.held.take());
        if let Some(slot) = self.group.slot.take() {
            slot.release().await;
        }
        tracing::debug!(
            target: "tower_on_demand::process",
            backend = &*self.process.inner.name, pid = self.process.inner.pid, ?exit, "gone"
        );
    }

    async fn stop(&mut self) -> Exit {
        let killed = *self.orders.borrow() == Order::Kill;
        if !killed && !self.grace.is_zero() {
            let deadline = Instant::now() + self.grace;
            self.group.signal(Signal::SIGTERM);
            let ended = tokio::select! {
                biased;
                exit = self.group.leader() => Some(exit),
                () = sleep_until(deadline) => None,
                () = ordered(&mut self.orders, Order::Kill) => None,
            };
            if let Some(exit) = ended {
                self.let_them_end(deadline).await;
                return exit;
            }
        }
        self.group.signal(Signal::SIGKILL);
        let killed = timeout(UNKILLABLE, self.group.leader()).await;
        match killed {
            Ok(exit) => exit,
            Err(_) => {
                tracing::error!(
                    target: "tower_on_demand::process",
                    backend = &*self.process.inner.name, pid = self.process.inner.pid,
                    "killed {UNKILLABLE:?} ago, and the system has not ended it yet"
                );
                self.group.leader().await
            }
        }
    }

    /// The leader was a shell, say: those it left have the rest of its grace.
    async fn let_them_end(&mut self, deadline: Instant) {
        let mut pause = Duration::from_millis(2);
        while Instant::now() < deadline && is_alive(self.group.id).await {
            tokio::select! {
                () = sleep(pause) => {}
                () = ordered(&mut self.orders, Order::Kill) => return,
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

/// It is over, whether the child was reaped or the runtime went first.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.group.kill();
        self.process.set(|state| {
            state.exit.get_or_insert(None);
            state.drained = true;
        });
        self.process.is_gone_now();
    }
}

/// Waits for `order`, or one that overrules it.
async fn ordered(orders: &mut watch::Receiver<Order>, order: Order) {
    if orders.wait_for(|now| *now >= order).await.is_err() {
        // The owner is gone, and gave its last order by that.
        std::future::pending().await
    }
}
