//! Every permit comes back exactly once, by whatever exit.

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_on_demand::{CeilingLayer, DropToStop, State, test_util};

use crate::{
    common::{Host, error, is_done},
    support::{Fake, World, ms, secs},
};

#[test]
fn c5_s25_a_thousand_failed_starts_leave_the_whole_budget() {
    let host = Host::new(1, 3);
    host.world.plan("bad", |plan| plan.failing = 1000);
    let bad = host.stack_with("bad", |it| it.lazy = it.lazy.clone().backoff(ms(1), ms(1)));
    for _ in 0..1000 {
        let mut call = host.call(&bad, ms(1));
        host.clock.advance(ms(20));
        error(&mut call);
    }
    assert_eq!(host.world.saw("bad").begun, 1000);
    assert_eq!(host.ceiling.occupancy().used, 0);
    let stacks: Vec<_> = ["a", "b", "c"].map(|name| host.stack(name)).into();
    for stack in &stacks {
        host.served(stack, ms(1));
    }
    assert_eq!(host.world.alive(), 3);
    let mut stacks = stacks;
    stacks.push(bad);
    host.over(stacks);
}

#[test]
fn c5_a_panicking_maker_a_timeout_and_a_dropped_executor_give_it_back() {
    let host = Host::new(1, 1);
    host.world.plan("panics", |plan| plan.panicking = 1);
    host.world.plan("hangs", |plan| plan.start_hangs = true);
    let panics = host.stack("panics");
    let hangs = host.stack_with("hangs", |it| {
        it.lazy = it.lazy.clone().start_timeout(secs(5));
    });
    let a = host.stack("a");
    let mut call = host.call(&panics, ms(1));
    host.clock.advance(secs(1));
    error(&mut call);
    assert_eq!(host.ceiling.occupancy().used, 0);
    let mut call = host.call(&hangs, ms(1));
    host.clock.advance(secs(5));
    error(&mut call);
    assert_eq!(host.ceiling.occupancy().used, 0);
    host.served(&a, ms(1));
    assert_eq!(host.ceiling.occupancy().used, 1);
    host.clock.shutdown();
    assert_eq!((host.ceiling.occupancy().used, host.world.alive()), (0, 0));
}

#[test]
fn c5_a_start_dropped_at_any_point_gives_it_back() {
    for polls in 0..6 {
        let (runtime, clock) = test_util::runtime(1);
        let world = World::new(&runtime);
        let ceiling = CeilingLayer::new(runtime.clone(), 1);
        let maker = ceiling.layer(world.maker());
        let mut start = Box::pin(maker.oneshot("a".to_owned()));
        for _ in 0..polls {
            if test_util::poll_once(&mut start).is_ready() {
                break;
            }
            clock.advance(ms(4));
        }
        drop(start);
        assert_eq!(
            (ceiling.occupancy().used, world.alive()),
            (0, 0),
            "after {polls} polls"
        );
    }
}

#[test]
fn s30_a_cancelled_start_makes_room_at_once_and_a_finished_one_is_idle_from_ready() {
    let host = Host::new(1, 1);
    host.world.plan("a", |plan| plan.start = secs(50));
    let a = host.stack_with("a", |it| it.lazy = it.lazy.clone().cancel_when_abandoned());
    let b = host.stack("b");
    let call = host.call(&a, ms(1));
    host.clock.advance(secs(1));
    let to_b = host.call(&b, ms(1));
    host.clock.advance(secs(1));
    assert!(!is_done(&to_b));
    drop(call);
    host.clock.run();
    assert_eq!(
        (host.world.saw("a").dropped, host.world.saw("b").begun),
        (1, 1)
    );
    host.clock.block_on(to_b).expect("it is served");
    host.over(vec![a, b]);

    let host = Host::new(1, 1);
    host.world.plan("a", |plan| plan.start = secs(20));
    let a = host.stack("a");
    let b = host.stack("b");
    let call = host.call(&a, ms(1));
    host.clock.advance(secs(1));
    drop(call);
    let to_b = host.call(&b, ms(1));
    host.clock.advance(secs(18));
    assert_eq!(a.status().state, State::Starting);
    // It gets ready, nobody uses it, and its room is made.
    host.clock.block_on(to_b).expect("it is served");
    assert_eq!(
        (host.world.saw("a").ready, host.world.saw("a").calls),
        (1, 0)
    );
    host.over(vec![a, b]);
}

