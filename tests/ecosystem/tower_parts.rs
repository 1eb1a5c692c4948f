//! Under tower's own middleware, on virtual time.

use std::{collections::BTreeMap, future::Future, pin::Pin, time::Duration};

use futures_util::future::join_all;
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    balance::p2c::Balance,
    buffer::Buffer,
    discover::ServiceList,
    load::{CompleteOnResponse, PendingRequestsDiscover},
    load_shed::error::Overloaded,
    retry::{Policy, RetryLayer},
    timeout::error::Elapsed,
    util::BoxCloneSyncService,
};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, Error, ErrorKind, IdleEvict, IdleEvictLayer, KeepLayer, LazyStart,
    LazyStartLayer, Leased, Runtime, ServiceBuilderExt, State, UntilResponse,
    keep::Kept,
    test_util::{self, Clock},
};

use crate::support::{Caller, World, ms, secs};

const IDLE: Duration = secs(10);

type Stack = LazyStart<String, Leased<Caller>>;

struct Host {
    runtime: Runtime,
    clock: Clock,
    world: World,
    evictable: IdleEvictLayer<UntilResponse>,
    ceiling: CeilingLayer,
}

impl Host {
    fn new(seed: u64) -> Self {
        let (runtime, clock) = test_util::runtime(seed);
        Self::on(runtime, clock)
    }

    fn on(runtime: Runtime, clock: Clock) -> Self {
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        runtime.spawn(idle_evict.run());
        Self {
            world: World::new(&runtime),
            evictable: evictable.idle_after(IDLE),
            ceiling: CeilingLayer::new(runtime.clone(), 10),
            runtime,
            clock,
        }
    }

    fn stack(&self, name: &str) -> Stack {
        ServiceBuilder::new()
            .lazy_start(self.runtime.clone(), name.to_owned())
            .idle_evict(&self.evictable)
            .ceiling(&self.ceiling)
            .service(self.world.maker())
    }

    fn kept(&self, name: &str) -> Kept<Leased<Caller>> {
        let mut maker = ServiceBuilder::new()
            .keep(self.runtime.clone())
            .idle_evict(&self.evictable)
            .ceiling(&self.ceiling)
            .service(self.world.maker());
        let making = maker.call(name.to_owned());
        self.clock.block_on(making).expect("it starts")
    }
}

#[test]
fn all_clones_of_a_buffer_share_one_start() {
    let host = Host::new(1);
    let (buffer, worker) = Buffer::pair(host.stack("a"), 16);
    host.runtime.spawn(worker);
    let calls = (0..50).map(|_| buffer.clone().oneshot(ms(5)));
    let answers = host.clock.block_on(join_all(calls));
    assert!(answers.iter().all(Result::is_ok));
    let saw = host.world.saw("a");
    assert_eq!((saw.ready, saw.calls, saw.answered), (1, 50, 50));

    // The worker owns the stack, and the last clone of the buffer owns the worker.
    drop(buffer);
    host.clock.advance(secs(1));
    assert_eq!(host.world.alive(), 0);
}

type Balanced<S> = Balance<PendingRequestsDiscover<ServiceList<Vec<S>>>, Duration>;

fn balance<S>(services: Vec<S>) -> Balanced<S>
where
    S: Service<Duration>,
    S::Error: Into<BoxError>,
{
    let list = ServiceList::new::<Duration>(services);
    let completion = CompleteOnResponse::default();
    Balance::new(PendingRequestsDiscover::new(list, completion))
}

#[test]
fn a_balance_over_stacks_starts_only_whom_it_calls_and_holds_nobody() {
    let host = Host::new(1);
    let names = ["a", "b", "c"];
    let stacks: Vec<_> = names.iter().map(|name| host.stack(name)).collect();
    let mut balance = balance(stacks);

    // All are ready, and nobody was started for that.
    host.clock
        .block_on(balance.ready())
        .map(|_| ())
        .expect("ready");
    host.clock.advance(secs(3600));
    assert_eq!(host.world.peak(), 0);

    host.clock
        .block_on(balance.call(ms(5)))
        .expect("it is served");
    assert_eq!((host.world.alive(), host.world.peak()), (1, 1));

    // Ready again: that is no use, so it goes when it is idle.
    host.clock
        .block_on(balance.ready())
        .map(|_| ())
        .expect("ready");
    host.clock.advance(IDLE + secs(1));
    assert_eq!(host.world.alive(), 0);
    host.clock
        .block_on(balance.call(ms(5)))
        .expect("it is started again");
}

#[test]
fn a_balance_over_kept_services_holds_all_that_it_has_readied() {
    let host = Host::new(1);
    let kept = vec![host.kept("a"), host.kept("b")];
    let mut balance = balance(kept);
    host.clock
        .block_on(balance.ready())
        .map(|_| ())
        .expect("ready");

    // A readied one is claimed until it is called or dropped.
    host.clock.advance(secs(3600));
    assert_eq!(host.world.alive(), 2);

    // One that dies is found out by its next readiness, and the other one serves.
    host.world.kill("a");
    host.clock.advance(secs(1));
    for _ in 0..10 {
        let called = host
            .clock
            .block_on(async { balance.ready().await?.call(ms(1)).await });
        if let Err(error) = called {
            let error = error.downcast::<Error>().expect("ours");
            assert_eq!(error.kind(), &ErrorKind::Evicted);
        }
    }
    let saw = host.world.saw("b");
    assert!(saw.answered >= 9, "{saw:?}");
    assert_eq!((host.world.saw("a").misdelivered, saw.misdelivered), (0, 0));

    drop(balance);
    host.clock.advance(secs(1));
    assert_eq!(host.world.alive(), 0);
}

