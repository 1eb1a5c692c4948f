//! Every instance under one `IdleEvict`, by when it may be due.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{status::Instance, sweep::Retiree};
use crate::{
    clock::Clock,
    notices::Watch,
    sync::{Arc, Mutex, Weak, lock},
    usage::{Eviction, Look, Usage},
    wakers::{Key, Wakers},
};

/// The instances.
///
/// A use that begins or ends touches only the word of its own instance. So `due` holds lower bounds: of
/// an idle one when it will be due if nobody uses it, of a busy one that plus the bound. They are looked
/// at when they come up, and moved on if they were too early.
pub(super) struct Registry {
    me: Weak<Registry>,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    entries: BTreeMap<u64, Entry>,
    due: BTreeSet<(u64, u64)>,
    /// Nobody is left who could register an instance.
    over: bool,
    sweeper: Option<Waker>,
    /// When the sweeper will look by itself.
    armed: Option<u64>,
}

struct Entry {
    usage: Arc<Usage>,
    name: Option<Arc<str>>,
    /// Never for age if `None`.
    bound: Option<u64>,
    /// By its layer, whatever its bound.
    pinned: bool,
    /// What it is filed for in `due`.
    due: Option<u64>,
    gone: Arc<Gone>,
}

/// What the sweeper has to do.
pub(super) enum Next {
    /// Something is due.
    Due,
    /// Nothing is before `due`, which is `after` from now.
    At {
        due: u64,
        after: Duration,
    },
    Nothing,
    Over,
}

/// As long as one of these lives, instances may come.
pub(super) struct Live(pub(super) Arc<Registry>);

impl Drop for Live {
    fn drop(&mut self) {
        let sweeper = {
            let mut state = lock(&self.0.state);
            state.over = true;
            state.sweeper.take()
        };
        if let Some(sweeper) = sweeper {
            sweeper.wake();
        }
    }
}

impl Registry {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            clock,
            state: Mutex::new(State::default()),
        })
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Runs `change`, then wakes the sweeper if it looks too late now.
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.state);
        let result = change(&mut state);
        let first = state.due.first().map(|(due, _)| *due);
        let late = first.is_some_and(|first| state.armed.is_none_or(|armed| first < armed));
        let sweeper = if late { state.sweeper.take() } else { None };
        drop(state);
        if let Some(sweeper) = sweeper {
            sweeper.wake();
        }
        result
    }

    pub(super) fn register(
        &self,
        usage: &Arc<Usage>,
        name: Option<Arc<str>>,
        bound: Option<Duration>,
        pinned: bool,
    ) -> Registration {
        let gone = Arc::new(Gone::default());
        let entry = Entry {
            usage: usage.clone(),
            name,
            bound: bound.map(nanos),
            pinned,
            due: None,
            gone: gone.clone(),
        };
        let id = self.with(|state| {
            let id = state.next;
            state.next += 1;
            state.entries.insert(id, entry);
            state.file(id);
            id
        });
        usage.watch(self.me.clone(), id);
        // It may have been closed before we watched.
        if usage.look().is_closed() {
            self.closed(id);
        }
        Registration {
            registry: self.me.clone(),
            id,
            gone,
        }
    }

    /// What there is to do; `waker` is woken when that changes.
    pub(super) fn next(&self, waker: &Waker) -> Next {
        let mut waker = Some(waker.clone());
        let now = self.clock.checked();
        let mut state = lock(&self.state);
        let next = match state.first_due(now) {
            Some(_) => Next::Due,
            None if state.over => Next::Over,
            None => match state.due.first() {
                Some((due, _)) => Next::At {
                    due: *due,
                    after: Duration::from_nanos(due - now),
                },
                None => Next::Nothing,
            },
        };
        state.armed = state.due.first().map(|(due, _)| *due);
        std::mem::swap(&mut state.sweeper, &mut waker);
        drop(state);
        drop(waker);
        next
    }

    /// Closes what is due.
    pub(super) fn sweep(&self) -> (Vec<Retiree>, Vec<Arc<Gone>>) {
        let now = self.clock.checked();
        let (mut retired, mut gone, mut telling) = (Vec::new(), Vec::new(), Vec::new());
        let mut state = lock(&self.state);
        while let Some((id, look)) = state.first_due(now) {
            let Some(entry) = state.entries.get(&id) else {
                break;
            };
            // If somebody claimed it meanwhile, the next look finds it busy.
            let Some(closing) = entry.usage.start_closing(look, Eviction::Idle) else {
                continue;
            };
            telling.push(closing);
            let idle = Duration::from_nanos(now.saturating_sub(entry.usage.ended()));
            retired.push(Retiree::new(entry.name.clone(), Eviction::Idle, idle));
            gone.push(entry.gone.clone());
            state.refile(id, None);
        }
        drop(state);
        drop(telling);
        (retired, gone)
    }

    /// One reading of each.
    pub(super) fn status(&self) -> Vec<Instance> {
        let state = lock(&self.state);
        let entries = state.entries.values();
        let entries: Vec<_> = entries
            .map(|entry| (entry.name.clone(), entry.usage.clone(), entry.bound))
            .collect();
        drop(state);
        let one = |(name, usage, bound): (_, Arc<Usage>, Option<u64>)| {
            Instance::of(name, &usage, bound.map(Duration::from_nanos))
        };
        entries.into_iter().map(one).collect()
    }

    /// How many instances there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.state).entries.len()
    }
}

