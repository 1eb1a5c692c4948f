//! `LazyStart`: who starts a backend, who waits for it, and what they are told.

#[path = "support/rng.rs"]
mod rng;
mod support;

use std::{
    future::{Ready, ready},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_channel::oneshot;
use rng::Rng;
use support::{World, ms, secs};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_on_demand::{
    Clock as StartClock, DropToStop, Error, ErrorKind, Group, LazyStart, LazyStartLayer, Runtime,
    State,
    test_util::{self, Clock, Task},
};

type Stack = LazyStart<String, support::Caller>;

fn world(seed: u64) -> (Runtime, Clock, World) {
    let (runtime, clock) = test_util::runtime(seed);
    let world = World::new(&runtime);
    (runtime, clock, world)
}

fn layer(runtime: &Runtime, name: &str) -> LazyStartLayer<String> {
    LazyStartLayer::new(runtime.clone(), name.to_owned())
}

/// A call that takes `takes`, in the background.
fn call(clock: &Clock, stack: &Stack, takes: Duration) -> Task<Result<(), Error>> {
    clock.spawn(stack.clone().oneshot(takes))
}

fn kinds(calls: Vec<Task<Result<(), Error>>>) -> Vec<Option<ErrorKind>> {
    let results = calls
        .into_iter()
        .map(|mut call| call.take().expect("it is done"));
    results
        .map(|result| result.err().map(|error| error.kind().clone()))
        .collect()
}

#[test]
fn s1_s32_a_thousand_cold_calls_are_one_start() {
    for seed in 0..5 {
        let (runtime, clock, world) = world(seed);
        let stack = layer(&runtime, "a").layer(world.maker());
        let calls = (0..1000).map(|_| call(&clock, &stack, ms(5))).collect();
        clock.advance(secs(1));
        assert_eq!(kinds(calls), vec![None; 1000]);
        let saw = world.saw("a");
        assert_eq!((saw.begun, saw.calls, saw.misdelivered), (1, 1000, 0));
    }
}

#[test]
fn s3_no_call_before_it_is_ready() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.start = secs(6));
    let stack = layer(&runtime, "a").layer(world.maker());
    let calls = vec![call(&clock, &stack, ms(0))];
    clock.advance(ms(5_999));
    assert_eq!(world.saw("a").calls, 0);
    clock.advance(ms(1));
    assert_eq!((world.saw("a").calls, world.saw("a").ready), (1, 1));
    assert_eq!(kinds(calls), [None]);
}

#[test]
fn s4_a_failed_start_is_told_to_those_who_wait_and_to_nobody_later() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.failing = 1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let calls: Vec<_> = (0..10).map(|_| call(&clock, &stack, ms(0))).collect();
    clock.advance(ms(10));
    let told: Vec<_> = calls
        .into_iter()
        .map(|mut call| {
            call.take()
                .expect("told when it failed")
                .expect_err("it failed")
        })
        .collect();
    for error in &told {
        assert_eq!(*error.kind(), ErrorKind::StartFailed);
        assert_eq!(error.backend(), Some("a"));
        assert_eq!(error.to_string(), told[0].to_string());
        assert_eq!(
            format!("{error:#}"),
            "backend \"a\": could not be started: exit status 1"
        );
    }
    assert_eq!(world.saw("a").begun, 1);
    // After the window a call tries anew, and hears nothing of it.
    clock.advance(ms(100));
    let later = vec![call(&clock, &stack, ms(0))];
    clock.advance(ms(10));
    assert_eq!(kinds(later), [None]);
    assert_eq!(world.saw("a").begun, 2);
}

