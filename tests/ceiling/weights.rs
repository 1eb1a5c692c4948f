//! Weights: a limit that is not a head count.

use tower::{Layer, ServiceExt};
use tower_on_demand::{CeilingLayer, ErrorKind, test_util};

use crate::{
    common::{Host, Stack, error, is_done, no_room},
    support::{World, ms, secs},
};

fn weighing(host: &Host, name: &str, weight: u64) -> Stack {
    host.stack_with(name, |it| it.ceiling = it.ceiling.clone().weight(weight))
}

#[test]
fn s13_what_never_fits_is_refused_at_once_and_stops_nothing() {
    let host = Host::new(1, 10);
    let small = weighing(&host, "small", 10);
    let giant = weighing(&host, "giant", 12);
    host.served(&small, ms(1));
    let mut refused = host.call(&giant, ms(1));
    host.clock.run();
    let error = error(&mut refused);
    assert!(matches!(
        error.kind(),
        ErrorKind::NeverFits {
            weight: 12,
            limit: 10,
            ..
        }
    ));
    assert_eq!(
        (error.backend(), error.retry_after()),
        (Some("giant"), None)
    );
    assert_eq!(host.alive(&["small", "giant"]), [1, 0]);
    host.over(vec![small, giant]);
}

#[test]
fn s13_nothing_is_stopped_until_what_is_idle_suffices() {
    let host = Host::new(1, 10);
    let idle = weighing(&host, "idle", 5);
    let busy = weighing(&host, "busy", 5);
    let heavy = weighing(&host, "heavy", 8);
    host.served(&idle, ms(1));
    let long = host.call(&busy, secs(20));
    host.clock.advance(secs(1));
    let mut to_heavy = host.call(&heavy, ms(1));
    host.clock.advance(secs(10));
    assert_eq!(host.alive(&["idle", "busy", "heavy"]), [1, 1, 0]);
    // It is of use meanwhile.
    host.served(&idle, ms(1));
    host.clock.block_on(long).expect("it is served");
    host.clock.block_on(&mut to_heavy).expect("both make room");
    assert_eq!(host.alive(&["idle", "busy", "heavy"]), [0, 0, 1]);
    host.over(vec![idle, busy, heavy]);
}

#[test]
fn no_more_is_stopped_than_is_needed() {
    let host = Host::new(1, 10);
    // Coldest first: 1, 2, 6. Five are missing: the 6 alone does.
    let stacks: Vec<_> = [("a", 1), ("b", 2), ("c", 6)]
        .map(|(name, weight)| weighing(&host, name, weight))
        .into();
    for stack in &stacks {
        host.served(stack, ms(1));
        host.clock.advance(ms(1));
    }
    let new = weighing(&host, "new", 6);
    host.served(&new, ms(1));
    assert_eq!(host.alive(&["a", "b", "c", "new"]), [1, 1, 0, 1]);
    let mut stacks = stacks;
    stacks.push(new);
    host.over(stacks);
}

#[test]
fn a_heavy_head_holds_up_light_ones_and_lets_them_go_when_it_leaves() {
    let host = Host::new(1, 10);
    let busy = weighing(&host, "busy", 6);
    let light = weighing(&host, "light", 1);
    let heavy = host.stack_with("heavy", |it| {
        it.ceiling = it.ceiling.clone().weight(8).wait(secs(3));
    });
    let long = host.call(&busy, secs(20));
    host.clock.advance(secs(1));
    let mut to_heavy = host.call(&heavy, ms(1));
    host.clock.run();
    let to_light = host.call(&light, ms(1));
    host.clock.advance(secs(3) - ms(1));
    assert!(!is_done(&to_light), "four are free, but it is not its turn");
    host.clock.advance(ms(1));
    assert_eq!(no_room(&error(&mut to_heavy)).weight, 8);
    host.clock.advance(ms(20));
    assert!(is_done(&to_light));
    host.clock.block_on(long).expect("it is served");
    host.over(vec![busy, light, heavy]);
}

#[test]
fn a_weight_can_be_read_off_the_target() {
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    // A ceiling of MiB, on which every stack has to say what it weighs.
    let ceiling = CeilingLayer::weighed(runtime.clone(), 100);
    let maker = ceiling
        .clone()
        .weigh(|target: &String| target.len() as u64 * 30)
        .layer(world.maker());
    let one = clock.block_on(maker.clone().oneshot("a".to_owned()));
    assert_eq!(ceiling.occupancy().used, 30);
    let two = clock.block_on(maker.clone().oneshot("bb".to_owned()));
    assert_eq!(ceiling.occupancy().used, 90);
    drop(two);
    assert_eq!(ceiling.occupancy().used, 30);
    let refused = clock.block_on(maker.oneshot("dddd".to_owned()));
    let refused = refused.err().expect("120 never fit");
    assert!(refused.refused().is_some());
    drop(one);
    assert_eq!(ceiling.occupancy().used, 0);
}

#[test]
fn what_weighs_nothing_is_always_admitted_and_never_a_victim() {
    let host = Host::new(1, 1);
    let feather = weighing(&host, "feather", 0);
    let [a, b] = ["a", "b"].map(|name| host.stack(name));
    host.served(&a, ms(1));
    host.served(&feather, ms(1));
    assert_eq!(host.alive(&["a", "feather"]), [1, 1]);
    host.served(&b, ms(1));
    assert_eq!(host.alive(&["a", "b", "feather"]), [0, 1, 1]);
    host.over(vec![a, b, feather]);
}

#[test]
fn weights_without_end_are_counted_without_overflow() {
    let host = Host::new(1, u64::MAX);
    let [a, b] = ["a", "b"].map(|name| weighing(&host, name, u64::MAX));
    host.served(&a, ms(1));
    assert_eq!(host.ceiling.occupancy().used, u64::MAX);
    // The first makes room for the second.
    host.served(&b, ms(1));
    assert_eq!(host.alive(&["a", "b"]), [0, 1]);
    host.over(vec![a, b]);
}
