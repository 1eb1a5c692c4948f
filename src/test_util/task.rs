//! The handle of a task that a test spawned.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    task::{Context, Poll, Waker},
};

use super::{
    executor::{Tasks, panic_message},
    lock,
};

/// A task of a test: await it, look at it, or drop it to cancel it.
///
/// As a future it gives the task's value, and panics if the task panicked or was dropped by a
/// [`shutdown`](super::Clock::shutdown).
#[must_use = "dropping it cancels the task"]
pub struct Task<T> {
    cell: Arc<Cell<T>>,
    tasks: Weak<Tasks>,
    id: Option<u64>,
}

struct Cell<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    ended: bool,
    value: Option<T>,
    panic: Option<String>,
    waiting: Option<Waker>,
}

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn<F>(tasks: &Arc<Tasks>, future: F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let cell = Arc::new(Cell {
            state: Mutex::new(State {
                ended: false,
                value: None,
                panic: None,
                waiting: None,
            }),
        });
        let id = tasks.spawn(Box::pin(Run {
            future: Some(Box::pin(future)),
            cell: cell.clone(),
        }));
        Self {
            cell,
            tasks: Arc::downgrade(tasks),
            id,
        }
    }
}

impl<T> Task<T> {
    /// Whether it ended, in whatever way.
    pub fn is_finished(&self) -> bool {
        lock(&self.cell.state).ended
    }

    /// Its value, if it has ended with one and nobody took it before.
    pub fn take(&mut self) -> Option<T> {
        lock(&self.cell.state).value.take()
    }

    /// What it panicked with, if it did.
    pub fn panicked(&self) -> Option<String> {
        lock(&self.cell.state).panic.clone()
    }

    /// Lets it run without the handle.
    pub fn detach(mut self) {
        self.id = None;
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let waker = cx.waker().clone();
        let mut state = lock(&self.cell.state);
        if !state.ended {
            let old = state.waiting.replace(waker);
            drop(state);
            drop(old);
            return Poll::Pending;
        }
        let (value, panic) = (state.value.take(), state.panic.clone());
        drop(state);
        match (value, panic) {
            (Some(value), _) => Poll::Ready(value),
            (None, Some(panic)) => panic!("the task panicked: {panic}"),
            (None, None) => panic!("the task was dropped, or its value was taken"),
        }
    }
}

/// Cancels the task: its future is dropped here and now, or after its poll if it is in one.
impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let (Some(id), Some(tasks)) = (self.id.take(), self.tasks.upgrade()) {
            tasks.cancel(id);
        }
    }
}

impl<T> Unpin for Task<T> {}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// What the executor runs.
struct Run<F, T> {
    future: Option<Pin<Box<F>>>,
    cell: Arc<Cell<T>>,
}

impl<F, T> Run<F, T> {
    fn end(&mut self, value: Option<T>, panic: Option<String>) {
        let waiting = {
            let mut state = lock(&self.cell.state);
            if state.ended {
                return;
            }
            state.ended = true;
            state.value = value;
            state.panic = panic;
            state.waiting.take()
        };
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

impl<F: Future<Output = T>, T> Future for Run<F, T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(future) = &mut this.future else {
            return Poll::Ready(());
        };
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => {
                this.future = None;
                this.end(Some(value), None);
                Poll::Ready(())
            }
            Err(panic) => {
                this.future = None;
                this.end(None, Some(panic_message(&*panic)));
                // The executor writes it down.
                resume_unwind(panic)
            }
        }
    }
}

impl<F, T> Unpin for Run<F, T> {}

impl<F, T> Drop for Run<F, T> {
    fn drop(&mut self) {
        self.future = None;
        self.end(None, None);
    }
}
