//! What the fake backends saw, and what must never be seen.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tower_on_demand::{BoxError, CeilingLayer, Error, ErrorKind, Runtime, test_util::Counts};

use crate::{fake::Shared, plan::Plan};

/// How often a start in line is woken until it has its room, at most: when it loses its patience, at its
/// deadline, and when it is handed the room. (Where `min_residency` keeps instances, also when a timer must be set.)
const WAKES: u64 = 3;

/// How an instance stands, as it knows itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Ready,
    Stopping,
    Gone,
}

#[derive(Debug)]
pub(crate) struct Inst {
    pub(crate) backend: usize,
    pub(crate) phase: Phase,
    pub(crate) weight: u64,
    pub(crate) version: u32,
    pub(crate) begun: u64,
    pub(crate) failed: Option<u64>,
    pub(crate) changed_in: u64,
    pub(crate) ready_at: Duration,
    pub(crate) in_flight: u32,
    pub(crate) calls: u32,
    pub(crate) leases: u32,
    /// Leases that are not dropped yet.
    pub(crate) held: u32,
    /// When the last use that is a sign of life ended.
    pub(crate) ended: Duration,
    pub(crate) died: bool,
    /// Its owner has dropped it without hearing that it is gone.
    pub(crate) given_up: bool,
    pub(crate) stop_called: bool,
    pub(crate) stop_over: bool,
    pub(crate) plan: Plan,
}

impl Inst {
    /// Its owner is done with it; what is left of it is somebody's call that was cut.
    pub(crate) fn is_left_over(&self) -> bool {
        self.given_up || self.stop_over
    }
}

/// A backend, as the driver has it.
#[derive(Debug, Default)]
pub(crate) struct Bk {
    pub(crate) name: String,
    pub(crate) pinned: bool,
    pub(crate) kept: bool,
    pub(crate) counted: bool,
    pub(crate) under_ceiling: bool,
    /// Under the second one as well.
    pub(crate) nested: bool,
    /// Its instances have no owner but their users.
    pub(crate) pool: bool,
    pub(crate) bound: Option<Duration>,
    pub(crate) drain: Duration,
    pub(crate) wait: Duration,
    pub(crate) strict: bool,
    pub(crate) residency: Duration,
    /// Orders that bring it down, and until when each lets calls run.
    pub(crate) downs: Vec<(u64, Duration)>,
    pub(crate) reloads: u32,
    pub(crate) unloaded: bool,
    pub(crate) abandoned: bool,
    /// The last moment at which anybody may have used it.
    pub(crate) touched: Duration,
    pub(crate) made: u64,
    /// By its layer, whatever was ordered since.
    pub(crate) layer_pins: bool,
    /// Whatever its bound.
    pub(crate) always_pinned: bool,
    /// The step in which its being pinned last changed.
    pub(crate) pinned_in: u64,
    pub(crate) evictable: bool,
    pub(crate) drops: bool,
    pub(crate) keyed: bool,
    pub(crate) stop_bound: Duration,
    pub(crate) unload_ordered: bool,
    /// What was ordered last, and done.
    pub(crate) version: u32,
    /// Nobody hears any more when one of its reloads is over.
    pub(crate) deaf: bool,
}

/// One who asks for room.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) backend: usize,
    pub(crate) weight: u64,
    pub(crate) since: Duration,
    pub(crate) made: bool,
    /// It was answered with an error.
    pub(crate) over: bool,
    /// Wakes by its maker, which has room already.
    pub(crate) own_wakes: u64,
    pub(crate) counts: Counts,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) seq: u64,
    /// How often nothing was about to happen.
    pub(crate) step: u64,
    pub(crate) instances: Vec<Inst>,
    pub(crate) backends: Vec<Bk>,
    pub(crate) asks: BTreeMap<u64, Ask>,
    /// Granted in this step: when they had asked.
    pub(crate) granted: Vec<u64>,
    pub(crate) violations: Vec<String>,
    pub(crate) story: Option<Vec<(Duration, String)>>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) limit_lowered: bool,
    pub(crate) no_more_starts: bool,
    pub(crate) closing: bool,
    pub(crate) executor_gone: bool,
    pub(crate) sweeps: bool,
    /// There never was a limit.
    pub(crate) unlimited: bool,
    pub(crate) most_polls: u64,
    pub(crate) most_wakes: u64,
    /// Some yield.
    pub(crate) yields: bool,
    /// Time alone may make room.
    pub(crate) looks: bool,
    /// Calls on tasks that have not reached a backend, and are not answered.
    pub(crate) pending: BTreeMap<u64, usize>,
    /// Those of them that waited for a start when nothing was about to happen.
    pub(crate) at_a_start: BTreeSet<u64>,
    /// When each call reached its backend.
    pub(crate) delivered: BTreeMap<u64, Duration>,
    pub(crate) panics: usize,
    pub(crate) living: BTreeMap<usize, Weak<Shared>>,
    pub(crate) inner_polls: BTreeMap<u64, u32>,
    /// Everybody's plans, by how hostile the world is.
    pub(crate) hostility: u64,
}

/// All fake backends of one run.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) seed: u64,
    born: Instant,
    pub(crate) ceiling: Mutex<Option<CeilingLayer>>,
    state: Mutex<State>,
}

