//! What is watched of a workload.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Debug,
    net::SocketAddr,
    pin::Pin,
};

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::{
    Api, Client, Error, Resource, ResourceExt,
    api::DynamicObject,
    runtime::{
        WatchStreamExt,
        watcher::{self, Config, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{
    api::Scaler,
    endpoints::{pods_of, ready_of},
    failure::{Failure, Verdict, of_object, of_pod},
    workload::Workload,
};

/// The objects that a selector selects, as they are now.
///
/// kube's watcher lists and watches, over and over: it goes on where a broken watch ended, lists again when
/// the server has forgotten that, and pauses after errors.
pub(crate) struct Watched<K> {
    events: Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>,
    /// By name; nothing before the first list.
    objects: Option<BTreeMap<String, K>>,
    /// What a list that is under way has given.
    listing: BTreeMap<String, K>,
}

impl<K> Watched<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    pub(crate) fn new(api: Api<K>, config: Config) -> Self {
        Self {
            events: watcher(api, config).default_backoff().boxed(),
            objects: None,
            listing: BTreeMap::new(),
        }
    }

    /// Waits for a change. An error does not end it: it is tried again. Nothing is lost if the future is
    /// dropped.
    pub(crate) async fn changed(&mut self) -> Result<(), watcher::Error> {
        loop {
            match self.events.next().await {
                Some(Ok(Event::Init)) => self.listing.clear(),
                Some(Ok(Event::InitApply(object))) => {
                    self.listing.insert(object.name_any(), object);
                }
                Some(Ok(Event::InitDone)) => {
                    self.objects = Some(std::mem::take(&mut self.listing));
                    return Ok(());
                }
                Some(Ok(Event::Apply(object))) => {
                    let objects = self.objects.get_or_insert_default();
                    objects.insert(object.name_any(), object);
                    return Ok(());
                }
                Some(Ok(Event::Delete(object))) => {
                    let objects = self.objects.get_or_insert_default();
                    objects.remove(&object.name_any());
                    return Ok(());
                }
                Some(Err(error)) => return Err(error),
                None => std::future::pending().await,
            }
        }
    }

    /// Whether the first list is there.
    pub(crate) fn is_known(&self) -> bool {
        self.objects.is_some()
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = &K> {
        self.objects.iter().flat_map(BTreeMap::values)
    }
}

/// The failure behind an error of a watch, if trying again will not help; or else the error.
pub(crate) fn lasting(error: watcher::Error) -> Result<Failure, watcher::Error> {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) if matches!(&error, Error::Api(status) if matches!(status.code, 401 | 403 | 404)) => {
            Ok(Failure::Api(error))
        }
        error => Err(error),
    }
}

/// The pods that `selector` selects.
pub(crate) fn pods(client: &Client, workload: &Workload, selector: &str) -> Watched<Pod> {
    let api = Api::namespaced(client.clone(), &workload.namespace);
    Watched::new(api, Config::default().labels(selector))
}

/// What is seen of a workload: itself, the slices of its Service and, while it starts, its pods.
pub(crate) struct Sight {
    workload: Workload,
    object: Watched<DynamicObject>,
    slices: Watched<EndpointSlice>,
    pods: Option<Watched<Pod>>,
    /// Pods of an earlier life, which the slices have not lost yet.
    stale: HashSet<String>,
    /// Since when a pod is unschedulable.
    waits_since: Option<Instant>,
}

/// What a look at a start came to.
pub(crate) enum Look {
    Ready,
    /// Until the moment, if there is one, when it is to be looked at again.
    Wait(Option<Instant>),
    Failed(Failure),
}

impl Sight {
    /// Without a selector its pods are not seen, and what is wrong with them is not known.
    pub(crate) fn new(
        client: &Client,
        scaled: &Scaler,
        workload: &Workload,
        selector: Option<&str>,
    ) -> Self {
        let slices = Api::namespaced(client.clone(), &workload.namespace);
        let of_service = format!("kubernetes.io/service-name={}", workload.service);
        let itself = format!("metadata.name={}", workload.object);
        let selector = selector.filter(|selector| !selector.is_empty());
        Self {
            object: Watched::new(scaled.api.clone(), Config::default().fields(&itself)),
            slices: Watched::new(slices, Config::default().labels(&of_service)),
            pods: selector.map(|selector| pods(client, workload, selector)),
            stale: HashSet::new(),
            waits_since: None,
            workload: workload.clone(),
        }
    }

    /// Waits for a change of anything.
    pub(crate) async fn changed(&mut self) -> Result<(), watcher::Error> {
        let pods = async {
            match &mut self.pods {
                Some(pods) => pods.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.slices.changed() => changed,
            changed = self.object.changed() => changed,
            changed = pods => changed,
        }
    }

    /// The addresses to call; nothing while they are not known.
    pub(crate) fn ready(&mut self) -> Vec<SocketAddr> {
        if let Some(pods) = &self.pods {
            // The slices run behind: right after a stop they may still have what it has ended.
            if !pods.is_known() {
                return Vec::new();
            }
            let live = live(pods).filter_map(|pod| pod.metadata.uid.as_deref());
            let live: HashSet<_> = live.collect();
            let stale = pods_of(self.slices.objects()).filter(|pod| !live.contains(pod));
            self.stale = stale.map(str::to_owned).collect();
        }
        ready_of(self.slices.objects(), &self.workload, &self.stale)
    }

    /// It is ready: its pods are looked at no longer than there is a doubt.
    pub(crate) fn settle(&mut self) {
        if self.stale.is_empty() {
            self.pods = None;
        }
    }

    /// What it is scaled to, where it says so at `spec.replicas`; 0 if it was deleted.
    pub(crate) fn replicas(&self) -> Option<i32> {
        if !self.object.is_known() {
            return None;
        }
        let Some(object) = self.object.objects().next() else {
            return Some(0);
        };
        let replicas = object.data.pointer("/spec/replicas")?.as_i64()?;
        i32::try_from(replicas).ok()
    }

    /// What is to be made of all that is known of a start.
    pub(crate) fn look(&mut self, now: Instant) -> Look {
        if self.replicas() == Some(0) {
            return Look::Failed(Failure::ScaledToZero);
        }
        if !self.ready().is_empty() {
            return Look::Ready;
        }
        if let Some(failure) = self.object.objects().find_map(of_object) {
            return Look::Failed(failure);
        }
        let mut waits = None;
        for pod in self.pods.iter().flat_map(live) {
            match of_pod(pod) {
                Verdict::Fails(failure) => return Look::Failed(failure),
                Verdict::Waits(failure) => waits = Some(failure),
                Verdict::GoesOn => {}
            }
        }
        let Some(failure) = waits else {
            self.waits_since = None;
            return Look::Wait(None);
        };
        let until = *self.waits_since.get_or_insert(now) + self.workload.room_within;
        match until <= now {
            true => Look::Failed(failure),
            false => Look::Wait(Some(until)),
        }
    }
}

/// Those that were not told to end.
fn live(pods: &Watched<Pod>) -> impl Iterator<Item = &Pod> {
    let all = pods.objects();
    all.filter(|pod| pod.metadata.deletion_timestamp.is_none())
}
