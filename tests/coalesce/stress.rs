//! Many threads, few keys, and everything that callers and inner calls do: nobody stalls, nothing is left.
#![allow(clippy::disallowed_methods)] // real threads wait in real time

use std::{
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tower::{Layer, Service, service_fn};
use tower_on_demand::{CoalesceHandle, CoalesceLayer, Error, ErrorKind, Runtime};

use crate::{
    inner::{Ask, Broken, Name, assert_empty, quietly},
    rng::Rng,
};

const NAMES: [Name; 3] = ["a", "b", "c"];
const THREADS: u64 = 4;
/// Miri runs a little of it, and sees more.
const CALLS: u64 = if cfg!(miri) { 20 } else { 15_000 };

struct Unpark(Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Counts itself while it is alive.
struct Live(Arc<AtomicUsize>);

impl Live {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What it is all about, behind whatever layer.
struct Ground {
    live: Arc<AtomicUsize>,
    /// Wakes what it is sent, a little later.
    late: mpsc::Sender<Waker>,
    seeds: AtomicU64,
}

impl Ground {
    fn new() -> Arc<Self> {
        let (late, wakers) = mpsc::channel::<Waker>();
        thread::spawn(move || wakers.into_iter().for_each(Waker::wake));
        Arc::new(Self {
            live: Arc::default(),
            late,
            seeds: AtomicU64::new(7),
        })
    }

    /// An inner call that waits for a few wakes, from its own poll or from elsewhere, and then ends well, badly
    /// or by a panic.
    fn call(self: Arc<Self>) -> impl Future<Output = Result<u64, Broken>> + Send {
        let live = Live::new(&self.live);
        let seed = self.seeds.fetch_add(1, Ordering::Relaxed);
        let mut random = Rng(seed);
        let mut waits = random.below(4);
        let late = self.late.clone();
        poll_fn(move |cx| {
            let _live = &live;
            if waits > 0 {
                waits -= 1;
                match random.below(3) {
                    0 => cx.waker().wake_by_ref(),
                    _ => late.send(cx.waker().clone()).unwrap(),
                }
                return Poll::Pending;
            }
            match random.below(12) {
                0 => panic!("it panics"),
                1 => Poll::Ready(Err(Broken("it breaks"))),
                _ => Poll::Ready(Ok(seed)),
            }
        })
    }
}

/// One caller: polls until it is done, or leaves at some moment, or is never polled again for a while.
fn caller<F>(future: F, random: &mut Rng, kept: &mut Vec<Pin<Box<F>>>)
where
    F: Future<Output = Result<u64, Error>>,
{
    let mut future = Box::pin(future);
    let patience = random.below(8);
    let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(unpark.clone());
    let mut polls = 0;
    loop {
        let mut cx = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        polls += 1;
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(Ok(_))) | Err(_) => return,
            Ok(Poll::Ready(Err(error))) => {
                let expected = [ErrorKind::Service, ErrorKind::Panicked, ErrorKind::ShutDown];
                assert!(expected.contains(error.kind()), "{error:?}");
                return;
            }
        }
        match (patience, polls) {
            (0, _) | (1, 2) => return,
            (2, _) => {
                // Alive, and not polled.
                kept.push(future);
                if kept.len() > 3 {
                    kept.clear();
                }
                return;
            }
            _ => {}
        }
        let begun = Instant::now();
        while !unpark.1.swap(false, Ordering::SeqCst) {
            // A token that is left of an earlier caller ends it early.
            thread::park_timeout(Duration::from_secs(1));
            if begun.elapsed() > Duration::from_secs(30) {
                eprintln!("nobody has woken this caller for 30 seconds");
                std::process::abort();
            }
        }
    }
}

fn stress<S>(service: S, handle: &CoalesceHandle<Name>, ground: &Ground)
where
    S: Service<Ask, Response = u64, Error = Error> + Clone + Send,
{
    thread::scope(|scope| {
        for number in 0..THREADS {
            let mut service = service.clone();
            let handle = handle.clone();
            scope.spawn(move || {
                quietly(|| {
                    let mut random = Rng(number * 1_000_003);
                    let mut kept = Vec::new();
                    for _ in 0..CALLS {
                        let name = NAMES[random.below(3) as usize];
                        if random.below(50) == 0 {
                            handle.forget(name);
                        }
                        caller(service.call(Ask(name)), &mut random, &mut kept);
                    }
                });
            });
        }
    });
    assert_eq!(ground.live.load(Ordering::SeqCst), 0);
    assert_empty(handle);
    let now = handle.statistics();
    assert_eq!(now.led + now.joined, THREADS * CALLS);
}

#[test]
fn callers_and_calls_of_every_kind_on_four_threads() {
    let ground = Ground::new();
    let inner = ground.clone();
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).with_handle();
    let service = layer.layer(service_fn(move |_: Ask| inner.clone().call()));
    stress(service, &handle, &ground);
}

#[test]
fn the_same_with_vetoes_and_a_linger() {
    let ground = Ground::new();
    let inner = ground.clone();
    let runtime = Runtime::new(
        hyper_util::rt::TokioTimer::new(),
        hyper_util::rt::TokioExecutor::new(),
    );
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .share_if(|seed: &u64| !seed.is_multiple_of(5))
        .alone(|_: &Broken| true)
        .linger(runtime, Duration::from_micros(20))
        .with_handle();
    let service = layer.layer(service_fn(move |_: Ask| inner.clone().call()));
    stress(service, &handle, &ground);
}

#[test]
fn the_same_with_flights_as_tasks() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let ground = Ground::new();
    let inner = ground.clone();
    let executor = tokio.handle().clone();
    let runtime = Runtime::new(hyper_util::rt::TokioTimer::new(), On(executor));
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0))
        .spawn_on(runtime)
        .with_handle();
    let service = layer.layer(service_fn(move |_: Ask| inner.clone().call()));
    let ending = handle.clone();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let mut service = service.clone();
            scope.spawn(move || {
                quietly(|| {
                    let mut random = Rng(number);
                    let mut kept = Vec::new();
                    for _ in 0..CALLS / 5 {
                        let name = NAMES[random.below(3) as usize];
                        caller(service.call(Ask(name)), &mut random, &mut kept);
                    }
                });
            });
        }
    });
    // Those that all have left end by themselves, or now.
    tokio.block_on(ending.shutdown());
    assert_eq!(ground.live.load(Ordering::SeqCst), 0);
    assert_empty(&handle);
}

/// tokio from threads that are not its own.
struct On(tokio::runtime::Handle);

impl<F> hyper::rt::Executor<F> for On
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(async move {
            // Panics are expected here.
            let _ = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(future)).await;
        });
    }
}
