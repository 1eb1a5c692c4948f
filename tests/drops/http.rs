//! Bodies: in use until they end, or are dropped at any frame.

use super::*;
use std::convert::Infallible;

use ::http::{Request, Response};
use bytes::Bytes;
use http_body::{Body, Frame};
use tower::{Service, service_fn};
use tower_on_demand::{
    DropToStop,
    http::{OnDemandHeaderLayer, ProgressPageLayer, UntilBodyEnd, UntilBothEnd},
};

/// So many frames, each after a while.
struct Frames {
    runtime: Runtime,
    left: u32,
    sleep: Option<Pin<Box<dyn hyper::rt::Sleep>>>,
}

impl Frames {
    fn new(runtime: &Runtime, left: u32) -> Self {
        Self {
            runtime: runtime.clone(),
            left,
            sleep: None,
        }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let runtime = self.runtime.clone();
        let sleep = self.sleep.get_or_insert_with(|| runtime.sleep(ms(10)));
        std::task::ready!(sleep.as_mut().poll(cx));
        self.sleep = None;
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"frame")))))
    }
}

/// Reads a body to its end.
async fn read(body: impl Body) {
    let mut body = std::pin::pin!(body);
    while std::future::poll_fn(|cx| body.as_mut().poll_frame(cx))
        .await
        .is_some()
    {}
}

/// Calls and reads, dropped at each await point, under `hold`.
macro_rules! bodies {
    ($hold:expr, $uploads:expr) => {
        for woken in [false, true] {
            for at in 0.. {
                let (runtime, clock) = test_util::runtime(at);
                let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), $hold);
                let ceiling = CeilingLayer::new(runtime.clone(), 1);
                let echo = service_fn({
                    let runtime = runtime.clone();
                    move |request: Request<_>| {
                        let runtime = runtime.clone();
                        async move {
                            let body = Frames::new(&runtime, 3);
                            if $uploads {
                                runtime.spawn(read(request.into_body()));
                            } else {
                                read(request.into_body()).await;
                            }
                            Ok::<_, Infallible>(Response::new(body))
                        }
                    }
                });
                let maker = service_fn(move |_: String| {
                    let echo = echo.clone();
                    async move { Ok::<_, Infallible>(DropToStop::new(echo)) }
                });
                let stack = ServiceBuilder::new()
                    .layer(LazyStartLayer::new(runtime.clone(), "a".to_owned()))
                    .layer(evictable)
                    .layer(ceiling.clone())
                    .service(maker);
                let request = Request::new(Frames::new(&runtime, 4));
                let mut called = stack.clone();
                let mut call = Counted::new(boxed(async move {
                    let response = called.call(request).await.expect("served");
                    read(response.into_body()).await;
                }));
                let done = polled(&clock, &mut call, at, woken);
                drop(call);
                if at > 0 && !$uploads {
                    // At once, not when somebody looks.
                    let busy = stack.status().in_flight.unwrap_or_default();
                    assert_eq!(busy, 0, "after poll {at}, woken: {woken}");
                }
                clock.advance(secs(1));
                let busy = stack.status().in_flight.unwrap_or_default();
                assert_eq!(busy, 0, "after poll {at}, woken: {woken}");
                clock.block_on(stack.handle().stop()).expect("stopped");
                clock.run();
                let left = (ceiling.occupancy().used, clock.tasks(), clock.timers());
                assert_eq!(left, (0, 0, 0), "after poll {at}, woken: {woken}");
                if done {
                    assert!(at > 4, "{at} points");
                    break;
                }
            }
        }
    };
}

#[test]
fn l5_a_response_body_at_each_of_its_frames() {
    bodies!(UntilBodyEnd, false);
}

#[test]
fn l5_both_bodies_at_each_of_their_frames() {
    bodies!(UntilBothEnd, true);
}

#[test]
fn l5_a_call_that_gets_a_page_or_is_told_what_its_start_took_at_each_await() {
    // The start is longer, or shorter, than the patience.
    for patience in [ms(50), secs(5)] {
        for woken in [false, true] {
            for at in 0.. {
                let (runtime, clock) = test_util::runtime(at);
                let (evictable, _sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
                let ceiling = CeilingLayer::new(runtime.clone(), 1);
                let slow = runtime.clone();
                let maker = service_fn(move |_: String| {
                    let slow = slow.clone();
                    async move {
                        slow.sleep(ms(200)).await;
                        let backend = service_fn(move |_: Request<()>| {
                            let answering = slow.sleep(ms(200));
                            async move {
                                answering.await;
                                Ok::<_, Infallible>(Response::new(()))
                            }
                        });
                        Ok::<_, Infallible>(DropToStop::new(backend))
                    }
                });
                let (lazy, handle) = LazyStartLayer::new(runtime.clone(), "a".to_owned()).pair();
                let page = ProgressPageLayer::new(runtime.clone(), handle.clone());
                let mut stack = ServiceBuilder::new()
                    .layer(page.patience(patience))
                    .layer(OnDemandHeaderLayer::new())
                    .layer(lazy)
                    .layer(evictable)
                    .layer(ceiling.clone())
                    .service(maker);
                let request = Request::get("/").header("accept", "text/html");
                let mut call = Counted::new(boxed(stack.call(request.body(()).unwrap())));
                let done = polled(&clock, &mut call, at, woken);
                drop(call);
                let point = format!("{patience:?}, after poll {at}, woken: {woken}");
                // What was begun goes on; what is kept for a page is given back.
                clock.advance(secs(10));
                assert_eq!(handle.status().state, State::Running, "{point}");
                assert_eq!(handle.status().in_flight, Some(0), "{point}");
                clock.block_on(handle.stop()).expect("stopped");
                clock.run();
                let left = (ceiling.occupancy().used, clock.tasks(), clock.timers());
                assert_eq!(left, (0, 0, 0), "{point}");
                if done {
                    assert!(at > 1, "{at} points");
                    break;
                }
            }
        }
    }
}
