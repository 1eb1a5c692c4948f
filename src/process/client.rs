//! `Client`: a running child as a backend, and `Http`, the service it lends.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{HeaderValue, Request, Response, Uri, Version, header::HOST, uri::Authority};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, ResponseFuture},
    rt::{TokioExecutor, TokioTimer},
};
use pin_project::pin_project;
use tower_service::Service;

use super::{
    Protocol,
    address::{Address, Stream},
    child::{Order, Owner, Process},
};
use crate::{
    backend::{Backend, Counted, Retired, Stopped},
    error::{BoxError, Error, ErrorKind},
    http::UntilBodyEnd,
    lease::Leased,
    usage::Usage,
};

/// How long a connection may be unused and still be used again. Shorter than servers keep theirs,
/// so that none is closed under a request; a new one costs little on one machine.
const IDLE: Duration = Duration::from_secs(1);

/// What stands in URIs that name no host.
const NO_HOST: &str = "localhost";

/// A running child process: what [`Spawn`](super::Spawn) makes.
///
/// It owns the process: dropping it stops it as [`stop`](Backend::stop) does, but without waiting
/// for calls in flight. Its leases count as use, from the call until the response's body has ended,
/// unless an `IdleEvict` layer above counts.
pub struct Client {
    owner: Owner,
    http: Http,
    counted: Counted,
}

impl Client {
    pub(super) fn new(owner: Owner, protocol: Protocol) -> Self {
        let process = owner.process.clone();
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .timer(TokioTimer::new())
            .http2_only(protocol == Protocol::H2c);
        let pool = builder.build(Connect(process.address().clone()));
        Self {
            owner,
            http: Http {
                inner: Arc::new(Inner {
                    process,
                    protocol,
                    pool: RwLock::new(Some(pool)),
                }),
            },
            counted: Counted::new(),
        }
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.owner.process
    }
}

impl Backend for Client {
    type Lease = Leased<Http, UntilBodyEnd>;

    fn lease(&self) -> Self::Lease {
        self.counted.lease(self.http.clone(), UntilBodyEnd)
    }

    /// When the process has ended, or has failed its [`alive`](super::Command::alive) probes.
    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        self.owner.process.retired()
    }

    /// SIGTERM to its process group, SIGKILL after the grace; resolves when it is reaped, its group
    /// is gone and its pipes are closed. Dropping the future changes nothing of that.
    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        // A child that ends gracefully may wait for connections that nobody uses.
        self.http.close();
        self.owner.order(Order::Stop);
        let gone = self.owner.process.gone();
        async move {
            gone.await;
            Stopped::Gone
        }
    }

    /// The grace, and 5 seconds for the system to end what was killed.
    fn stop_within(&self) -> Duration {
        self.owner.grace + Duration::from_secs(5)
    }

    fn attach(&self, usage: &Arc<Usage>) {
        self.counted.attach(usage);
    }

    fn usage(&self) -> Option<Arc<Usage>> {
        Some(self.counted.usage().clone())
    }

    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.owner.process.keep(what);
        None
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.http.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("process", self.process())
            .finish_non_exhaustive()
    }
}

/// HTTP to one running child, over connections of its own: what a [`Client`] lends.
///
/// A cheap clone; a `Service<Request<B>>` for every kind of body. Nothing of it reaches another
/// instance, whatever listens at the same address later.
///
/// Requests are sent as they are, save for this: the version becomes the one that the child speaks,
/// and a URI without a host is taken for this child's. With HTTP/1.1 the host goes into the `Host`
/// header, if there is none; with HTTP/2 there is a connection for each host that is named, so
/// callers that pass on what strangers ask for should set one.
///
/// # Errors
///
/// [`Service`](ErrorKind::Service), with hyper's error as its source; [`Died`](ErrorKind::Died), from
/// `poll_ready` as well, once the process has ended, and if the child cannot be connected to any more.
#[derive(Clone)]
pub struct Http {
    inner: Arc<Inner>,
}

struct Inner {
    process: Process,
    protocol: Protocol,
    /// Until it is stopped.
    pool: RwLock<Option<Pool>>,
}

type Pool = legacy::Client<Connect, AnyBody>;

impl Http {
    /// The process behind it.
    pub fn process(&self) -> &Process {
        &self.inner.process
    }

