//! What calls through `Coalesce` allocate.
#![allow(missing_docs)]

use std::{
    alloc::System,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower::{Layer, Service, service_fn};
use tower_on_demand::CoalesceLayer;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Allocations of `work`: the least of a few times, for what else there is in the process.
fn allocations(mut work: impl FnMut()) -> usize {
    let once = |_| {
        let region = Region::new(ALLOCATOR);
        work();
        let change = region.change();
        change.allocations + change.reallocations
    };
    (0..9).map(once).min().expect("it was done")
}

/// An inner call that ends when it is told to.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<(bool, Option<Waker>)>>);

impl Future for Gate {
    type Output = Result<u64, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut gate = self.0.lock().unwrap();
        if gate.0 {
            return Poll::Ready(Ok(1));
        }
        gate.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[test]
fn a_call_that_leads_allocates_at_most_once_and_one_that_joins_less_on_average() {
    let layer = CoalesceLayer::new(|number: &u64| Some(*number));
    let mut service = layer.layer(service_fn(|n: u64| async move { Ok::<_, Infallible>(n) }));
    let led = allocations(|| {
        for number in 0..1000 {
            let mut call = std::pin::pin!(service.call(number));
            assert!(poll(call.as_mut()).is_ready());
        }
    });
    assert!(led <= 1000, "{led} for a thousand calls");

    for joiners in [10, 100, 1000] {
        let gate = Gate::default();
        let inner = gate.clone();
        let layer = CoalesceLayer::new(|number: &u64| Some(*number));
        let mut service = layer.layer(service_fn(move |_: u64| inner.clone()));
        let mut places: Vec<_> = (0..=joiners).map(|_| Box::pin(None)).collect();
        let flight = allocations(|| {
            gate.0.lock().unwrap().0 = false;
            for place in &mut places {
                place.set(Some(service.call(7)));
                assert!(poll(place.as_mut().as_pin_mut().unwrap()).is_pending());
            }
            let waker = {
                let mut gate = gate.0.lock().unwrap();
                gate.0 = true;
                gate.1.take()
            };
            waker.unwrap().wake();
            for place in &mut places {
                assert!(poll(place.as_mut().as_pin_mut().unwrap()).is_ready());
                place.set(None);
            }
        });
        // That of its leader included.
        assert!(flight <= joiners, "{flight} for {joiners} that join");
        println!("{led} for a thousand that lead, {flight} for {joiners} that join");
    }
}
