//! Errors as HTTP responses.

use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tower::{load_shed::error::Overloaded, timeout::error::Elapsed};
use tower_layer::Layer;
use tower_service::Service;

use crate::{BoxError, Error, ErrorKind};

/// The status that tells a client of `error`.
///
/// | status | errors |
/// |---|---|
/// | 404 | [`Unknown`](ErrorKind::Unknown) |
/// | 429 | [`TooManyWaiting`](ErrorKind::TooManyWaiting), tower's `Overloaded` |
/// | 502 | [`StartFailed`](ErrorKind::StartFailed), [`Stopped`](ErrorKind::Stopped), [`Died`](ErrorKind::Died), [`Panicked`](ErrorKind::Panicked), and all that nothing else is known of |
/// | 503 | [`NoRoom`](ErrorKind::NoRoom), [`NeverFits`](ErrorKind::NeverFits), [`BackingOff`](ErrorKind::BackingOff), [`Unloaded`](ErrorKind::Unloaded), [`NotRunning`](ErrorKind::NotRunning), [`ShutDown`](ErrorKind::ShutDown), [`Evicted`](ErrorKind::Evicted), [`TooManyKeys`](ErrorKind::TooManyKeys) |
/// | 504 | [`StartTimeout`](ErrorKind::StartTimeout), tower's `Elapsed` |
///
/// The first one in the chain of sources that says something decides: a
/// [`Service`](ErrorKind::Service) error is what its cause is.
///
/// ```
/// use http::StatusCode;
/// use tower_on_demand::{Error, ErrorKind, http::status};
///
/// let error = Error::new(ErrorKind::Unloaded).of("probe");
/// assert_eq!(status(&error), StatusCode::SERVICE_UNAVAILABLE);
/// ```
pub fn status(error: &(dyn StdError + 'static)) -> StatusCode {
    judge(error).0
}

/// After what time a client may try again, where `error` or a cause of it says so.
pub fn retry_after(error: &(dyn StdError + 'static)) -> Option<Duration> {
    judge(error).1
}

/// The response that tells a client of `error`, as [`StatusLayer`] gives it.
///
/// With [`status`], `Cache-Control: no-store`, and a `Retry-After` of whole seconds, rounded up, where
/// a time is known. The body is the error and its causes, as `{:#}` writes them.
pub fn response<B: From<String>>(error: &(dyn StdError + 'static)) -> Response<B> {
    Answer::to(error, false).response(B::from)
}

fn judge(error: &(dyn StdError + 'static)) -> (StatusCode, Option<Duration>) {
    let mut retry_after = None;
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            retry_after = retry_after.or(error.retry_after());
            if let Some(status) = of_kind(error.kind()) {
                return (status, retry_after);
            }
        } else if error.is::<Overloaded>() {
            return (StatusCode::TOO_MANY_REQUESTS, retry_after);
        } else if error.is::<Elapsed>() {
            return (StatusCode::GATEWAY_TIMEOUT, retry_after);
        }
        next = error.source();
    }
    (StatusCode::BAD_GATEWAY, retry_after)
}

/// `None`: its cause says more.
fn of_kind(kind: &ErrorKind) -> Option<StatusCode> {
    Some(match kind {
        ErrorKind::Unknown => StatusCode::NOT_FOUND,
        ErrorKind::TooManyWaiting { .. } => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::StartTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::NoRoom(_)
        | ErrorKind::NeverFits { .. }
        | ErrorKind::BackingOff { .. }
        | ErrorKind::Unloaded
        | ErrorKind::NotRunning
        | ErrorKind::ShutDown
        | ErrorKind::Evicted
        | ErrorKind::TooManyKeys { .. } => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::StartFailed
        | ErrorKind::Stopped
        | ErrorKind::Died
        | ErrorKind::Panicked
        | ErrorKind::Reentrant
        | ErrorKind::Lagged => StatusCode::BAD_GATEWAY,
        ErrorKind::Service => return None,
    })
}

/// The parts of a response to an error.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    retry_after: Option<Duration>,
    text: String,
}

impl Answer {
    fn to(error: &(dyn StdError + 'static), terse: bool) -> Self {
        let (status, retry_after) = judge(error);
        let text = if terse {
            format!("{status}\n")
        } else {
            format!("{}\n", Chain(error))
        };
        Self {
            status,
            retry_after,
            text,
        }
    }

    fn response<B>(self, body: impl FnOnce(String) -> B) -> Response<B> {
        let mut response = Response::new(body(self.text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, whole_seconds(after));
        }
        response
    }
}

/// For `Retry-After`: rounded up, and never at once.
pub(super) fn whole_seconds(after: Duration) -> HeaderValue {
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

/// An error and its causes, in a row. Ours does that by itself.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = self.0;
        loop {
            if error.is::<Error>() {
                return write!(f, "{error:#}");
            }
            write!(f, "{error}")?;
            match error.source() {
                Some(source) => error = source,
                None => return Ok(()),
            }
            f.write_str(": ")?;
        }
    }
}

/// Answers errors, so that the service has none: what axum and hyper want of a service.
///
/// The body says which backend it was, why, and what it printed last; [`terse`](Self::terse) is for
/// clients who shall not read that.
///
/// The answer is that of [`response`]: for errors of this crate, and for those of other layers above
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