#[test]
fn s24_a_call_within_the_window_fails_at_once_with_the_time_left() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.failing = 3);
    let stack = layer(&runtime, "a").layer(world.maker());
    let mut longest = ms(100);
    for failures in 1..=3 {
        let first = vec![call(&clock, &stack, ms(0))];
        clock.advance(ms(10));
        assert_eq!(kinds(first), [Some(ErrorKind::StartFailed)]);
        assert_eq!(stack.status().state, State::BackingOff);

        let mut within = call(&clock, &stack, ms(0));
        clock.run();
        let error = within.take().expect("at once").expect_err("refused");
        assert!(
            matches!(error.kind(), ErrorKind::BackingOff { failures: f, .. } if *f == failures)
        );
        let left = error.retry_after().expect("the time left");
        assert!(
            left <= longest && left > longest * 7 / 10,
            "{left:?} of {longest:?}"
        );
        clock.advance(left - ms(1));
        assert_eq!(world.saw("a").begun, u64::from(failures));
        clock.advance(ms(1));
        longest *= 2;
    }
    // One trial, then healthy.
    let trial: Vec<_> = (0..5).map(|_| call(&clock, &stack, ms(0))).collect();
    clock.advance(ms(10));
    assert_eq!(kinds(trial), [None, None, None, None, None]);
    assert_eq!(world.saw("a").begun, 4);
}

#[test]
fn who_is_refused_for_failed_starts_is_told_why_they_failed() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.failing = 1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let first = vec![call(&clock, &stack, ms(0))];
    clock.advance(ms(10));
    assert_eq!(kinds(first), [Some(ErrorKind::StartFailed)]);
    let mut within = call(&clock, &stack, ms(0));
    clock.run();
    let error = within.take().expect("at once").expect_err("refused");
    let text = format!("{error:#}");
    let why = "backend \"a\": not tried: it has failed lately: could not be started: exit status 1; try again in ";
    assert!(text.starts_with(why), "{text}");
}

#[test]
fn s39_a_reset_ends_the_window_at_once() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.failing = 1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let first = vec![call(&clock, &stack, ms(0))];
    clock.advance(ms(10));
    assert_eq!(kinds(first), [Some(ErrorKind::StartFailed)]);
    stack.handle().reset();
    let next = vec![call(&clock, &stack, ms(0))];
    clock.advance(ms(10));
    assert_eq!(kinds(next), [None]);
}

#[test]
fn s39_a_spent_restart_budget_refuses_until_its_window_has_passed() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a")
        .restart_budget(2, secs(60))
        .layer(world.maker());
    for _ in 0..2 {
        let served = vec![call(&clock, &stack, ms(0))];
        clock.advance(secs(1));
        assert_eq!(kinds(served), [None]);
        world.kill("a");
        clock.advance(secs(1));
    }
    let mut refused = call(&clock, &stack, ms(0));
    clock.run();
    let error = refused.take().expect("at once").expect_err("spent");
    assert!(matches!(
        error.kind(),
        ErrorKind::BackingOff { failures: 2, .. }
    ));
    // The first crash was at 1 s, and it is 4 s.
    assert_eq!(error.retry_after(), Some(secs(57)));
    clock.advance(secs(57));
    let trial = vec![call(&clock, &stack, ms(0))];
    clock.advance(secs(1));
    assert_eq!(kinds(trial), [None]);
    assert_eq!(world.saw("a").begun, 3);
}

#[test]
fn s22_a_start_that_never_ends_is_a_timeout_exactly_at_its_bound() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.start_hangs = true);
    let stack = layer(&runtime, "a")
        .start_timeout(secs(5))
        .layer(world.maker());
    let first = call(&clock, &stack, ms(0));
    clock.advance(ms(4_000));
    let second = call(&clock, &stack, ms(0));
    clock.advance(ms(999));
    assert!(!first.is_finished() && !second.is_finished());
    clock.advance(ms(1));
    let timeout = kinds(vec![first, second]);
    for kind in timeout {
        let Some(ErrorKind::StartTimeout { clock, after, .. }) = kind else {
            panic!("{kind:?}")
        };
        assert_eq!((clock, after), (StartClock::StartTimeout, secs(5)));
    }
    let saw = world.saw("a");
    assert_eq!(
        (saw.alive, saw.dropped, clock.tasks(), clock.timers()),
        (0, 1, 0, 0)
    );
}

#[test]
fn s28_the_first_caller_leaving_does_not_disturb_the_others() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let first = call(&clock, &stack, ms(0));
    let others = vec![call(&clock, &stack, ms(0)), call(&clock, &stack, ms(0))];
    clock.advance(ms(5));
    drop(first);
    clock.advance(ms(5));
    assert_eq!(kinds(others), [None, None]);
    assert_eq!((world.saw("a").begun, world.saw("a").calls), (1, 2));
}

