//! Keys.

use super::*;

#[test]
fn a_key_that_was_never_started_is_not_kept_for_ever() {
    let (runtime, clock, world) = world(1);
    let group = Group::new();
    let joined = group.clone();
    let tenants = KeyedLayer::new(
        runtime.clone(),
        |_: &Duration| Some("called".to_owned()),
        |key: &String| Ok::<_, BoxError>(key.clone()),
    )
    .each(move |backend| backend.join(&joined))
    .max_keys(10)
    .layer(world.maker());
    for n in 0..1_000 {
        drop(
            tenants
                .handle(format!("handle {n}"))
                .expect("there is place"),
        );
    }
    assert!(tenants.keys() <= 10);
    let kept = tenants.handle("kept".to_owned()).expect("there is place");
    clock.block_on(kept.start()).expect("started");
    group.close();
    clock.advance(secs(1));
    drop(kept);
    let error = clock
        .block_on(tenants.clone().oneshot(ms(0)))
        .expect_err("all is shut down");
    assert_eq!(*error.kind(), ErrorKind::ShutDown);
    for n in 0..20 {
        drop(tenants.handle(format!("late {n}")).expect("there is place"));
    }
    assert!(tenants.keys() <= 3, "{} keys", tenants.keys());
}

#[test]
fn a_key_is_remembered_for_what_was_ordered_of_it_and_not_for_its_options() {
    let (runtime, clock, world) = world(1);
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(async move { sweeper.run().await });
    let tenants = KeyedLayer::new(
        runtime.clone(),
        |takes: &Duration| Some(takes.as_millis().to_string()),
        |key: &String| Ok::<_, BoxError>(key.clone()),
    )
    .each(|backend| backend.keep_running())
    .max_keys(10)
    .layer(evictable.idle_after(secs(10)).layer(world.maker()));
    for n in 0..100 {
        clock
            .block_on(tenants.clone().oneshot(ms(n)))
            .expect("served");
        clock.advance(secs(20));
    }
    assert_eq!((tenants.keys(), world.alive()), (0, 0));
    let key = tenants.handle("7".to_owned()).expect("there is place");
    key.set_idle_after(secs(100));
    drop(key);
    clock
        .block_on(tenants.clone().oneshot(ms(8)))
        .expect("served");
    clock
        .block_on(tenants.clone().oneshot(ms(7)))
        .expect("served");
    clock.advance(secs(90));
    assert_eq!(world.alive(), 1, "its bound is remembered");
}
