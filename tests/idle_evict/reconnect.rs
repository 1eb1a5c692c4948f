//! Under `tower::reconnect`, which makes a service again when its readiness fails.

use tower::{Layer, Service, ServiceExt, reconnect::Reconnect};
use tower_on_demand::{KeepLayer, test_util::Counted};

use crate::{
    common::Host,
    support::{ms, secs},
};

#[test]
fn what_is_idle_is_stopped_without_another_call_and_the_next_call_makes_it_again() {
    for seed in 0..10 {
        let host = Host::swept(seed);
        let maker = KeepLayer::new(host.runtime.clone()).layer(
            host.evictable
                .clone()
                .idle_after(secs(10))
                .layer(host.world.maker()),
        );
        let mut service = Reconnect::new(maker, "a".to_owned());
        for round in 1..=3 {
            host.clock.block_on(service.ready()).expect("it is made");
            host.clock
                .block_on(service.call(ms(1)))
                .expect("it is served");
            assert_eq!(host.world.saw("a").begun, round);
            // The handle is still held; the resource is not.
            host.clock.advance(secs(10) + ms(10));
            assert_eq!((host.alive("a"), host.world.saw("a").gone), (0, round));
        }
        assert_eq!((host.world.saw("a").cut, host.world.saw("a").peak), (0, 1));
    }
}

#[test]
fn a_long_call_through_it_is_not_cut() {
    let host = Host::swept(1);
    host.prompt("a");
    let maker = KeepLayer::new(host.runtime.clone()).layer(
        host.evictable
            .clone()
            .idle_after(secs(10))
            .layer(host.world.maker()),
    );
    let mut service = Reconnect::new(maker, "a".to_owned());
    host.clock.block_on(service.ready()).expect("it is made");
    let call = Counted::new(Box::pin(service.call(secs(60))));
    let call = host.clock.spawn(call);
    host.clock.advance(secs(69));
    assert!(call.is_finished());
    assert_eq!(host.stops("a"), 0);
    host.clock.advance(secs(1));
    assert_eq!(host.stopped_at("a"), Some(secs(70)));
}
