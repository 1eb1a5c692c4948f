//! What a refused start is told.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_on_demand::{BoxError, CeilingLayer, Error, ErrorKind, LazyStartLayer, test_util};

use crate::{
    common::{Host, error, no_room},
    support::{World, ms, secs},
};

#[test]
fn s38_beyond_max_waiting_a_start_is_refused_at_once_with_a_time_to_retry() {
    let host = Host::new(1, 1);
    let busy = host.stack("busy");
    let long = host.call(&busy, secs(40));
    host.clock.advance(secs(1));
    let stacks: Vec<_> = (0..6)
        .map(|n| {
            host.stack_with(&format!("b{n}"), |it| {
                it.ceiling = it.ceiling.clone().max_waiting(1);
            })
        })
        .collect();
    let mut calls: Vec<_> = Vec::new();
    for stack in &stacks {
        calls.push(host.call(stack, ms(1)));
        host.clock.run();
    }
    let waiting = calls.remove(0);
    for call in &mut calls {
        let error = error(call);
        assert_eq!(
            error.kind().to_string(),
            "as many wait already as may wait: 1"
        );
        assert!(matches!(
            error.kind(),
            ErrorKind::TooManyWaiting { limit: 1, .. }
        ));
        assert!(
            error
                .retry_after()
                .is_some_and(|after| after > Duration::ZERO)
        );
    }
    assert!(!waiting.is_finished());
    host.clock.block_on(waiting).expect("it is served");
    host.clock.block_on(long).expect("it was served");
    let mut stacks = stacks;
    stacks.push(busy);
    host.over(stacks);
}

#[test]
fn no_room_names_the_backend_and_the_numbers() {
    let host = Host::new(1, 3);
    let stacks: Vec<_> = ["a", "b", "c"].map(|name| host.stack(name)).into();
    let heavy = host.stack_with("heavy", |it| {
        it.ceiling = it.ceiling.clone().wait(secs(2)).weight(2);
    });
    let d = host.stack("d");
    let calls: Vec<_> = stacks[..2].iter().map(|a| host.call(a, secs(9))).collect();
    host.served(&stacks[2], ms(1));
    // One is idle, which is not enough for the first in line; the second has to wait behind it.
    let mut refused = host.call(&heavy, ms(1));
    host.clock.run();
    let behind = host.call(&d, ms(1));
    host.clock.advance(secs(2));
    let told = error(&mut refused);
    assert_eq!(told.backend(), Some("heavy"));
    let numbers = no_room(&told);
    assert_eq!((numbers.limit, numbers.used, numbers.weight), (3, 3, 2));
    assert_eq!((numbers.running, numbers.busy, numbers.waiting), (3, 2, 2));
    assert_eq!((numbers.waited, numbers.own), (secs(2), false));
    let text = told.to_string();
    assert!(
        text.starts_with(
            "backend \"heavy\": no room: 3 of 3 in use by 3 running, 2 of them busy; 2 waiting"
        ),
        "{text}"
    );
    // Which of the first three was admitted first is the seed's.
    let mut names = numbers.holders.clone();
    names.sort();
    assert_eq!(names, ["a", "b", "c"].map(Into::into));
    let says = format!(
        "; held by {:?}, {:?}, {:?}; raise the limit, or let starts `wait` for longer",
        numbers.holders[0], numbers.holders[1], numbers.holders[2]
    );
    assert!(text.contains(&says), "{text}");
    // The moment the heavy one has left, what is idle suffices for the one behind it.
    host.clock.advance(ms(21));
    assert!(behind.is_finished());
    for call in calls {
        host.clock
            .block_on(call)
            .expect("nothing in flight was touched");
    }
    let mut all = stacks;
    all.extend([heavy, d]);
    host.over(all);
}

