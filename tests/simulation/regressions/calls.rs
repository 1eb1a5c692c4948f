//! Calls, and what they are handed.

use super::*;

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
