//! `ApiServer`: the fake as a service, and over loopback.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    time::{Instant, interval_at},
};
use tower_on_demand::BoxError;
use tower_service::Service;

use super::{
    AnswerBody, Cluster, State,
    answer::{Answer, Bookmarks, bad_request, not_found, ok, status, throttled},
    discovery,
    request::{Asked, media_type},
    store::event,
};

/// One call that the API server has answered, or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// When it came, since the cluster was made.
    pub at: Duration,
    /// Whose it was.
    pub who: String,
    /// The method.
    pub method: String,
    /// The path, without what was asked for by parameters.
    pub path: String,
    /// The parameters.
    pub query: String,
    /// The body.
    pub body: String,
    /// The status of the answer; 0 if there was none, since nobody could connect.
    pub status: u16,
}

impl Call {
    /// Whether it was a watch.
    pub fn is_watch(&self) -> bool {
        self.query.contains("watch=true") || self.query.contains("watch=1")
    }
}

/// The method, the path with its parameters, the body, the status.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)?;
        if !self.query.is_empty() {
            write!(f, "?{}", self.query)?;
        }
        if !self.body.is_empty() {
            write!(f, " {}", self.body)?;
        }
        write!(f, " -> {}", self.status)
    }
}

/// The API server of a [`Cluster`] as a tower service: what `kube::Client::new` takes.
#[derive(Debug, Clone)]
pub struct ApiServer {
    cluster: Cluster,
    who: Arc<str>,
}

impl<B> Service<Request<B>> for ApiServer
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map_err(Into::into)?.to_bytes();
            server
                .answer(Request::from_parts(parts, body))
                .await
                .map_err(Into::into)
        })
    }
}

impl ApiServer {
    pub(super) fn new(cluster: Cluster, who: &str) -> Self {
        Self {
            cluster,
            who: who.into(),
        }
    }

    /// Serves HTTP on `listener`, without TLS, until it is dropped: for `kubectl --server=http://…`.
    ///
    /// # Errors
    ///
    /// Those of accepting connections.
    pub async fn serve(self, listener: TcpListener) -> io::Result<Infallible> {
        loop {
            let (stream, _) = listener.accept().await?;
            let service = TowerToHyperService::new(self.clone());
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn answer(&self, request: Request<Bytes>) -> io::Result<Answer> {
        let cluster = &self.cluster;
        let mut call = Call {
            at: cluster.inner.born.elapsed(),
            who: self.who.to_string(),
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            body: String::from_utf8_lossy(request.body()).into_owned(),
            status: 0,
        };
        let latency = cluster.lock().latency.get(&*self.who).copied();
        if let Some(latency) = latency {
            tokio::time::sleep(latency).await;
        }
        let hook = {
            let mut state = cluster.lock();
            let mut hooks = state.hooks.iter();
            let at = hooks.position(|(method, path, _)| {
                *method == call.method && call.path.ends_with(&**path)
            });
            at.map(|at| state.hooks.remove(at).2)
        };
        if let Some(hook) = hook {
            hook();
        }
        let answer = self.decide(&request);
        call.status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
        let observer = {
            let mut state = cluster.lock();
            if let Some(calls) = &mut state.calls {
                calls.push(call.clone());
            }
            state.observer.clone()
        };
        if let Some(observer) = observer {
            observer(&call);
        }
        answer
    }

    fn decide(&self, request: &Request<Bytes>) -> io::Result<Answer> {
        let cluster = &self.cluster;
        let mut state = cluster.lock();
        if state.away || state.cut_off.contains(&*self.who) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        if let Some(seconds) = state.throttles() {
            return Ok(throttled(seconds));
        }
        let (path, query) = (request.uri().path(), request.uri().query());
        if let Some(answer) = discovery::answer(&state.store, path) {
            return Ok(ok(&answer));
        }
        let Some(asked) = Asked::parse(&state.store, path, query.unwrap_or_default()) else {
            return Ok(not_found("path", path));
        };
        if asked.query.watch && request.method() == Method::GET {
            return Ok(self.watch(&mut state, &asked));
        }
        let key = asked.key();
        let before = key.as_ref().and_then(|key| state.wanted(key));
        let kind = media_type(request);
        let answer = asked.answer(&mut state.store, request.method(), &kind, request.body());
        let steps = match &key {
            Some(key) if state.wanted(key) != before => state.reconcile(key),
            _ => Vec::new(),
        };
        drop(state);
        cluster.take(steps);
        Ok(answer)
    }

    fn watch(&self, state: &mut State, asked: &Asked) -> Answer {
        let selector = match asked.query.selector() {
            Ok(selector) => selector,
            Err(unknown) => return bad_request(&unknown),
        };
        let since = match &*asked.query.since {
            "" | "0" => None,
            since => match since.parse() {
                Ok(since) => Some(since),
                Err(_) => return bad_request("resourceVersion is not a number"),
            },
        };
        let namespace = asked.namespace.clone();
        let Ok(lines) = state
            .store
            .watch(&self.who, asked.kind, namespace, selector, since)
        else {
            let gone = status(StatusCode::GONE, "Expired", "too old resource version");
            return Response::new(AnswerBody::last(event("ERROR", &gone)));
        };
        let kind = &state.store.kinds[asked.kind];
        let (kind, api_version) = (kind.kind.clone(), kind.api_version());
        let cluster = Arc::downgrade(&self.cluster.inner);
        let line = move || {
            let version = cluster
                .upgrade()
                .map_or(0, |inner| Cluster { inner }.lock().store.version);
            let metadata = serde_json::json!({ "resourceVersion": version.to_string() });
            let object = serde_json::json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata });
            event("BOOKMARK", &object)
        };
        const MINUTE: Duration = Duration::from_secs(60);
        let bookmarks = asked.query.bookmarks.then(|| Bookmarks {
            every: interval_at(Instant::now() + MINUTE, MINUTE),
            line: Box::new(line),
        });
        let lasts = Duration::from_secs(asked.query.timeout.unwrap_or(1_800));
        Response::new(AnswerBody::watch(lines, lasts, bookmarks))
    }
}

impl State {
    /// How long a call is to wait that is refused.
    fn throttles(&mut self) -> Option<u64> {
        if self.throttled.0 > 0 {
            self.throttled.0 -= 1;
            return Some(self.throttled.1);
        }
        let (rate, burst, left, at) = self.limit.as_mut()?;
        let now = Instant::now();
        *left = (*left + (now - *at).as_secs_f64() * *rate).min(*burst);
        *at = now;
        if *left < 1.0 {
            return Some(1);
        }
        *left -= 1.0;
        None
    }
}
