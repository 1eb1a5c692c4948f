//! A fake API server with a small cluster behind it, for tests without a cluster.
//!
//! A [`Cluster`] is a tower service under `kube::Client::new`. It stores objects in memory, and its pods come
//! and go on tokio's clock as their workloads are scaled, so with paused time a test of hours takes
//! milliseconds. It can be away, throttle, end watches, forget history, cut one client off.
//!
//! ```
//! use std::time::Duration;
//! use tower::{Service, ServiceExt};
//! use tower_on_demand::Backend;
//! use tower_on_demand_kubernetes::{Scale, Workload, test_util::{Cluster, Plan}};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), tower_on_demand::Error> {
//! let cluster = Cluster::new();
//! cluster.deployment("media", "films", Plan { starts: Duration::from_secs(20), ..Plan::default() });
//!
//! let scale = Scale::new(cluster.client("host"), |endpoints| endpoints);
//! let films = scale.oneshot(Workload::deployment("media", "films")).await?;
//! assert_eq!(cluster.replicas("media", "films"), 1);
//! assert_eq!(films.lease().ready().len(), 1);
//!
//! films.stop().await;
//! assert_eq!(cluster.pods("media", "films"), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # What it does as an API server does
//!
//! - `get`, `list` and `watch` of pods, Deployments, StatefulSets, EndpointSlices, Leases and what
//!   [`custom`](Cluster::custom) adds; `create`, `delete` with preconditions, `update`, JSON merge patch; the scale
//!   subresource by `get`, `update` and merge patch.
//! - Every change has a new `resourceVersion`; what changes nothing has none. One that is sent along must be
//!   the current one, or the answer is 409.
//! - A watch goes on from a `resourceVersion` with what happened since, and is told 410 Gone if that is
//!   forgotten. Objects that do not match a selector any more are deleted, for whoever watches by it. Bookmarks
//!   every minute; the end after `timeoutSeconds`.
//! - Selectors by equality and existence of labels, and by `metadata.name`.
//! - Throttling as priority and fairness has it: 429, text, `Retry-After`.
//! - Enough discovery for `kubectl get`, `scale`, `patch --type=merge`, `delete` and `--watch`.
//!
//! # What it does not imitate
//!
//! - No authentication, authorization, admission, defaulting or validation; any namespace exists.
//! - No protobuf, no tables (`kubectl` shows names and ages), no server-side apply, no strategic merge or
//!   JSON patch, no paging (`limit` is ignored), no `sendInitialEvents`, no metadata-only requests, no field
//!   managers, no finalizers or owner references, no status subresource.
//! - One `resourceVersion` for all, and every read is the newest: there are no stale caches.
//! - No ReplicaSets and no nodes: a workload makes its pods itself, at once, and [`room`](Cluster::room) is a
//!   number of pods. A StatefulSet's pods do not wait for each other. Nothing is updated or rolled out.
//! - A call whose future is dropped before it is answered has not happened.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::core::discovery::ApiResource;
use serde_json::Value;
use tokio::time::Instant;

mod answer;
mod discovery;
mod plan;
mod pods;
mod request;
mod selector;
mod serve;
mod signs;
mod store;

pub use self::{
    answer::AnswerBody,
    plan::{Plan, Trouble},
    serve::{ApiServer, Call},
};
use self::{
    pods::{Pods, Steps},
    store::{DEPLOYMENTS, Key, Kind, KindId, STATEFUL_SETS, Store},
};

/// A fake cluster: see the [module](self). A cheap clone; all clones are the same cluster.
///
/// Its methods that change something must be called within a tokio runtime.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    born: Instant,
    state: Mutex<State>,
}

type Hook = Box<dyn FnOnce() + Send>;
type Observer = Arc<dyn Fn(&Call) + Send + Sync>;

