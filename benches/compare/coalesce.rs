//! Calls through `Coalesce`: one that leads, those that join, threads side by side.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::Future,
    hash::{BuildHasher, Hash, RandomState},
    hint::black_box,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_executor::LocalPool;
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
    task::LocalSpawnExt,
};
use singleflight_async::SingleFlight;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_on_demand::CoalesceLayer;

use crate::{
    harness::{Side, Table, in_turns, now, side, two_threads},
    running::Echo,
};

/// So many different keys go round, as many calls are in flight one after another.
const KEYS: usize = 1024;

fn numbers() -> Vec<u64> {
    (0..KEYS as u64).collect()
}

fn strings() -> Vec<String> {
    let name = |number| format!("/media/library/{number:04}.flac");
    (0..KEYS).map(name).collect()
}

/// What is called: it answers at once.
#[derive(Clone)]
struct Prompt;

impl<R: 'static> Service<R> for Prompt {
    type Response = usize;
    type Error = Infallible;
    type Future = std::future::Ready<Result<usize, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        drop(black_box(request));
        std::future::ready(Ok(1))
    }
}

/// One ready and call of a service that is kept.
fn ask<S, R>(service: &mut S, request: R)
where
    S: Service<R>,
    S::Error: std::fmt::Debug,
{
    let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
    assert!(ready.is_ready());
    now(service.call(request)).expect("answered");
}

/// Runs `work` with one key after the other.
fn in_turn<'a, K>(keys: &'a [K], mut work: impl FnMut(&'a K) + 'a) -> Side<'a> {
    let mut keys = keys.iter().cycle();
    side(move || work(black_box(keys.next().expect("a key"))))
}

/// By the service, kept.
fn held<'a, S, K>(service: S, keys: &'a [K]) -> Side<'a>
where
    S: Service<K> + 'a,
    S::Error: std::fmt::Debug,
    K: Clone,
{
    let mut service = service;
    in_turn(keys, move |key| ask(&mut service, key.clone()))
}

/// By a clone of the service for each call.
fn cloned<'a, S, K>(service: S, keys: &'a [K]) -> Side<'a>
where
    S: Service<K> + Clone + 'a,
    S::Error: std::fmt::Debug,
    K: Clone,
{
    in_turn(keys, move |key| ask(&mut service.clone(), key.clone()))
}

/// Ours, with the request for a key.
fn ours<K>() -> impl Service<K, Error: std::fmt::Debug, Future: Send> + Clone + Send
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
{
    CoalesceLayer::new(|key: &K| Some(key.clone())).layer(Prompt)
}

/// It has no service: what is called within it is.
fn singleflight<'a, K>(keys: &'a [K]) -> Side<'a>
where
    K: Clone + Eq + Hash + 'static,
{
    let flights = SingleFlight::<K, Result<usize, Infallible>>::new();
    in_turn(keys, move |key| {
        let request = key.clone();
        let work = move || Prompt.oneshot(request);
        now(flights.work(key.clone(), work)).expect("answered");
    })
}

fn tower_resilience<'a, K>(keys: &'a [K]) -> Side<'a>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
{
    let layer = tower_resilience_coalesce::CoalesceLayer::new(K::clone);
    held(layer.layer(Prompt), keys)
}

/// A cache; what it keeps is taken out again, as a call that is done is.
fn moka<'a, K>(keys: &'a [K]) -> Side<'a>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
{
    let cache = moka::future::Cache::new(KEYS as u64);
    in_turn(keys, move |key| {
        let request = key.clone();
        let work = async move { Prompt.oneshot(request).await.expect("answered") };
        now(cache.get_with_by_ref(key, work));
        now(cache.invalidate(key));
    })
}

/// What cannot be left out by hand either: a table in shards, an entry in and out, one `Arc`.
fn floor<'a, K>(keys: &'a [K]) -> Side<'a>
where
    K: Clone + Eq + Hash + 'static,
{
    const SHARDS: usize = 16;
    let shards: Vec<_> = (0..SHARDS)
        .map(|_| Mutex::new(HashMap::<K, Arc<usize>>::new()))
        .collect();
    let hasher = RandomState::new();
    in_turn(keys, move |key| {
        let (request, key) = (key.clone(), key.clone());
        let shard = &shards[hasher.hash_one(&key) as usize % SHARDS];
        let flight = Arc::new(0);
        let lock = || shard.lock().expect("not poisoned");
        lock().insert(key.clone(), flight.clone());
        now(Prompt.oneshot(request)).expect("answered");
        lock().remove(&key);
        black_box(flight);
    })
}