impl State {
    /// The first one that is due, with the look that says so. Moves on what was filed too early.
    fn first_due(&mut self, now: u64) -> Option<(u64, Look)> {
        loop {
            let (_, id) = *self.due.first().filter(|(due, _)| *due <= now)?;
            let entry = self.entries.get(&id)?;
            let bound = entry.bound?;
            let mut look = entry.usage.look();
            if look.count() > 0 {
                // A use that is no sign of life may end in it, and leave it due: see `fell_idle`.
                look = entry.usage.want();
            }
            if look.is_closed() || look.is_pinned() {
                self.refile(id, None);
            } else if look.is_idle() {
                let due = entry.usage.ended().saturating_add(bound);
                if due <= now {
                    return Some((id, look));
                }
                self.refile(id, Some(due));
            } else {
                self.refile(id, Some(now.saturating_add(bound.max(1))));
            }
        }
    }

    /// Files `id` for when it is due, as things stand.
    fn file(&mut self, id: u64) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        let look = entry.usage.look();
        let due = match entry.bound {
            Some(bound) if !look.is_closed() && !look.is_pinned() => {
                Some(entry.usage.ended().saturating_add(bound))
            }
            _ => None,
        };
        self.refile(id, due);
    }

    fn refile(&mut self, id: u64, due: Option<u64>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            if let Some(old) = entry.due {
                self.due.remove(&(old, id));
            }
            entry.due = due;
            self.due.extend(due.map(|due| (due, id)));
        }
    }
}

impl Watch for Registry {
    fn fell_idle(&self, key: u64) {
        self.with(|state| {
            let Some(entry) = state.entries.get(&key) else {
                return;
            };
            // A lower bound may stay one.
            let (Some(filed), Some(bound)) = (entry.due, entry.bound) else {
                return;
            };
            if entry.usage.ended().saturating_add(bound) < filed {
                state.file(key);
            }
        });
    }

    fn closed(&self, key: u64) {
        self.with(|state| state.refile(key, None));
    }

    fn pinned(&self, key: u64) {
        self.with(|state| state.file(key));
    }

    fn set_idle_after(&self, key: u64, bound: Option<Duration>) {
        let changed = self.with(|state| {
            let entry = state.entries.get_mut(&key)?;
            entry.bound = bound.map(nanos);
            let pinned = entry.pinned || entry.bound == Some(0);
            let usage = entry.usage.clone();
            state.file(key);
            Some((usage, pinned))
        });
        if let Some((usage, pinned)) = changed {
            usage.set_pinned(pinned);
        }
    }
}

/// The place of one instance. Dropped last of all it has.
pub(super) struct Registration {
    registry: Weak<Registry>,
    id: u64,
    gone: Arc<Gone>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            let entry = registry.with(|state| {
                state.refile(self.id, None);
                state.entries.remove(&self.id)
            });
            drop(entry);
        }
        self.gone.set();
    }
}

/// Whether an instance is gone.
#[derive(Default)]
pub(super) struct Gone(Mutex<GoneState>);

#[derive(Default)]
struct GoneState {
    gone: bool,
    wakers: Wakers,
}

impl Gone {
    fn set(&self) {
        let wake = {
            let mut state = lock(&self.0);
            state.gone = true;
            state.wakers.take()
        };
        wake.wake();
    }

    pub(super) fn is_set(&self) -> bool {
        lock(&self.0).gone
    }
}

/// Resolves when the instance is gone.
pub(super) struct UntilGone {
    gone: Arc<Gone>,
    key: Key,
}

impl UntilGone {
    pub(super) fn new(gone: Arc<Gone>) -> Self {
        Self { gone, key: None }
    }
}

impl Future for UntilGone {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let waker = cx.waker().clone();
        let mut state = lock(&this.gone.0);
        let (old, poll) = if state.gone {
            (state.wakers.remove(&mut this.key), Poll::Ready(()))
        } else {
            (state.wakers.register(&mut this.key, waker), Poll::Pending)
        };
        drop(state);
        drop(old);
        poll
    }
}

impl Drop for UntilGone {
    fn drop(&mut self) {
        let old = lock(&self.gone.0).wakers.remove(&mut self.key);
        drop(old);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("instances", &self.len())
            .finish_non_exhaustive()
    }
}
