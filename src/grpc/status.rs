//! Errors as gRPC status: the layer.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{code::told, deadline::Deadline};
use crate::{BoxError, Runtime};

/// Answers errors with gRPC status, so that the service has none.
///
/// The status is that of [`status`](super::status): for errors of this crate, and for those of other
/// layers above them. A generated client over the service gets it as its `tonic::Status`, and so does the client of a server that has
/// the service for its routes. A stream that breaks in the middle ends with trailers that say why.
///
/// `Req` is the request type, which is inferred where the service is used. The state is each
/// service's own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use tonic::{Code, body::Body, transport::Endpoint};
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_on_demand::{LazyStartLayer, Runtime, grpc};
///
/// let endpoint = Endpoint::from_static("http://127.0.0.1:1");
/// let service = ServiceBuilder::new()
///     .layer(grpc::StatusLayer::new())
///     .layer(LazyStartLayer::new(Runtime::tokio(), endpoint))
///     .service(grpc::Connect::new());
///
/// let response = service.oneshot(http::Request::new(Body::empty())).await.unwrap();
/// let status = tonic::Status::from_header_map(response.headers()).unwrap();
/// assert_eq!(status.code(), Code::Unavailable);
/// # }
/// ```
pub struct StatusLayer<Req = Request<tonic::body::Body>> {
    options: Options,
    request: PhantomData<fn(Req)>,
}

#[derive(Debug, Clone, Default)]
struct Options {
    terse: bool,
    /// The timer of deadlines.
    runtime: Option<Runtime>,
}

impl<Req> StatusLayer<Req> {
    /// Answers with the error and its causes as the message.
    pub const fn new() -> Self {
        Self {
            options: Options {
                terse: false,
                runtime: None,
            },
            request: PhantomData,
        }
    }

    /// Answers with what the code means as the message, for clients who shall not read what went wrong
    /// inside: errors name backends and quote their output.
    #[must_use]
    pub const fn terse(mut self) -> Self {
        self.options.terse = true;
        self
    }

    /// Ends a call with `DEADLINE_EXCEEDED` when its own deadline, its `grpc-timeout`, has passed.
    ///
    /// Choose this where callers set timeouts (`tonic::Request::set_timeout`): a channel heeds them only
    /// once it is handed the call, and a server once it gets it, so that the wait for a start would
    /// not count. With this everything counts, from the call to the end of the response's stream. The
    /// header is passed on as it is.
    #[must_use]
    pub fn deadlines(mut self, runtime: Runtime) -> Self {
        self.options.runtime = Some(runtime);
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
        Self {
            options: self.options.clone(),
            request: PhantomData,
        }
    }
}

impl<Req> fmt::Debug for StatusLayer<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StatusLayer").field(&self.options).finish()
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
            options: self.options.clone(),
        }
    }
}

/// The service of [`StatusLayer`].
pub struct Status<S: Service<Req>, Req = Request<tonic::body::Body>> {
    inner: S,
    /// Stored, since a bound on the impl below would make services whose type mentions a `BoxError`
    /// impossible to spawn.
    into_box: fn(S::Error) -> BoxError,
    /// The answer to what `poll_ready` failed with.
    refused: Option<tonic::Status>,
    options: Options,
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
            options: self.options.clone(),
        }
    }
}

impl<S, A, B> Service<Request<A>> for Status<S, Request<A>>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<StatusBody<B>>;
    type Error = Infallible;
    type Future = StatusFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if let Err(error) = ready!(self.inner.poll_ready(cx)) {
            self.refused = Some(told(&*(self.into_box)(error), self.options.terse));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let runtime = self.options.runtime.as_ref();
        let deadline = runtime.and_then(|runtime| Deadline::of(request.headers(), runtime));
        StatusFuture {
            state: match self.refused.take() {
                Some(status) => State::Refused(Some(status)),
                None => State::Called(self.inner.call(request)),
            },
            into_box: self.into_box,
            terse: self.options.terse,
            deadline,
        }
    }
}

impl<S: Service<Req> + fmt::Debug, Req> fmt::Debug for Status<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("inner", &self.inner)
            .field("options", &self.options)
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
    deadline: Option<Deadline>,
}

#[pin_project(project = StateProj)]
enum State<F> {
    Called(#[pin] F),
    Refused(Option<tonic::Status>),
}

impl<F, E, B> Future for StatusFuture<F, E>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<StatusBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let status = match this.state.as_mut().project() {
            StateProj::Refused(status) => status.take().expect("polled after it was done"),
            StateProj::Called(call) => match call.poll(cx) {
                Poll::Ready(Ok(response)) => {
                    let (terse, deadline) = (*this.terse, this.deadline.take());
                    return Poll::Ready(Ok(response.map(|body| StatusBody {
                        state: BodyState::Inner(body),
                        terse,
                        deadline,
                    })));
                }
                Poll::Ready(Err(error)) => told(&*(this.into_box)(error), *this.terse),
                Poll::Pending => {
                    let passed = ready!(Deadline::poll(this.deadline, cx));
                    // What it waits for is given back before anybody hears of it.
                    this.state.set(State::Refused(None));
                    passed
                }
            },
        };
        Poll::Ready(Ok(status.into_http()))
    }
}

impl<F, E> fmt::Debug for StatusFuture<F, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusFuture").finish_non_exhaustive()
    }
}

/// The inner service's body; if that fails, trailers that tell of it.
#[pin_project]
pub struct StatusBody<B> {
    #[pin]
    state: BodyState<B>,
    terse: bool,
    deadline: Option<Deadline>,
}

#[pin_project(project = BodyProj)]
enum BodyState<B> {
    Inner(#[pin] B),
    Ended,
}

impl<B> Body for StatusBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Infallible>>> {
        let mut this = self.project();
        let BodyProj::Inner(body) = this.state.as_mut().project() else {
            return Poll::Ready(None);
        };
        let status = match body.poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Ready(None) => {
                this.state.set(BodyState::Ended);
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(error))) => told(&*error.into(), *this.terse),
            Poll::Pending => ready!(Deadline::poll(this.deadline, cx)),
        };
        this.state.set(BodyState::Ended);
        Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            BodyState::Inner(body) => body.is_end_stream(),
            BodyState::Ended => true,
        }
    }

    /// Nobody knows: it may fail.
    fn size_hint(&self) -> SizeHint {
        match &self.state {
            BodyState::Inner(_) => SizeHint::default(),
            BodyState::Ended => SizeHint::with_exact(0),
        }
    }
}

/// Nothing. (Generated clients want it for interceptors.)
impl<B> Default for StatusBody<B> {
    fn default() -> Self {
        Self {
            state: BodyState::Ended,
            terse: false,
            deadline: None,
        }
    }
}

fn trailers(status: &tonic::Status) -> HeaderMap {
    let mut trailers = status.clone().into_http::<()>();
    let mut trailers = mem::take(trailers.headers_mut());
    trailers.remove(http::header::CONTENT_TYPE);
    trailers
}

impl<B> fmt::Debug for StatusBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusBody").finish_non_exhaustive()
    }
}
