//! Time.

use super::*;

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
