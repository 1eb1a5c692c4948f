//! Calls that lead and calls that join.

use super::*;
use tower::{Service, service_fn};
use tower_on_demand::CoalesceLayer;

/// A call that leads or joins, dropped at each await point, with somebody else in the same flight or
/// not. No entry is left.
fn flights(joins: bool, other_stays: bool, tasks: bool) {
    for woken in [false, true] {
        for at in 0.. {
            let (runtime, clock) = test_util::runtime(at);
            let inner = service_fn({
                let runtime = runtime.clone();
                move |key: &'static str| {
                    let runtime = runtime.clone();
                    async move {
                        for _ in 0..3 {
                            runtime.sleep(ms(10)).await;
                        }
                        Ok::<_, std::convert::Infallible>(key)
                    }
                }
            });
            let layer = CoalesceLayer::new(|key: &&'static str| Some(*key));
            let (mut service, handle) = if tasks {
                let (layer, handle) = layer.spawn_on(runtime.clone()).with_handle();
                let service = layer.layer(inner);
                (tower::util::BoxCloneService::new(service), handle)
            } else {
                let (layer, handle) = layer.with_handle();
                let service = layer.layer(inner);
                (tower::util::BoxCloneService::new(service), handle)
            };
            let mut other = (joins || other_stays).then(|| {
                let mut service = service.clone();
                clock.spawn(async move { service.call("key").await.map(drop) })
            });
            if joins {
                clock.run();
            }
            let mut call = Counted::new(boxed(service.call("key")));
            let done = polled(&clock, &mut call, at, woken);
            drop(call);
            if !other_stays {
                other = None;
            }
            if other.is_none() && !tasks {
                // The last to leave drops the work in that same drop.
                let left = handle.statistics();
                assert_eq!((left.in_flight, left.waiting), (0, 0), "after poll {at}");
            }
            clock.advance(secs(1));
            assert!(other.as_ref().is_none_or(Task::is_finished));
            let left = handle.statistics();
            assert_eq!((left.in_flight, left.waiting), (0, 0), "after poll {at}");
            assert_eq!((clock.tasks(), clock.timers()), (0, 0), "after poll {at}");
            let again = clock.block_on(service.call("key"));
            assert_eq!(again.expect("it does not fail"), "key");
            if done {
                break;
            }
        }
    }
}

#[test]
fn l5_a_call_that_leads_alone() {
    flights(false, false, false);
    flights(false, false, true);
}

#[test]
fn l5_a_call_that_leads_and_one_that_stays() {
    flights(false, true, false);
    flights(false, true, true);
}

#[test]
fn l5_a_call_that_joins_one_that_stays() {
    flights(true, true, false);
    flights(true, true, true);
}

#[test]
fn l5_a_call_that_joins_one_that_leaves_too() {
    flights(true, false, false);
    flights(true, false, true);
}
