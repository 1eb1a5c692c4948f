//! The virtual clock and the deterministic executor.
#![cfg(feature = "test-util")]

use std::{
    future::{pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
    time::Duration,
};

use hyper::rt::{Executor, Timer};
use tower_on_demand::test_util::{self, Counted};

const SECOND: Duration = Duration::from_secs(1);

/// Sets its flag when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Flag {
    fn new() -> (Self, Arc<AtomicBool>) {
        let flag = Arc::new(AtomicBool::new(false));
        (Self(flag.clone()), flag)
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

#[test]
fn nothing_runs_and_no_time_passes_by_itself() {
    let (runtime, clock) = test_util::runtime(1);
    let ran = Arc::new(AtomicBool::new(false));
    let ours = ran.clone();
    runtime.spawn(async move { ours.store(true, Ordering::SeqCst) });
    assert!(!is_set(&ran));
    assert_eq!(clock.elapsed(), Duration::ZERO);
    assert_eq!(clock.tasks(), 1);
    clock.run();
    assert!(is_set(&ran));
    assert_eq!(clock.elapsed(), Duration::ZERO);
    assert_eq!(clock.tasks(), 0);
}

#[test]
fn timers_fire_in_the_order_of_time_and_not_a_nanosecond_early() {
    let (runtime, clock) = test_util::runtime(2);
    let fired = Arc::new(Mutex::new(Vec::new()));
    for seconds in [3_u64, 1, 2] {
        let (runtime, fired) = (runtime.clone(), fired.clone());
        let start = runtime.now();
        runtime.clone().spawn(async move {
            runtime.sleep(Duration::from_secs(seconds)).await;
            fired.lock().unwrap().push((seconds, runtime.now() - start));
        });
    }
    clock.advance(SECOND - Duration::from_nanos(1));
    assert!(fired.lock().unwrap().is_empty());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(*fired.lock().unwrap(), [(1, SECOND)]);
    clock.advance(10 * SECOND);
    assert_eq!(
        *fired.lock().unwrap(),
        [(1, SECOND), (2, 2 * SECOND), (3, 3 * SECOND)]
    );
    assert_eq!(clock.elapsed(), 11 * SECOND);
}

#[test]
fn a_timer_set_while_time_advances_fires_within_the_same_advance() {
    let (runtime, clock) = test_util::runtime(3);
    let timer = runtime.clone();
    let task = clock.spawn(async move {
        for _ in 0..1000 {
            timer.sleep(SECOND).await;
        }
    });
    clock.advance(999 * SECOND);
    assert!(!task.is_finished());
    clock.advance(SECOND);
    assert!(task.is_finished());
}

#[test]
fn a_dropped_sleep_leaves_nothing_with_the_clock() {
    let (runtime, clock) = test_util::runtime(4);
    let mut sleep = runtime.sleep(SECOND);
    assert_eq!(clock.timers(), 0);
    assert!(test_util::poll_once(&mut sleep).is_pending());
    assert!(test_util::poll_once(&mut sleep).is_pending());
    assert_eq!(clock.timers(), 1);
    assert_eq!(clock.next_timer(), Some(SECOND));
    drop(sleep);
    assert_eq!(clock.timers(), 0);
    assert_eq!(clock.next_timer(), None);
}

#[test]
fn a_reset_sleep_forgets_its_old_deadline() {
    let (_runtime, clock) = test_util::runtime(5);
    let timer = clock.timer();
    let mut sleep = timer.sleep(SECOND);
    assert!(test_util::poll_once(&mut sleep).is_pending());
    let deadline = timer.now() + 5 * SECOND;
    timer.reset(&mut sleep, deadline);
    assert!(test_util::poll_once(&mut sleep).is_pending());
    assert_eq!((clock.timers(), clock.next_timer()), (1, Some(5 * SECOND)));
    clock.advance(4 * SECOND);
    assert!(test_util::poll_once(&mut sleep).is_pending());
    clock.advance(SECOND);
    assert!(test_util::poll_once(&mut sleep).is_ready());
    // And once more, after it was done.
    timer.reset(&mut sleep, timer.now() + SECOND);
    assert!(test_util::poll_once(&mut sleep).is_pending());
}

#[test]
fn a_sleep_beyond_all_time_is_one() {
    let (runtime, clock) = test_util::runtime(6);
    let mut sleep = runtime.sleep(Duration::MAX);
    assert!(test_util::poll_once(&mut sleep).is_pending());
    clock.advance(Duration::from_secs(u32::MAX.into()));
    assert!(test_util::poll_once(&mut sleep).is_pending());
}

/// In what order eight tasks that are ready at once, and again after each of two yields, ran.
fn order(seed: u64) -> Vec<usize> {
    let (runtime, clock) = test_util::runtime(seed);
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in 0..8 {
        let order = order.clone();
        runtime.spawn(async move {
            for _ in 0..3 {
                order.lock().unwrap().push(n);
                let mut again = false;
                poll_fn(|cx| {
                    if std::mem::replace(&mut again, true) {
                        return Poll::Ready(());
                    }
                    cx.waker().wake_by_ref();
                    Poll::Pending
                })
                .await;
            }
        });
    }
    clock.run();
    assert_eq!(clock.tasks(), 0);
    order.lock().unwrap().clone()
}

#[test]
fn the_same_seed_gives_the_same_run_and_other_seeds_give_others() {
    let runs: Vec<_> = (0..50).map(order).collect();
    for (seed, run) in (0..).zip(&runs) {
        assert_eq!(run.len(), 24);
        assert_eq!(*run, order(seed));
    }
    let distinct: std::collections::BTreeSet<_> = runs.iter().collect();
    assert_eq!(distinct.len(), 50);
    let firsts: std::collections::BTreeSet<_> = runs.iter().map(|run| run[0]).collect();
    assert_eq!(firsts.len(), 8);
}

#[test]
fn block_on_moves_the_time_only_when_nothing_is_ready() {
    let (runtime, clock) = test_util::runtime(7);
    let timer = runtime.clone();
    let task = clock.spawn(async move {
        timer.sleep(3600 * SECOND).await;
        timer.now()
    });
    let start = clock.now();
    let woken = clock.block_on(async {
        runtime.sleep(SECOND).await;
        assert_eq!(clock.elapsed(), SECOND);
        task.await
    });
    assert_eq!(woken - start, 3600 * SECOND);
    assert_eq!(clock.elapsed(), 3600 * SECOND);
}

#[test]
fn block_on_panics_when_nothing_can_ever_wake_the_future() {
    let (runtime, clock) = test_util::runtime(8);
    runtime.spawn(pending());
    let panic = catch_unwind(AssertUnwindSafe(|| clock.block_on(pending::<()>()))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(
        message.contains("nothing can wake this future any more"),
        "{message}"
    );
    assert!(message.contains("tasks: 1"), "{message}");
}

#[test]
#[should_panic = "some task wakes itself for ever"]
fn a_task_that_wakes_itself_for_ever_is_noticed() {
    let (runtime, clock) = test_util::runtime(9);
    runtime.spawn(poll_fn(|cx| {
        cx.waker().wake_by_ref();
        Poll::Pending
    }));
    clock.run();
}

#[test]
fn a_panicking_task_is_written_down_and_the_others_go_on() {
    let (runtime, clock) = test_util::runtime(10);
    let (flag, dropped) = Flag::new();
    runtime.spawn(async move {
        let _flag = flag;
        panic!("the {}nd", 2);
    });
    let mut other = clock.spawn(async { 7 });
    let mut own = clock.spawn(async { panic!("own") });
    clock.run();
    assert_eq!(other.take(), Some(7));
    assert!(is_set(&dropped));
    let mut panics = clock.panics();
    panics.sort();
    assert_eq!(panics, ["own", "the 2nd"]);
    assert!(own.is_finished());
    assert_eq!(own.panicked().as_deref(), Some("own"));
    assert_eq!(own.take(), None::<()>);
    assert_eq!(clock.tasks(), 0);
}

#[test]
fn a_panic_in_a_drop_takes_nothing_down_either() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let (runtime, clock) = test_util::runtime(11);
    let (flag, dropped) = Flag::new();
    let bomb = Bomb;
    runtime.spawn(async move {
        let _bomb = bomb;
        pending::<()>().await;
    });
    runtime.spawn(async move {
        let _flag = flag;
        pending::<()>().await;
    });
    clock.run();
    clock.shutdown();
    assert!(is_set(&dropped));
    assert_eq!(clock.panics(), ["in drop"]);
}

#[test]
fn dropping_the_handle_cancels_the_task_in_that_very_drop() {
    let (_runtime, clock) = test_util::runtime(12);
    let (flag, dropped) = Flag::new();
    let task = clock.spawn(async move {
        let _flag = flag;
        pending::<()>().await;
    });
    clock.run();
    assert!(!is_set(&dropped));
    drop(task);
    assert!(is_set(&dropped));
    assert_eq!(clock.tasks(), 0);
}

#[test]
fn a_detached_task_outlives_its_handle() {
    let (runtime, clock) = test_util::runtime(13);
    let (flag, dropped) = Flag::new();
    clock
        .spawn(async move {
            let _flag = flag;
            runtime.sleep(SECOND).await;
        })
        .detach();
    clock.run();
    assert!(!is_set(&dropped));
    clock.advance(SECOND);
    assert!(is_set(&dropped));
}

#[test]
fn a_task_that_cancels_itself_is_dropped_after_its_poll() {
    let (_runtime, clock) = test_util::runtime(14);
    let (flag, dropped) = Flag::new();
    let seen = dropped.clone();
    let own = Arc::new(Mutex::new(None));
    let handle = own.clone();
    let task = clock.spawn(async move {
        let _flag = flag;
        let handle = handle.lock().unwrap().take();
        drop::<Option<test_util::Task<()>>>(handle);
        assert!(!is_set(&seen));
        pending::<()>().await;
    });
    *own.lock().unwrap() = Some(task);
    clock.run();
    assert!(is_set(&dropped));
    assert_eq!((clock.tasks(), clock.panics().len()), (0, 0));
}

#[test]
fn shutdown_drops_the_tasks_and_those_spawned_later() {
    let (runtime, clock) = test_util::runtime(15);
    let (flag, dropped) = Flag::new();
    let (late, late_dropped) = Flag::new();
    let spawner = runtime.clone();
    runtime.spawn(async move {
        let _spawns_when_dropped = Spawns(Some(late), spawner);
        let _flag = flag;
        pending::<()>().await;
    });
    let waiting = clock.spawn(pending::<()>());
    clock.run();
    clock.shutdown();
    assert!(is_set(&dropped));
    assert!(is_set(&late_dropped));
    assert!(waiting.is_finished());
    let (flag, dropped) = Flag::new();
    runtime.spawn(async move { drop(flag) });
    assert!(is_set(&dropped));
    assert_eq!(clock.tasks(), 0);

    struct Spawns(Option<Flag>, tower_on_demand::Runtime);
    impl Drop for Spawns {
        fn drop(&mut self) {
            let flag = self.0.take();
            self.1.spawn(async move { drop(flag) });
        }
    }
}

#[test]
fn the_last_clock_takes_the_tasks_along() {
    let (runtime, clock) = test_util::runtime(16);
    let (flag, dropped) = Flag::new();
    let timer = runtime.clone();
    runtime.spawn(async move {
        let _flag = flag;
        timer.sleep(SECOND).await;
    });
    clock.run();
    let second = clock.clone();
    drop(clock);
    assert!(!is_set(&dropped));
    drop(second);
    assert!(is_set(&dropped));
    let (flag, dropped) = Flag::new();
    runtime.spawn(async move { drop(flag) });
    assert!(is_set(&dropped));
}

#[test]
fn a_wake_during_a_poll_is_not_lost() {
    let (_runtime, clock) = test_util::runtime(17);
    let mut polls = 0;
    let mut task = clock.spawn(poll_fn(move |cx| {
        polls += 1;
        if polls == 3 {
            return Poll::Ready(polls);
        }
        cx.waker().wake_by_ref();
        cx.waker().wake_by_ref();
        Poll::Pending
    }));
    clock.run();
    assert_eq!(task.take(), Some(3));
    assert_eq!(clock.polls(), 3);
}

#[test]
fn wakes_from_other_threads_are_seen() {
    let (_runtime, clock) = test_util::runtime(18);
    let (sender, receiver) = mpsc::channel();
    let mut sent = false;
    let mut task = clock.spawn(poll_fn(move |cx| {
        if std::mem::replace(&mut sent, true) {
            return Poll::Ready(());
        }
        sender.send(cx.waker().clone()).unwrap();
        Poll::Pending
    }));
    clock.run();
    std::thread::spawn(move || receiver.recv().unwrap().wake())
        .join()
        .unwrap();
    clock.run();
    assert_eq!(task.take(), Some(()));
}

#[test]
fn two_threads_may_run_one_clock() {
    let (runtime, clock) = test_util::runtime(19);
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..1000 {
        let (runtime, done) = (runtime.clone(), done.clone());
        runtime.clone().spawn(async move {
            runtime.sleep(SECOND).await;
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    clock.run();
    clock.advance(Duration::ZERO);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| clock.advance(SECOND));
        }
    });
    clock.run();
    assert_eq!(done.load(Ordering::SeqCst), 1000);
}

#[test]
fn tasks_may_run_the_clock_they_run_on() {
    let (_runtime, clock) = test_util::runtime(20);
    let inner = clock.clone();
    let mut task = clock.spawn(async move {
        let mut other = inner.spawn(async { 1 });
        inner.run();
        other.take()
    });
    clock.run();
    assert_eq!(task.take(), Some(Some(1)));
}

#[test]
fn an_executor_for_foreign_code_runs_on_the_same_clock() {
    let (_runtime, clock) = test_util::runtime(21);
    let (flag, dropped) = Flag::new();
    clock.executor().execute(async move { drop(flag) });
    clock.run();
    assert!(is_set(&dropped));
}

#[test]
fn counted_counts_polls_and_wakes_inside_a_task() {
    let (runtime, clock) = test_util::runtime(22);
    let counted = Counted::new(async move {
        for _ in 0..5 {
            runtime.sleep(SECOND).await;
        }
    });
    let counts = counted.counts();
    let task = clock.spawn(counted);
    clock.advance(2 * SECOND);
    assert_eq!((counts.polls(), counts.wakes()), (3, 2));
    clock.advance(10 * SECOND);
    assert!(task.is_finished());
    assert_eq!((counts.polls(), counts.wakes()), (6, 5));
}

#[test]
fn clocks_and_handles_go_where_tests_need_them() {
    fn goes_anywhere<T: Send + Sync + Clone + std::fmt::Debug>(_: &T) {}
    fn is_send<T: Send + Sync + std::fmt::Debug>(_: &T) {}
    let (runtime, clock) = test_util::runtime(23);
    goes_anywhere(&runtime);
    goes_anywhere(&clock);
    goes_anywhere(&clock.timer());
    goes_anywhere(&clock.executor());
    is_send(&clock.sleep(SECOND));
    is_send(&clock.spawn(async {}));
}
