//! The fake cluster: pods that come and go as their workloads are scaled.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    plan::{Plan, Trouble},
    signs::{change, condition, pod_key, shows},
    store::{DEPLOYMENTS, Key, SLICES, Store},
};

/// What happens to a pod, after a while.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// It shows its trouble, the first or the second sign of it.
    Shows(Trouble, u8),
    Ready,
    Gone,
    /// The slices catch up with the pods.
    Slices,
    /// The Deployment's own deadline is over.
    Deadline,
}

/// Steps to come: when, of which workload, of which pod.
pub(super) type Steps = Vec<(Duration, Key, Arc<str>, Step)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No node has room.
    Waits,
    Starts,
    Ready,
    Ends,
}

#[derive(Debug)]
struct Pod {
    phase: Phase,
    was_ready: bool,
    /// It takes room on a node.
    placed: bool,
    address: SocketAddr,
}

/// A workload, and what the cluster knows of it.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) plan: Plan,
    service: String,
    labels: Value,
    pods: BTreeMap<Arc<str>, Pod>,
    conditions: Vec<Value>,
}

#[derive(Debug, Default)]
pub(super) struct Pods {
    works: HashMap<Key, Work>,
    /// How many pods fit on the nodes.
    pub(super) room: Option<usize>,
    placed: usize,
    waiting: VecDeque<(Key, Arc<str>)>,
    made: u64,
    by_address: HashMap<SocketAddr, (Key, Arc<str>)>,
    pub(super) peak: usize,
}

impl Pods {
    /// A new workload, scaled to zero.
    pub(super) fn add(
        &mut self,
        store: &mut Store,
        key: &Key,
        plan: Plan,
        labels: &[(String, String)],
    ) {
        let name = key.2.to_string();
        let mut all = serde_json::Map::new();
        all.insert("app".to_owned(), name.clone().into());
        all.extend(
            labels
                .iter()
                .map(|(key, value)| (key.clone(), value.clone().into())),
        );
        let of = json!({ "app": name });
        let object = json!({
            "metadata": { "labels": all, "generation": 1 },
            "spec": {
                "replicas": 0, "selector": { "matchLabels": of },
                "template": {
                    "metadata": { "labels": of },
                    "spec": { "containers": [{ "name": "main", "image": "registry.invalid/main:1" }] },
                },
            },
            "status": { "observedGeneration": 1 },
        });
        let work = Work {
            plan,
            service: name,
            labels: of,
            pods: BTreeMap::new(),
            conditions: Vec::new(),
        };
        self.works.insert(key.clone(), work);
        store.put(key, Some(object));
        self.write_slice(store, key);
    }

    pub(super) fn plan(&mut self, key: &Key) -> Option<&mut Plan> {
        self.works.get_mut(key).map(|work| &mut work.plan)
    }

    /// How many pods of a workload there are, those included that are ending.
    pub(super) fn count(&self, key: &Key) -> usize {
        self.works.get(key).map_or(0, |work| work.pods.len())
    }

    /// Whether a pod at `address` is there, and ready or ending in good order.
    pub(super) fn serves(&self, address: SocketAddr) -> bool {
        let pod = self.by_address.get(&address).and_then(|(key, name)| {
            let work = self.works.get(key)?;
            work.pods.get(name)
        });
        pod.is_some_and(|pod| pod.was_ready)
    }

    /// Makes as many pods as the workload is scaled to.
    pub(super) fn reconcile(&mut self, store: &mut Store, key: &Key) -> Steps {
        let mut steps = Steps::new();
        let wanted = store
            .get(key)
            .and_then(|of| of["spec"]["replicas"].as_u64());
        let wanted = wanted.unwrap_or(0) as usize;
        let Some(work) = self.works.get_mut(key) else {
            return steps;
        };
        let live = work.pods.iter().filter(|(_, pod)| pod.phase != Phase::Ends);
        let live: Vec<Arc<str>> = live.map(|(name, _)| name.clone()).collect();
        work.conditions.clear();
        if live.len() < wanted && work.plan.trouble == Some(Trouble::Quota) {
            work.conditions.push(json!({
                "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                "message": "pods \"main\" is forbidden: exceeded quota: compute, requested: requests.cpu=1, used: requests.cpu=8, limited: requests.cpu=8",
            }));
        } else {
            for _ in live.len()..wanted {
                steps.extend(self.make(store, key));
            }
            for name in live.into_iter().skip(wanted) {
                steps.extend(self.end(store, key, &name));
            }
        }
        self.write_status(store, key);
        steps
    }

