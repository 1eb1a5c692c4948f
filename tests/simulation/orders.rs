//! What operators do.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use tower_on_demand::{Handle, State};

use crate::{sim::Sim, start::Spec, world::World};

/// An order, and what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Start,
    StartEvicting,
    Stop,
    Reload,
    InPlace,
    Unload,
}

impl Sim {
    fn handle(&self, backend: usize) -> Option<Handle<Spec>> {
        Some(self.nodes.get(backend)?.door.as_ref()?.handle.clone())
    }

    fn any_handle(&self, backend: usize) -> Option<Handle> {
        match (self.handle(backend), &self.tenants) {
            (Some(handle), _) => Some(handle.erase()),
            (None, Some(tenants)) => {
                let key = backend.checked_sub(self.plan.backends)?;
                if key >= self.plan.keys {
                    return None;
                }
                tenants.handle(key).ok()
            }
            (None, None) => None,
        }
    }

    pub(crate) fn order(&mut self, backend: usize, order: Order) {
        let Some(handle) = self.any_handle(backend) else {
            return;
        };
        let world = self.world.clone();
        world.touch_backend(backend);
        let seq = world.seq();
        let new = self.new_target(backend, order);
        world.tell(|| {
            format!(
                "{order:?} of {} ({seq}), target {new:?}",
                world.name(backend)
            )
        });
        {
            let now = world.now();
            let state = &mut *world.lock();
            let it = &mut state.backends[backend];
            if matches!(order, Order::Stop | Order::InPlace | Order::Unload) {
                it.downs.push((seq, now.saturating_add(it.drain)));
            }
            if order == Order::Reload {
                it.reloads += 1;
            }
            it.unload_ordered |= order == Order::Unload;
        }
        let version = new.as_ref().map(|spec| spec.version);
        let typed = self.handle(backend);
        let before = world.running(backend);
        // A start may borrow what runs, which is user code.
        let given = catch_unwind(AssertUnwindSafe(|| match (order, typed) {
            (Order::Start, _) => handle.start(),
            (Order::StartEvicting, _) => handle.start_evicting(),
            (Order::Stop, _) => handle.stop(),
            (Order::Unload, _) => handle.unload(),
            (Order::Reload, Some(typed)) => typed.reload(new),
            (Order::Reload, None) => handle.reload(None),
            (Order::InPlace, Some(typed)) => typed.reload_in_place(new),
            (Order::InPlace, None) => handle.reload_in_place(None),
        }));
        let Ok(future) = given else { return };
        drop(handle);
        let task = self.clock.spawn(async move {
            let result = future.await;
            world.ordered(backend, order.name(), version, seq, before, &result);
        });
        if self.rng.percent(10) {
            world_forgets(&self.world, backend, order);
            self.world
                .tell(|| format!("and nobody waits for order {seq}"));
            drop(task);
        } else {
            self.orders.push((backend, task));
        }
    }

    fn new_target(&mut self, backend: usize, order: Order) -> Option<Spec> {
        let reloads = matches!(order, Order::Reload | Order::InPlace);
        if !reloads || self.rng.percent(30) {
            return None;
        }
        let uniform = self.plan.uniform;
        let node = self.nodes.get_mut(backend)?;
        node.spec.version += 1;
        if !uniform {
            node.spec.weight = self.rng.range(0, 4);
        }
        Some(node.spec.clone())
    }

    pub(crate) fn load_all(&mut self) {
        for backend in 0..self.plan.backends + self.plan.keys {
            let ordered = {
                let mut state = self.world.lock();
                let it = &mut state.backends[backend];
                it.unloaded = false;
                std::mem::take(&mut it.unload_ordered)
            };
            if ordered {
                if let Some(handle) = self.any_handle(backend) {
                    self.world
                        .tell(|| format!("load of {}", self.world.name(backend)));
                    handle.load();
                }
            }
        }
    }