thread_local! {
    /// The start whose future is being polled.
    static ASKING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `poll` as the start `ask`.
pub(crate) fn asking<R>(ask: u64, poll: impl FnOnce() -> R) -> R {
    struct Restore(Option<u64>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ASKING.set(self.0);
        }
    }
    let _restore = Restore(ASKING.replace(Some(ask)));
    poll()
}

impl World {
    pub(crate) fn new(runtime: &Runtime, seed: u64, hostility: u64, story: bool) -> Arc<Self> {
        Arc::new(Self {
            runtime: runtime.clone(),
            seed,
            born: runtime.now(),
            ceiling: Mutex::new(None),
            state: Mutex::new(State {
                step: 1,
                hostility,
                story: story.then(Vec::new),
                ..State::default()
            }),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_ceiling(&self, ceiling: Option<CeilingLayer>) {
        let mut slot = self.ceiling.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *slot, ceiling);
        drop(slot);
        drop(old);
    }

    pub(crate) fn now(&self) -> Duration {
        self.runtime.now() - self.born
    }

    /// Something that happens rarely happened.
    pub(crate) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        if self.lock().story.is_some() {
            let line = (self.now(), line());
            self.lock().story.get_or_insert_default().push(line);
        }
    }

    pub(crate) fn violation(&self, what: impl Display) {
        let now = self.now();
        let mut state = self.lock();
        state.violations.push(what.to_string());
        if let Some(story) = &mut state.story {
            story.push((now, format!("VIOLATION: {what}")));
        }
    }

    pub(crate) fn seq(&self) -> u64 {
        let mut state = self.lock();
        state.seq += 1;
        state.seq
    }

    pub(crate) fn of(&self, id: usize, what: &str) {
        self.tell_of(id, || what.to_owned());
    }

    pub(crate) fn tell_of(&self, id: usize, line: impl FnOnce() -> String) {
        self.tell(|| {
            let backend = self.lock().instances[id].backend;
            format!("{}#{id} {}", self.name(backend), line())
        });
    }

    // ===== room =====

    pub(crate) fn asked(&self, backend: usize, weight: u64) -> u64 {
        let since = self.now();
        let ask = {
            let mut state = self.lock();
            state.seq += 1;
            let ask = state.seq;
            let entry = Ask {
                backend,
                weight,
                since,
                made: false,
                over: false,
                own_wakes: 0,
                counts: Counts::default(),
            };
            state.asks.insert(ask, entry);
            ask
        };
        self.tell(|| format!("{} asks for room (ask {ask})", self.name(backend)));
        ask
    }

    /// The start that is polled has its room, be it under the first of two ceilings.
    pub(crate) fn granted(&self) {
        let wrong = take_room(&mut self.lock());
        if let Some(wrong) = wrong {
            self.violation(wrong);
        }
    }

    pub(crate) fn counts(&self, ask: u64, counts: Counts) {
        if let Some(asked) = self.lock().asks.get_mut(&ask) {
            asked.counts = counts;
        }
    }

    /// The maker of the start that is polled is not ready, and wakes itself.
    pub(crate) fn maker_waits(&self) {
        let ask = ASKING.get();
        let mut state = self.lock();
        if let Some(asked) = ask.and_then(|ask| state.asks.get_mut(&ask)) {
            asked.own_wakes += 1;
        }
    }

    /// The start is over, or was left.
    pub(crate) fn asked_enough(&self, ask: u64) {
        let asked = self.lock().asks.remove(&ask);
        if asked.is_some_and(|asked| !asked.made && !asked.over && asked.counts.polls() > 0) {
            self.count("left the line");
        }
    }

    /// A start was answered with an error, be it the ceiling's or the maker's.
    pub(crate) fn refused(&self, ask: u64, error: &BoxError) {
        if let Some(asked) = self.lock().asks.get_mut(&ask) {
            asked.over = true;
        }
        let Some(ErrorKind::NoRoom(room)) = error.downcast_ref::<Error>().map(Error::kind) else {
            return;
        };
        let now = self.now();
        let state = self.lock();
        let Some(asked) = state.asks.get(&ask) else {
            return;
        };
        let waited = now - asked.since;
        let wait = state.backends[asked.backend].wait;
        let (made, asked_by) = (asked.made, asked.backend);
        drop(state);
        self.count(if room.own {
            "blocked by its own room"
        } else {
            "no room"
        });
        self.tell(|| format!("ask {ask} is refused: {error}"));
        // At once, if it takes free room only or its own is in the way; else exactly at its deadline.
        let nested = self.lock().backends[asked_by].nested;
        if made && nested {
            return; // by the second ceiling
        }
        if made || !(waited == wait || waited.is_zero() || room.own) || room.waited != waited {
            self.violation(format!(
                "W2: ask {ask} refused after {waited:?} of {wait:?}"
            ));
        }
    }

    pub(crate) fn name(&self, backend: usize) -> String {
        self.lock().backends[backend].name.clone()
    }
}

/// The start that is polled was handed its room. How often was it woken for that?
pub(crate) fn take_room(state: &mut State) -> Option<String> {
    let ask = ASKING.get()?;
    let looks = match state.looks {
        true => 2 * state.instances.len() as u64,
        false => 0,
    };
    let entry = state.asks.get_mut(&ask).filter(|ask| !ask.made)?;
    entry.made = true;
    let wakes = entry.counts.wakes() - entry.own_wakes;
    state.granted.push(ask);
    state.most_wakes = state.most_wakes.max(wakes);
    (wakes > WAKES + looks).then(|| format!("ask {ask} was woken {wakes} times for its room"))
}