#[test]
fn s30_when_all_have_left_the_start_is_finished_or_cancelled_as_asked() {
    let (runtime, clock, world) = world(1);
    let finish = layer(&runtime, "a").layer(world.maker());
    drop(call(&clock, &finish, ms(0)));
    let mut left = call(&clock, &finish, ms(0));
    clock.advance(ms(5));
    drop(left.take());
    drop(left);
    clock.advance(ms(5));
    assert_eq!(finish.status().state, State::Running);

    let cancel = layer(&runtime, "b")
        .cancel_when_abandoned()
        .layer(world.maker());
    let left = call(&clock, &cancel, ms(0));
    clock.advance(ms(5));
    drop(left);
    clock.run();
    assert_eq!(cancel.status().state, State::Stopped);
    assert_eq!((world.saw("b").dropped, world.saw("b").alive), (1, 0));
    // Nor is one begun that all have left before it could begin.
    drop(call(&clock, &cancel, ms(0)));
    let mut left = Box::pin(cancel.clone().oneshot(ms(0)));
    assert!(test_util::poll_once(&mut left).is_pending());
    drop(left);
    clock.advance(secs(1));
    assert_eq!(
        (cancel.status().state, world.saw("b").ready),
        (State::Stopped, 0)
    );
    // It was no failure: the next call starts at once.
    let next = vec![call(&clock, &cancel, ms(0))];
    clock.advance(ms(10));
    assert_eq!(kinds(next), [None]);
}

#[test]
fn s20_all_who_wait_are_told_when_the_child_dies_during_its_start() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| {
        plan.start = ms(10);
        plan.failing = 1;
    });
    let stack = layer(&runtime, "a").layer(world.maker());
    let calls: Vec<_> = (0..20).map(|_| call(&clock, &stack, ms(0))).collect();
    clock.advance(ms(9));
    assert!(calls.iter().all(|call| !call.is_finished()));
    clock.advance(ms(1));
    assert_eq!(kinds(calls), vec![Some(ErrorKind::StartFailed); 20]);
}

#[test]
fn s26_a_start_that_hangs_holds_up_no_other_backend() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.start_hangs = true);
    let hung = layer(&runtime, "a").layer(world.maker());
    let hanging = call(&clock, &hung, ms(0));
    for name in ["b", "c", "z"] {
        let stack = layer(&runtime, name).layer(world.maker());
        let served = vec![call(&clock, &stack, ms(0))];
        clock.advance(ms(10));
        assert_eq!(kinds(served), [None]);
    }
    assert!(!hanging.is_finished());
}

#[test]
fn s27_a_callers_own_deadline_equal_to_the_start_bound_gets_the_start_error() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.start_hangs = true);
    let stack = layer(&runtime, "a")
        .start_timeout(secs(5))
        .layer(world.maker());
    let own = runtime.clone();
    let call = stack.clone().oneshot(ms(0));
    let raced = clock.block_on(async move {
        let mut call = std::pin::pin!(call);
        let mut sleep = own.sleep(secs(5));
        std::future::poll_fn(|cx| {
            use std::{future::Future, task::Poll};
            if let Poll::Ready(done) = call.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    });
    if let Some(result) = raced {
        let error = result.expect_err("it hangs");
        assert!(matches!(error.kind(), ErrorKind::StartTimeout { .. }));
    }
    clock.run();
    assert_eq!((world.alive(), clock.tasks()), (0, 0));
}

#[test]
fn s29_a_late_notice_about_an_old_instance_changes_nothing() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    // A caller of instance 1 that learns late.
    let lent = clock.block_on(stack.lend()).expect("it starts");
    world.kill("a");
    clock.run();
    let second = vec![call(&clock, &stack, ms(0))];
    clock.advance(ms(20));
    assert_eq!(kinds(second), [None]);
    assert_eq!(stack.status().generation, 2);
    drop(lent);
    clock.advance(secs(1));
    let status = stack.status();
    assert_eq!((status.generation, status.state), (2, State::Running));
    assert_eq!((world.saw("a").alive, world.saw("a").begun), (1, 2));
}

