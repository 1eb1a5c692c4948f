//! What many backends cost: choosing whom to evict, sweeping, and telling who waits; and the bytes of a call.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Future, ready},
    hint::black_box,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use tower::{Layer, Service, service_fn};
use tower_on_demand::{
    Backend, CeilingLayer, DropToStop, IdleEvict, LazyStartLayer, Runtime, Sweep, UntilResponse,
};

use crate::{
    harness::{Side, Table, now, side},
    running::{Echo, Host, Stack},
};

/// All room is idle instances'. A start comes, the one that was used longest ago is closed for it and goes, the
/// start has its room and makes, and the new one is used once.
pub(crate) fn a_victim(idle: usize) -> Side<'static> {
    let host = Host::new(idle as u64);
    let maker = service_fn(|_: u64| ready(Ok::<_, Infallible>(DropToStop::new(Echo))));
    let mut makers = host.evictable.layer(host.ceiling.layer(maker));
    let mut instances: VecDeque<_> = (0..idle as u64)
        .map(|n| {
            let made = now(makers.call(n)).expect("there is room");
            drop(made.lease());
            made
        })
        .collect();
    side(move || {
        let mut cx = Context::from_waker(Waker::noop());
        let mut start = pin!(makers.call(0));
        assert!(start.as_mut().poll(&mut cx).is_pending());
        drop(instances.pop_front());
        let Poll::Ready(Ok(made)) = start.as_mut().poll(&mut cx) else {
            panic!("the one that was used longest ago has gone for it");
        };
        drop(made.lease());
        instances.push_back(made);
    })
}

/// A sweep that finds nothing due.
pub(crate) fn in_vain<'a>(tokio: &'a tokio::runtime::Runtime, backends: usize) -> Side<'a> {
    let mut host = Host::new(backends as u64);
    let stacks: Vec<Stack> = (0..backends)
        .map(|_| tokio.block_on(host.running()))
        .collect();
    side(move || {
        let swept = now(host.idle_evict.call(Sweep)).expect("it lives");
        assert!(swept.retired().is_empty() && !stacks.is_empty());
    })
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many of a hundred starts in line are woken by room for one.
fn wakes() -> f64 {
    let runtime = Runtime::tokio();
    let maker = service_fn(|_: u64| ready(Ok::<_, Infallible>(DropToStop::new(Echo))));
    let mut ceiling = CeilingLayer::new(runtime, 1).layer(maker);
    let first = now(ceiling.call(0)).expect("there is room");
    let count = Arc::new(Count::default());
    let waker = Waker::from(count.clone());
    let mut cx = Context::from_waker(&waker);
    let mut line: Vec<Pin<Box<_>>> = (1..=100).map(|n| Box::pin(ceiling.call(n))).collect();
    for start in &mut line {
        assert!(start.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(
        count.0.swap(0, Ordering::Relaxed),
        0,
        "nothing happened yet"
    );
    drop(first);
    let second = line[0].as_mut().poll(&mut cx);
    assert!(matches!(second, Poll::Ready(Ok(_))), "it has the room");
    for start in &mut line[1..] {
        assert!(start.as_mut().poll(&mut cx).is_pending());
    }
    let woken = count.0.load(Ordering::Relaxed);
    drop(second);
    woken as f64
}

/// A service, its future and what they are put into.
fn bytes<const N: usize>(table: &mut Table, tokio: &tokio::runtime::Runtime) {
    let inner = || {
        service_fn(|_: u64| async {
            let held = [0u8; N];
            std::future::ready(()).await;
            Ok::<_, Infallible>(u64::from(black_box(held)[0]))
        })
    };
    let future = size_of_val(&inner().call(0));
    let needed = future.max(size_of_val(&inner()) + size_of::<u64>());
    let mut count = |layer: &str, bytes: usize, needed: usize| {
        table.count(
            &format!("{layer}, bytes of a call, inner future of {future}"),
            1.0,
            "inner + 64",
            bytes as f64,
            (needed + 64) as f64,
        );
    };
    let runtime = Runtime::tokio();
    let maker = move |_: &'static str| ready(Ok::<_, Infallible>(DropToStop::new(inner())));
    let mut lazy = LazyStartLayer::new(runtime.clone(), "sized").layer(service_fn(maker));
    tokio.block_on(lazy.handle().start()).expect("it starts");
    count("LazyStart", size_of_val(&lazy.call(0)), needed);
    let (evictable, _idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let mut made = evictable.clone().layer(service_fn(maker));
    let made = now(made.call("sized")).expect("it is made");
    count("IdleEvict", size_of_val(&made.lease().call(0)), needed);
    drop(made);

    // The layers beneath wrap starts, whose services are makers and whose requests are targets.
    let maker = |_: &'static str| async {
        let held = [0u8; N];
        std::future::ready(()).await;
        black_box(held);
        Ok::<_, Infallible>(DropToStop::new(Echo))
    };
    let start = size_of_val(&service_fn(maker).call("sized"));
    let needed = start.max(size_of::<&'static str>());
    let mut ceiling = CeilingLayer::new(runtime, 8).layer(service_fn(maker));
    count(
        "Ceiling, a start",
        size_of_val(&ceiling.call("sized")),
        needed,
    );
    let mut evictable = evictable.layer(service_fn(maker));
    count(
        "IdleEvict, a start",
        size_of_val(&evictable.call("sized")),
        needed,
    );
}

pub(crate) fn rows(table: &mut Table, tokio: &tokio::runtime::Runtime) {
    if table.wants("choosing a victim among 10,000") {
        table.compare(
            "Ceiling, choosing a victim among 10,000 idle",
            3.0,
            "among 100",
            a_victim(10_000),
            a_victim(100),
        );
    }
    if table.wants("a sweep of 10,000") {
        table.compare(
            "IdleEvict, a sweep of 10,000 with none due",
            2.0,
            "of 100",
            in_vain(tokio, 10_000),
            in_vain(tokio, 100),
        );
    }
    table.count(
        "Ceiling, wakes for a hand-over of room",
        1.0,
        "1",
        wakes(),
        1.0,
    );
    bytes::<1>(table, tokio);
    bytes::<1000>(table, tokio);
}
