//! What must hold whenever nothing is about to happen, and at the end.

use std::collections::BTreeSet;

use tower_on_demand::{Eviction, State as Stands, Status};

use crate::{
    sim::{SLACK, Sim},
    world::{Inst, Phase, State},
};

impl Sim {
    /// Nothing is ready to run.
    pub(crate) fn check(&mut self) {
        self.forget_done();
        let statuses = self.group.status();
        let mut wrong = Vec::new();
        if !self.executor_gone {
            self.check_room(&mut wrong);
            self.check_line(&mut wrong);
            self.check_states(&statuses, &mut wrong);
            self.check_idle(&mut wrong);
            self.note_idle();
        }
        let panics = self.clock.panics().len();
        let state = &mut *self.world.lock();
        state.violations.extend(wrong);
        state.granted.clear();
        state.limit_lowered = false;
        state.step += 1;
        state.panics = panics;
    }

    fn check_room(&self, wrong: &mut Vec<String>) {
        let Some(ceiling) = &self.ceiling else { return };
        let now = ceiling.occupancy();
        let state = &*self.world.lock();
        let held: u64 = under_ceiling(state).map(|(_, i)| i.weight).sum();
        if held > now.used {
            wrong.push(format!("C5: {held} live, room for {} is held", now.used));
        }
        if let Some(inner) = &self.inner {
            let nested = under_ceiling(state).filter(|(_, i)| state.backends[i.backend].nested);
            let (held, used): (u64, u64) =
                (nested.map(|(_, i)| i.weight).sum(), inner.occupancy().used);
            if held > used {
                wrong.push(format!(
                    "C5: {held} live, room for {used} is held under the second"
                ));
            }
        }
        let waiting = state.asks.values().filter(|ask| !ask.made).count();
        if waiting != now.waiting {
            wrong.push(format!(
                "C8: {waiting} wait for room, {} in line",
                now.waiting
            ));
        }
        // What nobody lives in, nobody holds, but for the successor of what crashed.
        let kept = state
            .backends
            .iter()
            // (It may have been pinned when it crashed.)
            .any(|it| it.kept && (it.pinned || it.pinned_in > 0 || !it.evictable));
        if held < now.used && !kept && state.asks.is_empty() {
            let left_over = under_ceiling(state).any(|(_, i)| i.is_left_over());
            if !left_over {
                wrong.push(format!("C5: {held} live, room for {} is held", now.used));
            }
        }
    }

    /// No starter waits while room could be made, nor past its time, nor behind one who came later.
    fn check_line(&self, wrong: &mut Vec<String>) {
        let Some(ceiling) = &self.ceiling else { return };
        let now = ceiling.occupancy();
        let at = self.world.now();
        let state = &*self.world.lock();
        let goes_first = |backend: usize| {
            let it = &state.backends[backend];
            it.kept && (it.pinned || it.layer_pins || !it.evictable)
        };
        let waiting: Vec<_> = state.asks.iter().filter(|(_, ask)| !ask.made).collect();
        for (ask, it) in &waiting {
            let wait = state.backends[it.backend].wait;
            if at - it.since >= wait {
                wrong.push(format!("W2: ask {ask} waits past its {wait:?}"));
            }
            for granted in &state.granted {
                let before = state.asks.get(granted).map(|ask| ask.backend);
                let first = before.is_none_or(goes_first);
                if *granted > **ask && !first {
                    wrong.push(format!("C7: ask {granted} went before ask {ask}"));
                }
            }
        }
        let firsts = waiting.iter().filter(|(_, ask)| goes_first(ask.backend));
        let heads: Vec<_> = waiting.first().into_iter().chain(firsts.take(1)).collect();
        if heads.is_empty() {
            return;
        }
        let idle: u64 = if self.plan.uniform {
            let idle = under_ceiling(state).filter(|(id, inst)| self.could_go(state, *id, inst));
            idle.count() as u64
        } else {
            0
        };
        let leaving = now.stopping as u64;
        let helps = |weight: u64| {
            let fits = now.used + weight <= now.limit;
            let staying = now.used.saturating_sub(leaving);
            let made = staying + weight > now.limit && staying + weight <= now.limit + idle;
            fits || (self.plan.uniform && made)
        };
        if heads.iter().all(|(_, ask)| helps(ask.weight)) {
            let heads: Vec<_> = heads.iter().map(|(ask, _)| ask).collect();
            wrong.push(format!("W1: {heads:?} wait, {idle} are idle, {now:?}"));
        }
    }

