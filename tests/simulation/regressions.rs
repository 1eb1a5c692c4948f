//! What the simulation and a hostile reading have found, each as a test of its own.

use std::{
    future::{Future, Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    Backend, BoxError, CeilingLayer, DropToStop, Error, ErrorKind, Group, IdleEvict, KeyedLayer,
    LazyStart, LazyStartLayer, Retired, Runtime, State, Stopped, UntilResponse,
    test_util::{self, Clock, Task},
};
use tower_service::Service;

use crate::support::{BoxFuture, Caller, World, ms, secs};

type Stack = LazyStart<String, Caller>;

fn world(seed: u64) -> (Runtime, Clock, World) {
    let (runtime, clock) = test_util::runtime(seed);
    let world = World::new(&runtime);
    (runtime, clock, world)
}

fn layer(runtime: &Runtime) -> LazyStartLayer<String> {
    LazyStartLayer::new(runtime.clone(), "a".to_owned())
}

fn call<S>(clock: &Clock, stack: &S, takes: Duration) -> Task<Result<(), Error>>
where
    S: Service<Duration, Response = (), Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    clock.spawn(stack.clone().oneshot(takes))
}

/// What user code does in an [`Odd`] backend.
#[derive(Default)]
struct Oddity {
    lease: AtomicBool,
    retired: AtomicBool,
    stop: AtomicBool,
    drop: AtomicBool,
    /// The leases say that something beneath was evicted.
    evicted: AtomicBool,
    /// The leases never become ready.
    slow: AtomicBool,
    made: AtomicU32,
    dropped: AtomicU32,
}

impl Oddity {
    fn panic_if(&self, what: fn(&Self) -> &AtomicBool) {
        assert!(!what(self).load(Ordering::Relaxed), "as planned");
    }
}

/// A backend of user code that panics.
struct Odd(Arc<Oddity>);

impl Backend for Odd {
    type Lease = Serve;

    fn lease(&self) -> Serve {
        self.0.panic_if(|odd| &odd.lease);
        Serve(self.0.clone())
    }

    #[allow(clippy::manual_async_fn, reason = "the panic is not the future's")]
    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        self.0.panic_if(|odd| &odd.retired);
        std::future::pending()
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        self.0.panic_if(|odd| &odd.stop);
        ready(Stopped::Gone)
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
        if !std::thread::panicking() {
            self.0.panic_if(|odd| &odd.drop);
        }
    }
}

#[derive(Clone)]
struct Serve(Arc<Oddity>);

impl Service<Duration> for Serve {
    type Response = ();
    type Error = Error;
    type Future = Ready<Result<(), Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.0.slow.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Poll::Ready(if self.0.evicted.load(Ordering::Relaxed) {
            Err(Error::new(ErrorKind::Evicted))
        } else {
            Ok(())
        })
    }

    fn call(&mut self, _takes: Duration) -> Self::Future {
        ready(Ok(()))
    }
}

fn odd(runtime: &Runtime) -> (LazyStart<String, Serve>, Arc<Oddity>) {
    let oddity = Arc::new(Oddity::default());
    let maker = service_fn({
        let oddity = oddity.clone();
        move |_: String| {
            oddity.made.fetch_add(1, Ordering::Relaxed);
            ready(Ok::<_, std::io::Error>(Odd(oddity.clone())))
        }
    });
    (layer(runtime).layer(maker), oddity)
}

// ===== callers =====

#[test]
fn a_backend_under_which_something_was_evicted_is_replaced_and_no_call_waits_for_ever() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    oddity.evicted.store(true, Ordering::Relaxed);
    let first = call(&clock, &stack, ms(0));
    let error = clock.block_on(first).expect_err("none of them is any good");
    assert_eq!(*error.kind(), ErrorKind::Evicted);
    oddity.evicted.store(false, Ordering::Relaxed);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    assert!(oddity.made.load(Ordering::Relaxed) > 1);
}

