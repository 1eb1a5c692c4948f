//! The life of an instance, as it sees it itself.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use tower_on_demand::CeilingLayer;

use crate::{
    fake::Shared,
    plan::{Plan, plan, shown},
    world::{Inst, Phase, World, take_room},
};

impl World {
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
        wrong.extend(take_room(&mut state));
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
        if state.no_more_starts && !it.pool {
            wrong.push("L3: started though it is shut down".to_owned());
        }
        let alive = state.instances.iter().enumerate();
        let alive: Vec<_> = alive.filter(|(_, i)| i.phase != Phase::Gone).collect();
        let own: Vec<_> = alive
            .iter()
            .filter(|(_, i)| i.backend == backend && !i.is_left_over())
            .filter(|(_, i)| !(it.drops && i.held + i.in_flight > 0))
            .collect();
        if !it.pool && own.iter().any(|(_, i)| i.phase == Phase::Starting) {
            wrong.push("S1: two starts at once".to_owned());
        }
        if !it.pool && own.len() > usize::from(it.reloads > 0) {
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
            // What is under a second ceiling had this room some time ago.
            let here = weight > 0 && !it.nested && !state.limit_lowered;
            if here && held + weight > limit {
                // Hopeless, as far as those that did not change in this very moment say.
                let hopeless = holders.clone().filter(|(_, i)| i.weight > 0).all(|(_, i)| {
                    let it = &state.backends[i.backend];
                    it.pinned || it.pinned_in == step || i.changed_in == step
                });
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

    pub(crate) fn change<R>(&self, id: usize, change: impl FnOnce(&mut Inst, Duration) -> R) -> R {
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
        {
            let mut state = self.lock();
            state.delivered.insert(call, now);
            state.pending.remove(&call);
        }
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

    pub(crate) fn touch(&self, id: usize) {
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
