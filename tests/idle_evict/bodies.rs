//! Use that outlasts the head of a response: bodies in both directions.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceExt};
use tower_on_demand::{
    Begin, Error, Hold, IdleEvict, LazyStartLayer, Runtime,
    http::{UntilBodyEnd, UntilBothEnd},
    test_util::{self, Clock},
};

use crate::{
    streams::{Bodied, body, request},
    support::{World, ms, secs},
};

/// A host with one backend whose idle bound is 10 s.
fn host<H>(hold: H) -> (Runtime, Clock, World, impl Stack)
where
    H: Begin<http::Request<Bodied>> + 'static,
    H::Hold: Hold<Response<Bodied>> + Send,
    <H::Hold as Hold<Response<Bodied>>>::Response: Answer,
    crate::streams::Streamer: Service<
            H::Request,
            Response = Response<Bodied>,
            Error = std::io::Error,
            Future = crate::support::BoxFuture<Result<Response<Bodied>, std::io::Error>>,
        >,
{
    let (runtime, clock) = test_util::runtime(1);
    let world = World::new(&runtime);
    world.plan("a", |plan| (plan.start, plan.stop) = (ms(0), ms(0)));
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), hold);
    runtime.spawn(idle_evict.run());
    let stack = LazyStartLayer::new(runtime.clone(), "a".to_owned()).layer(
        evictable
            .idle_after(secs(10))
            .layer(world.streaming_maker()),
    );
    let stack = stack.map_response(Answer::bodied);
    (runtime, clock, world, stack)
}

trait Stack:
    Service<http::Request<Bodied>, Response = Response<Bodied>, Error = Error, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Stack for S where
    S: Service<http::Request<Bodied>, Response = Response<Bodied>, Error = Error, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// A response whose body may be any.
trait Answer: Send {
    fn bodied(self) -> Response<Bodied>;
}

impl<B> Answer for Response<B>
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: std::fmt::Debug,
{
    fn bodied(self) -> Response<Bodied> {
        self.map(|body| {
            body.map_err(|error| -> std::convert::Infallible { panic!("{error:?}") })
                .boxed_unsync()
        })
    }
}

/// Sends the request, reads the whole answer, and says how many bytes and when it ended.
async fn exchange(
    stack: impl Stack,
    request: http::Request<Bodied>,
    clock: Clock,
) -> (usize, Duration) {
    let response = stack.oneshot(request).await.expect("it is served");
    let bytes = response.into_body().collect().await.expect("all arrives");
    (bytes.to_bytes().len(), clock.elapsed())
}

fn stopped_at(world: &World) -> Option<Duration> {
    let log = world.log();
    let line = log.iter().find(|line| line.ends_with(" stop a"))?;
    Some(ms(line.split(' ').next()?.parse().ok()?))
}

#[test]
fn s16_e1_chunks_over_five_bounds_all_arrive_and_the_stop_is_one_bound_after_the_last() {
    let (runtime, clock, world, stack) = host(UntilBodyEnd);
    // A pause between chunks that is longer than the bound: silence is no end.
    let ask = request(body(&runtime, 0, ms(0), ()), 5, secs(11), false);
    let exchange = clock.spawn(exchange(stack.clone(), ask, clock.clone()));
    clock.advance(secs(200));
    let mut exchange = exchange;
    assert_eq!(exchange.take(), Some((25, secs(55))));
    assert_eq!(stopped_at(&world), Some(secs(65)));
    assert_eq!(world.saw("a").cut, 0);
}

#[test]
fn s17_a_request_that_uploads_slowly_over_three_bounds_is_use_throughout() {
    let (runtime, clock, world, stack) = host(UntilBodyEnd);
    let ask = request(body(&runtime, 15, secs(2), ()), 1, ms(0), false);
    let mut exchange = clock.spawn(exchange(stack.clone(), ask, clock.clone()));
    clock.advance(secs(200));
    assert_eq!(exchange.take(), Some((5, secs(30))));
    assert_eq!(stopped_at(&world), Some(secs(40)));
    assert_eq!(world.saw("a").cut, 0);
}

#[test]
fn s17_an_upload_that_goes_on_after_the_answer_is_use_where_both_count() {
    let (runtime, clock, world, stack) = host(UntilBothEnd);
    let ask = request(body(&runtime, 15, secs(2), ()), 1, ms(0), true);
    let mut exchange = clock.spawn(exchange(stack.clone(), ask, clock.clone()));
    clock.advance(secs(200));
    assert_eq!(exchange.take(), Some((5, secs(0))));
    assert_eq!(stopped_at(&world), Some(secs(40)));
}

#[test]
fn a_body_that_is_dropped_half_way_ends_the_use_there() {
    let (runtime, clock, world, stack) = host(UntilBodyEnd);
    let ask = request(body(&runtime, 0, ms(0), ()), 1000, secs(1), false);
    let response = clock
        .block_on(stack.clone().oneshot(ask))
        .expect("it is served");
    let mut answer = response.into_body();
    for _ in 0..15 {
        clock
            .block_on(answer.frame())
            .expect("a chunk")
            .expect("no error");
    }
    drop(answer);
    clock.advance(secs(200));
    assert_eq!(stopped_at(&world), Some(secs(25)));
    assert_eq!(world.saw("a").cut, 0);
}