#[test]
fn a_refusal_names_a_few_of_those_who_hold_the_room_oldest_first() {
    let host = Host::new(1, 6);
    let stacks: Vec<_> = ["a", "b", "c", "d", "e", "f"]
        .map(|name| host.stack(name))
        .into();
    let calls: Vec<_> = stacks
        .iter()
        .map(|stack| {
            let call = host.call(stack, secs(90));
            host.clock.advance(ms(1));
            call
        })
        .collect();
    let late = host.stack("late");
    let mut refused = host.call(&late, ms(1));
    host.clock.advance(secs(60));
    let told = error(&mut refused);
    assert_eq!(no_room(&told).holders, ["a", "b", "c", "d"].map(Into::into));
    let text = told.to_string();
    assert!(
        text.contains("; held by \"a\", \"b\", \"c\", \"d\" and others; "),
        "{text}"
    );
    for call in calls {
        host.clock
            .block_on(call)
            .expect("nothing in flight was touched");
    }
    host.over(stacks.into_iter().chain([late]).collect());
}

#[test]
fn retry_after_is_the_average_residency_times_the_place_by_the_limit() {
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    world.plan("a", |plan| plan.start = ms(0));
    let ceiling = CeilingLayer::new(runtime.clone(), 2).wait(secs(1));
    let maker = ceiling.layer(world.maker());
    let start = || maker.clone().oneshot("a".to_owned());
    // Room is held for 8 s each time.
    for _ in 0..4 {
        let held = clock.block_on(start()).expect("there is room");
        clock.advance(secs(8));
        drop(held);
    }
    let _held = [clock.block_on(start()), clock.block_on(start())];
    let refused: Vec<_> = (0..3).map(|_| clock.spawn(start())).collect();
    clock.advance(secs(1));
    let mut places: Vec<_> = refused
        .into_iter()
        .map(|mut refused| {
            let refused = refused.take().expect("it is done").err().expect("no room");
            let error = BoxError::from(refused);
            let error = error.downcast_ref::<Error>().expect("it is ours");
            error.retry_after().expect("there is one")
        })
        .collect();
    places.sort();
    // They leave one by one, so each is the first in line when it is refused, save for those before it
    // that have not left yet.
    for after in places {
        let units = after.as_secs_f64() / 4.0;
        assert!(
            (1.0..=3.0).contains(&units) && units.fract() == 0.0,
            "{after:?}"
        );
    }
}

#[test]
fn with_the_layers_the_wrong_way_round_the_refusal_says_so() {
    let host = Host::new(1, 1);
    let stack = |name: &str| {
        let lazy = LazyStartLayer::new(host.runtime.clone(), name.to_owned());
        let maker = host.evictable.layer(host.world.maker());
        lazy.layer(host.ceiling.clone().wait(secs(1)).layer(maker))
    };
    let (a, b) = (stack("a"), stack("b"));
    host.clock
        .block_on(a.clone().oneshot(ms(1)))
        .expect("there is room");
    let refused = host.clock.block_on(b.clone().oneshot(ms(1)));
    let refused = refused.expect_err("nothing is known to be idle");
    assert_eq!(no_room(&refused).uncounted, 1);
    let text = refused.to_string();
    assert!(text.contains("put IdleEvict above Ceiling"), "{text}");
    drop((a, b));
    host.over(Vec::new());
}

#[test]
fn starts_that_fail_say_nothing_of_how_long_room_is_held() {
    let host = Host::new(1, 1);
    host.world.plan("broken", |plan| plan.failing = 1);
    let broken = host.stack("broken");
    let failed = host.clock.block_on(broken.clone().oneshot(ms(1)));
    failed.expect_err("it fails");
    let (a, b) = (
        host.stack("a"),
        host.stack_with("b", |it| it.ceiling = it.ceiling.clone().wait(secs(4))),
    );
    let long = host.call(&a, secs(60));
    let mut refused = host.call(&b, ms(1));
    host.clock.advance(secs(4));
    // The only one there is has been there for as long.
    let after = error(&mut refused).retry_after().expect("a guess");
    assert!(after >= secs(3), "{after:?}");
    host.clock
        .block_on(long)
        .expect("nothing in flight was touched");
    host.over(vec![broken, a, b]);
}
