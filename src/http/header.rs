//! What a start took, in the answers of the calls that waited for it.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderName, HeaderValue, Request, Response};
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    BoxError, Error,
    lazy_start::{ResponseFuture, StartTimes},
    lifecycle::entrance::Entrance,
};

const X_ON_DEMAND: HeaderName = HeaderName::from_static("x-on-demand");

/// Says in the answers of cold calls what their start took: `X-On-Demand: cold; start=1.204, wait=0.310`.
///
/// For clients and logs that shall tell a slow start from a slow answer. `start` is the start as a whole, in
/// seconds, and `wait` that part of it for which it waited for room ([`StartTimes`]). All calls that waited
/// for a start have it in their answer, whether they began it or joined; those that found the backend
/// running have not, and pay nothing.
///
/// It goes right above a [`LazyStartLayer`](crate::LazyStartLayer) or [`KeyedLayer`](crate::KeyedLayer), and
/// takes no other service. Callers whom `CoalesceLayer` gives one answer have one header.
///
/// ```
/// # #[cfg(feature = "full")]
/// # fn example() {
/// use tower::ServiceBuilder;
/// use tower_on_demand::{
///     LazyStartLayer, Runtime,
///     http::{OnDemandHeaderLayer, StatusLayer},
///     process::{Command, Spawn},
/// };
///
/// let command = Command::new("files", "python3").args(["-m", "http.server", "{port}"]);
/// let files = ServiceBuilder::new()
///     .layer(StatusLayer::new())
///     .layer(OnDemandHeaderLayer::new())
///     .layer(LazyStartLayer::new(Runtime::tokio(), command))
///     .service(Spawn::http());
/// # let _: axum::Router = axum::Router::new().nest_service("/files", files);
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct OnDemandHeaderLayer(());

impl OnDemandHeaderLayer {
    /// The layer. It has no options.
    pub const fn new() -> Self {
        Self(())
    }
}

impl<S> Layer<S> for OnDemandHeaderLayer {
    type Service = OnDemandHeader<S>;

    fn layer(&self, inner: S) -> OnDemandHeader<S> {
        OnDemandHeader { inner }
    }
}

/// The service of [`OnDemandHeaderLayer`].
#[derive(Debug, Clone, Copy)]
pub struct OnDemandHeader<S> {
    inner: S,
}

impl<S> OnDemandHeader<S> {
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

impl<S, L, A, B> Service<Request<A>> for OnDemandHeader<S>
where
    S: Service<
            Request<A>,
            Response = Response<B>,
            Error = Error,
            Future = ResponseFuture<L, Request<A>>,
        >,
    L: Service<Request<A>, Response = Response<B>>,
    L::Error: Into<BoxError>,
{
    type Response = Response<B>;
    type Error = Error;
    type Future = OnDemandHeaderFuture<L, Request<A>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let call = self.inner.call(request);
        OnDemandHeaderFuture {
            cold: call.waits_for().cloned(),
            call,
        }
    }
}

/// The response future of [`OnDemandHeader`].
///
/// # Cancel safety
///
/// As the inner one's.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct OnDemandHeaderFuture<L: Service<Req>, Req> {
    #[pin]
    call: ResponseFuture<L, Req>,
    /// Whose start it waits for, or has waited for.
    cold: Option<Arc<dyn Entrance<L>>>,
}

impl<L, Req, B> Future for OnDemandHeaderFuture<L, Req>
where
    L: Service<Req, Response = Response<B>>,
    L::Error: Into<BoxError>,
{
    type Output = Result<Response<B>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Poll::Ready(answer) = this.call.as_mut().poll(cx) else {
            // The instance it was to go to may have been retired before it took the call.
            if this.cold.is_none() {
                *this.cold = this.call.waits_for().cloned();
            }
            return Poll::Pending;
        };
        let cold = this.cold.take();
        let times = cold.and_then(|backend| backend.status().last_start);
        Poll::Ready(answer.map(|mut response| {
            response
                .headers_mut()
                .extend(times.map(|times| (X_ON_DEMAND, value(times))));
            response
        }))
    }
}

fn value(times: StartTimes) -> HeaderValue {
    let (start, wait) = (times.took.as_secs_f64(), times.waited.as_secs_f64());
    let text = format!("cold; start={start:.3}, wait={wait:.3}");
    HeaderValue::from_str(&text).expect("figures and letters")
}

impl<L: Service<Req>, Req> fmt::Debug for OnDemandHeaderFuture<L, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnDemandHeaderFuture")
            .field("call", &self.call)
            .field("cold", &self.cold.is_some())
            .finish()
    }
}