    /// Whether an instance could make room: idle for everybody to see.
    fn could_go(&self, state: &State, id: usize, inst: &Inst) -> bool {
        let it = &state.backends[inst.backend];
        let at = self.world.now();
        it.evictable
            && !it.pinned
            && inst.phase == Phase::Ready
            && !inst.stop_called
            && !inst.died
            && inst.in_flight == 0
            && at >= inst.ready_at + it.residency
            && it.reloads == 0
            && !it.abandoned
            && !self.has_anything(inst.backend)
            && state
                .instances
                .iter()
                .skip(id + 1)
                .all(|other| other.backend != inst.backend)
    }

    fn check_states(&mut self, statuses: &[Status], wrong: &mut Vec<String>) {
        let state = &mut *self.world.lock();
        let (mut news, mut at_a_start) = (Vec::new(), BTreeSet::new());
        let waiting_for_room = self.ceiling.as_ref().map_or(0, |it| it.occupancy().waiting);
        for status in statuses {
            let name = &*status.name;
            let Some(backend) = state.backends.iter().position(|it| it.name == name) else {
                wrong.push(format!("{name} is nobody's"));
                continue;
            };
            let it = &state.backends[backend];
            let held_by_somebody = it.drops && self.has_anything(backend);
            let own = || {
                let all = state.instances.iter().enumerate();
                all.filter(|(_, i)| i.backend == backend && i.phase != Phase::Gone)
                    .filter(|(_, i)| !(i.is_left_over() || held_by_somebody))
            };
            let asks = state.asks.values().any(|ask| ask.backend == backend);
            let starting = own().any(|(_, i)| i.phase == Phase::Starting);
            let fine = match status.state {
                Stands::Starting => asks || starting,
                Stands::Running => {
                    it.drops || own().any(|(_, i)| i.phase == Phase::Ready && !i.stop_called)
                }
                Stands::Stopping => it.drops || own().any(|(_, i)| i.phase != Phase::Starting),
                _ => own().next().is_none() && !asks,
            };
            if !fine {
                let own: Vec<_> = own().map(|(id, i)| (id, i.phase)).collect();
                wrong.push(format!(
                    "S2: {name} is {:?}, and there is {own:?}",
                    status.state
                ));
            }
            let awaited = matches!(status.state, Stands::Starting | Stands::Stopping);
            if status.waiting > 0 && !awaited {
                let waiting = status.waiting;
                wrong.push(format!(
                    "{waiting} wait for {name}, which is {:?}",
                    status.state
                ));
            }
            if status.state == Stands::Starting {
                let waiting = state.pending.iter().filter(|(_, to)| **to == backend);
                at_a_start.extend(waiting.map(|(call, _)| *call));
            }
            // While nobody waits for room nobody yields, and a call reaches what runs at once.
            let mut alive = state.instances.iter().filter(|i| i.backend == backend);
            let slow = alive.any(|i| i.phase != Phase::Gone && i.plan.slow_ready.is_some());
            let yields = waiting_for_room > 0 || it.nested;
            if status.state == Stands::Running && !slow && !yields {
                let mut pending = state.pending.iter().filter(|(_, to)| **to == backend);
                if let Some((call, _)) = pending.next() {
                    wrong.push(format!("call {call} waits for {name}, which runs"));
                }
            }
            let free = !self.has_anything(backend);
            if free && status.waiting > 0 {
                wrong.push(format!(
                    "L5: {} places at {name} are nobody's",
                    status.waiting
                ));
            }
            if free && it.reloads == 0 && status.state == Stands::Running {
                if let Some(uses @ 1..) = status.in_flight {
                    wrong.push(format!("L5: {uses} uses of {name} are nobody's"));
                }
            }
            // Every stop has a reason, and an eviction is none of those that anybody ordered.
            let (base, last) = self.evictions.entry(backend).or_default();
            if status.evictions < *last {
                *base += *last;
                *last = 0;
            }
            let new = status.evictions - *last;
            *last = status.evictions;
            let evicted = *base + *last;
            if new > 0 {
                news.push((backend, new, status.last_eviction));
            }
            let restarts = self.restarts.entry(backend).or_default();
            if status.restarts > *restarts {
                *state.counts.entry("restarted").or_default() += status.restarts - *restarts;
                if it.reloads > 0 {
                    *state
                        .counts
                        .entry("restarted with a reload in hand")
                        .or_default() += 1;
                }
            }
            *restarts = status.restarts;
            let all = state.instances.iter().filter(|i| i.backend == backend);
            let unexplained = all
                .filter(|i| i.stop_called && !i.died && i.plan.lease_panics.is_none())
                .filter(|i| !it.downs.iter().any(|(at, _)| *at > i.begun))
                .count() as u64;
            if unexplained > evicted && !it.abandoned && !it.keyed {
                wrong.push(format!(
                    "{name}: {unexplained} stops for {evicted} evictions"
                ));
            }
            let never = !it.evictable || (it.pinned && it.pinned_in == 0);
            if never && evicted > 0 {
                wrong.push(format!(
                    "C4/E7: {name} was evicted: {:?}",
                    status.last_eviction
                ));
            }
        }
        state.at_a_start = at_a_start;
        for (backend, new, why) in news {
            let what = match why {
                Some(Eviction::Idle) => "evicted for age",
                Some(Eviction::Room) => "evicted for room",
                Some(Eviction::Yield) => "evicted when it had yielded",
                Some(Eviction::Over) => "evicted to get back under the limit",
                _ => "evicted",
            };
            *state.counts.entry(what).or_default() += new;
            let name = &state.backends[backend].name;
            let nested = state.backends[backend].nested;
            if state.unlimited && why != Some(Eviction::Idle) && !nested {
                wrong.push(format!("C3: {name} was {what} and there is no limit"));
            }
            if why == Some(Eviction::Room) && new == 1 && self.plan.uniform && !nested {
                wrong.extend(self.colder_ones(state, backend));
            }
        }
    }

