//! The fake backends: user code of every kind, and what it tells the world.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    thread::panicking,
    time::Duration,
};

use tower_on_demand::{Backend, Begin, BoxError, Busy, Error, ErrorKind, Hold, Retired, Stopped};
use tower_service::Service;

use crate::{plan::Plan, support::BoxFuture, world::World};

/// A request, and what its call will do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) key: Option<usize>,
    pub(crate) takes: Duration,
    pub(crate) never: bool,
    pub(crate) fails: bool,
    pub(crate) call_panics: bool,
    pub(crate) poll_panics: bool,
    pub(crate) drop_panics: bool,
    /// How long its response is used after that.
    pub(crate) body: Option<Duration>,
    pub(crate) not_use: bool,
    pub(crate) only_if_running: bool,
}

pub(crate) fn is_not_use(request: &Request) -> bool {
    request.not_use
}

pub(crate) fn is_only_if_running(request: &Request) -> bool {
    request.only_if_running
}

pub(crate) fn key_of(request: &Request) -> Option<usize> {
    request.key
}

pub(crate) struct Shared {
    pub(crate) world: Arc<World>,
    pub(crate) id: usize,
    pub(crate) plan: Plan,
    pub(crate) switch: Mutex<(bool, Vec<Waker>)>,
}

impl Shared {
    /// Lets it die by itself.
    pub(crate) fn kill(&self) {
        let wakers = {
            let mut switch = self.switch.lock().unwrap_or_else(PoisonError::into_inner);
            switch.0 = true;
            std::mem::take(&mut switch.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll_killed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut switch = self.switch.lock().unwrap_or_else(PoisonError::into_inner);
        if switch.0 {
            return Poll::Ready(());
        }
        switch.1.retain(|other| !other.will_wake(&waker));
        switch.1.push(waker);
        Poll::Pending
    }
}

/// The last of an instance: the owner's part and all leases are dropped.
impl Drop for Shared {
    fn drop(&mut self) {
        self.world.gone(self.id);
    }
}

/// A started backend.
pub(crate) struct Fake {
    pub(crate) shared: Arc<Shared>,
}

impl Backend for Fake {
    type Lease = Caller;

    fn lease(&self) -> Caller {
        let shared = self.shared.clone();
        let lease = shared.world.leased(shared.id);
        if shared.plan.lease_panics.is_some_and(|n| lease % n == 0) {
            shared.world.count("panic in lease()");
            shared.world.lease_dropped(shared.id);
            panic!("lease {lease} of {} panics", shared.id);
        }
        Caller {
            shared,
            lease,
            ready: None,
        }
    }

    #[allow(
        clippy::manual_async_fn,
        reason = "some panic before there is a future"
    )]
    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        let (shared, plan) = (self.shared.clone(), self.shared.plan.clone());
        if plan.retired_panics && !plan.retired_poll_panics {
            shared.world.died(shared.id);
            shared.world.count("panic in retired()");
            panic!("retired() of {} panics", shared.id);
        }
        // It must not keep the instance.
        let (world, id) = (shared.world.clone(), shared.id);
        let weak = Arc::downgrade(&shared);
        drop(shared);
        async move {
            let mut sleep = plan.lives.map(|lives| world.runtime.sleep(lives));
            poll_fn(|cx| {
                if let Some(sleep) = &mut sleep {
                    if sleep.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(());
                    }
                }
                match weak.upgrade() {
                    Some(shared) => shared.poll_killed(cx),
                    None => Poll::Pending,
                }
            })
            .await;
            world.died(id);
            if plan.retired_panics {
                world.count("panic in retired()");
                panic!("the end of {id} panics");
            }
            let error = Error::new(ErrorKind::Died).because(format!("signal 9 for {id}"));
            if plan.unhealthy {
                Retired::Unhealthy(Some(error))
            } else {
                Retired::Died(Some(error))
            }
        }
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let (world, id) = (self.shared.world.clone(), self.shared.id);
        let plan = self.shared.plan.clone();
        world.stopping(id);
        if plan.stop_panics {
            world.count("panic in stop()");
            panic!("stop() of {id} panics");
        }
        async move {
            if !plan.stop.is_zero() {
                world.runtime.sleep(plan.stop).await;
            }
            if plan.stop_poll_panics {
                world.count("panic in stop()");
                panic!("the stop of {id} panics");
            }
            if plan.never_stops {
                std::future::pending::<()>().await;
            }
            world.stop_over(id);
            if plan.with_the_last_lease {
                return Stopped::WithTheLastLease;
            }
            world.gone(id);
            Stopped::Gone
        }
    }

    fn stop_within(&self) -> Duration {
        Duration::from_secs(60)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let (world, id) = (&self.shared.world, self.shared.id);
        world.fake_dropped(id);
        if self.shared.plan.backend_drop_panics && !panicking() {
            world.count("panic in the drop of a backend");
            panic!("the drop of {id} panics");
        }
    }
}

