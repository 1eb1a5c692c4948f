//! `ShareBodyLayer`, its service and its future.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::Body;
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{body::SharedBody, source::Source};
use crate::{Runtime, http::InUse};

/// How long the fastest reader waits for the slowest, if nothing else is said.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lets several callers read one streamed body, each from its first byte.
///
/// Beneath `CoalesceLayer`, which shares responses that are `Clone`: with this, those with streamed
/// bodies are. Say [`shared_bodies`](crate::CoalesceLayer::shared_bodies) there.
///
/// Up to `cap` bytes everything is kept, and whoever joins reads it all. When more has been pulled,
/// nobody can join any more, and what is kept is what the slowest reader has not read yet: at most the cap
/// and one frame. Any reader pulls; the body is read as fast as the fastest reads it, until as much as may
/// be is kept for the slowest. Then the fastest waits, for as long as
/// [`patience`](Self::patience) says, and the slowest fails with
/// [`Lagged`](crate::ErrorKind::Lagged). Errors and trailers reach every reader at the same byte. With the
/// last reader the body is dropped.
///
/// Not shared, and given to the caller that led alone: bodies that are longer than the cap by what they
/// say of themselves, and the answers to upgrades (101) and to `CONNECT`.
///
/// ```
/// use std::time::Duration;
/// use tower_on_demand::http::ShareBodyLayer;
/// # fn layer(runtime: tower_on_demand::Runtime) -> ShareBodyLayer {
///
/// // A quarter of a mebibyte for each call in flight, and two seconds for those who are slow.
/// ShareBodyLayer::new(runtime, 256 * 1024).patience(Duration::from_secs(2))
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ShareBodyLayer {
    rules: Rules,
}

#[derive(Debug, Clone)]
struct Rules {
    runtime: Runtime,
    cap: u64,
    patience: Duration,
}

impl ShareBodyLayer {
    /// Keeps at most `cap` bytes and one frame per body.
    pub fn new(runtime: Runtime, cap: u64) -> Self {
        Self {
            rules: Rules {
                runtime,
                cap,
                patience: PATIENCE,
            },
        }
    }

    /// How long the fastest reader waits for the slowest one, which then fails: 1 s if nothing is said.
    ///
    /// Too little, and readers fail that were about to read; too much, and one that has vanished holds
    /// up the others.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.rules.patience = patience;
        self
    }
}

impl<S> Layer<S> for ShareBodyLayer {
    type Service = ShareBody<S>;

    fn layer(&self, inner: S) -> ShareBody<S> {
        ShareBody {
            inner,
            rules: self.rules.clone(),
        }
    }
}

/// Makes bodies [shareable](SharedBody): see [`ShareBodyLayer`].
#[derive(Debug, Clone)]
pub struct ShareBody<S> {
    inner: S,
    rules: Rules,
}

impl<S> ShareBody<S> {
    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, B> Service<Request<ReqBody>> for ShareBody<S>
where
    S: Service<Request<ReqBody>, Response = Response<B>>,
    B: Body,
{
    type Response = Response<SharedBody<B>>;
    type Error = S::Error;
    type Future = ShareBodyFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        ShareBodyFuture {
            connect: request.method() == Method::CONNECT,
            future: self.inner.call(request),
            rules: self.rules.clone(),
        }
    }
}

/// What [`ShareBody`] answers with.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ShareBodyFuture<F> {
    #[pin]
    future: F,
    connect: bool,
    rules: Rules,
}

impl<F, B, E> Future for ShareBodyFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<SharedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(cx))?;
        let rules = &*this.rules;
        let switches = *this.connect || response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if switches || is_longer(response.headers(), response.body(), rules.cap) {
            return Poll::Ready(Ok(response.map(SharedBody::sole)));
        }
        // What belongs to one connection is not for all.
        response.extensions_mut().remove::<InUse>();
        #[cfg(feature = "client")]
        response
            .extensions_mut()
            .remove::<hyper::upgrade::OnUpgrade>();
        Poll::Ready(Ok(response.map(|body| {
            SharedBody::shared(Source::new(
                rules.runtime.clone(),
                rules.cap,
                rules.patience,
                body,
            ))
        })))
    }
}

/// Whether a body says of itself that it is longer than `cap`.
fn is_longer<B: Body>(headers: &HeaderMap, body: &B, cap: u64) -> bool {
    if body.is_end_stream() {
        // To `HEAD`, for one: what it declares is not sent.
        return false;
    }
    let declared = headers.get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
    body.size_hint().lower().max(declared.unwrap_or(0)) > cap
}

impl<F> fmt::Debug for ShareBodyFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareBodyFuture").finish_non_exhaustive()
    }
}
