//! `Http`: HTTP to a running workload.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{
    HeaderValue, Request, Response, Uri,
    header::HOST,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tower_on_demand::{BoxError, Error, ErrorKind, Target as _};
use tower_service::Service;

use crate::{endpoints::Endpoints, workload::Route};

/// HTTP/1.1 to one running workload, over connections of its own: what a [`Scaled`](crate::Scaled) of
/// [`Scale::http`](crate::Scale::http) lends.
///
/// A cheap clone. Calls go to the ready endpoints in turn, or to the Service
/// ([`through_service`](crate::Workload::through_service)). Requests are sent as they are, except that the URI
/// names the endpoint; a host that it named before goes into the `Host` header, if there is none. A call that
/// fails is not sent to another endpoint, since nobody knows what it has done.
///
/// # Errors
///
/// [`Service`](ErrorKind::Service), with hyper-util's error as its source; [`Died`](ErrorKind::Died), from
/// `poll_ready` too, when no endpoint is ready.
pub struct Http<B> {
    pool: Client<HttpConnector, B>,
    endpoints: Endpoints,
    turn: Arc<AtomicUsize>,
}

impl<B> Http<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// HTTP to `endpoints`.
    pub fn new(endpoints: Endpoints) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new());
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // A pod on a node that is lost answers nothing at all.
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        Self {
            pool: builder.build(connector),
            endpoints,
            turn: Arc::new(AtomicUsize::new(0)),
        }
    }
}

impl<B> Http<B> {
    /// Where calls go.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    fn died(&self) -> Error {
        let workload = self.endpoints.workload();
        let error = Error::new(ErrorKind::Died).of(workload.name());
        error.because("no endpoint is ready")
    }

    /// Where the next call goes.
    fn next(&self) -> Result<Authority, Error> {
        let ready = self.endpoints.ready();
        if ready.is_empty() {
            return Err(self.died());
        }
        let workload = self.endpoints.workload();
        let authority = match workload.route {
            Route::Service(port) => {
                let (service, namespace) = (&workload.service, workload.namespace());
                format!("{service}.{namespace}.svc:{port}")
            }
            Route::Endpoints => {
                let turn = self.turn.fetch_add(1, Ordering::Relaxed);
                ready[turn % ready.len()].to_string()
            }
        };
        Authority::try_from(authority).map_err(Error::service)
    }
}

impl<B> Service<Request<B>> for Http<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = Calling;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(match self.endpoints.ready().is_empty() {
            true => Err(self.died()),
            false => Ok(()),
        })
    }

    fn call(&mut self, request: Request<B>) -> Calling {
        Calling(match self.next() {
            Ok(authority) => Ok(self.pool.request(for_endpoint(request, authority))),
            Err(error) => Err(Some(error)),
        })
    }
}

/// The request as the endpoint gets it.
fn for_endpoint<B>(mut request: Request<B>, to: Authority) -> Request<B> {
    let meant = request.uri().authority().map(|meant| {
        let text = meant.as_str();
        text.rsplit_once('@').map_or(text, |(_, host)| host)
    });
    let host = meant.and_then(|host| HeaderValue::from_str(host).ok());
    if let Some(host) = host {
        request.headers_mut().entry(HOST).or_insert(host);
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(to);
    parts.path_and_query = parts
        .path_and_query
        .or(Some(PathAndQuery::from_static("/")));
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

impl<B> Clone for Http<B> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            endpoints: self.endpoints.clone(),
            turn: self.turn.clone(),
        }
    }
}

impl<B> fmt::Debug for Http<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// The response future of [`Http`].
#[must_use = "futures do nothing unless polled"]
pub struct Calling(Result<legacy::ResponseFuture, Option<Error>>);

impl Future for Calling {
    type Output = Result<Response<Incoming>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.0 {
            Ok(response) => ready!(Pin::new(response).poll(cx)).map_err(Error::service),
            Err(error) => Err(error.take().expect("polled after it was done")),
        })
    }
}

impl fmt::Debug for Calling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calling").finish_non_exhaustive()
    }
}
