//! Stacks over the fake cluster, whose pods count what reaches them.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tower::{ServiceBuilder, util::BoxCloneSyncService};
use tower_on_demand::{BoxFuture, Error, Group, IdleEvict, LazyStartLayer, Runtime, UntilResponse};
use tower_on_demand_kubernetes::{
    Endpoints, Scale, Workload,
    hosts::Hosts,
    test_util::{Cluster, Plan},
};
use tower_service::Service;

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What the pods of all workloads saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Saw {
    /// Calls that reached a pod that serves.
    pub(crate) served: u64,
    /// Calls that were sent to where no pod serves.
    pub(crate) lost: u64,
    /// Calls whose pod was gone before they were done.
    pub(crate) cut: u64,
}

/// A cluster whose pods count what reaches them.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    saw: Arc<Mutex<Saw>>,
}

/// The pods of one workload, as callers reach them: a request is how long its answer takes.
#[derive(Clone)]
pub(crate) struct Pods {
    world: World,
    endpoints: Endpoints,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            cluster: Cluster::new(),
            saw: Arc::default(),
        }
    }

    pub(crate) fn saw(&self) -> Saw {
        *self.saw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sees(&self, change: impl FnOnce(&mut Saw)) {
        change(&mut self.saw.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn films(&self) -> Workload {
        self.cluster.deployment("media", "films", Plan::default());
        films()
    }

    /// The maker of a host called `who`.
    pub(crate) fn scale(
        &self,
        who: &str,
    ) -> Scale<impl Fn(Endpoints) -> Pods + Clone + Send + Sync + 'static> {
        let world = self.clone();
        Scale::new(self.cluster.client(who), move |endpoints| Pods {
            world: world.clone(),
            endpoints,
        })
    }

    /// A host of its own, with a stack for `workload`.
    pub(crate) fn host(&self, who: &str, workload: Workload, idle: Duration) -> Host {
        self.stack(workload, idle, self.scale(who))
    }

    /// One of several hosts.
    pub(crate) fn shared(&self, who: &str, workload: Workload, idle: Duration) -> Host {
        let client = self.cluster.client(who);
        let (hosts, heartbeat) = Hosts::pair(client, "front", who).unwrap();
        let beat = tokio::spawn(heartbeat.run());
        let mut host = self.stack(workload, idle, self.scale(who).shared(hosts));
        host.beat = Some(beat.abort_handle());
        host
    }

    fn stack(
        &self,
        workload: Workload,
        idle: Duration,
        scale: Scale<impl Fn(Endpoints) -> Pods + Clone + Send + Sync + 'static>,
    ) -> Host {
        let runtime = Runtime::tokio();
        let group = Group::new();
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        runtime.spawn(idle_evict.run());
        let service = ServiceBuilder::new()
            .layer(LazyStartLayer::new(runtime, workload).join(&group))
            .layer(evictable.idle_after(idle))
            .service(scale);
        Host {
            service: BoxCloneSyncService::new(service),
            group,
            beat: None,
        }
    }
}

pub(crate) fn films() -> Workload {
    Workload::deployment("media", "films")
}

/// A host with a stack for one workload.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) service: BoxCloneSyncService<Duration, (), Error>,
    pub(crate) group: Group,
    beat: Option<tokio::task::AbortHandle>,
}

impl Host {
    /// A call that takes `long`.
    pub(crate) async fn call(&self, long: Duration) -> Result<(), Error> {
        use tower::ServiceExt as _;
        self.service.clone().oneshot(long).await
    }

    /// Its heartbeat ends.
    pub(crate) fn falls_silent(&self) {
        if let Some(beat) = &self.beat {
            beat.abort();
        }
    }
}

impl Service<Duration> for Pods {
    type Response = ();
    type Error = Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    fn poll_ready(
        &mut self,
        _cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, long: Duration) -> Self::Future {
        let (world, ready) = (self.world.clone(), self.endpoints.ready());
        Box::pin(async move {
            let Some(&address) = ready.first() else {
                world.sees(|saw| saw.lost += 1);
                return Err(Error::service("no endpoint"));
            };
            if !world.cluster.serves(address) {
                world.sees(|saw| saw.lost += 1);
                return Err(Error::service("connection refused"));
            }
            tokio::time::sleep(long).await;
            if !world.cluster.serves(address) {
                world.sees(|saw| saw.cut += 1);
                return Err(Error::service("connection reset"));
            }
            world.sees(|saw| saw.served += 1);
            Ok(())
        })
    }
}

const _: fn(BoxFuture) = drop;

/// The calls that changed something or read the scale, without watches and lists.
pub(crate) fn story(cluster: &Cluster) -> Vec<String> {
    let calls = cluster.calls();
    let told = calls
        .iter()
        .filter(|call| call.path.ends_with("/scale") || call.method != "GET");
    told.map(ToString::to_string).collect()
}
