//! The layer that answers errors with HTTP responses.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::Answer;
use crate::BoxError;

/// Answers errors, so that the service has none: what axum and hyper want of a service.
///
/// The body says which backend it was, why, and what it printed last; [`terse`](Self::terse) is for
/// clients who shall not read that.
///
/// The answer is that of [`response`](super::response): for errors of this crate, and for those of other layers above
/// them. `Req` is the request type, which is inferred where the service is used. The state is each
/// service's own.
///
/// ```
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_on_demand::{Error, ErrorKind, http::StatusLayer};
///
/// # futures_util::future::FutureExt::now_or_never(async {
/// let service = ServiceBuilder::new()
///     .layer(StatusLayer::new())
///     .service(service_fn(|_: Request<String>| async {
///         Err::<Response<http_body_util::Empty<bytes::Bytes>>, _>(Error::new(ErrorKind::Unknown).of("films"))
///     }));
///
/// let response = service.oneshot(Request::new(String::new())).await.unwrap();
/// assert_eq!(response.status(), 404);
/// # }).unwrap();
/// ```
pub struct StatusLayer<Req> {
    terse: bool,
    request: PhantomData<fn(Req)>,
}

impl<Req> StatusLayer<Req> {
    /// Answers with the error and its causes as the body.
    pub const fn new() -> Self {
        Self {
            terse: false,
            request: PhantomData,
        }
    }

    /// Answers with the bare status as the body, for clients who shall not read what went wrong
    /// inside: errors name backends and quote their output.
    #[must_use]
    pub const fn terse(mut self) -> Self {
        self.terse = true;
        self
    }
}

impl<Req> Default for StatusLayer<Req> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Req> Clone for StatusLayer<Req> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<Req> fmt::Debug for StatusLayer<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusLayer")
            .field("terse", &self.terse)
            .finish()
    }
}

impl<S, Req> Layer<S> for StatusLayer<Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Service = Status<S, Req>;

    fn layer(&self, inner: S) -> Status<S, Req> {
        Status {
            inner,
            into_box: Into::into,
            refused: None,
            terse: self.terse,
        }
    }
}

/// The service of [`StatusLayer`].
pub struct Status<S: Service<Req>, Req> {
    inner: S,
    /// Stored, since a bound on the impl below would make services whose type mentions a `BoxError`
    /// impossible to spawn.
    into_box: fn(S::Error) -> BoxError,
    /// The answer to what `poll_ready` failed with.
    refused: Option<Answer>,
    terse: bool,
}

impl<S: Service<Req>, Req> Status<S, Req> {
    /// The service inside.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Service<Req> + Clone, Req> Clone for Status<S, Req> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            into_box: self.into_box,
            refused: None,
            terse: self.terse,
        }
    }
}

impl<S, Req, B> Service<Req> for Status<S, Req>
where
    S: Service<Req, Response = Response<B>>,
{
    type Response = Response<StatusBody<B>>;
    type Error = Infallible;
    type Future = StatusFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if let Err(error) = ready!(self.inner.poll_ready(cx)) {
            self.refused = Some(Answer::to(&*(self.into_box)(error), self.terse));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        StatusFuture {
            state: match self.refused.take() {
                Some(answer) => State::Refused(Some(answer)),
                None => State::Called(self.inner.call(request)),
            },
            into_box: self.into_box,
            terse: self.terse,
        }
    }
}

impl<S: Service<Req> + fmt::Debug, Req> fmt::Debug for Status<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("inner", &self.inner)
            .field("terse", &self.terse)
            .finish_non_exhaustive()
    }
}

/// The response future of [`Status`].
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct StatusFuture<F, E> {
    #[pin]
    state: State<F>,
    into_box: fn(E) -> BoxError,
    terse: bool,
}

#[pin_project(project = StateProj)]
enum State<F> {
    Called(#[pin] F),
    Refused(Option<Answer>),
}

impl<F, E, B> Future for StatusFuture<F, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<StatusBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = match this.state.project() {
            StateProj::Refused(answer) => answer.take().expect("polled after it was done"),
            StateProj::Called(future) => match ready!(future.poll(cx)) {
                Ok(response) => return Poll::Ready(Ok(response.map(StatusBody::inner))),
                Err(error) => Answer::to(&*(this.into_box)(error), *this.terse),
            },
        };
        Poll::Ready(Ok(answer.response(StatusBody::text)))
    }
}

impl<F, E> fmt::Debug for StatusFuture<F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusFuture").finish_non_exhaustive()
    }
}

/// The inner service's body, or the text that tells of an error.
#[pin_project]
#[derive(Debug)]
pub struct StatusBody<B>(#[pin] Content<B>);

#[pin_project(project = ContentProj)]
#[derive(Debug)]
enum Content<B> {
    Inner(#[pin] B),
    Text(Bytes),
}

impl<B> StatusBody<B> {
    pub(super) const fn inner(body: B) -> Self {
        Self(Content::Inner(body))
    }

    pub(super) fn text(text: String) -> Self {
        Self(Content::Text(Bytes::from(text)))
    }
}

impl<B> Body for StatusBody<B>
where
    B: Body<Data = Bytes>,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().0.project() {
            ContentProj::Inner(body) => body.poll_frame(cx),
            ContentProj::Text(text) if text.is_empty() => Poll::Ready(None),
            ContentProj::Text(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Inner(body) => body.is_end_stream(),
            Content::Text(text) => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Inner(body) => body.size_hint(),
            Content::Text(text) => SizeHint::with_exact(text.len() as u64),
        }
    }
}