    /// Closes the connections that are idle, and the others when their calls are done.
    fn close(&self) {
        let pool = {
            let mut pool = self.inner.pool.write();
            pool.as_mut()
                .map_or_else(|error| error.get_mut().take(), |pool| pool.take())
        };
        drop(pool);
    }
}

impl<B> Service<Request<B>> for Http
where
    B: Body + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = Calling;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let process = &self.inner.process;
        Poll::Ready(if process.has_ended() {
            Err(process.died())
        } else {
            Ok(())
        })
    }

    fn call(&mut self, request: Request<B>) -> Calling {
        let inner = &self.inner;
        let pool = inner.pool.read().unwrap_or_else(PoisonError::into_inner);
        let pool = pool.clone();
        let sent = match pool {
            Some(pool) => {
                let request = request.map(|body| AnyBody(Box::pin(Erased(body))));
                Ok(pool.request(for_child(request, inner.protocol)))
            }
            None => Err(Some(
                Error::new(ErrorKind::Evicted).of(inner.process.name()),
            )),
        };
        Calling {
            sent,
            process: inner.process.clone(),
        }
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("process", &self.inner.process)
            .finish_non_exhaustive()
    }
}

/// The response future of [`Http`]. Dropping it ends the call: with HTTP/1.1 its connection is
/// closed, with HTTP/2 its stream is reset.
#[must_use = "futures do nothing unless polled"]
pub struct Calling {
    sent: Result<ResponseFuture, Option<Error>>,
    process: Process,
}

impl Future for Calling {
    type Output = Result<Response<Incoming>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let error = match &mut self.sent {
            Ok(sent) => match ready!(Pin::new(sent).poll(cx)) {
                Ok(response) => return Poll::Ready(Ok(response)),
                Err(error) => error,
            },
            Err(refused) => {
                let refused = refused.take();
                return Poll::Ready(Err(refused.expect("polled after it was done")));
            }
        };
        let told = if error.is_connect() {
            Error::new(ErrorKind::Died).because(error)
        } else {
            Error::service(error)
        };
        Poll::Ready(Err(told.of(self.process.name())))
    }
}

impl fmt::Debug for Calling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calling")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// The request as the child gets it.
fn for_child<B>(mut request: Request<B>, protocol: Protocol) -> Request<B> {
    let authority = request.uri().authority().cloned();
    let to = match protocol {
        Protocol::Http1 => {
            *request.version_mut() = Version::HTTP_11;
            // One pool for all: which host is meant says the header.
            if let Some(authority) = authority {
                if let Ok(host) = HeaderValue::from_str(without_user(&authority)) {
                    request.headers_mut().entry(HOST).or_insert(host);
                }
            }
            Authority::from_static(NO_HOST)
        }
        Protocol::H2c => {
            *request.version_mut() = Version::HTTP_2;
            authority
                .or_else(|| {
                    let host = request.headers().get(HOST)?;
                    Authority::try_from(host.as_bytes()).ok()
                })
                .unwrap_or(Authority::from_static(NO_HOST))
        }
    };
    let path = request.uri().path_and_query().cloned();
    let uri = Uri::builder().scheme("http").authority(to);
    let uri = uri.path_and_query(path.unwrap_or(http::uri::PathAndQuery::from_static("/")));
    if let Ok(uri) = uri.build() {
        *request.uri_mut() = uri;
    }
    request
}

fn without_user(authority: &Authority) -> &str {
    let text = authority.as_str();
    text.rsplit_once('@').map_or(text, |(_, host)| host)
}

/// Opens connections to one instance, whatever the URI says.
#[derive(Debug, Clone)]
struct Connect(Address);

impl Service<Uri> for Connect {
    type Response = Stream;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, std::io::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let address = self.0.clone();
        Box::pin(async move { address.connect().await })
    }
}

/// A request body of any kind.
struct AnyBody(Pin<Box<dyn Body<Data = Bytes, Error = BoxError> + Send>>);

impl Body for AnyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

#[pin_project]
struct Erased<B>(#[pin] B);

impl<B> Body for Erased<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.project().0.poll_frame(cx));
        Poll::Ready(frame.map(|frame| match frame {
            // Bytes stay what they are, without a copy.
            Ok(frame) => Ok(frame.map_data(|mut data| data.copy_to_bytes(data.remaining()))),
            Err(error) => Err(error.into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