#[test]
fn s29_what_was_said_against_an_instance_is_not_held_against_the_one_that_replaced_it() {
    /// An instance is ready for one call; then its leases fail.
    #[derive(Clone, Default)]
    struct Once(Arc<AtomicBool>);
    impl Service<()> for Once {
        type Response = ();
        type Error = io::Error;
        type Future = Ready<Result<(), io::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
            match self.0.load(Ordering::Relaxed) {
                true => Poll::Ready(Err(io::Error::other("it is broken"))),
                false => Poll::Ready(Ok(())),
            }
        }

        fn call(&mut self, (): ()) -> Self::Future {
            self.0.store(true, Ordering::Relaxed);
            ready(Ok(()))
        }
    }
    let (runtime, clock) = test_util::runtime(1);
    let (gate, opened) = oneshot::channel();
    let mut gates = vec![Some(opened), None];
    let begun = Arc::new(AtomicU32::new(0));
    let maker = service_fn({
        let begun = begun.clone();
        move |_: String| {
            begun.fetch_add(1, Ordering::Relaxed);
            let gate = gates.pop().expect("two are made");
            async {
                if let Some(gate) = gate {
                    let _ = gate.await;
                }
                Ok::<_, io::Error>(DropToStop::new(Once::default()))
            }
        }
    });
    let stack = layer(&runtime, "a").layer(maker);
    clock.block_on(stack.clone().oneshot(())).expect("served");
    let handle = stack.handle();
    let reload = clock.spawn(async move { handle.reload(None).await });
    clock.run();
    // Before the owner looks again the new one is ready, and a call finds the old one broken.
    gate.send(()).expect("it is waited for");
    let mut second = Box::pin(stack.clone().oneshot(()));
    assert!(test_util::poll_once(&mut second).is_pending());
    clock.run();
    clock.block_on(reload).expect("it is replaced");
    clock.block_on(second).expect("served by the new one");
    let status = stack.status();
    assert_eq!((status.generation, status.crashes), (2, 0));
    assert_eq!(begun.load(Ordering::Relaxed), 2);
}

#[test]
fn s31_a_caller_dropped_as_it_is_granted_leaves_nothing_behind() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let mut future = Box::pin(stack.clone().oneshot(ms(0)));
    assert!(test_util::poll_once(&mut future).is_pending());
    clock.advance(ms(10)); // the lease is handed over; the future is not polled
    drop(future);
    assert_eq!(stack.status().waiting, 0);
    assert_eq!(world.saw("a").calls, 0);
    let stopped = clock.block_on(stack.handle().stop());
    assert!(stopped.is_ok());
    assert_eq!(world.alive(), 0);
}

#[test]
fn s01_a_call_during_a_stop_waits_for_it_and_starts_anew() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.stop = secs(5));
    let stack = layer(&runtime, "a").layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let stopping = stack.handle().stop();
    clock.advance(secs(1));
    assert_eq!(stack.status().state, State::Stopping);
    let landing = call(&clock, &stack, ms(0));
    clock.advance(ms(3_999));
    assert!(!landing.is_finished());
    clock.advance(ms(50));
    assert_eq!(kinds(vec![landing]), [None]);
    clock.block_on(stopping).expect("stopped");
    let saw = world.saw("a");
    assert_eq!(
        (saw.stops, saw.begun, saw.peak, saw.misdelivered),
        (1, 2, 1, 0)
    );
}

#[test]
fn s06_a_stop_that_never_ends_is_dropped_after_its_timeout_and_reported() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.stop_hangs = true);
    let stack = layer(&runtime, "a")
        .stop_timeout(secs(7))
        .layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let stop = stack.handle().stop();
    clock.advance(ms(6_999));
    assert_eq!(world.alive(), 1);
    clock.advance(ms(1));
    clock.block_on(stop).expect("given up");
    assert_eq!(world.alive(), 0);
    let error = stack.status().last_error.expect("it is reported");
    assert!(
        format!("{error:#}").contains("stop() had not ended after 7s"),
        "{error:#}"
    );
}

