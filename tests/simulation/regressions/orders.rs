//! Restarts, and orders at every moment.

use super::*;

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
