//! Under parts that nobody here wrote: hyper-util's pools, which know of no ceiling.

use hyper_util::client::pool::{cache, singleton::Singleton};
use tower::{Layer, Service, ServiceExt};
use tower_on_demand::{CeilingLayer, IdleEvict, KeepLayer, UntilResponse, test_util};

use crate::support::{World, ms, secs};

#[test]
fn under_a_hyper_util_cache_the_pool_never_has_more_than_the_ceiling_and_room_comes_back_by_itself()
{
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    let ceiling = CeilingLayer::new(runtime.clone(), 2).wait(secs(30));
    let maker = KeepLayer::new(runtime.clone()).layer(ceiling.layer(world.maker()));
    let mut pool = cache::builder().build(maker);

    let checked_out: Vec<_> = ["a", "b"]
        .map(|name| {
            clock
                .block_on(pool.call(name.to_owned()))
                .expect("there is room")
        })
        .into();
    assert_eq!((world.alive(), ceiling.occupancy().used), (2, 2));
    // A third connection has to wait for room.
    let third = clock.spawn(pool.call("c".to_owned()));
    clock.advance(secs(5));
    assert!(!third.is_finished());
    assert_eq!(world.alive(), 2);

    // One dies. Nobody calls it, and nobody touches the pool: its room goes to the one who waits.
    world.kill("b");
    clock.advance(ms(30));
    assert!(third.is_finished());
    assert_eq!((world.saw("b").alive, world.saw("c").alive), (0, 1));
    assert_eq!(world.peak(), 2);

    // What is idle in the pool holds its room until the pool lets go of it.
    drop(checked_out);
    assert_eq!(ceiling.occupancy().used, 2);
    pool.retain(|_| false);
    drop((pool, third));
    clock.advance(secs(1));
    assert_eq!((ceiling.occupancy().used, world.alive()), (0, 0));
}

#[test]
fn under_hyper_util_singletons_an_idle_one_makes_room_and_is_made_again() {
    for seed in 0..10 {
        let (runtime, clock) = test_util::runtime(seed);
        let world = World::new(&runtime);
        let (evictable, _idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let ceiling = CeilingLayer::new(runtime.clone(), 1).wait(secs(30));
        let maker =
            KeepLayer::new(runtime.clone()).layer(evictable.layer(ceiling.layer(world.maker())));
        let [mut a, mut b] = ["a", "b"].map(|_| Singleton::new(maker.clone()));

        let mut from_a = clock
            .block_on(a.call("a".to_owned()))
            .expect("there is room");
        clock.block_on(from_a.ready()).expect("ready");
        clock.block_on(from_a.call(ms(1))).expect("served");
        // Nobody uses `a`: its resource is freed without another call to it.
        let mut from_b = clock
            .block_on(b.call("b".to_owned()))
            .expect("room is made");
        assert_eq!((world.saw("a").alive, world.saw("b").alive), (0, 1));
        clock.block_on(from_b.ready()).expect("ready");
        clock.block_on(from_b.call(ms(1))).expect("served");

        // The retired one fails its readiness: that is what tells the pool to make another.
        assert!(clock.block_on(from_a.ready()).is_err());
        let mut again = clock
            .block_on(a.call("a".to_owned()))
            .expect("room is made");
        clock.block_on(again.ready()).expect("ready");
        clock.block_on(again.call(ms(1))).expect("served");
        assert_eq!((world.saw("a").begun, world.saw("b").alive), (2, 0));
        assert_eq!((world.peak(), world.saw("a").cut), (1, 0));
    }
}

#[test]
fn a_refusal_passes_through_a_pool_with_its_numbers() {
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    let ceiling = CeilingLayer::new(runtime.clone(), 1).wait(secs(3));
    let maker = KeepLayer::new(runtime.clone()).layer(ceiling.layer(world.maker()));
    let mut pool = cache::builder().build(maker);
    let held = clock
        .block_on(pool.call("a".to_owned()))
        .expect("there is room");
    let before = clock.elapsed();
    let Err(refused) = clock.block_on(pool.call("b".to_owned())) else {
        panic!("there is no room");
    };
    assert_eq!(clock.elapsed() - before, secs(3));
    assert!(format!("{refused:?}").contains("NoRoom"), "{refused:?}");
    drop(held);
}