fn leading<K>(table: &mut Table, kind: &str, keys: &[K])
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
{
    let name = |what: &str| format!("Coalesce, lead, {what}, {kind} keys");
    table.compare(
        &name("held"),
        0.60,
        "singleflight-async",
        held(ours(), keys),
        singleflight(keys),
    );
    table.compare(
        &name("held"),
        0.60,
        "tower-resilience-coalesce",
        held(ours(), keys),
        tower_resilience(keys),
    );
    table.compare(
        &name("held"),
        0.60,
        "moka get_with",
        held(ours(), keys),
        moka(keys),
    );
    table.compare(
        &name("cloned per call"),
        0.80,
        "singleflight-async",
        cloned(ours(), keys),
        singleflight(keys),
    );
    table.compare(
        &name("held"),
        1.30,
        "floor by hand",
        held(ours(), keys),
        floor(keys),
    );
}

/// A call without a key.
fn passing(table: &mut Table) {
    let layer = CoalesceLayer::new(|number: &u64| (*number == 0).then_some(()));
    let mut service = layer.layer(Echo);
    table.compare(
        "Coalesce, without a key, held",
        1.50,
        "clone().oneshot()",
        side(move || {
            let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
            assert!(ready.is_ready());
            now(service.call(black_box(1))).expect("answered");
        }),
        side(|| {
            now(black_box(&Echo).clone().oneshot(black_box(1))).expect("answered");
        }),
    );
}

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

/// A flight of one that leads and `joiners` that join, from the first call to the last answer, again and
/// again. Callers live in places that are there already, as tasks are.
fn flights<'a, F>(joiners: usize, mut begin: impl FnMut(&Gate) -> Callers<'a, F> + 'a) -> Side<'a>
where
    F: Future + 'a,
{
    let mut places: Vec<Pin<Box<Option<F>>>> = (0..=joiners).map(|_| Box::pin(None)).collect();
    side(move || {
        let gate = Gate::default();
        let mut next = begin(&gate);
        for place in &mut places {
            place.set(Some(next()));
            let caller = place.as_mut().as_pin_mut().expect("a caller");
            assert!(poll(caller).is_pending());
        }
        gate.open();
        for place in &mut places {
            let caller = place.as_mut().as_pin_mut().expect("a caller");
            assert!(poll(caller).is_ready());
            place.set(None);
        }
    })
}

/// Makes one caller of a flight after the other.
type Callers<'a, F> = Box<dyn FnMut() -> F + 'a>;

/// A flight of so many joiners, through `Coalesce` and by `futures::Shared`.
pub(crate) fn joined(joiners: usize) -> (Side<'static>, Side<'static>) {
    let gates: &Mutex<Gate> = Box::leak(Box::default());
    let inner = service_fn(move |_: u64| gates.lock().expect("not poisoned").clone());
    let service = CoalesceLayer::new(|number: &u64| Some(*number)).layer(inner);
    let ours = flights(joiners, move |gate: &Gate| {
        *gates.lock().expect("not poisoned") = gate.clone();
        let mut service = service.clone();
        Box::new(move || service.call(7))
    });
    let theirs = flights(joiners, |gate: &Gate| {
        let flight: Shared<BoxFuture<'_, _>> = gate.clone().boxed().shared();
        Box::new(move || flight.clone())
    });
    (ours, theirs)
}

fn joining(table: &mut Table) {
    for (joiners, target) in [(1, 1.20), (10, 1.20), (1_000, 0.90), (10_000, 0.90)] {
        let (ours, theirs) = joined(joiners);
        table.compare(
            &format!("Coalesce, join + publish, joiners: {joiners}"),
            target,
            "futures::Shared",
            ours,
            theirs,
        );
    }
}