    fn make(&mut self, store: &mut Store, key: &Key) -> Steps {
        self.made += 1;
        let n = self.made;
        let work = self.works.get_mut(key).expect("it is reconciled");
        let name: Arc<str> = format!("{}-{n:05}", key.2).into();
        let [_, a, b, c] = (n as u32).to_be_bytes();
        let address = work.plan.address.unwrap_or(([10, a, b, c], 8080).into());
        self.by_address.insert(address, (key.clone(), name.clone()));
        let pod = Pod {
            phase: Phase::Waits,
            was_ready: false,
            placed: false,
            address,
        };
        work.pods.insert(name.clone(), pod);
        let object = json!({
            "metadata": { "labels": work.labels },
            "spec": { "containers": [{ "name": "main", "image": "registry.invalid/main:1" }] },
            "status": { "phase": "Pending", "conditions": [] },
        });
        store.put(&pod_key(key, &name), Some(object));
        let mut steps = Steps::new();
        if key.0 == DEPLOYMENTS && work.plan.trouble == Some(Trouble::ProgressDeadline) {
            steps.push((
                Duration::from_secs(30),
                key.clone(),
                name.clone(),
                Step::Deadline,
            ));
        }
        steps.extend(self.place(store, key, name));
        steps
    }

    /// Puts a pod on a node, if one has room.
    fn place(&mut self, store: &mut Store, key: &Key, name: Arc<str>) -> Steps {
        let work = self.works.get_mut(key).expect("it has the pod");
        let full = self.room.is_some_and(|room| self.placed >= room);
        let step = |after, step| vec![(after, key.clone(), name.clone(), step)];
        let second = Duration::from_secs(1);
        if full || work.plan.trouble == Some(Trouble::Unschedulable) {
            self.waiting.push_back((key.clone(), name.clone()));
            condition(
                store,
                key,
                &name,
                "PodScheduled",
                "False",
                json!({
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient cpu.",
                }),
            );
            return Steps::new();
        }
        self.placed += 1;
        self.peak = self.peak.max(self.placed);
        let pod = work.pods.get_mut(&name).expect("it has the pod");
        (pod.phase, pod.placed) = (Phase::Starts, true);
        let (starts, trouble) = (work.plan.starts, work.plan.trouble);
        condition(store, key, &name, "PodScheduled", "True", json!({}));
        match trouble {
            Some(Trouble::ImagePull) => step(second, Step::Shows(Trouble::ImagePull, 1)),
            Some(Trouble::Config) => step(second, Step::Shows(Trouble::Config, 2)),
            Some(Trouble::CrashLoop) => step(starts, Step::Shows(Trouble::CrashLoop, 1)),
            Some(_) => Steps::new(),
            None => step(starts, Step::Ready),
        }
    }

    /// Tells a pod to end.
    fn end(&mut self, store: &mut Store, key: &Key, name: &Arc<str>) -> Steps {
        let work = self.works.get_mut(key).expect("it is reconciled");
        let pod = work.pods.get_mut(name).expect("it has the pod");
        let was = std::mem::replace(&mut pod.phase, Phase::Ends);
        let (stops, lag) = (work.plan.stops, work.plan.lag);
        change(store, &pod_key(key, name), |object| {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        });
        let stops = match was {
            Phase::Waits => {
                self.waiting.retain(|(_, waits)| waits != name);
                Duration::ZERO
            }
            _ => stops,
        };
        let mut steps = vec![(stops, key.clone(), name.clone(), Step::Gone)];
        steps.extend(self.slices_follow(store, key, lag));
        steps
    }

    fn slices_follow(&mut self, store: &mut Store, key: &Key, lag: Duration) -> Steps {
        if lag.is_zero() {
            self.write_slice(store, key);
            return Steps::new();
        }
        vec![(lag, key.clone(), Arc::from(""), Step::Slices)]
    }

