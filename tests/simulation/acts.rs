//! What callers and operators do, at random.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tower::{Service, ServiceExt};
use tower_on_demand::{Error, ErrorKind, test_util::Counts};

use crate::{
    fake::Request,
    fleet::{Called, call_key},
    orders::Order,
    sim::{Going, How, Sim, left_after},
    support::BoxFuture,
    world::{Phase, World},
};

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
        let all = self.plan.backends + self.plan.keys + usize::from(self.pool.is_some());
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
        if backend == self.plan.backends + self.plan.keys {
            return self.session(backend);
        }
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
        let pending = Pending(world.clone(), begun);
        let serve: BoxFuture<()> =
            Box::pin(serve(world, backend, request, pending, met, future, counts));
        let how = match self.rng.below(20) {
            0..=2 => How::Hand(serve),
            3..=5 => {
                let polls = self.rng.below(8);
                How::Task(self.clock.spawn(left_after(polls, serve)))
            }
            _ => How::Task(self.clock.spawn(serve)),
        };
        let mut state = self.world.lock();
        if matches!(how, How::Task(_)) && !state.delivered.contains_key(&begun) {
            state.pending.insert(begun, backend);
        }
        drop(state);
        self.going.push(Going { backend, how });
        if self.rng.percent(30) {
            self.poll_going(self.going.len() - 1);
        }
    }

    /// Somebody makes an instance of his own, uses it now and then, and lets go of it.
    fn session(&mut self, backend: usize) {
        let Some(pool) = &self.pool else { return };
        let world = self.world.clone();
        world.tell(|| "a pool makes one".to_owned());
        let making = pool();
        let requests: Vec<_> = (0..self.rng.below(4))
            .map(|_| {
                let mut request = self.request(backend);
                request.id = world.seq();
                (self.rng.short(), request)
            })
            .collect();
        let session: BoxFuture<()> = Box::pin(async move {
            let Ok(mut kept) = making.await else { return };
            for (pause, request) in requests {
                world.runtime.sleep(pause).await;
                let call = request.id;
                let result = match kept.ready().await {
                    Ok(ready) => ready.call(request.clone()).await,
                    Err(error) => Err(error),
                };
                match result {
                    Ok(reply) => drop(reply),
                    Err(error) => world.failed_call(backend, call, &request, &error),
                }
                world.count("a pooled instance was used");
            }
        });
        let how = if self.rng.percent(20) {
            let polls = self.rng.below(10);
            How::Task(self.clock.spawn(left_after(polls, session)))
        } else {
            How::Task(self.clock.spawn(session))
        };
        self.going.push(Going { backend, how });
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
}

fn told(request: &Request) -> String {
    let all = format!("{request:?}");
    let fields = all.trim_start_matches("Request { ").trim_end_matches(" }");
    let telling = fields
        .split(", ")
        .filter(|it| !it.ends_with("false") && !it.ends_with("None"));
    telling.collect::<Vec<_>>().join(", ")
}

/// A call that is not answered yet.
struct Pending(Arc<World>, u64);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.lock().pending.remove(&self.1);
    }
}

/// A caller: awaits the answer, uses it as long as it wants, and looks at what it got.
async fn serve(
    world: Arc<World>,
    backend: usize,
    request: Request,
    _pending: Pending,
    met: (Option<usize>, Duration),
    future: Called,
    counts: Counts,
) {
    let call = request.id;
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