#[test]
fn s49_a_panicking_maker_tells_all_who_wait_and_the_next_call_starts_anew() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.panicking = 1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let calls: Vec<_> = (0..5).map(|_| call(&clock, &stack, ms(0))).collect();
    clock.advance(ms(10));
    for mut call in calls {
        let error = call.take().expect("told").expect_err("it panicked");
        assert_eq!(*error.kind(), ErrorKind::Panicked);
        assert!(
            format!("{error:#}").contains("the maker of a panics"),
            "{error:#}"
        );
    }
    assert_eq!(clock.tasks(), 0);
    clock.advance(ms(100));
    let next = vec![call(&clock, &stack, ms(0))];
    clock.advance(ms(10));
    assert_eq!(kinds(next), [None]);
}

#[test]
fn s49_an_executor_that_goes_away_tells_all_who_wait() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let mut future = Box::pin(stack.clone().oneshot(ms(0)));
    assert!(test_util::poll_once(&mut future).is_pending());
    clock.run();
    clock.shutdown();
    let std::task::Poll::Ready(Err(error)) = test_util::poll_once(&mut future) else {
        panic!("it hangs")
    };
    assert_eq!(*error.kind(), ErrorKind::ShutDown);
    // Nor does a call hang that comes later.
    let mut later = Box::pin(stack.clone().oneshot(ms(0)));
    let std::task::Poll::Ready(Err(error)) = test_util::poll_once(&mut later) else {
        panic!("it hangs")
    };
    assert_eq!(*error.kind(), ErrorKind::ShutDown);
    assert_eq!((world.alive(), stack.status().waiting), (0, 0));
}

#[test]
fn a_death_is_noticed_when_it_happens_and_the_next_call_is_served_by_a_new_one() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    world.kill("a");
    clock.advance(ms(10));
    let status = stack.status();
    assert_eq!((status.state, status.crashes), (State::Stopped, 1));
    assert!(format!("{:#}", status.last_error.expect("why")).contains("signal 9"));
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    assert_eq!(stack.status().generation, 2);
}

#[test]
fn callers_beyond_the_bound_are_refused_and_the_others_unharmed() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").max_callers(3).layer(world.maker());
    let calls: Vec<_> = (0..5).map(|_| call(&clock, &stack, ms(0))).collect();
    clock.advance(ms(10));
    let kinds = kinds(calls);
    assert_eq!(kinds.iter().filter(|kind| kind.is_none()).count(), 3);
    let refused = kinds.iter().flatten().count();
    assert_eq!(refused, 2);
    for kind in kinds.into_iter().flatten() {
        assert!(matches!(kind, ErrorKind::TooManyWaiting { limit: 3, .. }));
    }
}

#[test]
fn s18_requests_that_may_not_start_it_are_served_only_while_it_runs() {
    let (runtime, clock, world) = world(1);
    let probe = |takes: &Duration| takes.is_zero();
    let stack = layer(&runtime, "a")
        .only_if_running(probe)
        .layer(world.maker());
    let error = clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect_err("nothing runs");
    assert_eq!(*error.kind(), ErrorKind::NotRunning);
    assert_eq!(world.saw("a").begun, 0);
    clock
        .block_on(stack.clone().oneshot(ms(1)))
        .expect("served");
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    assert_eq!(world.saw("a").calls, 2);
}

#[test]
fn l1_a_failed_reload_keeps_the_old_instance_and_a_good_one_moves_the_calls() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let handle = stack.handle();
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");

    world.plan("b", |plan| plan.failing = 1);
    let error = clock
        .block_on(handle.reload("b".to_owned()))
        .expect_err("b fails");
    assert_eq!(*error.kind(), ErrorKind::StartFailed);
    assert_eq!(handle.status().generation, 1);
    let served = clock.block_on(stack.clone().oneshot(ms(0)));
    assert!(served.is_ok());
    assert_eq!((world.saw("a").calls, world.saw("a").stops), (2, 0));

    // A call in flight on the old one ends there, whole.
    let long = call(&clock, &stack, secs(3));
    clock.run();
    clock
        .block_on(handle.reload("b".to_owned()))
        .expect("b is there");
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    assert_eq!((world.saw("b").calls, world.saw("a").calls), (1, 3));
    clock.advance(secs(4));
    assert_eq!(kinds(vec![long]), [None]);
    let status = handle.status();
    assert_eq!((status.reloads, status.generation), (1, 2));
    assert_eq!((world.alive(), world.peak()), (1, 2));
}

