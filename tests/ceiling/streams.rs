//! A streamed answer under a full ceiling.

use http_body_util::BodyExt;
use tower::{Layer, ServiceExt};
use tower_on_demand::{CeilingLayer, IdleEvict, LazyStartLayer, http::UntilBodyEnd, test_util};

use crate::support::{World, ms, secs};
use fakes::{body, request};

#[path = "../support/streams.rs"]
mod fakes;

#[test]
fn s07_e1_a_streamed_body_is_complete_before_its_backend_makes_way_for_another() {
    for seed in 0..10 {
        let (runtime, clock) = test_util::runtime(seed);
        let world = World::new(&runtime);
        let (evictable, _idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
        let ceiling = CeilingLayer::new(runtime.clone(), 1).wait(secs(60));
        let stack = |name: &str| {
            LazyStartLayer::new(runtime.clone(), name.to_owned())
                .layer(evictable.layer(ceiling.layer(world.streaming_maker())))
        };
        let [a, b] = ["a", "b"].map(stack);
        let ask = request(body(&runtime, 0, ms(0), ()), 20, secs(1), false);
        let head = clock
            .block_on(a.clone().oneshot(ask))
            .expect("it is served");
        let ask = request(body(&runtime, 0, ms(0), ()), 1, ms(1), false);
        let to_b = clock.spawn(b.clone().oneshot(ask));
        let whole = clock.spawn(head.into_body().collect());
        clock.advance(secs(20) - ms(1));
        assert_eq!((world.saw("a").stops, world.saw("b").begun), (0, 0));
        let whole = clock.block_on(whole).expect("no error").to_bytes();
        assert_eq!(whole.len(), 100);
        let from_b = clock.block_on(to_b).expect("it is served");
        let from_b = clock
            .block_on(from_b.into_body().collect())
            .expect("no error");
        assert_eq!(from_b.to_bytes().len(), 5);
        assert_eq!(
            (world.saw("a").cut, world.saw("a").gone, world.peak()),
            (0, 1, 1)
        );
    }
}
