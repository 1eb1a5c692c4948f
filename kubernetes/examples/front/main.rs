//! A reverse proxy for the Deployments that carry a label. They run only while somebody calls them.
//!
//! ```sh
//! cargo run -p tower-on-demand-kubernetes --example front -- --namespace media --label on-demand=true
//! curl http://127.0.0.1:8080/films/       # to the Deployment `films`, through the Service of that name
//!
//! cargo run -p tower-on-demand-kubernetes --example front -- --dry-run
//! ```
//!
//! The kubeconfig is found as `kubectl` finds it. `--dry-run` needs no cluster: it fronts the workloads of a fake
//! one, and prints each call that the API server would get. With `--host ID` this is one of several fronts for
//! the same workloads, whose Leases are in the same namespace.

use std::{collections::BTreeMap, env, process::ExitCode, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder};
use tower_on_demand::{
    BoxError, CeilingLayer, Error, Group, IdleEvict, KeyedLayer, Runtime,
    http::{StatusLayer, UntilBodyEnd},
};
use tower_on_demand_kubernetes::{Endpoints, Scale, Workload, hosts::Hosts};

mod dry_run;

/// What the command line says.
#[derive(Debug, Clone)]
struct Options {
    namespace: Option<String>,
    label: String,
    listen: String,
    idle_after: Duration,
    at_most: u64,
    host: Option<String>,
    dry_run: bool,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            namespace: None,
            label: "on-demand=true".to_owned(),
            listen: "127.0.0.1:8080".to_owned(),
            idle_after: Duration::from_secs(900),
            at_most: 100,
            host: None,
            dry_run: false,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            let number = |text: String| text.parse().map_err(|_| format!("{text:?} is no number"));
            match &*arg {
                "--namespace" => options.namespace = Some(value()?),
                "--label" => options.label = value()?,
                "--listen" => options.listen = value()?,
                "--idle-after" => options.idle_after = Duration::from_secs(number(value()?)?),
                "--at-most" => options.at_most = number(value()?)?,
                "--host" => options.host = Some(value()?),
                "--dry-run" => options.dry_run = true,
                other => return Err(format!("{other:?} is no option")),
            }
        }
        Ok(options)
    }
}

/// The workloads in front of which this stands, by name.
type Workloads = BTreeMap<String, Workload>;

/// The Deployments that carry the label.
async fn workloads(client: &Client, options: &Options) -> kube::Result<Workloads> {
    let namespace = options.namespace.as_deref();
    let namespace = namespace.unwrap_or(client.default_namespace());
    let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
    let carry = ListParams::default().labels(&options.label);
    let found = deployments.list(&carry).await?;
    let workloads = found.iter().map(|deployment| {
        let name = deployment.name_any();
        (name.clone(), Workload::deployment(namespace, &name))
    });
    Ok(workloads.collect())
}

/// The stack: a request for `/films/…` goes to the workload `films`.
fn front<C, S, B, R>(
    scale: Scale<C>,
    workloads: Workloads,
    options: &Options,
) -> (
    impl Service<
        Request<B>,
        Response = Response<
            impl http_body::Body<Data = bytes::Bytes, Error = impl Into<BoxError>> + Send + 'static,
        >,
        Error = std::convert::Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static,
    Group,
)
where
    C: Fn(Endpoints) -> S + Clone + Send + Sync + 'static,
    S: Service<Request<B>, Response = Response<R>, Error = Error> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    R: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let runtime = Runtime::tokio();
    let group = Group::new();
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    runtime.spawn(idle_evict.run());
    let joined = group.clone();
    let named = |request: &Request<B>| {
        let mut parts = request.uri().path().split('/');
        parts.nth(1).map(str::to_owned)
    };
    let known = move |name: &String| {
        let found = workloads.get(name).cloned();
        found.ok_or(format!("no workload {name:?} carries the label"))
    };
    let keyed =
        KeyedLayer::new(runtime.clone(), named, known).each(move |backend| backend.join(&joined));
    let service = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(keyed)
        .layer(evictable.idle_after(options.idle_after))
        .layer(CeilingLayer::new(runtime, options.at_most))
        .service(scale);
    (service, group)
}

async fn serve(options: Options) -> Result<(), BoxError> {
    let none = |error: &(dyn std::error::Error + 'static)| {
        let mut why = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            // Some say what their causes say.
            if !why.contains(&cause.to_string()) {
                why = format!("{why}: {cause}");
            }
            source = cause.source();
        }
        format!(
            "there is no cluster here: {why}\nSet KUBECONFIG, or run this inside of a cluster; or see what it would do with --dry-run."
        )
    };
    let client = Client::try_default().await.map_err(|error| none(&error))?;
    let asked = tokio::time::timeout(Duration::from_secs(10), client.apiserver_version());
    match asked.await {
        Ok(Ok(version)) => println!("front: Kubernetes {}", version.git_version),
        Ok(Err(error)) => return Err(none(&error).into()),
        Err(late) => return Err(none(&late).into()),
    }
    let workloads = workloads(&client, &options).await?;
    println!(
        "front: http://{}/ for {:?}",
        options.listen,
        workloads.keys()
    );

    let mut scale = Scale::http::<Incoming>(client.clone());
    if let Some(id) = &options.host {
        let namespace = options.namespace.as_deref();
        let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
        let (hosts, heartbeat) = Hosts::pair(client, &namespace, id)?;
        tokio::spawn(heartbeat.run());
        scale = scale.shared(hosts);
    }
    let (service, group) = front(scale, workloads, &options);
    let listener = TcpListener::bind(&options.listen).await?;
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            stop = tokio::signal::ctrl_c() => {
                stop?;
                group.stopped(Duration::from_secs(30)).await;
                return Ok(());
            }
        };
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            let served = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                eprintln!("front: a connection: {error}");
            }
        });
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse(env::args().skip(1));
    let done = match options {
        Ok(options) if options.dry_run => dry_run::run(&options).await,
        Ok(options) => serve(options).await,
        Err(unknown) => Err(unknown.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("front: {error}");
            ExitCode::from(2)
        }
    }
}
