//! `Workload`: what is scaled up, and how it is reached.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::core::discovery::ApiResource;
use tower_on_demand::Target;

/// A workload of the cluster that is scaled to zero while nobody needs it: the
/// [`Target`] of a [`Scale`](crate::Scale).
///
/// Whatever has a scale subresource will do. A Service must select its pods, since readiness is
/// read from that Service's EndpointSlices; its name is the workload's own unless
/// [`service`](Self::service) says otherwise.
///
/// ```
/// use std::time::Duration;
/// use tower_on_demand::Target;
/// use tower_on_demand_kubernetes::Workload;
///
/// let films = Workload::deployment("media", "films")
///     .port_name("http")
///     .ready_within(Duration::from_secs(120));
/// assert_eq!(films.name(), "media/films");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Workload {
    pub(crate) resource: Arc<ApiResource>,
    pub(crate) namespace: Arc<str>,
    pub(crate) object: Arc<str>,
    /// What errors, events and status call it.
    name: Arc<str>,
    pub(crate) service: Arc<str>,
    pub(crate) port_name: Option<Arc<str>>,
    pub(crate) route: Route,
    pub(crate) replicas: i32,
    pub(crate) ready_within: Duration,
    pub(crate) room_within: Duration,
    pub(crate) stop_within: Duration,
}

/// Where calls go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// To the ready endpoints, in turn.
    Endpoints,
    /// To the Service, at this port.
    Service(u16),
}

impl Workload {
    /// A Deployment.
    pub fn deployment(namespace: &str, name: &str) -> Self {
        Self::scalable(ApiResource::erase::<Deployment>(&()), namespace, name)
    }

    /// A StatefulSet.
    ///
    /// The cluster tells nobody but its event log that a StatefulSet's pods exceed the quota, so that a
    /// start which they keep from becoming ready ends by [`ready_within`](Self::ready_within) only.
    pub fn stateful_set(namespace: &str, name: &str) -> Self {
        Self::scalable(ApiResource::erase::<StatefulSet>(&()), namespace, name)
    }

    /// Anything that has a scale subresource, with a `status.selector` in it: a custom resource, say.
    pub fn scalable(resource: ApiResource, namespace: &str, name: &str) -> Self {
        Self {
            resource: Arc::new(resource),
            namespace: namespace.into(),
            object: name.into(),
            name: format!("{namespace}/{name}").into(),
            service: name.into(),
            port_name: None,
            route: Route::Endpoints,
            replicas: 1,
            ready_within: Duration::from_secs(120),
            room_within: Duration::from_secs(10),
            stop_within: Duration::from_secs(60),
        }
    }

    /// The Service whose EndpointSlices tell what is ready. Default: the one of the workload's own name.
    #[must_use]
    pub fn service(mut self, name: &str) -> Self {
        self.service = name.into();
        self
    }

    /// The Service's port to call, by its name. Default: its only port, or the first.
    #[must_use]
    pub fn port_name(mut self, name: &str) -> Self {
        self.port_name = Some(name.into());
        self
    }

    /// Calls go to the Service at `port`, by its name in the cluster's DNS, and not to the pods. For
    /// hosts outside of the pod network, and for meshes that want to see the Service's name.
    ///
    /// A node learns of an endpoint a moment after the API server does, so that the first call of a cold
    /// start may be refused where it would have been answered by the pod itself.
    #[must_use]
    pub fn through_service(mut self, port: u16) -> Self {
        self.route = Route::Service(port);
        self
    }

    /// How many replicas a start asks for; at least 1. If more run already they stay. Default: 1.
    ///
    /// The start is done when the first endpoint is ready.
    #[must_use]
    pub fn replicas(mut self, replicas: u16) -> Self {
        self.replicas = i32::from(replicas.max(1));
        self
    }

    /// How long a start may take, from the call of the maker to the first ready endpoint. Default: 120 s.
    #[must_use]
    pub fn ready_within(mut self, bound: Duration) -> Self {
        self.ready_within = bound;
        self
    }

    /// How long a pod may be unschedulable before the start is refused with
    /// [`NoRoom`](tower_on_demand::ErrorKind::NoRoom). Default: 10 s, as `Ceiling` waits.
    ///
    /// A cluster that adds nodes by itself wants minutes here, one that cannot wants zero.
    #[must_use]
    pub fn room_within(mut self, bound: Duration) -> Self {
        self.room_within = bound;
        self
    }

    /// How long a stop may take before it is reported and no longer waited for. Default: 60 s. Pods have
    /// a grace period of 30 s by default; the cluster goes on ending them.
    #[must_use]
    pub fn stop_within(mut self, bound: Duration) -> Self {
        self.stop_within = bound;
        self
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name of the scaled object.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// What kind of object is scaled.
    pub fn resource(&self) -> &ApiResource {
        &self.resource
    }

    /// What is one and the same workload, however it is reached.
    pub(crate) fn key(&self) -> Key {
        Key {
            group: self.resource.group.clone(),
            plural: self.resource.plural.clone(),
            namespace: self.namespace.clone(),
            object: self.object.clone(),
        }
    }
}

/// Names a scaled object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) namespace: Arc<str>,
    pub(crate) object: Arc<str>,
}

/// Its name is `namespace/name`.
impl Target for Workload {
    fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workload")
            .field("kind", &self.resource.kind)
            .field("name", &self.name)
            .field("service", &self.service)
            .field("replicas", &self.replicas)
            .finish_non_exhaustive()
    }
}
