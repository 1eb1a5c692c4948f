//! A stream that has been silent for too long does not count any more.

use std::{
    fmt,
    future::poll_fn,
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use crate::{
    Runtime,
    busy::Busy,
    sync::{Arc, Mutex, lock},
    usage::Usage,
    wakers::Key,
};

/// How long is too long, and by which clock.
#[derive(Debug, Clone)]
pub(super) struct Silence {
    pub(super) runtime: Runtime,
    pub(super) after: Duration,
}

/// A use that a watching task ends when nothing has passed for too long.
///
/// A task, since a stream whose reader is gone is not polled either.
pub(super) struct Watched {
    usage: Arc<Usage>,
    moves_recency: bool,
    cut_key: Key,
    silence: Silence,
    watch: Arc<Watch>,
}

struct Watch {
    state: Mutex<State>,
}

struct State {
    /// `None`: silent for too long, or over. The task ends then.
    busy: Option<Busy>,
    last: Instant,
    task: Option<Waker>,
}

impl Watched {
    /// Gives back a `busy` that nobody counts.
    pub(super) fn new(busy: Busy, silence: &Silence) -> Result<Self, Busy> {
        let Some(usage) = busy.usage().cloned() else {
            return Err(busy);
        };
        let watched = Self {
            usage,
            moves_recency: busy.moves_recency(),
            cut_key: None,
            silence: silence.clone(),
            watch: Arc::new(Watch {
                state: Mutex::new(State {
                    busy: Some(busy),
                    last: silence.runtime.now(),
                    task: None,
                }),
            }),
        };
        watched.start();
        Ok(watched)
    }

    fn start(&self) {
        let (watch, silence) = (self.watch.clone(), self.silence.clone());
        self.silence.runtime.spawn(watch.run(silence));
    }

    /// Something passes.
    pub(super) fn moved(&mut self) {
        let now = self.silence.runtime.now();
        {
            let mut state = lock(&self.watch.state);
            state.last = now;
            if state.busy.is_some() {
                return;
            }
        }
        // Silent => counted again, unless the instance was closed meanwhile: the stream lasts as
        // long as that lets it.
        if let Some(busy) = Busy::claim(&self.usage, self.moves_recency) {
            lock(&self.watch.state).busy = Some(busy);
            self.start();
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.usage.look().is_cut()
    }

    pub(super) fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.usage.poll_cut(&mut self.cut_key, cx.waker())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.usage.forget_cut(&mut self.cut_key);
        self.watch.end();
    }
}

impl Watch {
    fn end(&self) {
        let (busy, task) = {
            let mut state = lock(&self.state);
            (state.busy.take(), state.task.take())
        };
        drop(busy);
        if let Some(task) = task {
            task.wake();
        }
    }

    async fn run(self: Arc<Self>, silence: Silence) {
        let Silence { runtime, after } = silence;
        let mut sleep = runtime.sleep(after);
        poll_fn(move |cx| {
            loop {
                let waker = cx.waker().clone();
                let old = {
                    let mut state = lock(&self.state);
                    if state.busy.is_none() {
                        return Poll::Ready(());
                    }
                    state.task.replace(waker)
                };
                drop(old);
                ready!(sleep.as_mut().poll(cx));
                let now = runtime.now();
                let silent = {
                    let mut state = lock(&self.state);
                    let due = state.last + after;
                    if now < due {
                        Err(due)
                    } else {
                        Ok(state.busy.take())
                    }
                };
                match silent {
                    Ok(silent) => {
                        drop(silent);
                        return Poll::Ready(());
                    }
                    Err(due) => sleep = runtime.sleep_until(due),
                }
            }
        })
        .await;
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("usage", &self.usage)
            .field("silence", &self.silence)
            .finish_non_exhaustive()
    }
}
