//! The stack of each backend, and the server in front of them.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_on_demand::{
    CeilingLayer, CoalesceHandle, CoalesceLayer, Error, ErrorKind, Group, IdleEvict,
    LazyStartLayer, Runtime,
    http::{OnDemandHeaderLayer, ProgressPageLayer, StatusLayer, UntilBothEnd},
    process::{Client, Process, Spawn},
};

use crate::{
    children::Children,
    config::{Backend, Config},
    feed::Feed,
    pages::Pages,
    proxy,
    share::{self, Shared},
    upload::Upload,
};

/// A response's body, wherever it comes from.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;
/// A backend as its callers see it.
pub(crate) type Service = BoxCloneSyncService<Request<Upload>, Response<Body>, Error>;

/// Idle connections are closed after this; so is one whose request head does not come.
const HEAD: Duration = Duration::from_secs(30);

/// How long the last bytes of the last answers may take, once no backend is left.
const LAST: Duration = Duration::from_secs(1);

pub(crate) struct Host {
    group: Group,
    ceiling: CeilingLayer,
    backends: BTreeMap<String, Served>,
    upload_pause: Duration,
    feed: Feed,
    pages: Pages,
}

/// A backend, and what is known of it beside its status.
pub(crate) struct Served {
    service: Service,
    pub(crate) coalesce: CoalesceHandle<share::Key>,
    pub(crate) children: Children,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) pinned: bool,
}

impl Host {
    /// The host that `config` describes, and who retires its idle backends. Nothing is started.
    pub(crate) fn new(config: &Config, feed: Feed, pages: Pages) -> (Self, IdleEvict) {
        let runtime = Runtime::tokio();
        let group = Group::new();
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBothEnd);
        let ceiling = CeilingLayer::new(runtime.clone(), config.limit).wait(config.wait);
        let stack = |backend: &Backend| {
            let (coalesced, coalesce) = CoalesceLayer::new(share::identity::<Upload>)
                .share_if(share::is_for_all)
                .with_handle();
            let children = Children::default();
            let born = children.clone();
            let spawn = Spawn::http().map_response(move |client: Client| {
                born.born(client.process().clone());
                client
            });
            let (lazy_start, handle) =
                LazyStartLayer::new(runtime.clone(), backend.command.clone()).pair();
            let progress = backend.progress.then(|| {
                ServiceBuilder::new()
                    .map_response(|response: Response<_>| response.map(boxed))
                    .layer(ProgressPageLayer::new(runtime.clone(), handle))
                    .into_inner()
            });
            let service = ServiceBuilder::new()
                .option_layer(progress)
                .map_response(|response: Response<Shared>| response.map(Shared::into_body))
                .layer(coalesced)
                .and_then(share::collected)
                .map_response(|response: Response<_>| response.map(boxed))
                .layer(OnDemandHeaderLayer::new())
                .layer(lazy_start.join(&group))
                .layer(
                    evictable
                        .clone()
                        .idle_after(backend.idle_after)
                        .pinned(backend.pinned),
                )
                .layer(ceiling.clone())
                .service(spawn);
            Served {
                service: BoxCloneSyncService::new(service),
                coalesce,
                children,
                idle_after: backend.idle_after,
                pinned: backend.pinned,
            }
        };
        let backends = config.backends.iter().map(|backend| {
            let name = backend.command.name().to_owned();
            (name, stack(backend))
        });
        let host = Self {
            backends: backends.collect(),
            group,
            ceiling,
            upload_pause: config.upload_pause,
            feed,
            pages,
        };
        (host, idle_evict)
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn ceiling(&self) -> &CeilingLayer {
        &self.ceiling
    }

    pub(crate) fn feed(&self) -> &Feed {
        &self.feed
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(crate) fn served(&self, name: &str) -> Option<&Served> {
        self.backends.get(name)
    }

    pub(crate) fn all_served(&self) -> impl Iterator<Item = (&str, &Served)> {
        let all = self.backends.iter();
        all.map(|(name, served)| (name.as_str(), served))
    }

    /// The processes that there are.
    pub(crate) fn children(&self) -> impl Iterator<Item = Process> {
        let all = self.backends.values();
        all.flat_map(|served| served.children.alive())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.keys().map(String::as_str)
    }

    pub(crate) fn upload_pause(&self) -> Duration {
        self.upload_pause
    }

    /// The backend called `name`.
    pub(crate) fn backend(&self, name: &str) -> Result<Service, Error> {
        let served = self.backends.get(name);
        let service = served.map(|served| served.service.clone());
        service.ok_or_else(|| Error::new(ErrorKind::Unknown).of(name))
    }

    /// Stops every backend. Calls in flight have `drain`; nothing is alive when this returns, and what
    /// was `begun` is told.
    pub(crate) async fn stop(&self, drain: Duration, begun: JoinHandle<()>) {
        self.group.stopped(drain).await;
        // Who looks on has seen it all.
        self.feed.close();
        // A client that does not read what it asked for holds nobody up.
        let _ = timeout(LAST, begun).await;
    }
}

/// Any body as the one kind that all have here.
pub(crate) fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    body.map_err(Into::into).boxed_unsync()
}

pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: another program does; choose another address with --listen"
        ),
        _ => format!("cannot listen on {address}: {error}"),
    })
}

pub(crate) fn url(listener: &TcpListener) -> String {
    match listener.local_addr() {
        Ok(address) => format!("http://{address}"),
        Err(error) => format!("http://?{error}?"),
    }
}

/// Serves `listener` until `stop`. The task that it gives serves the requests that have begun, until
/// their last byte is sent.
pub(crate) async fn serve(
    host: Arc<Host>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> JoinHandle<()> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD);
    let graceful = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, for one: connections that end free some.
                    tracing::warn!(%error, "accepting");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let host = host.clone();
        let cut = Arc::new(Notify::new());
        let cutting = cut.clone();
        let service = ServiceBuilder::new()
            .layer(StatusLayer::new())
            .service(service_fn(move |request| {
                proxy::call(host.clone(), peer, cutting.clone(), request)
            }));
        let connection = server
            .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service))
            .into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, %peer, "connection");
                },
                () = cut.notified() => tracing::debug!(%peer, "cut: it reads nothing"),
            }
        });
    }
    drop(listener);
    tokio::spawn(graceful.shutdown())
}
