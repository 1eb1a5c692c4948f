//! What callers and operators do, at random.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tower_on_demand::{Error, ErrorKind, Handle, State, test_util::Counts};

use crate::{
    fake::{Request, Spec},
    fleet::{Called, call_key},
    sim::{Going, How, Sim, left_after},
    support::BoxFuture,
    world::{Phase, World},
};

/// An order, and what is expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Start,
    StartEvicting,
    Stop,
    Reload,
    InPlace,
    Unload,
}

impl Sim {
    pub(crate) fn act(&mut self) {
        self.forget_done();
        let backend = self.some_backend();
        match self.rng.below(100) {
            0..=34 => self.calls(backend),
            35..=40 => {
                for _ in 0..self.rng.range(2, 8) {
                    let backend = self.some_backend();
                    self.calls(backend);
                }
            }
            41..=48 if !self.going.is_empty() => {
                let index = self.rng.index(self.going.len());
                self.world.tell(|| "a caller leaves".to_owned());
                self.drop_going(index);
            }
            49..=54 if !self.going.is_empty() => {
                for _ in 0..self.rng.range(1, 4) {
                    if !self.going.is_empty() {
                        let index = self.rng.index(self.going.len());
                        self.poll_going(index);
                    }
                }
            }
            55..=58 => self.kill(),
            59..=62 => self.lend(backend),
            63..=65 if !self.kept.is_empty() => {
                let index = self.rng.index(self.kept.len());
                let (backend, _, task) = self.kept.swap_remove(index);
                self.world.touch_backend(backend);
                self.world.tell(|| "what was lent is given back".to_owned());
                let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            }
            66..=68 => self.order(backend, Order::Start),
            69..=70 => self.order(backend, Order::StartEvicting),
            71..=74 => self.order(backend, Order::Stop),
            75..=80 => self.order(backend, Order::Reload),
            81..=83 => self.order(backend, Order::InPlace),
            84..=85 => self.order(backend, Order::Unload),
            86..=88 => self.load_all(),
            89 => self.reset(backend),
            90 => self.keep_running(backend),
            91..=92 => self.set_limit(),
            93 => self.set_idle_after(backend),
            94 if !self.orders.is_empty() => {
                let index = self.rng.index(self.orders.len());
                let (backend, task) = self.orders.swap_remove(index);
                self.world
                    .tell(|| "an order's future is dropped".to_owned());
                self.world.touch_backend(backend);
                drop(task);
            }
            95 => self.watch(backend),
            96 if self.rng.percent(30) => self.abandon(backend),
            97 if self.rng.percent(10) => self.close(),
            98 if self.rng.percent(8) => self.lose_executor(),
            _ => self.calls(backend),
        }
    }

    /// A few are asked for most of the time.
    fn some_backend(&mut self) -> usize {
        let all = self.plan.backends + self.plan.keys;
        let below = if self.rng.percent(60) {
            all.min(4)
        } else {
            all
        };
        let backend = self.rng.index(below);
        if self.rng.percent(50) {
            backend
        } else {
            all - 1 - backend
        }
    }

    // ===== calls =====

    fn request(&mut self, backend: usize) -> Request {
        let hostility = self.plan.hostility;
        let evictable = self.world.lock().backends[backend].evictable;
        let rng = &mut self.rng;
        let mut request = Request {
            key: backend.checked_sub(self.plan.backends),
            takes: if rng.percent(30) {
                Duration::ZERO
            } else {
                rng.short()
            },
            never: rng.rarely(800 * hostility),
            fails: rng.percent(3),
            call_panics: rng.rarely(600 * hostility),
            poll_panics: rng.rarely(600 * hostility),
            drop_panics: rng.rarely(1_500 * hostility),
            body: (evictable && rng.percent(25)).then(|| rng.short()),
            not_use: evictable && rng.percent(10),
            only_if_running: rng.percent(6),
            id: 0,
        };
        if rng.percent(2) {
            request.takes = rng.any();
        }
        request
    }

    pub(crate) fn call_of(&self, backend: usize, request: Request) -> Option<(Called, Counts)> {
        match (self.nodes.get(backend), &self.tenants) {
            (Some(node), _) => Some((node.door.as_ref()?.call)(request)),
            (None, Some(tenants)) => Some(call_key(tenants, request)),
            (None, None) => None,
        }
    }

    fn calls(&mut self, backend: usize) {
        let mut request = self.request(backend);
        request.id = self.world.seq();
        let world = self.world.clone();
        world.touch_backend(backend);
        world.tell(|| {
            let name = world.name(backend);
            format!("call {} to {name}: {}", request.id, told(&request))
        });
        let (begun, wanted) = (request.id, request.clone());
        let met = (world.running(backend), world.now());
        let made = catch_unwind(AssertUnwindSafe(|| self.call_of(backend, wanted)));
        let Ok(Some((future, counts))) = made else {
            return;
        };
        let serve: BoxFuture<()> =
            Box::pin(serve(world, backend, begun, request, met, future, counts));
        let how = match self.rng.below(20) {
            0..=2 => How::Hand(serve),
            3..=5 => {
                let polls = self.rng.below(8);
                How::Task(self.clock.spawn(left_after(polls, serve)))
            }
            _ => How::Task(self.clock.spawn(serve)),
        };
        self.going.push(Going { backend, how });
        if self.rng.percent(30) {
            self.poll_going(self.going.len() - 1);
        }
    }

