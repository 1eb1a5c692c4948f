//! Room, and who may be evicted for it.

use super::*;

#[test]
fn e7_what_was_pinned_by_its_bound_is_not_pinned_by_another() {
    let (runtime, clock, world) = world(1);
    let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    runtime.spawn(async move { sweeper.run().await });
    let stack = ServiceBuilder::new()
        .layer(layer(&runtime))
        .layer(evictable.idle_after(Duration::ZERO))
        .service(world.maker());
    clock
        .block_on(stack.clone().oneshot(ms(0)))
        .expect("served");
    clock.advance(secs(3600));
    assert_eq!(world.alive(), 1);
    stack.handle().set_idle_after(secs(10));
    clock.advance(secs(11));
    assert_eq!(world.alive(), 0);
}

#[test]
fn c1_the_room_of_a_crashed_instance_is_not_its_successors_while_a_call_still_has_it() {
    let (runtime, clock) = test_util::runtime(1);
    let (alive, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    struct Alive(Arc<AtomicU32>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let maker = service_fn({
        let (runtime, alive, peak) = (runtime.clone(), alive.clone(), peak.clone());
        move |_: String| {
            peak.fetch_max(alive.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let life = Arc::new(Alive(alive.clone()));
            let (runtime, broken) = (runtime.clone(), Arc::new(AtomicBool::new(false)));
            let serve = service_fn(move |takes: Duration| {
                let (sleep, life) = (runtime.sleep(takes), life.clone());
                async move {
                    sleep.await;
                    drop(life);
                    Ok::<_, BoxError>(())
                }
            });
            ready(Ok::<_, std::io::Error>(DropToStop::new(Breaks(
                serve, broken,
            ))))
        }
    });
    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), 1).strict();
    let stack = ServiceBuilder::new()
        .layer(layer(&runtime).keep_running())
        .layer(evictable.pinned(true))
        .layer(ceiling)
        .service(maker);
    let long = call(&clock, &stack, secs(5));
    clock.run();
    // The next lease of it breaks, and it counts as dead, while a call has a part of it.
    let next = call(&clock, &stack, ms(1));
    clock.advance(secs(4));
    assert!(!long.is_finished() && !next.is_finished());
    clock.advance(secs(2));
    assert!(long.is_finished() && next.is_finished());
    assert_eq!(peak.load(Ordering::Relaxed), 1);
}

/// A service whose second clone is broken.
struct Breaks<S>(S, Arc<AtomicBool>);

impl<S: Clone> Clone for Breaks<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1.clone())
    }
}

impl<S: Service<Duration, Error = BoxError>> Service<Duration> for Breaks<S> {
    type Response = S::Response;
    type Error = BoxError;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.1.load(Ordering::Relaxed) {
            return Poll::Ready(Err("broken".into()));
        }
        self.0.poll_ready(cx)
    }

    fn call(&mut self, takes: Duration) -> S::Future {
        self.1.store(true, Ordering::Relaxed);
        self.0.call(takes)
    }
}
