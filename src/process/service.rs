//! `Http`: the service that a running child lends.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Request, Response, Uri, Version,
    header::HOST,
    uri::{Authority, PathAndQuery},
};
use http_body::Body;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use tower_service::Service;

use super::{
    Protocol,
    address::{Address, Stream},
    body::AnyBody,
    call::{Calling, ChildBody},
    child::Process,
};
use crate::error::{BoxError, Error, ErrorKind};

/// How long a connection may be unused and still be used again. Shorter than servers keep theirs,
/// so that none is closed under a request; a new one costs little on one machine.
const IDLE: Duration = Duration::from_secs(1);

/// What stands in URIs that name no host.
const NO_HOST: &str = "localhost";

/// HTTP to one running child, over connections of its own: what a
/// [`Client`](super::Client) lends.
///
/// A cheap clone; a `Service<Request<B>>` for every kind of body. Nothing of it reaches another
/// instance, whatever listens at the same address later.
///
/// Requests are sent as they are, save for this: the version becomes the one that the child speaks,
/// and a URI without a host is taken for this child's. With HTTP/1.1 the host goes into the `Host`
/// header, if there is none; with HTTP/2 there is a connection for each host that is named, so
/// callers that pass on what strangers ask for should set one. The answer of a child that speaks HTTP/1.0
/// only is one of HTTP/1.1, so that a server in front keeps its own connections. Headers pass as they are,
/// those that are about one connection (`Connection`, `Keep-Alive`) included: a proxy for strangers takes
/// them out, by [`strip_request`](crate::http::strip_request).
///
/// A body whose own type mentions a `Box<dyn Error>`, `BoxBody<Bytes, BoxError>` for one, cannot be sent
/// by a call that is spawned ("implementation of `From` is not general enough"), here as with hyper-util
/// alone. Put a type around it: `axum::body::Body::new(body)`, or a body of your own.
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
    pub(super) fn new(process: Process, protocol: Protocol) -> Self {
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .timer(TokioTimer::new())
            .http2_only(protocol == Protocol::H2c);
        let pool = builder.build(Connect(process.address().clone()));
        Self {
            inner: Arc::new(Inner {
                process,
                protocol,
                pool: RwLock::new(Some(pool)),
            }),
        }
    }

    /// The process behind it.
    pub fn process(&self) -> &Process {
        &self.inner.process
    }

    /// Closes the connections that are idle, and the others when their calls are done.
    pub(super) fn close(&self) {
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
    type Response = Response<ChildBody>;
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
                let request = request.map(AnyBody::new);
                Ok(pool.request(for_child(request, inner.protocol)))
            }
            None => Err(Error::new(ErrorKind::Evicted).of(inner.process.name())),
        };
        Calling::new(sent, inner.process.clone())
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("process", &self.inner.process)
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
    let uri = uri.path_and_query(path.unwrap_or(PathAndQuery::from_static("/")));
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