struct State {
    store: Store,
    pods: Pods,
    away: bool,
    cut_off: HashSet<String>,
    latency: HashMap<String, Duration>,
    /// So many calls are refused, with so many seconds to wait.
    throttled: (u64, u64),
    /// Calls per second, the burst, what is left of it, and when that was.
    limit: Option<(f64, f64, f64, Instant)>,
    /// Before a call of this method to a path with this end.
    hooks: Vec<(String, String, Hook)>,
    observer: Option<Observer>,
    calls: Option<Vec<Call>>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Cluster {
    /// An empty cluster.
    pub fn new() -> Self {
        let state = State {
            store: Store::new(),
            pods: Pods::default(),
            away: false,
            cut_off: HashSet::new(),
            latency: HashMap::new(),
            throttled: (0, 0),
            limit: None,
            hooks: Vec::new(),
            observer: None,
            calls: Some(Vec::new()),
        };
        Self {
            inner: Arc::new(Inner {
                born: Instant::now(),
                state: Mutex::new(state),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.inner.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// A client of it for the host called `who`: the name that [`cut_off`](Self::cut_off) and [`Call`] know.
    pub fn client(&self, who: &str) -> kube::Client {
        kube::Client::new(self.server(who), "default")
    }

    /// The API server as a tower service, for a client called `who`.
    pub fn server(&self, who: &str) -> ApiServer {
        ApiServer::new(self.clone(), who)
    }

    // ===== What there is =====

    /// A Deployment, scaled to zero, and a Service of the same name.
    pub fn deployment(&self, namespace: &str, name: &str, plan: Plan) {
        self.add((DEPLOYMENTS, namespace.into(), name.into()), plan, &[]);
    }

    /// A Deployment with a label.
    pub fn labelled_deployment(
        &self,
        namespace: &str,
        name: &str,
        label: (&str, &str),
        plan: Plan,
    ) {
        let label = (label.0.to_owned(), label.1.to_owned());
        self.add((DEPLOYMENTS, namespace.into(), name.into()), plan, &[label]);
    }

    /// A StatefulSet, scaled to zero, and a Service of the same name.
    pub fn stateful_set(&self, namespace: &str, name: &str, plan: Plan) {
        self.add((STATEFUL_SETS, namespace.into(), name.into()), plan, &[]);
    }

    /// An object of another kind that has a scale subresource, and a Service of the same name.
    pub fn custom(&self, resource: &ApiResource, namespace: &str, name: &str, plan: Plan) {
        let kind = self.lock().store.add_kind(Kind {
            group: resource.group.clone(),
            version: resource.version.clone(),
            plural: resource.plural.clone(),
            kind: resource.kind.clone(),
            scales: true,
        });
        self.add((kind, namespace.into(), name.into()), plan, &[]);
    }

    fn add(&self, key: Key, plan: Plan, labels: &[(String, String)]) {
        let mut state = self.lock();
        let State { store, pods, .. } = &mut *state;
        pods.add(store, &key, plan, labels);
    }

    fn find(&self, state: &State, namespace: &str, name: &str) -> Option<Key> {
        let kinds = state.store.kinds.iter().enumerate();
        let mut scaling = kinds.filter(|(_, kind)| kind.scales);
        scaling.find_map(|(kind, _): (KindId, _)| {
            let key = (kind, namespace.into(), name.into());
            state.store.get(&key).is_some().then_some(key)
        })
    }

    /// Changes how the pods of a workload behave from now on.
    pub fn plan(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Plan)) {
        let mut state = self.lock();
        let key = self.find(&state, namespace, name);
        if let Some(plan) = key.and_then(|key| state.pods.plan(&key)) {
            change(plan);
        }
    }

    /// How many pods fit on the nodes; those beyond are unschedulable until others are gone.
    pub fn room(&self, pods: usize) {
        self.lock().pods.room = Some(pods);
    }

    // ===== What others do =====

    /// Somebody else scales a workload.
    pub fn scale(&self, namespace: &str, name: &str, replicas: u64) {
        let mut state = self.lock();
        let Some(key) = self.find(&state, namespace, name) else {
            return;
        };
        let object = state.store.get(&key).expect("it was found");
        let mut object = (**object).clone();
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
        object["metadata"]["generation"] = (generation + 1).into();
        object["spec"]["replicas"] = replicas.into();
        state.store.put(&key, Some(object));
        let steps = state.reconcile(&key);
        drop(state);
        self.take(steps);
    }

    /// The readiness probes of all pods of a workload fail from now on.
    pub fn sicken(&self, namespace: &str, name: &str) {
        let mut state = self.lock();
        if let Some(key) = self.find(&state, namespace, name) {
            let State { store, pods, .. } = &mut *state;
            pods.sicken(store, &key);
        }
    }

    /// Somebody else deletes a workload; its pods end.
    pub fn delete(&self, namespace: &str, name: &str) {
        self.scale(namespace, name, 0);
        let mut state = self.lock();
        if let Some(key) = self.find(&state, namespace, name) {
            state.store.put(&key, None);
        }
    }

    // ===== What is seen =====

    /// What a workload is scaled to.
    pub fn replicas(&self, namespace: &str, name: &str) -> u64 {
        let state = self.lock();
        let key = self.find(&state, namespace, name);
        let object = key.and_then(|key| state.store.get(&key).cloned());
        object
            .and_then(|object| object["spec"]["replicas"].as_u64())
            .unwrap_or(0)
    }

    /// How many pods a workload has, those included that are ending.
    pub fn pods(&self, namespace: &str, name: &str) -> usize {
        let state = self.lock();
        let key = self.find(&state, namespace, name);
        key.map_or(0, |key| state.pods.count(&key))
    }

    /// The most pods there were on nodes at any one time.
    pub fn peak(&self) -> usize {
        self.lock().pods.peak
    }

    /// Whether a pod at `address` answers: it was ready once, and is not gone.
    pub fn serves(&self, address: SocketAddr) -> bool {
        self.lock().pods.serves(address)
    }

    /// The names of all Leases, in order.
    pub fn leases(&self) -> Vec<String> {
        let state = self.lock();
        let leases = state
            .store
            .list(store::LEASES, None, &selector::Selector::default());
        let names = leases
            .iter()
            .filter_map(|lease| lease["metadata"]["name"].as_str());
        names.map(str::to_owned).collect()
    }

    /// How many watches are open.
    pub fn watches(&self) -> usize {
        self.lock().store.watching()
    }

    /// The calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone().unwrap_or_default()
    }

    /// Tells of each call from now on, and keeps no list of them any more.
    pub fn observe(&self, observer: impl Fn(&Call) + Send + Sync + 'static) {
        let mut state = self.lock();
        state.observer = Some(Arc::new(observer));
        state.calls = None;
    }

    // ===== Faults =====

    /// Nobody can connect any more, and every watch breaks; or all is well again.
    pub fn away(&self, away: bool) {
        let mut state = self.lock();
        state.away = away;
        if away {
            state.store.end_watches();
        }
    }

    /// One client cannot connect any more, and its watches hear nothing; or all is well again, and those have
    /// ended.
    pub fn cut_off(&self, who: &str, cut: bool) {
        let mut state = self.lock();
        if cut {
            state.cut_off.insert(who.to_owned());
            state.store.silence(who);
        } else {
            state.cut_off.remove(who);
            state.store.end_silent(who);
        }
    }

    /// The watches of one client hear nothing any more and do not end, as over a connection that was lost
    /// without a word. New ones are well.
    pub fn silence_watches(&self, who: &str) {
        self.lock().store.silence(who);
    }

    /// Every watch breaks; new ones can be made.
    pub fn break_watches(&self) {
        self.lock().store.end_watches();
    }

    /// Forgets what has happened so far: watches that go on from an earlier version are told 410 Gone.
    pub fn forget_history(&self) {
        self.lock().store.forget();
    }

    /// The next `calls` are refused with 429 and `Retry-After`.
    pub fn throttle(&self, calls: u64, retry_after_seconds: u64) {
        self.lock().throttled = (calls, retry_after_seconds);
    }

    /// More than `per_second` calls, after a burst, are refused with 429 and a `Retry-After` of a second.
    pub fn limit(&self, per_second: u32, burst: u32) {
        let burst = f64::from(burst);
        self.lock().limit = Some((f64::from(per_second), burst, burst, Instant::now()));
    }

    /// How long each call of one client takes.
    pub fn latency(&self, who: &str, latency: Duration) {
        self.lock().latency.insert(who.to_owned(), latency);
    }

    /// Just before the next call of `method` to a path that ends with `path`, `happens`.
    pub fn before(&self, method: &str, path: &str, happens: impl FnOnce() + Send + 'static) {
        let hook = (
            method.to_owned(),
            path.to_owned(),
            Box::new(happens) as Hook,
        );
        self.lock().hooks.push(hook);
    }

    /// Lets the pods go on by themselves.
    fn take(&self, steps: Steps) {
        for (after, key, pod, step) in steps {
            let inner = Arc::downgrade(&self.inner);
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let Some(inner) = inner.upgrade() else {
                    return;
                };
                let cluster = Cluster { inner };
                let mut state = cluster.lock();
                let State { store, pods, .. } = &mut *state;
                let more = pods.step(store, &key, &pod, step);
                drop(state);
                cluster.take(more);
            });
        }
    }
}

impl State {
    fn reconcile(&mut self, key: &Key) -> Steps {
        self.pods.reconcile(&mut self.store, key)
    }

    /// How many pods an object wants.
    fn wanted(&self, key: &Key) -> Option<Value> {
        let object = self.store.get(key)?;
        Some(object["spec"]["replicas"].clone())
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}