#[test]
fn e2_a_call_that_was_handed_an_instance_and_not_polled_until_that_was_stopped_gets_a_fresh_one() {
    for counted in [false, true] {
        let (runtime, clock, world) = world(1);
        let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let layer = layer(&runtime).drain_timeout(ms(0));
        let (mut call, handle): (BoxFuture<Result<(), Error>>, _) = if counted {
            let stack = layer.layer(evictable.layer(world.maker()));
            (Box::pin(stack.clone().oneshot(ms(0))), stack.handle())
        } else {
            let stack = layer.layer(world.maker());
            (Box::pin(stack.clone().oneshot(ms(0))), stack.handle())
        };
        assert!(test_util::poll_once(&mut call).is_pending());
        clock.advance(secs(1));
        clock.block_on(handle.stop()).expect("stopped");
        clock.block_on(call).expect("served");
        let saw = world.saw("a");
        assert_eq!((saw.begun, saw.misdelivered, saw.calls), (2, 0, 1));
    }
}

#[test]
fn a_call_whose_lease_is_not_ready_when_its_instance_is_stopped_does_not_wait_for_that_one() {
    for counted in [false, true] {
        let (runtime, clock) = test_util::runtime(1);
        let oddity = Arc::new(Oddity::default());
        let maker = service_fn({
            let oddity = oddity.clone();
            move |_: String| {
                oddity.made.fetch_add(1, Ordering::Relaxed);
                ready(Ok::<_, std::io::Error>(Odd(oddity.clone())))
            }
        });
        let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let layer = layer(&runtime).drain_timeout(ms(0));
        oddity.slow.store(true, Ordering::Relaxed);
        let (call, handle): (BoxFuture<Result<(), Error>>, _) = if counted {
            let stack = layer.layer(evictable.layer(maker));
            (Box::pin(stack.clone().oneshot(ms(0))), stack.handle())
        } else {
            let stack = layer.layer(maker);
            (Box::pin(stack.clone().oneshot(ms(0))), stack.handle())
        };
        let mut call = clock.spawn(call);
        clock.run();
        assert!(!call.is_finished());
        oddity.slow.store(false, Ordering::Relaxed);
        clock.block_on(handle.stop()).expect("stopped");
        clock.run();
        call.take().expect("answered").expect("served");
        assert_eq!(oddity.made.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn the_polls_of_a_start_do_not_depend_on_how_many_callers_join_it() {
    let polls_of = |callers: usize| {
        let (runtime, clock) = test_util::runtime(1);
        let polls = Arc::new(AtomicU32::new(0));
        let maker = service_fn({
            let (runtime, polls) = (runtime.clone(), polls.clone());
            move |_: String| {
                let (mut sleep, polls) = (runtime.sleep(secs(1)), polls.clone());
                std::future::poll_fn(move |cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    sleep.as_mut().poll(cx).map(|()| {
                        let echo = service_fn(|_: Duration| ready(Ok::<_, BoxError>(())));
                        Ok::<_, std::io::Error>(DropToStop::new(echo))
                    })
                })
            }
        });
        let stack = layer(&runtime).layer(maker);
        let calls: Vec<_> = (0..callers)
            .map(|_| {
                let one = clock.spawn(stack.clone().oneshot(ms(0)));
                clock.advance(ms(1));
                one
            })
            .collect();
        clock.advance(secs(2));
        assert!(calls.into_iter().all(|mut call| call.take().is_some()));
        polls.load(Ordering::Relaxed)
    };
    assert_eq!(polls_of(100), polls_of(1));
}

#[test]
fn a_lending_caller_does_not_hold_up_the_start_that_its_instance_yields_to() {
    let (runtime, clock, world) = world(1);
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), 1)
        .wait(secs(600))
        .yield_after(secs(1));
    let stack = |name: &str| {
        ServiceBuilder::new()
            .layer(LazyStartLayer::new(runtime.clone(), name.to_owned()))
            .layer(evictable.clone())
            .layer(ceiling.clone())
            .service(world.maker())
    };
    let (a, b) = (stack("a"), stack("b"));
    // A's starter is handed a claim, and takes it up only when A yields to B.
    let mut lending = Box::pin(a.lend());
    assert!(test_util::poll_once(&mut lending).is_pending());
    clock.advance(secs(1));
    let served = call(&clock, &b, ms(0));
    clock.advance(secs(2));
    assert!(test_util::poll_once(&mut lending).is_pending());
    clock.advance(secs(1));
    assert!(served.is_finished(), "{:?}", a.status());
    let lent = clock.block_on(lending).expect("lent in its turn");
    assert_eq!((world.saw("a").begun, world.alive()), (2, 1));
    drop(lent);
}

