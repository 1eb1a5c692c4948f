//! What a call through `Coalesce` costs: against how many join it, how many threads call, how many keys are in
//! flight. `cargo bench --all-features --bench coalesce`.

#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{
    convert::Infallible,
    future::Future,
    hint::black_box,
    pin::Pin,
    sync::{Arc, Barrier, Mutex},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use criterion::{
    AxisScale, BenchmarkId, Criterion, PlotConfiguration, Throughput, criterion_group,
    criterion_main,
};
use futures_util::FutureExt;
use singleflight_async::SingleFlight;
use tower::{Layer, Service, service_fn};
use tower_on_demand::CoalesceLayer;

/// An inner call that ends when it is told to.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<(bool, Option<Waker>)>>);

impl Gate {
    fn open(&self) {
        let waker = {
            let mut gate = self.0.lock().expect("not poisoned");
            gate.0 = true;
            gate.1.take()
        };
        waker.expect("somebody waits").wake();
    }
}

impl Future for Gate {
    type Output = Result<u64, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut gate = self.0.lock().expect("not poisoned");
        if gate.0 {
            return Poll::Ready(Ok(1));
        }
        gate.1 = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// All of a flight: its callers come, wait, are told, and go.
fn flight<F: Future>(callers: usize, gate: &Gate, mut call: impl FnMut() -> F) {
    let mut waiting: Vec<_> = (0..callers).map(|_| Box::pin(call())).collect();
    for caller in &mut waiting {
        assert!(poll(caller.as_mut()).is_pending());
    }
    gate.open();
    for caller in &mut waiting {
        assert!(poll(caller.as_mut()).is_ready());
    }
}

fn joiners(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("coalesce/joiners");
    group.plot_config(PlotConfiguration::default().summary_scale(AxisScale::Logarithmic));
    for joiners in [1, 10, 100, 1_000, 10_000] {
        group.throughput(Throughput::Elements(joiners as u64));
        group.bench_function(BenchmarkId::new("Coalesce", joiners), |bencher| {
            let gates = Arc::new(Mutex::new(Gate::default()));
            let inner = {
                let gates = gates.clone();
                service_fn(move |_: u64| gates.lock().expect("not poisoned").clone())
            };
            let mut service = CoalesceLayer::new(|number: &u64| Some(*number)).layer(inner);
            bencher.iter(|| {
                let gate = Gate::default();
                *gates.lock().expect("not poisoned") = gate.clone();
                flight(joiners + 1, &gate, || service.call(black_box(7)));
            });
        });
        group.bench_function(BenchmarkId::new("futures::Shared", joiners), |bencher| {
            bencher.iter(|| {
                let gate = Gate::default();
                let shared = gate.clone().boxed().shared();
                flight(joiners + 1, &gate, || shared.clone());
            });
        });
    }
    group.finish();
}

/// `calls` on each of so many threads, from the first call to the last.
fn side_by_side<F>(threads: u64, calls: u64, work: impl Fn(u64) -> F + Sync) -> Duration
where
    F: FnMut(u64),
{
    let start = Barrier::new(threads as usize + 1);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    let mut work = work(thread);
                    start.wait();
                    (0..calls).for_each(|call| work(call % 1024 * threads + thread));
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        for thread in running {
            thread.join().expect("no panic");
        }
        begun.elapsed()
    })
}

fn threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("coalesce/threads");
    let most = thread::available_parallelism().map_or(1, usize::from) as u64;
    for threads in (0..).map(|power| 1 << power).take_while(|n| *n <= most) {
        group.throughput(Throughput::Elements(threads));
        group.bench_function(BenchmarkId::new("Coalesce", threads), |bencher| {
            let layer = CoalesceLayer::new(|number: &u64| Some(*number));
            let service = layer.layer(service_fn(|n: u64| async move { Ok::<_, Infallible>(n) }));
            let service = Mutex::new(service);
            bencher.iter_custom(|calls| {
                side_by_side(threads, calls, |_| {
                    let mut service = service.lock().expect("not poisoned").clone();
                    move |key| assert!(service.call(black_box(key)).now_or_never().is_some())
                })
            });
        });
        group.bench_function(BenchmarkId::new("singleflight-async", threads), |bencher| {
            let flights = SingleFlight::new();
            bencher.iter_custom(|calls| {
                side_by_side(threads, calls, |_| {
                    |key| {
                        let work = flights.work(black_box(key), || async move { key });
                        assert!(work.now_or_never().is_some());
                    }
                })
            });
        });
    }
    group.finish();
}

fn keys(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("coalesce/keys");
    group.plot_config(PlotConfiguration::default().summary_scale(AxisScale::Logarithmic));
    for keys in [0, 10, 100, 1_000, 10_000, 100_000] {
        // One more call comes and goes while so many are in flight.
        group.bench_function(BenchmarkId::new("Coalesce", keys), |bencher| {
            let inner = service_fn(|last: bool| async move {
                if !last {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(last)
            });
            let number = std::cell::Cell::new(0_u64);
            let layer = CoalesceLayer::new(|_: &bool| {
                number.set(number.get() + 1);
                Some(number.get())
            });
            let mut service = layer.layer(inner);
            let mut in_flight: Vec<_> = (0..keys).map(|_| Box::pin(service.call(false))).collect();
            for call in &mut in_flight {
                assert!(poll(call.as_mut()).is_pending());
            }
            bencher.iter(|| {
                let call = service.call(black_box(true));
                assert!(call.now_or_never().is_some());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, joiners, threads, keys);
criterion_main!(benches);