// ===== its leases and calls =====

/// A lease.
pub(crate) struct Caller {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lease: u32,
    pub(crate) ready: Option<Pin<Box<dyn hyper::rt::Sleep>>>,
}

impl Caller {
    /// Somebody keeps it.
    pub(crate) fn keep(&self, call: u64) -> InFlight {
        InFlight::new(&self.shared, call, true)
    }
}

impl Clone for Caller {
    fn clone(&self) -> Self {
        let lease = self.shared.world.leased(self.shared.id);
        Self {
            shared: self.shared.clone(),
            lease,
            ready: None,
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let panics = self.shared.plan.lease_drop_panics;
        // Number 0 is the service itself.
        if self.lease > 0 {
            self.shared.world.lease_dropped(self.shared.id);
        }
        if panics.is_some_and(|n| self.lease % n == 0) && !panicking() {
            self.shared.world.count("panic in the drop of a lease");
            panic!(
                "the drop of lease {} of {} panics",
                self.lease, self.shared.id
            );
        }
    }
}

/// One use in flight, as the backend sees it.
pub(crate) struct InFlight {
    shared: Arc<Shared>,
    call: u64,
    sign_of_life: bool,
}

impl InFlight {
    fn new(shared: &Arc<Shared>, call: u64, sign_of_life: bool) -> Self {
        shared.world.call(shared.id, call);
        Self {
            shared: shared.clone(),
            call,
            sign_of_life,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let world = &self.shared.world;
        world.call_ended(self.shared.id, self.call, self.sign_of_life);
    }
}

/// What a call in flight owns, whose drop may panic.
struct Hand {
    request: Request,
    world: Arc<World>,
    in_flight: Option<InFlight>,
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.in_flight = None;
        if self.request.drop_panics && !panicking() {
            self.world.count("panic in the drop of a call");
            panic!("the drop of call {} panics", self.request.id);
        }
    }
}

/// A response: in use as long as it has its `in_flight`.
pub(crate) struct Answer {
    pub(crate) by: usize,
    pub(crate) in_flight: Option<InFlight>,
}

impl Service<Request> for Caller {
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<Result<Answer, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let (world, plan) = (&self.shared.world, &self.shared.plan);
        if plan.breaks.is_some_and(|n| self.lease > n) {
            world.died(self.shared.id);
            world.count("a lease broke");
            return Poll::Ready(Err("broken".into()));
        }
        if let Some(slow) = plan.slow_ready {
            let sleep = self.ready.get_or_insert_with(|| world.runtime.sleep(slow));
            return sleep.as_mut().poll(cx).map(Ok);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let shared = self.shared.clone();
        let (id, call) = (shared.id, request.id);
        let in_flight = InFlight::new(&shared, call, !request.not_use);
        let world = shared.world.clone();
        drop(shared);
        if request.call_panics {
            world.count("panic in call");
            panic!("call {call} panics");
        }
        let mut hand = Hand {
            world: world.clone(),
            in_flight: Some(in_flight),
            request,
        };
        Box::pin(async move {
            let mut work = Box::pin(async {
                if !hand.request.takes.is_zero() {
                    world.runtime.sleep(hand.request.takes).await;
                }
                if hand.request.never {
                    std::future::pending::<()>().await;
                }
            });
            poll_fn(|cx| {
                *world.lock().inner_polls.entry(call).or_default() += 1;
                work.as_mut().poll(cx)
            })
            .await;
            drop(work);
            if hand.request.poll_panics {
                world.count("panic in a call's poll");
                panic!("poll of call {call} panics");
            }
            if hand.request.fails {
                return Err(format!("call {call} fails").into());
            }
            hand.request.drop_panics = false;
            let in_flight = hand.in_flight.take();
            Ok(Answer {
                by: id,
                in_flight: in_flight.filter(|_| hand.request.body.is_some()),
            })
        })
    }
}

/// A response with what keeps its backend in use.
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) busy: Option<Busy>,
}

/// In use as long as the request says.
#[derive(Clone)]
pub(crate) struct AsAsked;

impl Begin<Request> for AsAsked {
    type Request = Request;
    type Hold = Self;

    fn begin(&self, request: Request, _busy: &mut Busy) -> (Request, Self) {
        (request, Self)
    }
}

impl Hold<Answer> for AsAsked {
    type Response = Reply;

    fn hold(&self, answer: Answer, busy: Busy) -> Reply {
        let busy = answer.in_flight.is_some().then_some(busy);
        Reply { answer, busy }
    }
}