// ===== restarts =====

#[test]
fn a_refused_restart_is_tried_again_after_a_pause_and_not_without_end() {
    let (runtime, clock, world) = world(1);
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), 1);
    let stack = ServiceBuilder::new()
        .layer(layer(&runtime).keep_running())
        .layer(evictable.pinned(true))
        .layer(ceiling.clone())
        .service(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    clock.advance(secs(3600));
    ceiling.set_limit(0);
    let before = clock.polls();
    world.kill("a");
    clock.advance(secs(60));
    assert_eq!(stack.status().state, State::Stopped);
    assert!(clock.polls() - before < 100);
    ceiling.set_limit(1);
    clock.advance(secs(60));
    assert_eq!((stack.status().state, world.alive()), (State::Running, 1));
    assert_eq!(stack.status().restarts, 1);
}

/// A kept-running backend in the pause before its restart.
fn pausing(clock: &Clock, world: &World, stack: &Stack) {
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    for _ in 0..3 {
        world.kill("a");
        clock.advance(ms(20));
        while world.alive() == 0 {
            clock.advance(ms(1));
        }
        clock.advance(ms(20));
    }
    world.kill("a");
    clock.advance(ms(20));
    assert_eq!((stack.status().state, world.alive()), (State::Stopped, 0));
}

#[test]
fn what_need_not_keep_running_any_more_is_not_restarted() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime).keep_running().layer(world.maker());
    pausing(&clock, &world, &stack);
    let begun = world.saw("a").begun;
    stack.handle().keep_running(false);
    clock.advance(secs(600));
    assert_eq!(world.saw("a").begun, begun);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
}

#[test]
fn l2_an_unload_in_the_pause_before_a_restart_asks_nothing_of_the_maker() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime).keep_running().layer(world.maker());
    pausing(&clock, &world, &stack);
    let begun = world.saw("a").begun;
    clock.block_on(stack.handle().unload()).expect("unloaded");
    clock.advance(secs(600));
    assert_eq!(world.saw("a").begun, begun);
    assert_eq!(stack.status().state, State::Unloaded);
}

#[test]
fn a_reset_ends_the_pause_before_a_restart() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime).keep_running().layer(world.maker());
    pausing(&clock, &world, &stack);
    stack.handle().reset();
    clock.advance(ms(10));
    assert_eq!((stack.status().state, world.alive()), (State::Running, 1));
}

#[test]
fn s39_a_spent_budget_bounds_calls_in_the_pause_before_a_restart_as_well() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime)
        .keep_running()
        .restart_budget(1, secs(60))
        .layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    world.kill("a");
    clock.advance(ms(20));
    let error = clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect_err("it is spent");
    assert!(
        matches!(error.kind(), ErrorKind::BackingOff { .. }),
        "{error}"
    );
    assert_eq!(world.saw("a").begun, 1);
    clock.advance(secs(60));
    assert_eq!((world.saw("a").begun, stack.status().restarts), (2, 1));
}

#[test]
fn s44_a_restart_goes_first_also_when_callers_wait_for_it() {
    let (runtime, clock, world) = world(1);
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), 1).wait(secs(600));
    let stack = |name: &str, pinned: bool| {
        ServiceBuilder::new()
            .layer(LazyStartLayer::new(runtime.clone(), name.to_owned()).keep_running())
            .layer(evictable.clone().pinned(pinned))
            .layer(ceiling.clone().strict())
            .service(world.maker())
    };
    let kept = stack("a", true);
    clock.block_on(kept.clone().oneshot(ms(0))).expect("served");
    let others: Vec<_> = (0..5).map(|n| stack(&format!("b{n}"), false)).collect();
    let queued: Vec<_> = others.iter().map(|it| call(&clock, it, ms(0))).collect();
    clock.advance(ms(5));
    world.plan("a", |plan| plan.stop = ms(50));
    world.kill("a");
    clock.advance(ms(1));
    let waiting = call(&clock, &kept, ms(0));
    clock.advance(ms(200));
    assert!(waiting.is_finished());
    let begun: u64 = (0..5).map(|n| world.saw(&format!("b{n}")).begun).sum();
    assert_eq!((world.saw("a").begun, begun), (2, 0));
    drop(queued);
}

