//! `Endpoints`: what of a workload is ready now.

use std::{
    collections::HashSet,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use tokio::sync::watch;

use crate::workload::Workload;

/// The ready endpoints of a running workload, as they come and go: what a lease is made from
/// ([`Scale::new`](crate::Scale::new)).
///
/// A cheap clone, which keeps nothing alive.
#[derive(Clone)]
pub struct Endpoints {
    workload: Workload,
    ready: watch::Receiver<Ready>,
}

/// The addresses that are ready, in a fixed order.
pub(crate) type Ready = Arc<[SocketAddr]>;

impl Endpoints {
    pub(crate) fn new(workload: Workload, ready: watch::Receiver<Ready>) -> Self {
        Self { workload, ready }
    }

    /// Those that are ready now; none once the workload is retired.
    pub fn ready(&self) -> Arc<[SocketAddr]> {
        self.ready.borrow().clone()
    }

    /// Waits until they are others than at the last call, or at the clone. False if that will not happen
    /// any more, since the workload was stopped.
    pub async fn changed(&mut self) -> bool {
        self.ready.changed().await.is_ok()
    }

    /// Whose they are.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoints")
            .field("workload", &self.workload)
            .field("ready", &self.ready())
            .finish()
    }
}

fn endpoints<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> impl Iterator<Item = (&'a EndpointSlice, &'a Endpoint)> {
    slices.flat_map(|slice| {
        let endpoints = slice.endpoints.list();
        endpoints.iter().map(move |endpoint| (slice, endpoint))
    })
}

/// The pods behind endpoints of whatever condition, by their UIDs.
pub(crate) fn pods_of<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
) -> impl Iterator<Item = &'a str> {
    endpoints(slices).filter_map(|(_, endpoint)| pod(endpoint))
}

/// The addresses to call, in order. Endpoints of the pods in `stale` do not count.
pub(crate) fn ready_of<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    workload: &Workload,
    stale: &HashSet<String>,
) -> Vec<SocketAddr> {
    let mut ready = Vec::new();
    for (slice, endpoint) in endpoints(slices) {
        let conditions = endpoint.conditions.as_ref();
        // "A null value should be interpreted as ready."
        let is_ready = conditions.and_then(|of| of.ready).unwrap_or(true);
        let ends = conditions.and_then(|of| of.terminating).unwrap_or(false);
        if !is_ready || ends || pod(endpoint).is_some_and(|pod| stale.contains(pod)) {
            continue;
        }
        let Some(port) = port(slice, workload) else {
            continue;
        };
        // Several addresses of one endpoint are the same; names (`FQDN`) are deprecated.
        let address = endpoint.addresses.first();
        if let Some(ip) = address.and_then(|ip| ip.parse::<IpAddr>().ok()) {
            ready.push(SocketAddr::new(ip, port));
        }
    }
    ready.sort_unstable();
    ready.dedup();
    ready
}

fn pod(endpoint: &Endpoint) -> Option<&str> {
    let target = endpoint.target_ref.as_ref()?;
    match target.kind.as_deref() {
        Some("Pod") => target.uid.as_deref(),
        _ => None,
    }
}

fn port(slice: &EndpointSlice, workload: &Workload) -> Option<u16> {
    let mut ports = slice.ports.iter().flatten();
    let port = match &workload.port_name {
        Some(name) => ports.find(|port| port.name.as_deref() == Some(name)),
        None => ports.next(),
    };
    port.and_then(|port| u16::try_from(port.port?).ok())
}

/// A list that is optional in some versions of the API's types, and not in others.
trait List<T> {
    fn list(&self) -> &[T];
}

impl<T> List<T> for Vec<T> {
    fn list(&self) -> &[T] {
        self
    }
}

impl<T> List<T> for Option<Vec<T>> {
    fn list(&self) -> &[T] {
        self.as_deref().unwrap_or_default()
    }
}
