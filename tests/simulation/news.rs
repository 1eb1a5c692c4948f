//! What callers and operators are told, against what the backends saw.

use std::time::Duration;

use tower_on_demand::{Error, ErrorKind, Swept, test_util::Counts};

use crate::{
    acts::start_failed,
    fake::Request,
    world::{Phase, State, World},
};

/// How often a call's future is polled beyond what its backend asks for, at most: once to begin, then
/// for each instance it is handed to (four at most) once when it is handed over, once when its lease
/// is ready and once more when it yields or serves on, and once when it is cut. Leases that take
/// their time are polled once more each.
const POLLS: u64 = 1 + 4 * 4 + 1;

impl World {
    /// The instance that serves `backend`, as far as it knows.
    pub(crate) fn running(&self, backend: usize) -> Option<usize> {
        running(&self.lock(), backend)
    }

    // ===== callers =====

    pub(crate) fn answered(
        &self,
        backend: usize,
        call: u64,
        request: &Request,
        by: usize,
        met: (Option<usize>, Duration),
        counts: &Counts,
    ) {
        let state = &mut *self.lock();
        let (before, asked) = met;
        let waited = state.delivered.remove(&call).is_some_and(|at| at > asked);
        let ready_at_once = state.instances[by].plan.slow_ready.is_none();
        if before == Some(by) && waited && ready_at_once {
            *state
                .counts
                .entry("waited while its backend yielded, in vain")
                .or_default() += 1;
        }
        if before.is_some_and(|before| before != by) {
            *state
                .counts
                .entry("went on to another instance")
                .or_default() += 1;
        }
        let inner = u64::from(state.inner_polls.remove(&call).unwrap_or_default());
        let polls = counts.polls().saturating_sub(inner);
        state.most_polls = state.most_polls.max(polls);
        let wrong = state.instances[by].backend != backend || request.fails || request.never;
        if wrong {
            state
                .violations
                .push(format!("call {call} is answered by #{by}"));
        }
        if polls > POLLS {
            state.violations.push(format!(
                "call {call} was polled {polls} times for {inner} of its own"
            ));
        }
        *state.counts.entry("answered").or_default() += 1;
    }

    pub(crate) fn failed_call(&self, backend: usize, call: u64, request: &Request, error: &Error) {
        let text = format!("{error:#}");
        let state = &mut *self.lock();
        let name = state.backends[backend].name.clone();
        let mut wrong = None;
        let what = match error.kind() {
            ErrorKind::NoRoom(_) => "refused: no room",
            ErrorKind::NeverFits { .. } => "refused: never fits",
            ErrorKind::StartFailed => "told of a failed start",
            ErrorKind::StartTimeout { .. } => "told of a start that took too long",
            ErrorKind::BackingOff { .. } => "refused: backing off",
            ErrorKind::Unloaded => "refused: unloaded",
            ErrorKind::NotRunning => {
                if !request.only_if_running {
                    wrong = Some("may start it");
                }
                "refused: not running"
            }
            ErrorKind::ShutDown => {
                if !state.closing {
                    wrong = Some("nobody shut anything down");
                }
                "refused: shut down"
            }
            ErrorKind::Stopped => {
                if state.backends[backend].downs.is_empty() && !state.closing {
                    wrong = Some("nobody stopped it");
                }
                "cut"
            }
            ErrorKind::Evicted if state.backends[backend].pool => "a pooled instance was evicted",
            ErrorKind::Evicted | ErrorKind::Died => "lost its instance too often",
            ErrorKind::Panicked => "told of a panic",
            ErrorKind::TooManyWaiting { .. } => "refused: too many wait",
            ErrorKind::TooManyKeys { .. } => "refused: too many keys",
            ErrorKind::Service => {
                if !(text.contains(&format!("call {call} fails")) || text.contains("broken")) {
                    wrong = Some("that is not its error");
                }
                "the call's own error"
            }
            _ => {
                wrong = Some("there is no reason for that");
                "?"
            }
        };
        *state.counts.entry(what).or_default() += 1;
        if let Some(wrong) = wrong {
            state
                .violations
                .push(format!("call {call} to {name}: {text}: {wrong}"));
        }
        // Who was seen to wait for a start hears how that went.
        let backing_off = matches!(error.kind(), ErrorKind::BackingOff { .. });
        // (Unless it had an instance in that moment, which was dead before it could be called.)
        let mut own = state.instances.iter().filter(|i| i.backend == backend);
        let born_dead = own.any(|i| i.died && i.changed_in == state.step);
        if backing_off && !born_dead && state.at_a_start.contains(&call) {
            state.violations.push(format!(
                "S4: call {call} to {name} waited for a start, and is told: {text}"
            ));
        }
        // A failed start is told to those who waited for it, and to nobody who came later.
        if start_failed(error) {
            if let Some(inst) = start_in(&text).and_then(|id| state.instances.get(id)) {
                let later = inst.failed.is_some_and(|failed| failed < call);
                if later || inst.backend != backend {
                    state
                        .violations
                        .push(format!("S4: call {call} to {name} is told: {text}"));
                }
            }
        }
    }

