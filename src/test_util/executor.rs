//! The executor: tasks in a table, ready ones in a list, a seed that picks.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Wake, Waker},
};

use hyper::rt;

use super::lock;
use crate::BoxFuture;

pub(super) struct Tasks {
    state: Mutex<State>,
}

struct State {
    closed: bool,
    next_id: u64,
    slots: BTreeMap<u64, Slot>,
    ready: Vec<u64>,
    random: u64,
    polls: u64,
    panics: Vec<String>,
}

struct Slot {
    /// Out while it is polled.
    future: Option<BoxFuture>,
    waker: Waker,
    /// In the ready list, or woken during its poll.
    woken: bool,
}

struct TaskWaker {
    id: u64,
    tasks: Weak<Tasks>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(tasks) = self.tasks.upgrade() {
            tasks.wake(self.id);
        }
    }
}

/// What to do next, as the seed has it.
pub(super) enum Next {
    /// The future of `block_on`.
    Root,
    Task(u64),
    Stalled,
}

impl Tasks {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                closed: false,
                next_id: 0,
                slots: BTreeMap::new(),
                ready: Vec::new(),
                random: seed,
                polls: 0,
                panics: Vec::new(),
            }),
        })
    }

    /// Adds a task; drops it if the executor is shut down.
    pub(super) fn spawn(self: &Arc<Self>, future: BoxFuture) -> Option<u64> {
        let mut state = lock(&self.state);
        if state.closed {
            drop(state);
            self.catch(move || drop(future));
            return None;
        }
        let id = state.next_id;
        state.next_id += 1;
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            tasks: Arc::downgrade(self),
        }));
        let slot = Slot {
            future: Some(future),
            waker,
            woken: true,
        };
        state.slots.insert(id, slot);
        state.ready.push(id);
        Some(id)
    }

    fn wake(&self, id: u64) {
        let mut state = lock(&self.state);
        let Some(slot) = state.slots.get_mut(&id) else {
            return;
        };
        if !std::mem::replace(&mut slot.woken, true) && slot.future.is_some() {
            state.ready.push(id);
        }
    }

    /// Drops a task where it stands. One that is being polled is dropped after that poll.
    pub(super) fn cancel(&self, id: u64) {
        let slot = lock(&self.state).slots.remove(&id);
        self.catch(move || drop(slot));
    }

    pub(super) fn shutdown(&self) {
        let slots = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.ready.clear();
            std::mem::take(&mut state.slots)
        };
        for slot in slots.into_values() {
            self.catch(move || drop(slot));
        }
    }

    pub(super) fn next(&self, root: bool) -> Next {
        let mut state = lock(&self.state);
        let choices = state.ready.len() + usize::from(root);
        if choices == 0 {
            return Next::Stalled;
        }
        let chosen = state.random(choices);
        if chosen < state.ready.len() {
            Next::Task(state.ready.swap_remove(chosen))
        } else {
            Next::Root
        }
    }

    pub(super) fn poll(&self, id: u64) {
        let (mut future, waker) = {
            let mut state = lock(&self.state);
            // Cancelled since it was made ready.
            let Some(slot) = state.slots.get_mut(&id) else {
                return;
            };
            let Some(future) = slot.future.take() else {
                return;
            };
            slot.woken = false;
            let waker = slot.waker.clone();
            state.polls += 1;
            (future, waker)
        };
        let poll = self.catch(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
        let over = {
            let mut state = lock(&self.state);
            match state.slots.get_mut(&id) {
                Some(slot) if poll == Some(Poll::Pending) => {
                    slot.future = Some(future);
                    if slot.woken {
                        state.ready.push(id);
                    }
                    return;
                }
                // Done, panicked or cancelled meanwhile.
                _ => (future, state.slots.remove(&id)),
            }
        };
        self.catch(move || drop(over));
    }

    /// Runs what may panic; a panic is written down.
    fn catch<R>(&self, run: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(value) => Some(value),
            Err(panic) => {
                let panic = panic_message(&*panic);
                lock(&self.state).panics.push(panic);
                None
            }
        }
    }

    pub(super) fn live(&self) -> usize {
        lock(&self.state).slots.len()
    }

    pub(super) fn polls(&self) -> u64 {
        lock(&self.state).polls
    }

    pub(super) fn panics(&self) -> Vec<String> {
        lock(&self.state).panics.clone()
    }
}

/// An executor without an owner: its tasks see that it is gone while they are dropped.
impl Drop for Tasks {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl State {
    /// One of `0..choices` (SplitMix64).
    fn random(&mut self, choices: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let mixed = u128::from(mixed ^ (mixed >> 31));
        ((mixed * choices as u128) >> 64) as usize
    }
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => (*message).to_owned(),
        (_, Some(message)) => message.clone(),
        _ => "a panic without a message".to_owned(),
    }
}

/// hyper's [`Executor`](rt::Executor) of a clock: see [`Clock::executor`](super::Clock::executor).
#[derive(Clone)]
pub struct VirtualExecutor {
    tasks: Weak<Tasks>,
}

impl VirtualExecutor {
    pub(super) fn new(tasks: &Arc<Tasks>) -> Self {
        Self {
            tasks: Arc::downgrade(tasks),
        }
    }
}

impl<F> rt::Executor<F> for VirtualExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    /// Adds a task; drops it if the clock is gone or shut down.
    fn execute(&self, future: F) {
        if let Some(tasks) = self.tasks.upgrade() {
            tasks.spawn(Box::pin(future));
        }
    }
}

impl fmt::Debug for VirtualExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualExecutor").finish_non_exhaustive()
    }
}