#[test]
fn calls_during_a_reload_are_served_by_the_old_instance() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    world.plan("b", |plan| plan.start = secs(5));
    let reload = stack.handle().reload("b".to_owned());
    clock.advance(secs(1));
    let meanwhile = vec![call(&clock, &stack, ms(0))];
    clock.run();
    assert_eq!(kinds(meanwhile), [None]);
    assert_eq!(world.saw("a").calls, 2);
    clock.block_on(reload).expect("reloaded");
    assert_eq!(world.saw("b").ready, 1);
}

#[test]
fn s45_reload_in_place_stops_first_and_loses_no_call() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let reload = stack.handle().reload_in_place("b".to_owned());
    let waiting: Vec<_> = (0..3).map(|_| call(&clock, &stack, ms(0))).collect();
    clock.block_on(reload).expect("reloaded");
    clock.run();
    assert_eq!(kinds(waiting), [None, None, None]);
    assert_eq!((world.peak(), world.saw("b").calls), (1, 3));
}

#[test]
fn l2_an_unloaded_backend_stays_down_until_it_is_loaded() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").keep_running().layer(world.maker());
    let handle = stack.handle();
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    clock.block_on(handle.unload()).expect("unloaded");
    assert_eq!((handle.status().state, world.alive()), (State::Unloaded, 0));
    for result in [
        clock.block_on(stack.clone().oneshot(ms(0))),
        clock.block_on(handle.start()),
        clock.block_on(handle.start_evicting()),
    ] {
        assert_eq!(*result.expect_err("unloaded").kind(), ErrorKind::Unloaded);
    }
    clock.advance(secs(600));
    assert_eq!(world.saw("a").begun, 1);
    handle.load();
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
}

#[test]
fn a_stop_lets_calls_in_flight_end_and_cuts_those_left_when_its_drain_is_over() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a")
        .drain_timeout(secs(30))
        .layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let short = call(&clock, &stack, secs(20));
    let long = call(&clock, &stack, secs(60));
    clock.run();
    assert_eq!(stack.status().in_flight, Some(2));
    let stop = stack.handle().stop();
    clock.advance(ms(29_999));
    assert_eq!(
        (
            world.saw("a").stops,
            short.is_finished(),
            long.is_finished()
        ),
        (0, true, false)
    );
    clock.advance(ms(1));
    assert_eq!(kinds(vec![short, long]), [None, Some(ErrorKind::Stopped)]);
    clock.block_on(stop).expect("stopped");
    assert_eq!((world.saw("a").answered, world.alive()), (2, 0));
}

#[test]
fn what_keeps_running_is_restarted_after_a_crash_and_not_after_a_stop() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").keep_running().layer(world.maker());
    let handle = stack.handle();
    clock.block_on(handle.start()).expect("it runs");
    world.kill("a");
    clock.advance(secs(1));
    let status = handle.status();
    assert_eq!(
        (status.state, status.restarts, status.starts),
        (State::Running, 1, 2)
    );
    // A crash loop slows down: 100 ms doubling, not a start per crash.
    world.plan("a", |plan| plan.lives = Some(ms(1)));
    world.kill("a");
    clock.advance(secs(60));
    let begun = world.saw("a").begun;
    assert!((8..16).contains(&begun), "{begun} starts in a minute");
    clock.block_on(handle.stop()).expect("stopped");
    let begun = world.saw("a").begun;
    clock.advance(secs(600));
    assert_eq!((world.saw("a").begun, world.alive()), (begun, 0));
}

