//! What the fake backends saw, and what must never be seen.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tower_on_demand::{BoxError, CeilingLayer, Error, ErrorKind, Runtime, test_util::Counts};

use crate::{fake::Shared, rng::Rng};

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

/// What an instance will do: drawn when it is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) start: Duration,
    /// It wakes itself so often before it starts.
    pub(crate) fidgets: u32,
    pub(crate) never_ready: bool,
    pub(crate) fails: bool,
    pub(crate) make_panics: bool,
    pub(crate) poll_panics: bool,
    /// The start future panics when it is dropped before it is done.
    pub(crate) drop_panics: bool,
    pub(crate) lives: Option<Duration>,
    pub(crate) unhealthy: bool,
    pub(crate) retired_panics: bool,
    pub(crate) retired_poll_panics: bool,
    pub(crate) stop: Duration,
    pub(crate) never_stops: bool,
    pub(crate) stop_panics: bool,
    pub(crate) stop_poll_panics: bool,
    pub(crate) with_the_last_lease: bool,
    /// Every so many leases one panics.
    pub(crate) lease_panics: Option<u32>,
    pub(crate) lease_drop_panics: Option<u32>,
    pub(crate) backend_drop_panics: bool,
    /// A lease is ready only after so long.
    pub(crate) slow_ready: Option<Duration>,
    /// After so many leases the next ones fail to become ready.
    pub(crate) breaks: Option<u32>,
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
    pub(crate) bound: Option<Duration>,
    pub(crate) drain: Duration,
    pub(crate) wait: Duration,
    pub(crate) strict: bool,
    pub(crate) residency: Duration,
    /// Orders that bring it down, and until when each lets calls run.
    pub(crate) downs: Vec<(u64, Duration)>,
    pub(crate) reloads: u32,
    pub(crate) unloaded: bool,
    pub(crate) shut_down: bool,
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
    /// Time alone may make room.
    pub(crate) looks: bool,
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
    ceiling: Mutex<Option<CeilingLayer>>,
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

    fn of(&self, id: usize, what: &str) {
        self.tell_of(id, || what.to_owned());
    }

    fn tell_of(&self, id: usize, line: impl FnOnce() -> String) {
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
                own_wakes: 0,
                counts: Counts::default(),
            };
            state.asks.insert(ask, entry);
            ask
        };
        self.tell(|| format!("{} asks for room (ask {ask})", self.name(backend)));
        ask
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
        if asked.is_some_and(|asked| !asked.made && asked.counts.polls() > 0) {
            self.count("left the line");
        }
    }

    /// A start was answered with an error, be it the ceiling's or the maker's.
    pub(crate) fn refused(&self, ask: u64, error: &BoxError) {
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
        let made = asked.made;
        drop(state);
        self.count(if room.own {
            "blocked by its own room"
        } else {
            "no room"
        });
        self.tell(|| format!("ask {ask} is refused: {error}"));
        // At once, if it takes free room only or its own is in the way; else exactly at its deadline.
        if made || !(waited == wait || waited.is_zero() || room.own) || room.waited != waited {
            self.violation(format!(
                "W2: ask {ask} refused after {waited:?} of {wait:?}"
            ));
        }
    }

    pub(crate) fn name(&self, backend: usize) -> String {
        self.lock().backends[backend].name.clone()
    }

    // ===== a life =====

    /// The maker is called: what is made is alive from here on.
    pub(crate) fn begin(&self, backend: usize, weight: u64, version: u32) -> (usize, Plan) {
        let (used, limit) = {
            let ceiling = self.ceiling.lock().unwrap_or_else(PoisonError::into_inner);
            let occupancy = ceiling.as_ref().map(CeilingLayer::occupancy);
            occupancy.map_or((u64::MAX, u64::MAX), |now| (now.used, now.limit))
        };
        let now = self.now();
        let mut wrong = Vec::new();
        let mut state = self.lock();
        state.seq += 1;
        let begun = state.seq;
        let step = state.step;
        if let Some(ask) = ASKING.get() {
            let looks = match state.looks {
                true => 2 * state.instances.len() as u64,
                false => 0,
            };
            let entry = state.asks.get_mut(&ask);
            if let Some(entry) = entry.filter(|ask| !ask.made) {
                entry.made = true;
                let wakes = entry.counts.wakes() - entry.own_wakes;
                state.granted.push(ask);
                state.most_wakes = state.most_wakes.max(wakes);
                if wakes > WAKES + looks {
                    wrong.push(format!("ask {ask} was woken {wakes} times for its room"));
                }
            }
        }
        let it = &state.backends[backend];
        if version < it.version {
            wrong.push(format!(
                "v{version} is started after v{} was ordered",
                it.version
            ));
        }
        if it.unloaded {
            wrong.push("L2: started though it is unloaded".to_owned());
        }
        if it.shut_down || state.no_more_starts {
            wrong.push("L3: started though it is shut down".to_owned());
        }
        let alive = state.instances.iter().enumerate();
        let alive: Vec<_> = alive.filter(|(_, i)| i.phase != Phase::Gone).collect();
        let own: Vec<_> = alive
            .iter()
            .filter(|(_, i)| i.backend == backend && !i.is_left_over())
            .filter(|(_, i)| !(it.drops && i.held + i.in_flight > 0))
            .collect();
        if own.iter().any(|(_, i)| i.phase == Phase::Starting) {
            wrong.push("S1: two starts at once".to_owned());
        }
        if own.len() > usize::from(it.reloads > 0) {
            let others: Vec<_> = own.iter().map(|(id, i)| (*id, i.phase)).collect();
            wrong.push(format!("S5: started beside {others:?}"));
        }
        if it.under_ceiling {
            let holders = alive
                .iter()
                .filter(|(_, i)| state.backends[i.backend].under_ceiling);
            let held: u64 = holders.clone().map(|(_, i)| i.weight).sum();
            if used < held + weight {
                wrong.push(format!(
                    "C5: {held} + {weight} live, room for {used} is held"
                ));
            }
            if weight > 0 && held + weight > limit && !state.limit_lowered {
                // Hopeless, as far as those that did not change in this very moment say.
                let hopeless = holders
                    .clone()
                    .filter(|(_, i)| i.weight > 0)
                    .all(|(_, i)| state.backends[i.backend].pinned || i.changed_in == step);
                if !hopeless || it.strict {
                    wrong.push(format!(
                        "C1: {held} + {weight} live under a limit of {limit}"
                    ));
                }
                *state.counts.entry("over-admission").or_default() += 1;
            }
        }
        let name = state.backends[backend].name.clone();
        let number = state.backends[backend].made;
        state.backends[backend].made += 1;
        let plan = plan(self.seed, backend, number, state.hostility);
        let id = state.instances.len();
        state.instances.push(Inst {
            backend,
            phase: Phase::Starting,
            weight,
            version,
            begun,
            failed: None,
            changed_in: step,
            ready_at: now,
            in_flight: 0,
            calls: 0,
            leases: 0,
            held: 0,
            ended: now,
            died: false,
            given_up: false,
            stop_called: false,
            stop_over: false,
            plan: plan.clone(),
        });
        drop(state);
        for wrong in wrong {
            self.violation(format!("{name}#{id} {wrong}"));
        }
        self.tell_of(id, || {
            format!("start of v{version}, weight {weight}: {}", shown(&plan))
        });
        (id, plan)
    }

    fn change<R>(&self, id: usize, change: impl FnOnce(&mut Inst, Duration) -> R) -> R {
        let now = self.now();
        let mut state = self.lock();
        let step = state.step;
        let inst = &mut state.instances[id];
        let before = inst.phase;
        let result = change(inst, now);
        if inst.phase != before {
            inst.changed_in = step;
        }
        result
    }

    pub(crate) fn failed(&self, id: usize) {
        let seq = self.seq();
        self.change(id, |inst, _| inst.failed = Some(seq));
        self.of(id, "fails to start");
    }

    pub(crate) fn ready(&self, id: usize) {
        self.change(id, |inst, now| {
            inst.phase = Phase::Ready;
            (inst.ready_at, inst.ended) = (now, now);
        });
        {
            // If it takes over from another, that one's calls have so long.
            let seq = self.seq();
            let until = self.now();
            let mut state = self.lock();
            let backend = state.instances[id].backend;
            let it = &mut state.backends[backend];
            if it.reloads > 0 {
                it.downs.push((seq, until + it.drain));
            }
        }
        self.touch(id);
        self.of(id, "ready");
    }

    pub(crate) fn stop_over(&self, id: usize) {
        self.change(id, |inst, _| inst.stop_over = true);
        self.of(id, "has stopped");
    }

    pub(crate) fn died(&self, id: usize) {
        self.change(id, |inst, _| inst.died = true);
        self.of(id, "dies");
    }

    pub(crate) fn gone(&self, id: usize) {
        let before = self.change(id, |inst, _| {
            let before = inst.phase;
            inst.phase = Phase::Gone;
            before
        });
        if before != Phase::Gone {
            self.of(id, "gone");
        }
    }

    /// It can be killed from now on.
    pub(crate) fn living(&self, shared: &Arc<Shared>) {
        let weak = Arc::downgrade(shared);
        self.lock().living.insert(shared.id, weak);
    }

    /// Its owner has dropped it.
    pub(crate) fn fake_dropped(&self, id: usize) {
        let (left, hung) = self.change(id, |inst, _| {
            inst.given_up = true;
            let hung = inst.stop_called && !inst.stop_over && inst.plan.never_stops;
            (inst.phase != Phase::Gone, hung)
        });
        if hung {
            self.count("a stop that never ended was given up");
        }
        let counted = {
            let state = self.lock();
            state.backends[state.instances[id].backend].counted
        };
        if left && !counted {
            // Nobody can tell when its last lease is dropped.
            self.gone(id);
        } else if left {
            self.of(id, "is dropped by its owner");
        }
    }

    /// `stop()` is called.
    pub(crate) fn stopping(&self, id: usize) {
        let now = self.now();
        let mut wrong = Vec::new();
        let mut state = self.lock();
        let inst = &state.instances[id];
        let it = &state.backends[inst.backend];
        if inst.stop_called {
            wrong.push("stopped twice".to_owned());
        }
        if inst.in_flight > 0 && !inst.died {
            // By order, and not before its time is over.
            let due = it.downs.iter().filter(|(at, _)| *at > inst.begun);
            let due = due.map(|(_, until)| *until).min();
            if due.is_none_or(|due| now < due) {
                wrong.push(format!(
                    "E1: stopped with {} in flight; cut by order at {due:?}",
                    inst.in_flight
                ));
            }
        }
        let (name, step) = (it.name.clone(), state.step);
        let inst = &mut state.instances[id];
        inst.stop_called = true;
        inst.phase = Phase::Stopping;
        inst.changed_in = step;
        drop(state);
        for wrong in wrong {
            self.violation(format!("{name}#{id} {wrong}"));
        }
        self.of(id, "stop");
    }

    pub(crate) fn leased(&self, id: usize) -> u32 {
        self.change(id, |inst, _| {
            inst.leases += 1;
            inst.held += 1;
            inst.leases
        })
    }

    pub(crate) fn lease_dropped(&self, id: usize) {
        self.change(id, |inst, _| inst.held -= 1);
    }

    /// A call, or somebody's lease to keep, reaches the instance.
    pub(crate) fn call(&self, id: usize, call: u64) {
        let now = self.now();
        self.lock().delivered.insert(call, now);
        let (phase, died) = self.change(id, |inst, _| {
            inst.in_flight += 1;
            inst.calls += 1;
            (inst.phase, inst.died)
        });
        if phase != Phase::Ready {
            self.violation(format!("S3/E2: #{id} got call {call} while {phase:?}"));
        }
        if died {
            self.count("call on a dead instance");
        }
        self.touch(id);
        self.tell_of(id, || format!("takes call {call}"));
    }

    pub(crate) fn call_ended(&self, id: usize, call: u64, sign_of_life: bool) {
        self.change(id, |inst, now| {
            inst.in_flight -= 1;
            if sign_of_life {
                inst.ended = now;
            }
        });
        self.touch(id);
        self.tell_of(id, || format!("is done with call {call}"));
    }

    fn touch(&self, id: usize) {
        let now = self.now();
        let mut state = self.lock();
        let backend = state.instances[id].backend;
        state.backends[backend].touched = now;
    }

    pub(crate) fn touch_backend(&self, backend: usize) {
        let now = self.now();
        self.lock().backends[backend].touched = now;
    }
}