    fn lend(&mut self, backend: usize) {
        let Some(door) = self.nodes.get(backend).and_then(|it| it.door.as_ref()) else {
            return;
        };
        let (world, call) = (self.world.clone(), self.world.seq());
        world.touch_backend(backend);
        world.tell(|| format!("{} is to be lent ({call})", world.name(backend)));
        let lending = (door.lend)(call);
        let lent = Arc::new(AtomicBool::new(false));
        let task = self.clock.spawn({
            let lent = lent.clone();
            async move {
                match lending.await {
                    Ok(kept) => {
                        world.count("lent");
                        lent.store(true, Ordering::Relaxed);
                        Some(kept)
                    }
                    Err(error) => {
                        world.failed_call(backend, call, &Request::default(), &error);
                        None
                    }
                }
            }
        });
        self.kept.push((backend, lent, task));
    }

    fn kill(&mut self) {
        let living: Vec<_> = {
            let mut state = self.world.lock();
            state.living.retain(|_, weak| weak.strong_count() > 0);
            state.living.values().cloned().collect()
        };
        if living.is_empty() {
            return;
        }
        let Some(shared) = living[self.rng.index(living.len())].upgrade() else {
            return;
        };
        let (id, reloading) = {
            let state = self.world.lock();
            let inst = &state.instances[shared.id];
            let it = &state.backends[inst.backend];
            if it.drops || inst.phase != Phase::Ready {
                return;
            }
            (shared.id, it.reloads > 0)
        };
        self.world.tell(|| format!("#{id} is killed"));
        self.world.count("killed");
        if reloading {
            self.world.count("death during a reload");
        }
        shared.kill();
    }

    // ===== orders =====

    fn handle(&self, backend: usize) -> Option<Handle<Spec>> {
        Some(self.nodes.get(backend)?.door.as_ref()?.handle.clone())
    }

    fn any_handle(&self, backend: usize) -> Option<Handle> {
        match (self.handle(backend), &self.tenants) {
            (Some(handle), _) => Some(handle.erase()),
            (None, Some(tenants)) => tenants
                .handle(backend.checked_sub(self.plan.backends)?)
                .ok(),
            (None, None) => None,
        }
    }

    fn order(&mut self, backend: usize, order: Order) {
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

    fn load_all(&mut self) {
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

    fn reset(&mut self, backend: usize) {
        if let Some(handle) = self.any_handle(backend) {
            self.world
                .tell(|| format!("reset of {}", self.world.name(backend)));
            handle.reset();
        }
    }

    fn keep_running(&mut self, backend: usize) {
        let Some(handle) = self.any_handle(backend) else {
            return;
        };
        let keep = self.rng.percent(60);
        let name = self.world.name(backend);
        self.world.tell(|| format!("{name} keeps running: {keep}"));
        self.world.lock().backends[backend].kept |= keep;
        handle.keep_running(keep);
    }

    fn set_idle_after(&mut self, backend: usize) {
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

    fn set_limit(&mut self) {
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

    fn watch(&mut self, backend: usize) {
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

    fn abandon(&mut self, backend: usize) {
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

    fn close(&mut self) {
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

fn told(request: &Request) -> String {
    let all = format!("{request:?}");
    let fields = all.trim_start_matches("Request { ").trim_end_matches(" }");
    let telling = fields
        .split(", ")
        .filter(|it| !it.ends_with("false") && !it.ends_with("None"));
    telling.collect::<Vec<_>>().join(", ")
}

/// A caller: awaits the answer, uses it as long as it wants, and looks at what it got.
async fn serve(
    world: Arc<World>,
    backend: usize,
    call: u64,
    request: Request,
    met: (Option<usize>, Duration),
    future: Called,
    counts: Counts,
) {
    let result = future.await;
    world.touch_backend(backend);
    match result {
        Ok(mut reply) => {
            world.tell(|| format!("call {call} is answered by #{}", reply.answer.by));
            world.answered(backend, call, &request, reply.answer.by, met, &counts);
            if let Some(body) = request.body {
                let mut sleep = world.runtime.sleep(body);
                std::future::poll_fn(|cx| {
                    if sleep.as_mut().poll(cx).is_ready() {
                        return std::task::Poll::Ready(());
                    }
                    match &mut reply.busy {
                        Some(busy) => busy.poll_cut(cx),
                        None => std::task::Poll::Pending,
                    }
                })
                .await;
            }
            // The use ends after what is used.
            drop(reply.answer.in_flight.take());
            drop(reply);
            world.touch_backend(backend);
        }
        Err(error) => {
            world.tell(|| format!("call {call} fails: {error:#}"));
            world.failed_call(backend, call, &request, &error);
        }
    }
}

/// Whether an error is one of a start that failed on its own account.
pub(crate) fn start_failed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::StartFailed | ErrorKind::Panicked)
}