#[test]
fn dropping_the_last_handle_stops_it_once_its_calls_have_ended() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a").layer(world.maker());
    let handle = stack.handle();
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    drop(stack);
    clock.advance(secs(1));
    assert_eq!(world.alive(), 1);
    drop(handle);
    clock.advance(secs(1));
    assert_eq!((world.alive(), clock.tasks()), (0, 0));
    // A call that waits holds it.
    let stack = layer(&runtime, "b").layer(world.maker());
    let waiting = call(&clock, &stack, ms(0));
    drop(stack);
    clock.advance(ms(10));
    assert_eq!(kinds(vec![waiting]), [None]);
    clock.advance(secs(1));
    assert_eq!((world.alive(), clock.tasks()), (0, 0));
}

#[test]
fn l3_nothing_is_alive_or_can_appear_after_a_group_stopped() {
    let (runtime, clock, world) = world(1);
    let group = Group::new();
    let stacks: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|name| layer(&runtime, name).join(&group).layer(world.maker()))
        .collect();
    clock
        .block_on(stacks[0].clone().oneshot(ms(0)))
        .expect("served");
    let starting = call(&clock, &stacks[1], ms(0));
    clock.advance(ms(1));
    clock.block_on(group.stopped(secs(30)));
    assert_eq!((world.alive(), clock.tasks()), (0, 0));
    assert_eq!(kinds(vec![starting]), [Some(ErrorKind::ShutDown)]);
    for stack in &stacks {
        let error = clock
            .block_on(stack.clone().oneshot(ms(0)))
            .expect_err("down");
        assert_eq!(*error.kind(), ErrorKind::ShutDown);
    }
    let late = layer(&runtime, "d").join(&group).layer(world.maker());
    let error = clock
        .block_on(late.clone().oneshot(ms(0)))
        .expect_err("down");
    assert_eq!(*error.kind(), ErrorKind::ShutDown);
    clock.block_on(group.stopped(secs(30)));
    assert_eq!(
        group.handle("a").expect("it is there").status().state,
        State::ShutDown
    );
}

#[test]
fn a_handle_sees_states_however_short() {
    let (runtime, clock, world) = world(1);
    let (layer, handle) = layer(&runtime, "a").pair();
    let error = clock.block_on(handle.start()).expect_err("no backend yet");
    assert_eq!(*error.kind(), ErrorKind::Unknown);
    let mut stack = layer.layer(world.maker());
    let starting = handle.until(State::Starting);
    let running = handle.until(State::Running);
    let stopped = handle.until(State::Stopping);
    clock.block_on(handle.start()).expect("it starts");
    clock.block_on(handle.stop()).expect("it stops");
    clock.block_on(async { (starting.await, running.await, stopped.await) });
    let mut pending = Box::pin(handle.until(State::Running));
    assert!(test_util::poll_once(&mut pending).is_pending());
    clock.block_on(stack.ready()).expect("always");
}

#[test]
fn l5_a_call_dropped_at_any_poll_leaves_nothing_behind() {
    // Polls until done, then drops after each number of polls up to that.
    let mut polls = 0;
    let mut done = false;
    while !done {
        let (runtime, clock, world) = world(1);
        let stack = layer(&runtime, "a").layer(world.maker());
        let mut future = Box::pin(stack.clone().oneshot(ms(3)));
        for _ in 0..=polls {
            if test_util::poll_once(&mut future).is_ready() {
                done = true;
                break;
            }
            clock.advance(ms(1));
        }
        drop(future);
        clock.advance(secs(1));
        assert_eq!((stack.status().waiting, world.saw("a").in_flight), (0, 0));
        clock
            .block_on(stack.clone().oneshot(ms(0)))
            .expect("served");
        drop(stack);
        clock.advance(secs(1));
        assert_eq!((world.alive(), clock.tasks(), clock.timers()), (0, 0, 0));
        polls += 1;
    }
    assert!(polls > 10);
}