fn shown(plan: &Plan) -> String {
    let all = format!("{plan:?}");
    let fields = all.trim_start_matches("Plan { ").trim_end_matches(" }");
    let telling = fields
        .split(", ")
        .filter(|it| !it.ends_with("false") && !it.ends_with("None") && !it.ends_with(": 0"));
    telling.collect::<Vec<_>>().join(", ")
}

/// What an instance will do, whatever else happens in its world.
fn plan(seed: u64, backend: usize, number: u64, hostility: u64) -> Plan {
    let mut rng = Rng::fork(seed, backend as u64 + 1, number);
    let h = hostility;
    // Some backends are worse than others.
    let bad = h * (1 + 3 * u64::from(Rng::fork(seed, backend as u64 + 1, u64::MAX).percent(20)));
    let mut plan = Plan {
        start: rng.short(),
        stop: rng.short(),
        fidgets: if rng.percent(10) { 3 } else { 0 },
        never_ready: rng.rarely(400 * bad),
        fails: rng.rarely(3_000 * bad),
        make_panics: rng.rarely(500 * bad),
        poll_panics: rng.rarely(500 * bad),
        drop_panics: rng.rarely(1_000 * h),
        lives: rng.rarely(6_000 * bad).then(|| rng.any()),
        unhealthy: rng.percent(20),
        retired_panics: rng.rarely(200 * h),
        retired_poll_panics: rng.percent(5),
        never_stops: rng.rarely(1_000 * h),
        stop_panics: rng.rarely(500 * h),
        stop_poll_panics: rng.rarely(500 * h),
        with_the_last_lease: rng.percent(10),
        lease_panics: rng.rarely(500 * h).then(|| rng.range(1, 8) as u32),
        lease_drop_panics: rng.rarely(300 * h).then(|| rng.range(1, 8) as u32),
        backend_drop_panics: rng.rarely(500 * h),
        slow_ready: rng.percent(5).then(|| rng.short()),
        breaks: rng.rarely(1_000 * bad).then(|| rng.range(1, 20) as u32),
    };
    if rng.percent(30) {
        plan.start = Duration::ZERO;
    }
    if rng.percent(30) {
        plan.stop = Duration::ZERO;
    }
    plan
}