    // ===== operators =====

    pub(crate) fn ordered(
        &self,
        backend: usize,
        order: &'static str,
        version: Option<u32>,
        seq: u64,
        before: Option<usize>,
        result: &Result<(), Error>,
    ) {
        self.tell(|| match result {
            Ok(()) => format!("{order} ({seq}) is done"),
            Err(error) => format!("{order} ({seq}) failed: {error:#}"),
        });
        self.touch_backend(backend);
        let state = &mut *self.lock();
        let step = state.step;
        let it = &mut state.backends[backend];
        let count = match (order, result.is_ok()) {
            ("reload", true) => "reloaded",
            ("reload", false) => "a reload failed",
            ("reload in place", true) => "reloaded in place",
            ("unload", _) => "unloaded",
            ("stop", _) => "stopped by order",
            ("start", true) => "started ahead",
            _ => "other orders",
        };
        if order == "reload" {
            it.reloads -= 1;
        }
        if result.is_ok() {
            it.version = it.version.max(version.unwrap_or_default());
        }
        if order == "unload" && it.unload_ordered {
            it.unloaded = true;
        }
        let (downs, version) = (it.downs.clone(), it.version);
        let may_go = it.evictable;
        *state.counts.entry(count).or_default() += 1;
        let drops = state.backends[backend].drops;
        let newest = state.instances.iter().rposition(|i| i.backend == backend);
        let serving = running(state, backend).filter(|id| !drops && newest == Some(*id));
        let serving = serving.map(|id| &state.instances[id]);
        if let Some(old) = serving.filter(|it| order == "reload" && it.version < version) {
            let served = format!("v{} serves after a reload to v{version}", old.version);
            state.violations.push(served);
        }
        let Some(old) = before.map(|id| &state.instances[id]) else {
            return;
        };
        let mut wrong = None;
        if matches!(order, "stop" | "unload") && result.is_ok() && !state.executor_gone {
            let left = old.phase != Phase::Gone && !old.is_left_over();
            if left && !state.backends[backend].drops {
                wrong = Some(format!(
                    "E9: {order} is done, and the instance {:?}",
                    old.phase
                ));
            }
        }
        // While one is reloaded its old instance is in use, unless it yields already, or the reload waits
        // for the one that was replaced before.
        let evicted = order == "reload"
            && result
                .as_ref()
                .is_err_and(|error| matches!(error.kind(), ErrorKind::Evicted));
        if evicted && !state.yields {
            let all = state.instances.iter().enumerate();
            let mut others = all.filter(|(id, i)| i.backend == backend && Some(*id) != before);
            if !others.any(|(_, i)| i.phase != Phase::Gone || i.changed_in == step) {
                wrong = Some("L1: it was evicted while it was reloaded".to_owned());
            }
        }
        let kept = matches!(order, "reload")
            && result.as_ref().is_err_and(|error| {
                start_failed(error)
                    || matches!(
                        error.kind(),
                        ErrorKind::NoRoom(_)
                            | ErrorKind::NeverFits { .. }
                            | ErrorKind::StartTimeout { .. }
                            | ErrorKind::TooManyWaiting { .. }
                    )
            });
        if kept {
            let ordered = downs.iter().any(|(at, _)| *at > old.begun);
            let excused = old.died || ordered || (may_go && old.changed_in == step);
            if old.stop_called && !excused {
                wrong = Some("L1: a failed reload took the old one down".to_owned());
            }
        }
        state.violations.extend(wrong);
    }