#[test]
fn an_order_given_before_a_start_begins_asks_nothing_of_the_maker() {
    let (runtime, clock, world) = world(1);
    let stack: Stack = layer(&runtime).layer(world.maker());
    let waiting = call(&clock, &stack, ms(0));
    let mut first = Box::pin(stack.clone().oneshot(ms(0)));
    assert!(test_util::poll_once(&mut first).is_pending());
    let unloading = stack.handle().unload();
    clock.block_on(unloading).expect("unloaded");
    clock.run();
    assert_eq!(world.saw("a").begun, 0);
    drop(waiting);
}

// ===== time =====

#[test]
fn bounds_without_end_are_without_end() {
    let (runtime, clock, world) = world(1);
    let for_ever = Duration::MAX;
    let group = Group::new();
    let stack: Stack = layer(&runtime)
        .join(&group)
        .start_timeout(for_ever)
        .drain_timeout(for_ever)
        .stop_timeout(for_ever)
        .backoff(for_ever, for_ever)
        .restart_budget(1, for_ever)
        .keep_running()
        .layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let long = call(&clock, &stack, secs(7200));
    clock.run();
    let stopping = clock.spawn(stack.handle().stop());
    clock.advance(secs(3600));
    assert!(!stopping.is_finished() && !long.is_finished());
    clock.advance(secs(3601));
    assert!(stopping.is_finished() && long.is_finished());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    world.kill("a");
    clock.advance(secs(86_400));
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect_err("its budget is spent for ever");
    stack.handle().reset();
    world.plan("a", |plan| plan.failing = 1);
    clock.advance(secs(1));
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect_err("it failed");
    clock.advance(secs(86_400));
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect_err("it backs off for ever");
    clock.block_on(group.stopped(for_ever));
    assert!(clock.panics().is_empty(), "{:?}", clock.panics());
}

#[test]
fn l3_a_shutdown_with_less_time_shortens_a_drain_that_is_under_way() {
    for reload in [false, true] {
        let (runtime, clock, world) = world(1);
        let group = Group::new();
        let stack: Stack = layer(&runtime).join(&group).layer(world.maker());
        clock
            .block_on(stack.clone().oneshot(ms(0)))
            .expect("served");
        let mut long = call(&clock, &stack, secs(7200));
        clock.run();
        if reload {
            clock
                .block_on(stack.handle().reload(None))
                .expect("reloaded");
        } else {
            drop(stack.handle().stop());
        }
        clock.advance(secs(5));
        let before = clock.elapsed();
        clock.block_on(group.stopped(secs(2)));
        assert_eq!(
            clock.elapsed() - before,
            secs(2) + ms(10),
            "reload: {reload}"
        );
        clock.run();
        let error = long.take().expect("answered").expect_err("cut");
        assert_eq!(*error.kind(), ErrorKind::Stopped);
        assert_eq!(world.alive(), 0);
    }
}

#[test]
fn who_waits_until_it_is_stopped_is_told_when_a_backoff_window_is_over() {
    let (runtime, clock, world) = world(1);
    let stack: Stack = layer(&runtime)
        .backoff(secs(10), secs(10))
        .layer(world.maker());
    world.plan("a", |plan| plan.failing = 1);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect_err("it failed");
    assert_eq!(stack.status().state, State::BackingOff);
    let before = clock.elapsed();
    clock.block_on(stack.handle().until(State::Stopped));
    assert!(clock.elapsed() - before > secs(7));
    assert_eq!(stack.status().state, State::Stopped);
    assert_eq!(clock.timers(), 0);
}