/// Tries again when the error says that, and when.
#[derive(Clone)]
struct AsItSays {
    runtime: Runtime,
    left: usize,
}

impl<Req: Clone, Res> Policy<Req, Res, Error> for AsItSays {
    type Future = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, Error>) -> Option<Self::Future> {
        let error = result.as_ref().err()?;
        if self.left == 0
            || !matches!(
                error.kind(),
                ErrorKind::StartFailed | ErrorKind::BackingOff { .. }
            )
        {
            return None;
        }
        self.left -= 1;
        let sleep = self.runtime.sleep(error.retry_after().unwrap_or(ms(1)));
        Some(Box::pin(sleep))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

#[test]
fn a_retry_that_waits_as_long_as_it_is_told_is_served() {
    let host = Host::new(1);
    host.world.plan("a", |plan| plan.failing = 2);
    let policy = AsItSays {
        runtime: host.runtime.clone(),
        left: 10,
    };
    let service = RetryLayer::new(policy).layer(host.stack("a"));
    host.clock
        .block_on(service.oneshot(ms(5)))
        .expect("it is served in the end");
    let saw = host.world.saw("a");
    assert_eq!((saw.begun, saw.ready, saw.calls), (3, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_runs_out_of_time_does_not_end_the_start() {
    // tower's timeouts are tokio's, whose clock is a virtual one here.
    let host = Host::on(Runtime::tokio(), test_util::runtime(1).1);
    host.world.plan("a", |plan| plan.start = secs(5));
    let stack = host.stack("a");
    let hasty = ServiceBuilder::new()
        .timeout(secs(1))
        .service(stack.clone());

    let error = hasty.clone().oneshot(ms(1)).await.expect_err("too slow");
    assert!(error.is::<Elapsed>());
    let status = stack.status();
    assert_eq!((status.state, status.waiting), (State::Starting, 0));

    // The start goes on, and serves the next one.
    stack.handle().until(State::Running).await;
    hasty.oneshot(ms(1)).await.expect("it runs by now");
    let saw = host.world.saw("a");
    assert_eq!((saw.begun, saw.dropped, saw.calls), (1, 0, 1));
}

#[test]
fn load_shedding_above_a_stack_sheds_what_a_limit_refuses_and_nothing_else() {
    let host = Host::new(1);
    host.world.plan("a", |plan| plan.start = secs(5));

    // A stack is ready while it starts: nobody is shed.
    let patient = ServiceBuilder::new().load_shed().service(host.stack("a"));
    let calls = (0..20).map(|_| patient.clone().oneshot(ms(5)));
    let answers = host.clock.block_on(join_all(calls));
    assert!(answers.iter().all(Result::is_ok));

    let limited = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(1)
        .service(host.stack("b"));
    let mut first = host.clock.spawn(limited.clone().oneshot(secs(1)));
    host.clock.advance(ms(1));
    let second = host.clock.block_on(limited.clone().oneshot(ms(1)));
    assert!(second.expect_err("it is shed").is::<Overloaded>());
    host.clock.advance(secs(10));
    first.take().expect("done").expect("served");
    assert_eq!(host.world.saw("b").calls, 1);
}

#[test]
fn boxed_stacks_of_different_kinds_stand_in_one_map() {
    type Boxed = BoxCloneSyncService<Duration, (), BoxError>;
    let host = Host::new(1);
    let shared = ServiceBuilder::new()
        .coalesce(|takes: &Duration| Some(*takes))
        .service(host.stack("shared"));
    let stacks: BTreeMap<&str, Boxed> = [
        ("plain", Boxed::new(host.stack("plain").map_err(Into::into))),
        ("shared", Boxed::new(shared.map_err(Into::into))),
    ]
    .into();
    let stacks = std::sync::Arc::new(stacks);
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let stacks = stacks.clone();
            let name = if n % 2 == 0 { "plain" } else { "shared" };
            host.clock
                .spawn(async move { stacks[name].clone().oneshot(ms(50)).await })
        })
        .collect();
    for call in calls {
        host.clock.block_on(call).expect("it is served");
    }
    assert_eq!(host.world.saw("plain").calls, 10);
    assert_eq!(host.world.saw("shared").calls, 1);
}

#[test]
fn every_layer_is_a_method_of_the_service_builder() {
    let host = Host::new(1);
    let stack = ServiceBuilder::new()
        .coalesce(|takes: &Duration| Some(*takes))
        .lazy_start(host.runtime.clone(), "a".to_owned())
        .idle_evict(&host.evictable)
        .ceiling(&host.ceiling)
        .service(host.world.maker());
    let by_layers = ServiceBuilder::new()
        .layer(CoalesceLayer::new(|takes: &Duration| Some(*takes)))
        .layer(LazyStartLayer::new(host.runtime.clone(), "b".to_owned()))
        .layer(host.evictable.clone())
        .layer(host.ceiling.clone())
        .service(host.world.maker());
    let kept = KeepLayer::new(host.runtime.clone()).layer(host.world.maker());
    host.clock.block_on(async {
        stack.oneshot(ms(1)).await.expect("served");
        by_layers.oneshot(ms(1)).await.expect("served");
        let kept = kept.oneshot("c".to_owned()).await.expect("made");
        kept.oneshot(ms(1)).await.expect("served");
    });
    for name in ["a", "b", "c"] {
        assert_eq!(host.world.saw(name).calls, 1, "{name}");
    }
}
