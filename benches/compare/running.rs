//! A call on an instance that runs.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll, Waker},
    time::Duration,
};

use hyper_util::client::pool::singleton::Singleton;
use tower::{Layer, Service, ServiceBuilder, service_fn};
use tower_on_demand::{
    CeilingLayer, DropToStop, IdleEvict, LazyStartLayer, Runtime, UntilResponse,
};

use crate::harness::{Side, Table, now, side};

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

/// Clone, ready, call: as hyper's glue does with the service of a connection.
fn call<S>(service: &S) -> S::Response
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

fn calls<'a, S>(service: &'a S) -> Side<'a>
where
    S: Service<u64> + Clone,
    S::Error: std::fmt::Debug,
{
    side(move || {
        call(service);
    })
}

fn singleton(tokio: &tokio::runtime::Runtime) -> Side<'static> {
    let maker = service_fn(|_: u64| ready(Ok::<_, Infallible>(Echo)));
    let mut pool = Singleton::new(maker);
    tokio.block_on(async { pool.call(0).await.expect("made") });
    side(move || {
        let mut pool = pool.clone();
        let ready = pool.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert!(ready.is_ready());
        let mut got = now(pool.call(0)).expect("made");
        let ready = got.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert!(ready.is_ready());
        now(got.call(42)).expect("answered");
    })
}

pub(crate) fn rows(table: &mut Table) {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let _entered = tokio.enter();
    let runtime = Runtime::tokio();
    let maker = || service_fn(|_: &'static str| ready(Ok::<_, Infallible>(DropToStop::new(Echo))));

    let lazy = LazyStartLayer::new(runtime.clone(), "echo").layer(maker());
    tokio.block_on(lazy.handle().start()).expect("it starts");
    table.compare(
        "LazyStart, running, one thread",
        0.50,
        "Singleton",
        calls(&lazy),
        singleton(&tokio),
    );

    let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let stack = ServiceBuilder::new()
        .layer(LazyStartLayer::new(runtime.clone(), "echo"))
        .layer(evictable.idle_after(Duration::from_secs(900)))
        .layer(CeilingLayer::new(runtime, 8))
        .service(maker());
    tokio.block_on(stack.handle().start()).expect("it starts");
    table.compare(
        "LazyStart + IdleEvict + Ceiling, one thread",
        0.90,
        "Singleton",
        calls(&stack),
        singleton(&tokio),
    );
}