#[test]
fn what_is_reloaded_in_place_and_then_left_by_everybody_does_not_come_back() {
    let (runtime, clock, world) = world(1);
    let stack: Stack = layer(&runtime).layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    drop(stack.handle().reload_in_place(None));
    drop(stack);
    clock.advance(secs(1));
    assert_eq!(
        (world.saw("a").begun, world.alive(), clock.tasks()),
        (1, 0, 0)
    );
}

#[test]
fn a_reload_that_was_ordered_before_a_reload_in_place_does_not_come_after_it() {
    let (runtime, clock) = test_util::runtime(1);
    let made = Arc::new(std::sync::Mutex::new(Vec::new()));
    let maker = service_fn({
        let (runtime, made) = (runtime.clone(), made.clone());
        move |target: String| {
            made.lock().expect("no panic").push(target);
            let sleep = runtime.sleep(ms(10));
            async move {
                sleep.await;
                let echo = service_fn(|_: Duration| ready(Ok::<_, BoxError>(())));
                Ok::<_, std::io::Error>(DropToStop::new(echo))
            }
        }
    });
    let stack = layer(&runtime).layer(maker);
    let waiting = call(&clock, &stack, ms(0));
    clock.run();
    // Both meet a start.
    drop(stack.handle().reload("b".to_owned()));
    let in_place = stack.handle().reload_in_place("c".to_owned());
    clock.block_on(in_place).expect("reloaded");
    assert_eq!(*made.lock().expect("no panic"), ["a", "c"]);
    drop(waiting);
}

// ===== panics of user code =====

#[test]
fn s49_a_backend_that_cannot_lend_is_a_failed_start_and_is_stopped() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    oddity.lease.store(true, Ordering::Relaxed);
    let mut calls: Vec<_> = (0..3)
        .map(|_| Box::pin(stack.clone().oneshot(ms(0))))
        .collect();
    for call in &mut calls {
        assert!(test_util::poll_once(call).is_pending());
    }
    for call in calls {
        let error = clock.block_on(call).expect_err("it panicked");
        assert_eq!(*error.kind(), ErrorKind::Panicked);
    }
    assert_eq!(oddity.dropped.load(Ordering::Relaxed), 1);
    oddity.lease.store(false, Ordering::Relaxed);
    clock.advance(secs(1));
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
}

#[test]
fn l1_a_reload_to_a_backend_that_cannot_lend_keeps_the_old_one() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    oddity.lease.store(true, Ordering::Relaxed);
    let error = clock
        .block_on(stack.handle().reload(None))
        .expect_err("it panicked");
    assert_eq!(*error.kind(), ErrorKind::Panicked);
    oddity.lease.store(false, Ordering::Relaxed);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let counts = (&oddity.made, &oddity.dropped);
    assert_eq!(counts.0.load(Ordering::Relaxed), 2);
    assert_eq!(counts.1.load(Ordering::Relaxed), 1);
    assert_eq!(stack.status().generation, 1);
}

#[test]
fn l5_the_drop_of_a_lease_panics_after_its_call_and_no_claim_is_left() {
    let (runtime, clock) = test_util::runtime(1);
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let maker = service_fn(|_: String| ready(Ok::<_, std::io::Error>(DropToStop::new(Bomb(true)))));
    let stack = layer(&runtime).layer(evictable.layer(maker));
    let start = clock.spawn(stack.handle().start());
    clock.run();
    assert!(start.panicked().is_some());
    for _ in 0..3 {
        let stack = stack.clone();
        let call = clock.spawn(async move { stack.clone().oneshot(ms(0)).await });
        clock.run();
        assert!(call.panicked().is_some());
    }
    assert_eq!(stack.status().in_flight, Some(0));
}

/// A service whose clones go off when they are dropped.
struct Bomb(bool);

impl Clone for Bomb {
    fn clone(&self) -> Self {
        Self(true)
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0 || std::thread::panicking(), "as planned");
    }
}

impl Service<Duration> for Bomb {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _takes: Duration) -> Self::Future {
        ready(Ok(()))
    }
}

