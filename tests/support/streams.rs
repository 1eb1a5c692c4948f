//! Fakes that speak HTTP: they read a request's body and answer with one, at the pace they are told.

use std::{
    convert::Infallible,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tower::{ServiceExt, util::MapResponse};
use tower_on_demand::{Backend, MapService, Runtime};
use tower_service::Service;

use crate::support::{BoxFuture, Caller, Fake, Maker, World};

pub(crate) type Bodied = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type StreamingFake = MapService<Fake, fn(Caller) -> Streamer>;
pub(crate) type StreamingMaker = MapResponse<Maker, fn(Fake) -> StreamingFake>;

/// What the answer is like, in the request's extensions.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) chunks: u32,
    pub(crate) every: Duration,
    /// Before the request's body has been read.
    pub(crate) early: bool,
}

/// A body of `chunks` chunks, one `every` so often.
pub(crate) fn body(
    runtime: &Runtime,
    chunks: u32,
    every: Duration,
    guard: impl Send + 'static,
) -> Bodied {
    let state = (runtime.clone(), chunks, guard);
    let chunks = stream::unfold(state, move |(runtime, left, guard)| async move {
        let left = left.checked_sub(1)?;
        runtime.sleep(every).await;
        let frame = Frame::data(Bytes::from_static(b"chunk"));
        Some((Ok(frame), (runtime, left, guard)))
    });
    StreamBody::new(chunks).boxed_unsync()
}

pub(crate) fn request(body: Bodied, chunks: u32, every: Duration, early: bool) -> Request<Bodied> {
    let mut request = Request::new(body);
    request.extensions_mut().insert(Answer {
        chunks,
        every,
        early,
    });
    request
}

impl World {
    /// A maker of backends that speak HTTP.
    pub(crate) fn streaming_maker(&self) -> StreamingMaker {
        let streaming: fn(Fake) -> StreamingFake =
            |fake| fake.map_service(|caller| Streamer { caller });
        self.maker().map_response(streaming)
    }
}

/// A lease of one.
#[derive(Clone)]
pub(crate) struct Streamer {
    caller: Caller,
}

impl<B> Service<Request<B>> for Streamer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Debug,
{
    type Response = Response<Bodied>;
    type Error = std::io::Error;
    type Future = BoxFuture<Result<Response<Bodied>, std::io::Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let runtime = self.caller.runtime();
        // Counted in flight until it is dropped.
        let in_flight = self.caller.call(Duration::MAX);
        let (head, upload) = request.into_parts();
        let answer = *head.extensions.get::<Answer>().expect("how to answer");
        Box::pin(async move {
            if answer.early {
                runtime.spawn(async move {
                    let _ = upload.collect().await;
                });
            } else {
                let _ = upload.collect().await;
            }
            let answer = body(&runtime, answer.chunks, answer.every, in_flight);
            Ok(Response::new(answer))
        })
    }
}
