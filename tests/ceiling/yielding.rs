//! `yield_after`: endless traffic to one backend does not starve another.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    CeilingLayer, DropToStop, Eviction, IdleEvict, LazyStartLayer, UntilResponse, test_util,
};

use crate::{
    common::{Host, Stack, error, is_done, no_room},
    support::{ms, secs},
};

fn impatient(host: &Host, name: &str) -> Stack {
    host.stack_with(name, |it| {
        it.ceiling = it.ceiling.clone().yield_after(secs(1))
    })
}

#[test]
fn s15_endless_overlapping_calls_cannot_starve_a_starter_and_none_of_them_fails() {
    for seed in 0..20 {
        let host = Host::new(seed, 1);
        let a = host.stack("a");
        let b = impatient(&host, "b");
        let mut to_a: Vec<_> = Vec::new();
        let mut to_b = None;
        // Every 50 ms a call of 120 ms: there is never a moment without one.
        for step in 0..100 {
            to_a.push(host.call(&a, ms(120)));
            host.clock.advance(ms(50));
            if step == 10 {
                to_b = Some((host.call(&b, ms(1)), host.clock.elapsed()));
            }
            if let Some((call, since)) = &to_b {
                let waited = host.clock.elapsed() - *since;
                assert!(
                    is_done(call) || waited < secs(2),
                    "still waiting after {waited:?}"
                );
            }
        }
        assert!(is_done(&to_b.expect("it was made").0));
        for call in to_a {
            host.clock.block_on(call).expect("none of them fails");
        }
        let saw = host.world.saw("a");
        assert_eq!((saw.answered, saw.cut, saw.misdelivered), (100, 0, 0));
        assert_eq!(host.world.saw("b").answered, 1);
        assert_eq!(host.world.peak(), 1);
        host.over(vec![a, b]);
    }
}

#[test]
fn s15_the_yielding_one_finishes_what_it_has_and_says_why_it_went() {
    let host = Host::new(1, 1);
    let a = host.stack("a");
    let b = impatient(&host, "b");
    let begun = host.call(&a, secs(3));
    host.clock.advance(ms(500));
    let to_b = host.call(&b, ms(1));
    host.clock.advance(secs(1));
    // It yields now: this one waits, and fails not.
    let after = host.call(&a, ms(1));
    host.clock.advance(ms(500));
    assert_eq!(host.world.saw("a").calls, 1);
    assert!(!begun.is_finished());
    host.clock.block_on(begun).expect("it is served");
    host.clock.run();
    assert_eq!(a.status().last_eviction, Some(Eviction::Yield));
    host.clock.block_on(to_b).expect("it is served");
    host.clock
        .block_on(after)
        .expect("it waited behind the other, and is served");
    assert_eq!(host.world.saw("a").begun, 2);
    assert_eq!(host.world.peak(), 1);
    host.over(vec![a, b]);
}

#[test]
fn s47_when_the_starter_leaves_the_calls_that_waited_are_served_at_that_moment() {
    for seed in 0..20 {
        let host = Host::new(seed, 1);
        let a = host.stack("a");
        let b = host.stack_with("b", |it| {
            it.ceiling = it.ceiling.clone().yield_after(secs(1)).wait(secs(8));
        });
        let stream = host.call(&a, secs(600));
        host.clock.advance(secs(1));
        let mut to_b = host.call(&b, ms(1));
        host.clock.advance(secs(2));
        let held: Vec<_> = (0..5).map(|_| host.call(&a, ms(0))).collect();
        host.clock.advance(secs(6) - Duration::from_nanos(1));
        assert_eq!(host.world.saw("a").answered, 0);
        host.clock.advance(Duration::from_nanos(1));
        no_room(&error(&mut to_b));
        assert_eq!(host.world.saw("a").answered, 5);
        assert!(held.iter().all(is_done));
        host.clock.block_on(stream).expect("the stream is whole");
        let saw = host.world.saw("a");
        assert_eq!((saw.begun, saw.answered, saw.cut), (1, 6, 0));
        host.over(vec![a, b]);
    }
}

#[test]
fn the_coldest_busy_one_yields_and_only_as_many_as_are_wanted() {
    let host = Host::new(1, 3);
    let stacks: Vec<_> = ["a", "b", "c"].map(|name| host.stack(name)).into();
    // The last use of `b` ended first; all are busy.
    for index in [1, 0, 2] {
        host.served(&stacks[index], ms(1));
        host.clock.advance(ms(1));
    }
    let long: Vec<_> = stacks.iter().map(|it| host.call(it, secs(20))).collect();
    host.clock.advance(secs(1));
    let d = impatient(&host, "d");
    let to_d = host.call(&d, ms(1));
    host.clock.advance(secs(2));
    let more: Vec<_> = stacks.iter().map(|it| host.call(it, ms(1))).collect();
    host.clock.advance(secs(1));
    let answered = ["a", "b", "c"].map(|name| host.world.saw(name).answered);
    assert_eq!(answered, [2, 1, 2], "only the coldest yields");
    for call in long.into_iter().chain(more) {
        host.clock.block_on(call).expect("it is served");
    }
    host.clock.block_on(to_d).expect("it is served");
    let mut stacks = stacks;
    stacks.push(d);
    host.over(stacks);
}