#[test]
fn l1_the_drop_of_a_replaced_backend_panics_and_the_new_one_serves_on() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    oddity.drop.store(true, Ordering::Relaxed);
    clock
        .block_on(stack.handle().reload(None))
        .expect("reloaded");
    clock.run();
    assert_eq!(oddity.dropped.load(Ordering::Relaxed), 1);
    oddity.drop.store(false, Ordering::Relaxed);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let status = stack.status();
    assert_eq!(
        (status.generation, oddity.made.load(Ordering::Relaxed)),
        (2, 2)
    );
    let error = status.last_error.expect("it is told");
    assert_eq!(*error.kind(), ErrorKind::Panicked);
    assert!(clock.panics().is_empty());
}

#[test]
fn a_death_while_a_reload_waits_for_the_one_replaced_before_is_noticed_when_it_happens() {
    let (runtime, clock, world) = world(1);
    let stack: Stack = layer(&runtime).layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let long = call(&clock, &stack, secs(20));
    clock.run();
    clock
        .block_on(stack.handle().reload(None))
        .expect("reloaded");
    let mut second = clock.spawn(stack.handle().reload(None));
    clock.advance(secs(1));
    world.kill("a");
    clock.advance(ms(1));
    let error = second.take().expect("told at once").expect_err("it died");
    assert_eq!(*error.kind(), ErrorKind::Died);
    assert_eq!(stack.status().state, State::Stopping);
    let waiting = call(&clock, &stack, ms(0));
    clock.advance(secs(20));
    assert!(long.is_finished() && waiting.is_finished());
}

#[test]
fn a_backend_that_cannot_say_whether_it_is_retired_has_died() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    oddity.retired.store(true, Ordering::Relaxed);
    clock.block_on(stack.clone().oneshot(ms(0))).ok();
    clock.run();
    let status = stack.status();
    assert_eq!(status.state, State::Stopped);
    let error = status.last_error.expect("it is told");
    assert_eq!(*error.kind(), ErrorKind::Panicked);
    // The call tried more than one.
    let dropped = u64::from(oddity.dropped.load(Ordering::Relaxed));
    assert_eq!((dropped, status.crashes), (status.starts, status.starts));
    assert!(clock.panics().is_empty());
}

#[test]
fn a_stop_that_panics_is_over_and_told_in_the_status() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    oddity.stop.store(true, Ordering::Relaxed);
    clock.block_on(stack.handle().stop()).expect("stopped");
    let error = stack.status().last_error.expect("it is told");
    assert_eq!(*error.kind(), ErrorKind::Panicked);
    assert!(clock.panics().is_empty());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
}

#[test]
fn s49_a_backend_whose_drop_panics_keeps_no_news_from_those_who_wait() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    oddity.drop.store(true, Ordering::Relaxed);
    let stopped = clock.spawn(stack.handle().stop());
    clock.run();
    assert!(stopped.is_finished());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let until = clock.spawn(stack.handle().until(State::Stopped));
    let mut order = Box::pin(stack.handle().unload());
    clock.shutdown();
    assert!(test_util::poll_once(&mut order).is_ready());
    assert_eq!(oddity.dropped.load(Ordering::Relaxed), 2);
    drop(until);
}

// ===== keys =====

#[test]
fn a_key_that_was_never_started_is_not_kept_for_ever() {
    let (runtime, clock, world) = world(1);
    let group = Group::new();
    let joined = group.clone();
    let tenants = KeyedLayer::new(
        runtime.clone(),
        |_: &Duration| Some("called".to_owned()),
        |key: &String| Ok::<_, BoxError>(key.clone()),
    )
    .each(move |backend| backend.join(&joined))
    .max_keys(10)
    .layer(world.maker());
    for n in 0..1_000 {
        drop(
            tenants
                .handle(format!("handle {n}"))
                .expect("there is place"),
        );
    }
    assert!(tenants.keys() <= 10);
    let kept = tenants.handle("kept".to_owned()).expect("there is place");
    clock.block_on(kept.start()).expect("started");
    group.close();
    clock.advance(secs(1));
    drop(kept);
    let error = clock
        .block_on(tenants.clone().oneshot(ms(0)))
        .expect_err("all is shut down");
    assert_eq!(*error.kind(), ErrorKind::ShutDown);
    for n in 0..20 {
        drop(tenants.handle(format!("late {n}")).expect("there is place"));
    }
    assert!(tenants.keys() <= 3, "{} keys", tenants.keys());
}

