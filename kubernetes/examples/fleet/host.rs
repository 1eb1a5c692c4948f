//! The hosts.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower::{Service, ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, Error, Group, IdleEvict, KeyedLayer, Runtime, UntilResponse,
};
use tower_on_demand_kubernetes::{
    Endpoints, Scale, Workload,
    hosts::Hosts,
    test_util::{Cluster, Plan},
};

use super::{Options, numbers::Numbers, traffic::Call};

/// How long a pod takes to answer.
const ANSWER: Duration = Duration::from_millis(200);

/// What is asked of a workload.
type Asked = (usize, u64);

/// All hosts, and the cluster behind them.
pub(super) struct Fleet {
    cluster: Cluster,
    hosts: Vec<BoxCloneSyncService<Asked, (), Error>>,
    tasks: Vec<JoinHandle<()>>,
    groups: Vec<Group>,
    pub(super) numbers: Numbers,
}

/// The pods of a workload.
#[derive(Clone)]
struct Pods(Endpoints, Numbers);

impl Service<Asked> for Pods {
    type Response = ();
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _asked: Asked) -> Self::Future {
        let (ready, numbers) = (self.0.ready(), self.1.clone());
        Box::pin(async move {
            if ready.is_empty() {
                return Err(Error::service("no endpoint"));
            }
            numbers.reached();
            sleep(ANSWER).await;
            Ok(())
        })
    }
}

/// A hundred namespaces.
fn place(workload: usize) -> (String, String) {
    (
        format!("tenants-{}", workload % 100),
        format!("w{workload}"),
    )
}

impl Fleet {
    pub(super) fn new(options: &Options, limit: Option<(u32, u32)>) -> Self {
        let cluster = Cluster::new();
        for workload in 0..options.workloads {
            let (namespace, name) = place(workload);
            // From 2 to 12 s.
            let starts = Duration::from_millis(2_000 + (workload as u64 * 7_919) % 10_000);
            let plan = Plan {
                starts,
                stops: Duration::from_secs(5),
                ..Plan::default()
            };
            cluster.deployment(&namespace, &name, plan);
        }
        let numbers = Numbers::new();
        cluster.observe({
            let numbers = numbers.clone();
            move |call| numbers.asked(call)
        });
        if let Some((per_second, burst)) = limit {
            cluster.limit(per_second, burst);
        }
        let mut fleet = Self {
            hosts: Vec::new(),
            tasks: Vec::new(),
            groups: Vec::new(),
            cluster,
            numbers,
        };
        for n in 0..options.hosts {
            fleet.add(n, options.idle_after);
        }
        fleet
    }

    fn add(&mut self, n: usize, idle_after: Duration) {
        let id = format!("h{n}");
        self.cluster.latency(&id, Duration::from_millis(5));
        let client = self.cluster.client(&id);
        let (hosts, heartbeat) = Hosts::pair(client.clone(), "front", &id).expect("a name");
        // They did not all start in the same instant.
        let pause = Duration::from_millis((n as u64 * 7_919) % 10_000);
        self.tasks.push(tokio::spawn(async move {
            sleep(pause).await;
            heartbeat.run().await;
        }));
        let numbers = self.numbers.clone();
        let scale = Scale::new(client, move |endpoints| Pods(endpoints, numbers.clone()));
        let runtime = Runtime::tokio();
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        self.tasks.push(tokio::spawn(idle_evict.run()));
        let group = Group::new();
        let joined = group.clone();
        let keyed = KeyedLayer::new(
            runtime.clone(),
            |asked: &Asked| Some(asked.0),
            |workload: &usize| {
                let (namespace, name) = place(*workload);
                let workload = Workload::deployment(&namespace, &name);
                Ok::<_, Error>(workload.ready_within(Duration::from_secs(600)))
            },
        )
        .each(move |backend| backend.join(&joined));
        let service = ServiceBuilder::new()
            .layer(CoalesceLayer::new(|asked: &Asked| Some(*asked)))
            .layer(keyed)
            .layer(evictable.idle_after(idle_after))
            .layer(CeilingLayer::new(runtime, 1_000))
            .service(scale.shared(hosts));
        self.hosts.push(BoxCloneSyncService::new(service));
        self.groups.push(group);
    }

    pub(super) fn call(&self, call: Call) {
        let (host, numbers) = (self.hosts[call.host].clone(), self.numbers.clone());
        tokio::spawn(async move {
            let begun = Instant::now();
            let answer = host.oneshot((call.workload, call.item)).await;
            numbers.called(begun.elapsed(), ANSWER, answer.is_err());
        });
    }

    pub(super) fn report(self, name: &str, lasted: Duration) {
        self.numbers.print(name, lasted);
        println!("| watches open at the end | {} |", self.cluster.watches());
        println!("| pods on nodes, at most | {} |", self.cluster.peak());
        for task in self.tasks {
            task.abort();
        }
    }
}
