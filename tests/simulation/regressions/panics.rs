//! Panics of user code.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

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

#[test]
fn l3_who_leaves_with_a_lease_whose_drop_panics_does_not_make_the_owner_deaf() {
    let (runtime, clock) = test_util::runtime(1);
    let maker = service_fn(|_: String| ready(Ok::<_, std::io::Error>(DropToStop::new(Bomb(true)))));
    let stack = layer(&runtime).cancel_when_abandoned().layer(maker);
    let mut call = Box::pin(stack.clone().oneshot(ms(0)));
    assert!(test_util::poll_once(&mut call).is_pending());
    // It has its lease, and has not seen it yet.
    clock.run();
    let left = catch_unwind(AssertUnwindSafe(|| drop(call)));
    assert!(left.is_err());
    clock.run();
    let stop = clock.spawn(stack.handle().stop());
    clock.advance(secs(60));
    assert!(stop.is_finished());
    assert_eq!(stack.status().state, State::Stopped);
}

#[test]
fn l1_a_new_one_that_cannot_lend_and_does_not_end_keeps_no_order_waiting() {
    let (runtime, clock) = test_util::runtime(1);
    let (stack, oddity) = odd(&runtime);
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    oddity.lease.store(true, Ordering::Relaxed);
    oddity.endless.store(true, Ordering::Relaxed);
    let error = clock
        .block_on(stack.handle().reload(None))
        .expect_err("it panicked");
    assert_eq!(*error.kind(), ErrorKind::Panicked);
    oddity.lease.store(false, Ordering::Relaxed);
    oddity.endless.store(false, Ordering::Relaxed);
    // The old one is idle, serves, and hears of its end at once.
    assert_eq!(stack.status().in_flight, Some(0));
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    let _stop = stack.handle().stop();
    clock.run();
    assert_eq!(stack.status().state, State::Stopping);
    assert_eq!(oddity.dropped.load(Ordering::Relaxed), 1);
    // The other is given up when its time is over.
    clock.advance(secs(60));
    assert_eq!(stack.status().state, State::Stopped);
    assert_eq!(oddity.dropped.load(Ordering::Relaxed), 2);
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
