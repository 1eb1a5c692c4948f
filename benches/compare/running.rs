//! A call on an instance that runs, alone, beside others and by two threads.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Mutex,
    task::{Context, Poll, Waker},
    time::Duration,
};

use hyper_util::client::pool::singleton::Singleton;
use tower::{Layer, Service, ServiceBuilder, service_fn};
use tower_on_demand::{
    CeilingLayer, DropToStop, IdleEvict, IdleEvictLayer, LazyStart, LazyStartLayer, Leased,
    Runtime, UntilResponse,
};

use crate::harness::{Side, Table, in_turns, now, side, two_threads};

/// The backend: as little as there can be.
#[derive(Clone)]
pub(crate) struct Echo;

impl Service<u64> for Echo {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u64) -> Self::Future {
        ready(Ok(n))
    }
}

/// What all backends of a host share.
pub(crate) struct Host {
    pub(crate) runtime: Runtime,
    pub(crate) evictable: IdleEvictLayer<UntilResponse>,
    pub(crate) idle_evict: IdleEvict,
    pub(crate) ceiling: CeilingLayer,
}

/// A backend under all three layers.
pub(crate) type Stack = LazyStart<&'static str, Leased<Echo>>;

impl Host {
    pub(crate) fn new(limit: u64) -> Self {
        let runtime = Runtime::tokio();
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        Self {
            ceiling: CeilingLayer::new(runtime.clone(), limit),
            runtime,
            evictable,
            idle_evict,
        }
    }

    pub(crate) fn backend(&self) -> Stack {
        let bound = Duration::from_secs(900);
        ServiceBuilder::new()
            .layer(LazyStartLayer::new(self.runtime.clone(), "echo"))
            .layer(self.evictable.clone().idle_after(bound))
            .layer(self.ceiling.clone())
            .service(service_fn(|_: &'static str| {
                ready(Ok::<_, Infallible>(DropToStop::new(Echo)))
            }))
    }

    /// A backend that runs.
    pub(crate) async fn running(&self) -> Stack {
        let stack = self.backend();
        stack.handle().start().await.expect("it starts");
        stack
    }
}

/// Clone, ready, call: as hyper's glue does with the service of a connection.
#[inline(always)]
pub(crate) fn call<S>(service: &S) -> S::Response
where
    S: Service<u64> + Clone,
    S::Error: std::fmt::Debug,
{
    let mut service = service.clone();
    match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ready) => ready.expect("ready"),
        Poll::Pending => panic!("not ready"),
    }
    now(service.call(42)).expect("answered")
}

pub(crate) fn calls<'a, S>(service: &'a S) -> Side<'a>
where
    S: Service<u64> + Clone,
    S::Error: std::fmt::Debug,
{
    side(move || {
        call(service);
    })
}

pub(crate) type Pool<M> = Singleton<M, u64>;

pub(crate) fn pool(
    tokio: &tokio::runtime::Runtime,
) -> Pool<impl Service<u64, Response = Echo, Error = Infallible, Future: Send> + Clone + Send> {
    let mut pool = Singleton::new(service_fn(|_: u64| ready(Ok::<_, Infallible>(Echo))));
    tokio.block_on(async { pool.call(0).await.expect("made") });
    pool
}

/// Clone, ready, get; ready, call.
#[inline(always)]
pub(crate) fn get_and_call<M>(pool: &Pool<M>)
where
    M: Service<u64, Response = Echo, Error = Infallible> + Clone,
{
    let mut cx = Context::from_waker(Waker::noop());
    let mut pool = pool.clone();
    assert!(pool.poll_ready(&mut cx).is_ready());
    let mut got = now(pool.call(0)).expect("made");
    assert!(got.poll_ready(&mut cx).is_ready());
    now(got.call(42)).expect("answered");
}

pub(crate) fn rows(table: &mut Table, tokio: &tokio::runtime::Runtime) {
    let pool = pool(tokio);
    let singleton = || side(|| get_and_call(&pool));

    let maker = service_fn(|_: &'static str| ready(Ok::<_, Infallible>(DropToStop::new(Echo))));
    let lazy = LazyStartLayer::new(Runtime::tokio(), "echo").layer(maker);
    tokio.block_on(lazy.handle().start()).expect("it starts");
    table.compare(
        "LazyStart, running, one thread",
        0.50,
        "Singleton",
        calls(&lazy),
        singleton(),
    );

    let host = Host::new(10_000);
    let stack = tokio.block_on(host.running());
    table.compare(
        "LazyStart + IdleEvict + Ceiling, one thread",
        0.90,
        "Singleton",
        calls(&stack),
        singleton(),
    );
    by_two_threads(table, tokio, &pool, &host, &stack);

    if table.wants("10,000 backends") {
        let crowd = Host::new(10_000);
        let others: Vec<_> = (1..10_000)
            .map(|_| tokio.block_on(crowd.running()))
            .collect();
        let one = tokio.block_on(crowd.running());
        table.compare(
            "LazyStart + IdleEvict + Ceiling, of 10,000 backends",
            1.10,
            "of 1",
            calls(&one),
            calls(&stack),
        );
        drop(others);
    }
}

fn by_two_threads<M>(
    table: &mut Table,
    tokio: &tokio::runtime::Runtime,
    pool: &Pool<M>,
    host: &Host,
    stack: &Stack,
) where
    M: Service<u64, Response = Echo, Error = Infallible, Future: Send> + Clone + Send,
{
    // Services are `Send`; each thread has its own clones of the one of its connection.
    let shared = Mutex::new(stack.clone());
    let pools = Mutex::new(pool.clone());
    table.compare(
        "LazyStart + IdleEvict + Ceiling, two threads, one backend",
        0.90,
        "Singleton, two threads",
        two_threads(|_| {
            let service = shared.lock().expect("not poisoned").clone();
            move || {
                call(&service);
            }
        }),
        two_threads(|_| {
            let pool = pools.lock().expect("not poisoned").clone();
            move || get_and_call(&pool)
        }),
    );

    let other = tokio.block_on(host.running());
    let of_one_host = [Mutex::new(stack.clone()), Mutex::new(other)];
    let alone = [Host::new(1), Host::new(1)];
    let of_their_own = [0, 1].map(|n: usize| Mutex::new(tokio.block_on(alone[n].running())));
    let threads = |stacks: &[Mutex<Stack>; 2], thread: usize| {
        let service = stacks[thread].lock().expect("not poisoned").clone();
        move || {
            call(&service);
        }
    };
    // Threads that share nothing show what the machine itself costs.
    let machine = || {
        let (two, one) = in_turns(
            &mut two_threads(|thread| threads(&of_their_own, thread)),
            &mut side(threads(&of_their_own, 0)),
        );
        let scales = 2.0 * one / two;
        (scales < 1.5).then(|| format!("two threads do {scales:.1} times what one does"))
    };
    table.compare_where(
        "LazyStart + IdleEvict + Ceiling, two threads, two backends",
        1.15,
        "two threads, private memory",
        two_threads(|thread| threads(&of_one_host, thread)),
        two_threads(|thread| threads(&of_their_own, thread)),
        machine,
    );
}
