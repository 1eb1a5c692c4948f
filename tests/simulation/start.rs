//! Starts: makers that fail, panic and take their time, and who asks for room.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Mutex},
    task::{Context, Poll},
    thread::panicking,
};

use tower_on_demand::{BoxError, DropToStop, Target, test_util::Counted};
use tower_service::Service;

use crate::{
    fake::{Caller, Fake, Shared},
    plan::Plan,
    rng::Rng,
    support::BoxFuture,
    world::{World, asking},
};

/// What is started.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) backend: usize,
    pub(crate) name: Arc<str>,
    pub(crate) weight: u64,
    pub(crate) version: u32,
}

impl Target for Spec {
    fn name(&self) -> &str {
        &self.name
    }
}

pub(crate) fn weight_of(spec: &Spec) -> u64 {
    spec.weight
}

/// Makes [`Fake`]s.
#[derive(Clone)]
pub(crate) struct Maker(pub(crate) Arc<World>);

/// Makes services that go when they are dropped.
#[derive(Clone)]
pub(crate) struct DropMaker(pub(crate) Maker);

/// A start that is not ready yet.
struct Start {
    world: Arc<World>,
    id: usize,
    plan: Plan,
    done: bool,
}

impl Drop for Start {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        self.world.gone(self.id);
        self.world.count("a start was left");
        if self.plan.drop_panics && !panicking() {
            self.world.count("panic in the drop of a start");
            panic!("the drop of start {} panics", self.id);
        }
    }
}

impl Maker {
    fn poll_made(&self) -> Poll<Result<(), BoxError>> {
        let mut state = self.0.lock();
        let hostility = state.hostility;
        state.seq += 1;
        let mut rng = Rng::fork(self.0.seed, 0x00d1, state.seq);
        drop(state);
        if rng.rarely(200 * hostility) {
            return Poll::Ready(Err("the maker is not ready".into()));
        }
        if rng.rarely(100 * hostility) {
            panic!("the maker's poll_ready panics");
        }
        if rng.rarely(2_000 * hostility) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl Maker {
    fn start(&self, spec: &Spec) -> BoxFuture<Result<Arc<Shared>, BoxError>> {
        let world = self.0.clone();
        let (id, plan) = world.begin(spec.backend, spec.weight, spec.version);
        let start = Start {
            world: world.clone(),
            id,
            plan: plan.clone(),
            done: false,
        };
        if plan.make_panics {
            world.failed(id);
            world.count("panic in make");
            panic!("make of start {id} panics");
        }
        Box::pin(async move {
            let mut start = start;
            let mut fidgets = plan.fidgets;
            poll_fn(|cx| match fidgets {
                0 => Poll::Ready(()),
                _ => {
                    fidgets -= 1;
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await;
            if !plan.start.is_zero() {
                world.runtime.sleep(plan.start).await;
            }
            if plan.never_ready {
                std::future::pending::<()>().await;
            }
            if plan.fails || plan.poll_panics {
                world.failed(id);
                start.done = true;
                world.gone(id);
                if plan.poll_panics {
                    world.count("panic in a start's poll");
                    panic!("poll of start {id} panics");
                }
                return Err(format!("start {id} fails").into());
            }
            world.ready(id);
            start.done = true;
            let shared = Arc::new(Shared {
                world: world.clone(),
                id,
                plan,
                switch: Mutex::default(),
            });
            world.living(&shared);
            Ok(shared)
        })
    }
}

impl Service<Spec> for Maker {
    type Response = Fake;
    type Error = BoxError;
    type Future = BoxFuture<Result<Fake, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let poll = self.poll_made();
        if poll.is_pending() {
            self.0.maker_waits();
            cx.waker().wake_by_ref();
        }
        poll
    }

    fn call(&mut self, spec: Spec) -> Self::Future {
        let start = self.start(&spec);
        Box::pin(async move { start.await.map(|shared| Fake { shared }) })
    }
}

impl Service<Spec> for DropMaker {
    type Response = DropToStop<Caller>;
    type Error = BoxError;
    type Future = BoxFuture<Result<DropToStop<Caller>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, spec: Spec) -> Self::Future {
        let start = self.0.start(&spec);
        Box::pin(async move {
            let shared = start.await?;
            Ok(DropToStop::new(Caller {
                shared,
                lease: 0,
                ready: None,
            }))
        })
    }
}

/// A maker that tells the world who asks for room, and when.
#[derive(Clone)]
pub(crate) struct Asking<M> {
    pub(crate) world: Arc<World>,
    pub(crate) maker: M,
}

struct Asked(Arc<World>, u64);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked_enough(self.1);
    }
}

impl<M> Service<Spec> for Asking<M>
where
    M: Service<Spec>,
    M::Error: Into<BoxError>,
    M::Future: Send + 'static,
{
    type Response = M::Response;
    type Error = BoxError;
    type Future = BoxFuture<Result<M::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.maker.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, spec: Spec) -> Self::Future {
        let ask = self.world.asked(spec.backend, spec.weight);
        let asked = Asked(self.world.clone(), ask);
        let future = Counted::new(asking(ask, || self.maker.call(spec)));
        self.world.counts(ask, future.counts());
        let mut future = Box::pin(future);
        Box::pin(async move {
            let made = poll_fn(|cx| asking(ask, || future.as_mut().poll(cx))).await;
            // What the start still has goes first.
            drop(future);
            let world = asked.0.clone();
            made.map_err(|error| {
                let error = error.into();
                world.refused(ask, &error);
                drop(asked);
                error
            })
        })
    }
}

/// A maker between two ceilings: who gets here has room under the first.
#[derive(Clone)]
pub(crate) struct Granted<M> {
    pub(crate) world: Arc<World>,
    pub(crate) maker: M,
}

impl<M: Service<Spec>> Service<Spec> for Granted<M> {
    type Response = M::Response;
    type Error = M::Error;
    type Future = M::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), M::Error>> {
        self.maker.poll_ready(cx)
    }

    fn call(&mut self, spec: Spec) -> M::Future {
        self.world.granted();
        self.maker.call(spec)
    }
}
