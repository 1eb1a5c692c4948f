//! The same stack over a fake cluster: what would the API server be asked?

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use tower::{Service, ServiceExt};
use tower_on_demand::{BoxError, Error, Target as _};
use tower_on_demand_kubernetes::{
    Endpoints, Scale,
    test_util::{Cluster, Plan},
};

use super::{Options, front, workloads};

/// A pod of the fake cluster, which nobody can connect to: it answers here.
#[derive(Clone)]
struct Pod(Endpoints);

impl Service<Request<Empty<Bytes>>> for Pod {
    type Response = Response<Full<Bytes>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Empty<Bytes>>) -> Self::Future {
        let name = self.0.workload().name().to_owned();
        let ready = self.0.ready();
        Box::pin(async move {
            let address = ready.first().ok_or_else(|| Error::service("no endpoint"))?;
            let text = format!("{name}, {address}, answers {}", request.uri());
            Ok(Response::new(Full::new(Bytes::from(text))))
        })
    }
}

pub(super) async fn run(options: &Options) -> Result<(), BoxError> {
    // Hours take no time.
    tokio::time::pause();
    let cluster = Cluster::new();
    let label = options
        .label
        .split_once('=')
        .unwrap_or((&options.label, ""));
    for (name, starts) in [("films", 3), ("songs", 8)] {
        let plan = Plan {
            starts: Duration::from_secs(starts),
            ..Plan::default()
        };
        cluster.labelled_deployment("default", name, label, plan);
    }
    cluster.deployment("default", "games", Plan::default());
    let asked = Arc::new(AtomicUsize::new(0));
    cluster.observe({
        let asked = asked.clone();
        move |call| {
            asked.fetch_add(1, Ordering::Relaxed);
            println!("{:>9.3} s  {call}", call.at.as_secs_f64());
        }
    });

    println!("# Which workloads carry the label {}?", options.label);
    let client = cluster.client("front");
    let options = Options {
        namespace: Some("default".to_owned()),
        ..options.clone()
    };
    let workloads = workloads(&client, &options).await?;
    let count = workloads.len();
    let (service, group) = front(Scale::new(client, Pod), workloads, &options);

    let mut failed = 0;
    let paths = ["/films/1", "/films/2", "/songs/", "/games/"];
    for path in paths {
        println!("# GET {path}");
        let request = Request::get(path).body(Empty::new())?;
        let response = service.clone().oneshot(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(Into::into)?;
        println!(
            "# {status}: {}",
            String::from_utf8_lossy(&body.to_bytes()).trim()
        );
        failed += usize::from(status.is_success() != (path != "/games/"));
    }
    println!("# Nobody calls for {:?}", options.idle_after * 2);
    tokio::time::sleep(options.idle_after * 2).await;
    let left = cluster.pods("default", "films") + cluster.pods("default", "songs");
    group.stopped(Duration::from_secs(30)).await;
    println!(
        "front: {count} workloads, {} calls, {} API calls, failed {failed}, left {left}",
        paths.len(),
        asked.load(Ordering::Relaxed)
    );
    match failed + left {
        0 => Ok(()),
        _ => Err("the dry run went wrong".into()),
    }
}