    pub(crate) fn reset(&mut self, backend: usize) {
        if let Some(handle) = self.any_handle(backend) {
            self.world
                .tell(|| format!("reset of {}", self.world.name(backend)));
            handle.reset();
        }
    }

    pub(crate) fn keep_running(&mut self, backend: usize) {
        let Some(handle) = self.any_handle(backend) else {
            return;
        };
        let keep = self.rng.percent(60);
        let name = self.world.name(backend);
        self.world.tell(|| format!("{name} keeps running: {keep}"));
        self.world.lock().backends[backend].kept |= keep;
        handle.keep_running(keep);
    }

    pub(crate) fn set_idle_after(&mut self, backend: usize) {
        let Some(handle) = self.any_handle(backend) else {
            return;
        };
        let bound = match self.rng.below(5) {
            0 => None,
            1 => Some(Duration::ZERO),
            _ => Some(self.rng.any()),
        };
        let name = self.world.name(backend);
        self.world.tell(|| format!("{name}: idle_after {bound:?}"));
        {
            let now = self.world.now();
            let mut state = self.world.lock();
            let step = state.step;
            let it = &mut state.backends[backend];
            it.touched = now;
            it.bound = bound.filter(|_| it.evictable);
            it.pinned = it.evictable && (it.always_pinned || bound == Some(Duration::ZERO));
            it.pinned_in = step;
        }
        handle.set_idle_after(bound);
    }

    pub(crate) fn set_limit(&mut self) {
        let Some(ceiling) = &self.ceiling else { return };
        let all = (self.plan.backends + self.plan.keys) as u64;
        self.world.lock().unlimited = false;
        let limit = match self.rng.below(16) {
            0 => 0,
            1 => u64::MAX,
            _ => self.rng.range(1, all.min(6)),
        };
        let before = ceiling.occupancy();
        {
            let mut state = self.world.lock();
            if limit < before.limit {
                state.limit_lowered = true;
            }
        }
        if limit < before.used {
            self.world.count("limit set below what is used");
        }
        self.world.tell(|| format!("limit {limit}"));
        ceiling.set_limit(limit);
    }

    pub(crate) fn watch(&mut self, backend: usize) {
        let Some(handle) = self.any_handle(backend) else {
            return;
        };
        let states = [
            State::Running,
            State::Stopped,
            State::Stopping,
            State::BackingOff,
        ];
        let until = handle.until(self.rng.pick(&states));
        drop(handle);
        let world = self.world.clone();
        let task = self.clock.spawn(async move {
            until.await;
            world.count("a state was awaited");
        });
        self.orders.push((backend, task));
    }

    pub(crate) fn abandon(&mut self, backend: usize) {
        let Some(node) = self.nodes.get_mut(backend) else {
            return;
        };
        if let Some(door) = node.door.take() {
            let name = self.world.name(backend);
            self.world
                .tell(|| format!("{name} is abandoned: its last handle is dropped"));
            self.world.lock().backends[backend].abandoned = true;
            self.world.count("abandoned");
            drop(door);
        }
    }

    pub(crate) fn close(&mut self) {
        self.world.tell(|| "the group is closed".to_owned());
        self.world.closed(None);
        self.closed = true;
        self.group.close();
    }

    pub(crate) fn lose_executor(&mut self) {
        self.world.tell(|| "the executor goes away".to_owned());
        self.world.count("executor gone");
        self.executor_gone = true;
        {
            let mut state = self.world.lock();
            (state.executor_gone, state.closing, state.sweeps) = (true, true, false);
        }
        self.clock.shutdown();
    }
}

fn world_forgets(world: &World, backend: usize, order: Order) {
    world.count("an order's future was dropped");
    if order == Order::Reload {
        // Nobody will hear when it is over.
        world.lock().backends[backend].deaf = true;
    }
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::Start => "start",
            Order::StartEvicting => "start_evicting",
            Order::Stop => "stop",
            Order::Reload => "reload",
            Order::InPlace => "reload in place",
            Order::Unload => "unload",
        }
    }
}