    /// The group is closed; calls in flight have `drain`.
    pub(crate) fn closed(&self, drain: Option<Duration>) {
        let now = self.now();
        let state = &mut *self.lock();
        state.closing = true;
        state.seq += 1;
        for it in &mut state.backends {
            let until = now.saturating_add(drain.unwrap_or(it.drain));
            it.downs.push((state.seq, until));
        }
    }

    // ===== the sweeper =====

    /// What a sweep says it has retired, looked at before anybody else can act.
    pub(crate) fn swept(&self, swept: &Swept) -> Vec<usize> {
        let mut ids = Vec::new();
        for retiree in swept.retired() {
            let name = retiree.name().unwrap_or("?").to_owned();
            self.tell(|| format!("{name} is swept, idle for {:?}", retiree.idle()));
            self.count("retired for idleness");
            let found = {
                let state = self.lock();
                state.backends.iter().position(|it| it.name == name)
            };
            let Some(backend) = found else {
                self.violation(format!("swept {name}, which nobody knows"));
                continue;
            };
            if self.lock().backends[backend].pool {
                continue; // there may be several
            }
            let Some(id) = self.running(backend) else {
                self.violation(format!("swept {name}, which does not run"));
                continue;
            };
            ids.push(id);
            let now = self.now();
            let mut state = self.lock();
            let wrong = swept_wrongly(&state, id, now, retiree.idle());
            state
                .violations
                .extend(wrong.map(|wrong| format!("{name}#{id} swept: {wrong}")));
        }
        ids
    }

    pub(crate) fn swept_are_gone(&self, ids: &[usize]) {
        for id in ids {
            let (phase, over) = {
                let state = self.lock();
                let inst = &state.instances[*id];
                // What goes when it is dropped goes with whoever still has a lease of it.
                let leased = state.backends[inst.backend].drops && inst.held > 0;
                (inst.phase, inst.is_left_over() || leased)
            };
            if phase != Phase::Gone && !over {
                self.violation(format!("L4: #{id} is said to be gone and {phase:?}"));
            }
        }
    }
}

fn running(state: &State, backend: usize) -> Option<usize> {
    let all = state.instances.iter().enumerate().rev();
    let mut own = all.filter(|(_, i)| i.backend == backend);
    own.find(|(_, i)| i.phase == Phase::Ready && !i.stop_called && !i.is_left_over())
        .map(|(id, _)| id)
}

fn swept_wrongly(state: &State, id: usize, now: Duration, idle: Duration) -> Option<String> {
    let inst = &state.instances[id];
    let it = &state.backends[inst.backend];
    let Some(bound) = it.bound else {
        return Some("E7: it has no bound".to_owned());
    };
    if it.pinned {
        return Some("E7: it is pinned".to_owned());
    }
    if inst.in_flight > 0 {
        return Some(format!("E1: {} in flight", inst.in_flight));
    }
    let unused = now - inst.ended;
    (idle < bound || unused < bound)
        .then(|| format!("E6: unused for {unused:?}, said {idle:?}, of {bound:?}"))
}

/// The start that an error speaks of.
fn start_in(text: &str) -> Option<usize> {
    let rest = &text[text.find("start ")? + "start ".len()..];
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}
