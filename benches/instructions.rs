//! A hot path, so many times: to be run under `valgrind --tool=callgrind`, whose instruction counts do not
//! depend on how busy the machine is.
//!
//! `instructions ROW TIMES`. Run it with two counts: the difference, divided by theirs, is what one call costs.
//! `.ci/instructions` does that and compares with another commit.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower::{Layer, Service, ServiceBuilder, service_fn};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, DropToStop, IdleEvict, LazyStartLayer, Runtime, UntilResponse,
};

#[derive(Clone)]
struct Echo;

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

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => black_box(output),
        Poll::Pending => panic!("measured work must not wait"),
    }
}

fn cloned<S>(service: &S, times: u64)
where
    S: Service<u64> + Clone,
    S::Error: std::fmt::Debug,
{
    for n in 0..times {
        held(&mut service.clone(), n);
    }
}

fn held<S>(service: &mut S, n: u64)
where
    S: Service<u64>,
    S::Error: std::fmt::Debug,
{
    let ready = service.poll_ready(&mut Context::from_waker(Waker::noop()));
    assert!(ready.is_ready());
    now(service.call(n)).expect("answered");
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with('-'));
    let (Some(row), Some(times)) = (args.next(), args.next()) else {
        println!("instructions ROW TIMES, where ROW is lazy, stack, led, passed or joined");
        return;
    };
    let times = times.parse().expect("TIMES is a number");
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _entered = tokio.enter();
    let runtime = Runtime::tokio();
    let maker = || service_fn(|_: &'static str| ready(Ok::<_, Infallible>(DropToStop::new(Echo))));
    match &*row {
        "lazy" => {
            let lazy = LazyStartLayer::new(runtime, "echo").layer(maker());
            tokio.block_on(lazy.handle().start()).expect("it starts");
            cloned(&lazy, times);
        }
        "stack" => {
            let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
            let stack = ServiceBuilder::new()
                .layer(LazyStartLayer::new(runtime.clone(), "echo"))
                .layer(evictable.idle_after(Duration::from_secs(900)))
                .layer(CeilingLayer::new(runtime, 8))
                .service(maker());
            tokio.block_on(stack.handle().start()).expect("it starts");
            cloned(&stack, times);
        }
        "led" | "passed" => {
            let led = row == "led";
            let mut coalesce = CoalesceLayer::new(move |n: &u64| led.then_some(*n)).layer(Echo);
            for n in 0..times {
                held(&mut coalesce, n);
            }
        }
        "joined" => {
            let coalesce = CoalesceLayer::new(|_: &u64| Some(()));
            let (open, door) = futures_channel::oneshot::channel::<()>();
            let mut open = Some(open);
            let door = futures_util::FutureExt::shared(door);
            let mut service = coalesce.layer(service_fn(move |n: u64| {
                let door = door.clone();
                async move {
                    let _ = door.await;
                    Ok::<_, Infallible>(n)
                }
            }));
            let mut cx = Context::from_waker(Waker::noop());
            let mut calls: Vec<_> = (0..times).map(|n| Box::pin(service.call(n))).collect();
            for call in &mut calls {
                assert!(call.as_mut().poll(&mut cx).is_pending());
            }
            drop(open.take());
            for call in calls {
                now(call).expect("answered");
            }
        }
        other => panic!("there is no row {other}"),
    }
}