#[test]
fn a_key_is_remembered_for_what_was_ordered_of_it_and_not_for_its_options() {
    let (runtime, clock, world) = world(1);
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(async move { sweeper.run().await });
    let tenants = KeyedLayer::new(
        runtime.clone(),
        |takes: &Duration| Some(takes.as_millis().to_string()),
        |key: &String| Ok::<_, BoxError>(key.clone()),
    )
    .each(|backend| backend.keep_running())
    .max_keys(10)
    .layer(evictable.idle_after(secs(10)).layer(world.maker()));
    for n in 0..100 {
        clock
            .block_on(tenants.clone().oneshot(ms(n)))
            .expect("served");
        clock.advance(secs(20));
    }
    assert_eq!((tenants.keys(), world.alive()), (0, 0));
    let key = tenants.handle("7".to_owned()).expect("there is place");
    key.set_idle_after(secs(100));
    drop(key);
    clock
        .block_on(tenants.clone().oneshot(ms(8)))
        .expect("served");
    clock
        .block_on(tenants.clone().oneshot(ms(7)))
        .expect("served");
    clock.advance(secs(90));
    assert_eq!(world.alive(), 1, "its bound is remembered");
}

#[test]
fn e7_what_was_pinned_by_its_bound_is_not_pinned_by_another() {
    let (runtime, clock, world) = world(1);
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(async move { sweeper.run().await });
    let stack = ServiceBuilder::new()
        .layer(layer(&runtime))
        .layer(evictable.idle_after(Duration::ZERO))
        .service(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    clock.advance(secs(3600));
    assert_eq!(world.alive(), 1);
    stack.handle().set_idle_after(secs(10));
    clock.advance(secs(11));
    assert_eq!(world.alive(), 0);
}

#[test]
fn c1_the_room_of_a_crashed_instance_is_not_its_successors_while_a_call_still_has_it() {
    let (runtime, clock) = test_util::runtime(1);
    let (alive, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    struct Alive(Arc<AtomicU32>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let maker = service_fn({
        let (runtime, alive, peak) = (runtime.clone(), alive.clone(), peak.clone());
        move |_: String| {
            peak.fetch_max(alive.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let life = Arc::new(Alive(alive.clone()));
            let (runtime, broken) = (runtime.clone(), Arc::new(AtomicBool::new(false)));
            let serve = service_fn(move |takes: Duration| {
                let (sleep, life) = (runtime.sleep(takes), life.clone());
                async move {
                    sleep.await;
                    drop(life);
                    Ok::<_, BoxError>(())
                }
            });
            ready(Ok::<_, std::io::Error>(DropToStop::new(Breaks(
                serve, broken,
            ))))
        }
    });
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), 1).strict();
    let stack = ServiceBuilder::new()
        .layer(layer(&runtime).keep_running())
        .layer(evictable.pinned(true))
        .layer(ceiling)
        .service(maker);
    let long = call(&clock, &stack, secs(5));
    clock.run();
    // The next lease of it breaks, and it counts as dead, while a call has a part of it.
    let next = call(&clock, &stack, ms(1));
    clock.advance(secs(4));
    assert!(!long.is_finished() && !next.is_finished());
    clock.advance(secs(2));
    assert!(long.is_finished() && next.is_finished());
    assert_eq!(peak.load(Ordering::Relaxed), 1);
}

/// A service whose second clone is broken.
struct Breaks<S>(S, Arc<AtomicBool>);

impl<S: Clone> Clone for Breaks<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1.clone())
    }
}

impl<S: Service<Duration, Error = BoxError>> Service<Duration> for Breaks<S> {
    type Response = S::Response;
    type Error = BoxError;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.1.load(Ordering::Relaxed) {
            return Poll::Ready(Err("broken".into()));
        }
        self.0.poll_ready(cx)
    }

    fn call(&mut self, takes: Duration) -> S::Future {
        self.1.store(true, Ordering::Relaxed);
        self.0.call(takes)
    }
}
