//! The end of it all: everything is brought down, and nothing is left.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tower_on_demand::ErrorKind;

use crate::{
    fake::Request,
    sim::{HOUR, Sim},
    support::secs,
    world::{Inst, Phase},
};

impl Sim {
    /// All is brought down, and nothing is left.
    pub(crate) fn end(&mut self) {
        self.clock.run();
        self.check();
        if !self.executor_gone && self.rng.percent(70) {
            self.shut_down();
        } else if self.rng.percent(20) && !self.executor_gone {
            self.lose_executor();
        }
        if !self.world.lock().violations.is_empty() {
            return;
        }
        self.world.tell(|| "everybody leaves".to_owned());
        while !self.going.is_empty() {
            self.drop_going(0);
        }
        for (_, _, task) in std::mem::take(&mut self.kept) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
        }
        self.clock.run();
        self.orders.clear();
        for node in &mut self.nodes {
            let _ = catch_unwind(AssertUnwindSafe(|| node.door = None));
        }
        self.tenants = None;
        self.pool = None;
        self.shared = None;
        {
            let mut state = self.world.lock();
            for it in &mut state.backends {
                it.abandoned = true;
            }
        }
        // No bound of a stop is longer, and no start goes on that nobody can use.
        self.clock.advance(HOUR);
        let ceiling = self.ceiling.take();
        self.world.set_ceiling(None);
        let mut wrong = Vec::new();
        if let Some(now) = ceiling.as_ref().map(|ceiling| ceiling.occupancy()) {
            if now.used > 0 || now.waiting > 0 {
                wrong.push(format!("L5: room is held or waited for: {now:?}"));
            }
        }
        drop(ceiling);
        if let Some(now) = self.inner.take().map(|ceiling| ceiling.occupancy()) {
            if now.used > 0 || now.waiting > 0 {
                wrong.push(format!(
                    "L5: room is held or waited for under the second: {now:?}"
                ));
            }
        }
        self.clock.run();
        let state = &mut *self.world.lock();
        let alive = state.instances.iter().enumerate();
        let alive: Vec<_> = alive.filter(|(_, i)| i.phase != Phase::Gone).collect();
        if !alive.is_empty() {
            let alive: Vec<_> = alive.iter().map(|(id, i)| (*id, i.phase)).collect();
            wrong.push(format!("L5: alive: {alive:?}"));
        }
        let flying: u32 = state.instances.iter().map(|i| i.in_flight).sum();
        if flying > 0 {
            wrong.push(format!("L5: {flying} in flight"));
        }
        let (tasks, timers) = (self.clock.tasks(), self.clock.timers());
        if (tasks, timers) != (0, 0) {
            wrong.push(format!("L5: {tasks} tasks and {timers} timers are left"));
        }
        if !state.asks.is_empty() {
            wrong.push(format!("L5: {:?} ask for room", state.asks));
        }
        state.violations.extend(wrong);
    }

    fn shut_down(&mut self) {
        let drain = self.rng.short();
        self.world
            .tell(|| format!("shut down, {drain:?} for calls in flight"));
        self.world.closed(Some(drain));
        self.closed = true;
        let group = self.group.clone();
        // At most two of a backend are stopped, one after the other.
        let within = drain + 2 * secs(60) + secs(1);
        let begun = self.world.now();
        if self.finish(within, group.stopped(drain)).is_none() {
            let took = self.world.now() - begun;
            self.world
                .violation(format!("L3: not shut down after {took:?} of {within:?}"));
            return;
        }
        let left: Vec<_> = {
            let mut state = self.world.lock();
            state.no_more_starts = true;
            let of = |i: &Inst| state.backends[i.backend].drops && self.has_anything(i.backend);
            let alive = state.instances.iter().enumerate();
            alive
                .filter(|(_, i)| i.phase != Phase::Gone && !i.is_left_over() && !of(i))
                .filter(|(_, i)| !state.backends[i.backend].pool)
                .map(|(id, i)| (id, i.phase))
                .collect()
        };
        if !left.is_empty() {
            self.world
                .violation(format!("L3: shut down, and there is {left:?}"));
        }
        for backend in 0..self.plan.backends + self.plan.keys {
            self.late_call(backend);
        }
        self.clock.advance(HOUR);
        self.check();
    }

    /// Who comes after the end is told so.
    fn late_call(&mut self, backend: usize) {
        let id = self.world.seq();
        let request = Request {
            id,
            key: backend.checked_sub(self.plan.backends),
            ..Request::default()
        };
        let called = catch_unwind(AssertUnwindSafe(|| self.call_of(backend, request)));
        let Ok(Some((future, _))) = called else {
            return;
        };
        let told = self.finish(secs(1), future);
        let fine = match &told {
            Some(Err(error)) => matches!(
                error.kind(),
                ErrorKind::ShutDown | ErrorKind::TooManyKeys { .. }
            ),
            _ => false,
        };
        if !fine {
            let told = told.map(|told| told.map(|_| ()));
            self.world
                .violation(format!("L3: a late call is told {told:?}"));
        }
    }
}