/// Dropping one of so many joiners, here and there among them; only that is timed.
fn leaving(joiners: usize) -> Side<'static> {
    const AT_ONCE: usize = 100;
    let inner = service_fn(|_: u64| std::future::pending::<Result<u64, Infallible>>());
    let mut service = CoalesceLayer::new(|number: &u64| Some(*number)).layer(inner);
    let mut join = move || {
        let mut caller = Box::pin(service.call(7));
        assert!(poll(caller.as_mut()).is_pending());
        caller
    };
    let mut callers: Vec<_> = (0..joiners).map(|_| join()).collect();
    Box::new(move |times| {
        let mut took = Duration::ZERO;
        for _ in 0..times {
            let leave: Vec<_> = (0..AT_ONCE)
                .map(|n| callers.swap_remove(n * (callers.len() / AT_ONCE - 1)))
                .collect();
            let begun = Instant::now();
            drop(black_box(leave));
            took += begun.elapsed();
            callers.extend((0..AT_ONCE).map(|_| join()));
        }
        took
    })
}

/// Keys of one thread, none of which the other has.
fn of_thread(thread: usize) -> impl FnMut() -> u64 {
    let mut number = 0;
    move || {
        number = (number + 2) % KEYS as u64;
        number + thread as u64
    }
}

fn side_by_side(table: &mut Table) {
    let bare = |thread| {
        let mut key = of_thread(thread);
        let mut service = Prompt;
        move || ask(&mut service, black_box(key()))
    };
    let flights = SingleFlight::<u64, Result<usize, Infallible>>::new();
    let service = Mutex::new(ours::<u64>());
    // In half the time or so, two threads can do what one does: else this says nothing.
    let machine = || {
        let (two, one) = in_turns(&mut two_threads(bare), &mut side(bare(0)));
        let scales = 2.0 * one / two;
        (scales < 1.8).then(|| format!("two threads do {scales:.1} times what one does"))
    };
    table.compare_where(
        "Coalesce, lead, two threads, one handle each",
        1.0 / 2.5,
        "singleflight-async",
        two_threads(|thread| {
            let mut key = of_thread(thread);
            let mut service = service.lock().expect("not poisoned").clone();
            move || ask(&mut service, black_box(key()))
        }),
        two_threads(|thread| {
            let mut key = of_thread(thread);
            let flights = &flights;
            move || {
                let key = black_box(key());
                now(flights.work(key, move || Prompt.oneshot(key))).expect("answered");
            }
        }),
        machine,
    );
}

/// How often each joiner is polled whose call ends with one wake, by an executor that polls whoever is woken.
fn polls() -> f64 {
    const JOINERS: usize = 100;
    let gate = Gate::default();
    let inner = gate.clone();
    let inner = service_fn(move |_: u64| inner.clone());
    let mut service = CoalesceLayer::new(|number: &u64| Some(*number)).layer(inner);
    let polls = Arc::new(AtomicUsize::new(0));
    let mut pool = LocalPool::new();
    for number in 0..=JOINERS {
        let mut call = Box::pin(service.call(7));
        let polls = polls.clone();
        let counted = std::future::poll_fn(move |cx| {
            polls.fetch_add(usize::from(number > 0), Ordering::Relaxed);
            call.as_mut().poll(cx).map(drop)
        });
        pool.spawner().spawn_local(counted).expect("it is there");
    }
    pool.run_until_stalled();
    gate.open();
    pool.run();
    polls.load(Ordering::Relaxed) as f64 / JOINERS as f64
}

/// The future of a call, for an inner future of so many bytes.
fn size<const BYTES: usize>(table: &mut Table) {
    let inner = service_fn(|_: u64| async {
        let held = black_box([0_u8; BYTES]);
        std::future::ready(()).await;
        Ok::<_, Infallible>(u64::from(black_box(held)[0]))
    });
    let inner_future = size_of_val(&inner.clone().call(0));
    let mut service = CoalesceLayer::new(|number: &u64| Some(*number)).layer(inner);
    let needed = inner_future.max(size_of_val(service.get_ref()) + size_of::<u64>());
    table.count(
        &format!("Coalesce, bytes of a call, inner future of {inner_future}"),
        1.0,
        "inner + 64",
        size_of_val(&service.call(0)) as f64,
        (needed + 64) as f64,
    );
}

pub(crate) fn rows(table: &mut Table) {
    leading(table, "u64", &numbers());
    leading(table, "String", &strings());
    passing(table);
    joining(table);
    side_by_side(table);
    table.compare(
        "Coalesce, a hundred joiners of 10,000 leave",
        1.5,
        "of 1,000",
        leaving(10_000),
        leaving(1_000),
    );
    if table.wants("Coalesce, polls of a joiner") {
        table.count("Coalesce, polls of a joiner", 1.0, "2", polls(), 2.0);
    }
    size::<1>(table);
    size::<1000>(table);
}