#[test]
fn nobody_yields_in_vain_nor_what_is_pinned_or_fresh() {
    let host = Host::new(1, 4);
    let pinned = host.stack_with("pinned", |it| {
        it.evictable = it.evictable.clone().pinned(true);
        it.ceiling = it.ceiling.clone().weight(3);
    });
    let a = host.stack("a");
    let heavy = host.stack_with("heavy", |it| {
        it.ceiling = it
            .ceiling
            .clone()
            .weight(2)
            .yield_after(secs(1))
            .wait(secs(5));
    });
    host.served(&pinned, ms(1));
    let long = host.call(&a, secs(20));
    host.clock.advance(secs(1));
    // One of the two it needs could yield; the pinned one never does.
    let mut refused = host.call(&heavy, ms(1));
    host.clock.advance(secs(3));
    host.served(&a, ms(1));
    host.served(&pinned, ms(1));
    host.clock.advance(secs(2));
    no_room(&error(&mut refused));
    host.clock.block_on(long).expect("it is served");
    host.over(vec![pinned, a, heavy]);

    let host = Host::new(1, 1);
    let fresh = host.stack_with("fresh", |it| {
        it.ceiling = it.ceiling.clone().min_residency(secs(10));
    });
    host.world.plan("fresh", |plan| plan.start = ms(0));
    let b = impatient(&host, "b");
    let long = host.call(&fresh, secs(30));
    host.clock.advance(secs(1));
    let to_b = host.call(&b, ms(1));
    host.clock.advance(secs(9) - ms(1));
    host.served(&fresh, ms(0));
    host.clock.advance(ms(1));
    let held = host.call(&fresh, ms(0));
    host.clock.advance(secs(1));
    assert!(!is_done(&held), "from then on it yields");
    host.clock.block_on(long).expect("it is served");
    host.clock.block_on(to_b).expect("it is served");
    host.clock.block_on(held).expect("it is served");
    host.over(vec![fresh, b]);
}

/// An instance whose end is the drop of its last clone.
struct Life(Arc<[AtomicUsize; 2]>);

impl Life {
    fn begins(counts: &Arc<[AtomicUsize; 2]>) -> Arc<Self> {
        let alive = counts[0].fetch_add(1, Ordering::SeqCst) + 1;
        counts[1].fetch_max(alive, Ordering::SeqCst);
        Arc::new(Self(counts.clone()))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0[0].fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn c1_calls_that_wait_while_an_instance_yields_keep_it_no_longer_than_its_room() {
    for seed in 0..50 {
        let (runtime, clock) = test_util::runtime(seed);
        let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
        let maker = {
            let (counts, timer) = (counts.clone(), runtime.clone());
            service_fn(move |_: &'static str| {
                let (life, timer) = (Life::begins(&counts), timer.clone());
                let service = service_fn(move |takes: Duration| {
                    let (life, sleep) = (life.clone(), timer.sleep(takes));
                    async move {
                        sleep.await;
                        drop(life);
                        Ok::<_, Infallible>(())
                    }
                });
                async { Ok::<_, Infallible>(DropToStop::new(service)) }
            })
        };
        let (evictable, _idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let ceiling = CeilingLayer::new(runtime.clone(), 1)
            .wait(secs(60))
            .yield_after(secs(1));
        let [a, b] = ["a", "b"].map(|name| {
            ServiceBuilder::new()
                .layer(LazyStartLayer::new(runtime.clone(), name))
                .layer(evictable.clone())
                .layer(ceiling.clone())
                .service(maker.clone())
        });
        let mut calls = vec![clock.spawn(a.clone().oneshot(secs(5)))];
        clock.advance(ms(1));
        calls.push(clock.spawn(b.clone().oneshot(ms(1))));
        clock.advance(secs(2));
        // These wait, with a lease of the one that yields.
        calls.extend((0..10).map(|_| clock.spawn(a.clone().oneshot(ms(1)))));
        clock.advance(secs(1));
        for call in calls {
            clock.block_on(call).expect("all are served");
        }
        assert_eq!(counts[1].load(Ordering::SeqCst), 1, "seed {seed}");
    }
}