    /// What happens next, and what after that.
    pub(super) fn step(
        &mut self,
        store: &mut Store,
        key: &Key,
        name: &Arc<str>,
        step: Step,
    ) -> Steps {
        let Some(work) = self.works.get_mut(key) else {
            return Steps::new();
        };
        let lag = work.plan.lag;
        match step {
            Step::Slices => {
                self.write_slice(store, key);
                return Steps::new();
            }
            Step::Deadline => {
                if work.pods.contains_key(name) {
                    work.conditions = vec![json!({
                        "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
                        "message": format!("ReplicaSet \"{}\" has timed out progressing.", key.2),
                    })];
                    self.write_status(store, key);
                }
                return Steps::new();
            }
            _ => {}
        }
        let Some(pod) = work.pods.get_mut(name) else {
            return Steps::new();
        };
        match (step, pod.phase) {
            (Step::Gone, _) => {
                let (address, placed) = (pod.address, pod.placed);
                work.pods.remove(name);
                self.by_address
                    .retain(|at, (_, of)| *at != address || of != name);
                store.put(&pod_key(key, name), None);
                self.placed -= usize::from(placed);
                self.write_status(store, key);
                let mut steps = self.slices_follow(store, key, lag);
                if let Some((key, name)) = placed.then(|| self.waiting.pop_front()).flatten() {
                    steps.extend(self.place(store, &key, name));
                }
                steps
            }
            (Step::Ready, Phase::Starts) => {
                (pod.phase, pod.was_ready) = (Phase::Ready, true);
                condition(store, key, name, "Ready", "True", json!({}));
                change(store, &pod_key(key, name), |pod| {
                    pod["status"]["phase"] = "Running".into()
                });
                self.write_status(store, key);
                self.slices_follow(store, key, lag)
            }
            (Step::Shows(trouble, sign), Phase::Starts) => {
                shows(store, key, name, trouble, sign);
                let more = (Duration::from_secs(10), key.clone(), name.clone());
                match sign {
                    1 => vec![(more.0, more.1, more.2, Step::Shows(trouble, 2))],
                    _ => Steps::new(),
                }
            }
            _ => Steps::new(),
        }
    }

    fn write_slice(&mut self, store: &mut Store, key: &Key) {
        let work = &self.works[key];
        let port = work.plan.address.map_or(8080, |address| address.port());
        let seen = work.pods.iter().filter(|(_, pod)| pod.was_ready);
        let endpoints = seen.map(|(name, pod)| {
            let uid = store
                .get(&pod_key(key, name))
                .map(|pod| pod["metadata"]["uid"].clone());
            json!({
                "addresses": [pod.address.ip()],
                "conditions": {
                    "ready": pod.phase == Phase::Ready, "serving": true,
                    "terminating": pod.phase == Phase::Ends,
                },
                "targetRef": { "kind": "Pod", "namespace": *key.1, "name": **name, "uid": uid },
            })
        });
        let slice = json!({
            "addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>(),
            "ports": [{ "name": "http", "port": port, "protocol": "TCP" }],
        });
        let name: Arc<str> = format!("{}-1", work.service).into();
        let key = (SLICES, key.1.clone(), name);
        let service = work.service.clone();
        let metadata = json!({ "labels": { "kubernetes.io/service-name": service } });
        let old = store.get(&key).map(|slice| slice["metadata"].clone());
        let mut new = slice;
        new["metadata"] = old.unwrap_or(metadata);
        if let Some(old) = store.get(&key) {
            new["apiVersion"] = old["apiVersion"].clone();
            new["kind"] = old["kind"].clone();
        }
        store.put(&key, Some(new));
    }

    fn write_status(&mut self, store: &mut Store, key: &Key) {
        let work = &self.works[key];
        let live = |pod: &&Pod| pod.phase != Phase::Ends;
        let replicas = work.pods.values().filter(live).count();
        let ready = work
            .pods
            .values()
            .filter(|pod| pod.phase == Phase::Ready)
            .count();
        let conditions = work.conditions.clone();
        change(store, key, |object| {
            let seen = object["metadata"]["generation"].clone();
            object["status"] = json!({
                "observedGeneration": seen, "replicas": replicas, "readyReplicas": ready,
                "availableReplicas": ready, "updatedReplicas": replicas, "conditions": conditions,
            });
        });
    }

    /// Makes the readiness of every pod of a workload fail.
    pub(super) fn sicken(&mut self, store: &mut Store, key: &Key) {
        if let Some(work) = self.works.get_mut(key) {
            for pod in work
                .pods
                .values_mut()
                .filter(|pod| pod.phase == Phase::Ready)
            {
                pod.phase = Phase::Starts;
            }
            self.write_status(store, key);
            self.write_slice(store, key);
        }
    }
}