#[test]
fn s2_s5_orders_deaths_and_calls_in_any_order_never_make_two_of_one_backend() {
    let mut reloaded = 0;
    for seed in 1..60 {
        let (runtime, clock, world) = world(seed);
        let stack = layer(&runtime, "a").keep_running().layer(world.maker());
        let handle = stack.handle();
        let mut rng = Rng(seed);
        let mut calls = Vec::new();
        for _ in 0..80 {
            match rng.below(10) {
                0 => drop(handle.stop()),
                1 => drop(handle.start()),
                2 => drop(handle.reload_in_place(None)),
                3 => world.kill("a"),
                4 => drop(handle.unload()),
                5 | 6 => handle.load(),
                _ => {
                    handle.reset();
                    calls.push(call(&clock, &stack, ms(rng.below(8))));
                }
            }
            clock.advance(ms(rng.below(12)));
            assert!(world.alive() <= 1, "seed {seed}: {:#?}", world.log());
            if handle.status().state == State::Stopped {
                assert_eq!(world.alive(), 0, "e9: gone, not merely forgotten");
            }
        }
        // With a reload there may be two for a while, and no more.
        handle.load();
        handle.reset();
        clock.block_on(handle.start()).expect("it starts");
        for _ in 0..20 {
            match rng.below(4) {
                0 => world.kill("a"),
                _ => drop(handle.reload(None)),
            }
            clock.advance(ms(rng.below(15)));
            assert!(world.alive() <= 2, "seed {seed}: {:#?}", world.log());
        }
        reloaded += handle.status().reloads;
        handle.keep_running(false);
        clock.block_on(handle.stop()).expect("it stops");
        clock.advance(secs(60));
        for mut call in calls {
            assert!(call.take().is_some(), "seed {seed}: a call hangs");
        }
        assert_eq!((world.alive(), world.saw("a").misdelivered), (0, 0));
        assert_eq!((clock.tasks(), clock.timers()), (0, 0));
    }
    assert!(reloaded > 50, "{reloaded} reloads");
}

#[test]
fn e9_stopped_is_said_when_it_is_gone_and_not_before() {
    let (runtime, clock, world) = world(1);
    world.plan("a", |plan| plan.stop = secs(9));
    let stack = layer(&runtime, "a").layer(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let handle = stack.handle();
    let stop = handle.stop();
    let stopped = handle.until(State::Stopped);
    let seen = clock.spawn({
        let world = world.clone();
        async move {
            stopped.await;
            world.alive()
        }
    });
    clock.advance(secs(8));
    assert!(!seen.is_finished());
    assert_eq!(clock.block_on(seen), 0);
    clock.block_on(stop).expect("stopped");
}

#[test]
fn a_lent_backend_is_in_use_until_it_is_given_back() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a")
        .drain_timeout(secs(30))
        .layer(world.maker());
    let lent = clock.block_on(stack.lend()).expect("lent");
    assert_eq!(stack.status().in_flight, Some(1));
    let stop = stack.handle().stop();
    clock.advance(secs(10));
    assert_eq!(world.saw("a").stops, 0);
    let mut caller = support::Caller::clone(&lent);
    clock
        .block_on(tower::Service::call(&mut caller, ms(0)))
        .expect("it serves its borrower");
    drop((caller, lent));
    clock.block_on(stop).expect("stopped");
    assert!(clock.elapsed() < secs(11));
    assert_eq!(world.alive(), 0);
}

#[test]
fn a_borrower_hears_at_the_end_of_the_drain_that_it_is_to_give_back() {
    let (runtime, clock, world) = world(1);
    let stack = layer(&runtime, "a")
        .drain_timeout(secs(30))
        .layer(world.maker());
    let mut lent = clock.block_on(stack.lend()).expect("lent");
    let borrower = clock.spawn(async move { lent.cut().await });
    let begun = clock.elapsed();
    let stop = stack.handle().stop();
    clock.advance(secs(30) - Duration::from_nanos(1));
    assert!(!borrower.is_finished());
    assert_eq!((world.saw("a").stops, world.alive()), (0, 1));
    clock.advance(Duration::from_nanos(1));
    assert!(borrower.is_finished());
    clock.block_on(stop).expect("stopped");
    assert!(clock.elapsed() - begun < secs(31));
    assert_eq!((world.saw("a").stops, world.alive()), (1, 0));
}