#[test]
fn e9_the_room_comes_back_when_the_stop_is_done_and_not_before() {
    let host = Host::new(1, 1);
    host.world.plan("a", |plan| plan.stop = secs(7));
    let [a, b] = ["a", "b"].map(|name| host.stack(name));
    host.served(&a, ms(1));
    let to_b = host.call(&b, ms(1));
    host.clock.advance(secs(7) - ms(1));
    assert_eq!(
        (host.world.saw("b").begun, host.ceiling.occupancy().stopping),
        (0, 1)
    );
    host.clock.block_on(to_b).expect("it is served");
    assert_eq!(host.world.peak(), 1);
    host.over(vec![a, b]);
}

/// A maker whose instances are alive as long as any clone of their service is.
fn made_of_clones(
    world: &World,
) -> impl Service<
    String,
    Response = DropToStop<std::sync::Arc<Fake>>,
    Error = std::io::Error,
    Future: Send,
> + Clone
+ Send
+ 'static {
    let maker = world.maker();
    service_fn(move |name: String| {
        let maker = maker.clone();
        async move {
            let fake = maker.oneshot(name).await?;
            Ok(DropToStop::new(std::sync::Arc::new(fake)))
        }
    })
}

#[test]
fn the_room_of_what_goes_with_its_last_lease_comes_back_with_it() {
    for counted in [false, true] {
        let (runtime, clock) = test_util::runtime(1);
        let world = World::new(&runtime);
        let ceiling = CeilingLayer::new(runtime.clone(), 1);
        let occupied = ceiling.layer(made_of_clones(&world));
        let lazy = tower_on_demand::LazyStartLayer::new(runtime.clone(), "a".to_owned())
            .drain_timeout(secs(1));
        macro_rules! check {
            ($stack:expr) => {{
                let stack = $stack;
                let lent = clock.block_on(stack.lend()).expect("there is room");
                clock.block_on(stack.handle().stop()).expect("stopped");
                assert_eq!(clock.elapsed(), secs(1) + ms(10));
                // The drain is over and the owner rests, but what was lent holds it all.
                clock.advance(secs(60));
                assert_eq!((ceiling.occupancy().used, world.alive()), (1, 1));
                drop(lent);
                assert_eq!((ceiling.occupancy().used, world.alive()), (0, 0));
            }};
        }
        if counted {
            let (evictable, _idle_evict) =
                tower_on_demand::IdleEvict::pair(runtime, tower_on_demand::UntilResponse);
            check!(lazy.layer(evictable.layer(occupied)));
        } else {
            check!(lazy.layer(occupied));
        }
    }
}

#[test]
fn one_ceiling_under_another_both_are_kept() {
    let host = Host::new(3, 2);
    let outer = CeilingLayer::new(host.runtime.clone(), 3).wait(secs(60));
    let stacks: Vec<_> = (0..12)
        .map(|n| {
            // Two groups of two, three in all.
            let inner = match n % 2 {
                0 => host.ceiling.clone(),
                _ => CeilingLayer::clone(&outer),
            };
            let name = format!("b{n}");
            let lazy = tower_on_demand::LazyStartLayer::new(host.runtime.clone(), name);
            lazy.layer(
                host.evictable
                    .layer(outer.layer(inner.layer(host.world.maker()))),
            )
        })
        .collect();
    // The odd ones go through the same ceiling twice, and weigh double there.
    for _ in 0..3 {
        for stack in stacks.iter().step_by(2) {
            host.clock
                .block_on(stack.clone().oneshot(ms(3)))
                .expect("it is served");
        }
    }
    assert!(host.world.peak() <= 2);
    for stack in stacks.iter().skip(1).step_by(2) {
        host.clock
            .block_on(stack.clone().oneshot(ms(3)))
            .expect("it is served");
    }
    assert!(outer.occupancy().used <= 3);
    drop(stacks);
    host.clock.advance(secs(10));
    assert_eq!(
        (outer.occupancy().used, host.ceiling.occupancy().used),
        (0, 0)
    );
}