    /// Those that were colder than the one that was evicted, and stayed.
    fn colder_ones(&self, state: &State, backend: usize) -> Option<String> {
        let all = state.instances.iter().enumerate();
        let mut own = all.filter(|(_, i)| i.backend == backend && i.changed_in == state.step);
        let (victim, inst) = own.find(|(id, _)| self.idle.contains_key(id))?;
        let mut others = self.idle.iter().filter(|(id, since)| {
            let other = &state.instances[**id];
            **id != victim
                && **since < inst.ended
                && state.backends[other.backend].touched == **since
                && self.could_go(state, **id, other)
        });
        let (other, since) = others.next()?;
        let name = &state.backends[backend].name;
        Some(format!(
            "E5: {name}#{victim} went, used until {:?}, and #{other} not since {since:?} stayed",
            inst.ended
        ))
    }

    /// Who could go now, for the next look.
    fn note_idle(&mut self) {
        let idle = {
            let state = &*self.world.lock();
            under_ceiling(state)
                .filter(|(id, inst)| self.could_go(state, *id, inst))
                .map(|(id, inst)| (id, state.backends[inst.backend].touched))
                .collect()
        };
        self.idle = idle;
        if let Some(tenants) = &self.tenants {
            let keys = tenants.keys();
            if keys < self.keys {
                self.world.count("a key was forgotten");
            }
            self.keys = keys;
        }
    }

    /// What is due for age has gone.
    fn check_idle(&self, wrong: &mut Vec<String>) {
        let at = self.world.now();
        let state = &*self.world.lock();
        if !state.sweeps {
            return;
        }
        for (id, inst) in state.instances.iter().enumerate() {
            let it = &state.backends[inst.backend];
            let Some(bound) = it.bound.filter(|_| !it.pinned) else {
                continue;
            };
            let idle = inst.phase == Phase::Ready && inst.in_flight == 0 && !inst.stop_called;
            if !idle || it.reloads > 0 || self.has_anything(inst.backend) || inst.is_left_over() {
                continue;
            }
            let since = inst.ready_at.max(inst.ended).max(it.touched);
            if at > since + bound + SLACK {
                wrong.push(format!(
                    "{}#{id} is idle since {since:?}, bound {bound:?}",
                    it.name
                ));
            }
        }
    }
}

fn under_ceiling(state: &State) -> impl Iterator<Item = (usize, &Inst)> + Clone {
    let all = state.instances.iter().enumerate();
    all.filter(|(_, i)| i.phase != Phase::Gone && state.backends[i.backend].under_ceiling)
}
