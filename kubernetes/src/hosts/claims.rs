//! Claims: labels of one Lease per workload, changed on condition.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::discovery::ApiResource,
    runtime::watcher::Config,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{Hosts, LASTS};
use crate::{
    api::{CALL_WITHIN, Left, MANAGER, Patience, is},
    watching::Watched,
    workload::Workload,
};

/// Labels of a workload's Lease: a host's id after this.
const HOST: &str = "host.tower-on-demand/";
/// What a claim's label says while its host stops the workload.
const STOPS: &str = "stops";
/// Which workload it is about.
const WORKLOAD: &str = "tower-on-demand/workload";
/// What kind of Lease it is.
pub(super) const KIND: &str = "tower-on-demand/lease";

/// A workload as its Lease names it.
#[derive(Serialize, Deserialize)]
struct Named {
    resource: ApiResource,
    namespace: String,
    name: String,
}

/// The Lease of a workload.
fn lease_of(workload: &Workload) -> String {
    let resource = &workload.resource;
    let (namespace, name) = (&workload.namespace, &workload.object);
    format!("{}.{}.{namespace}.{name}", resource.plural, resource.group)
}

/// The hosts that claim a workload, and whether they are stopping it.
fn claims(lease: &Lease) -> impl Iterator<Item = (&str, bool)> {
    let labels = lease.metadata.labels.iter().flatten();
    labels.filter_map(|(key, value)| Some((key.strip_prefix(HOST)?, value == STOPS)))
}

/// The label by which `host` claims.
pub(super) fn label(host: &str) -> String {
    format!("{HOST}{host}")
}

impl Hosts {
    /// Claims `workload`. Whoever is stopping it is waited for; it may not run then.
    pub(crate) async fn claim(
        &self,
        workload: &Workload,
        patience: &mut Patience,
    ) -> Result<(), Left> {
        match patience.wait(self.good_for(Duration::ZERO)).await {
            Err(Left::Late(None)) => {
                let why = "this host has no Lease that is good: does its Heartbeat run?";
                return Err(Left::Late(Some(kube::Error::Service(why.into()))));
            }
            good => good?,
        };
        let name = lease_of(workload);
        loop {
            let lease = self.claim_once(&name, workload, patience).await?;
            let stopping = claims(&lease).find(|(_, stops)| *stops);
            let Some((other, _)) = stopping else {
                return Ok(());
            };
            let other = other.to_owned();
            let mut leases = self.watch(&name);
            let done = async {
                let stops = |lease: &Lease| claims(lease).any(|claim| claim == (&*other, true));
                while !leases.is_known() || leases.objects().any(stops) {
                    let _ = leases.changed().await;
                }
            };
            let dead = async {
                tokio::select! {
                    () = done => false,
                    () = self.until_dead(&other) => true,
                }
            };
            if patience.wait(dead).await? {
                self.forget(&name, &other, patience).await?;
            }
        }
    }

    async fn claim_once(
        &self,
        name: &str,
        workload: &Workload,
        patience: &mut Patience,
    ) -> Result<Lease, Left> {
        let _changing = patience.wait(self.inner.changing.lock()).await?;
        self.held().claims.insert(name.to_owned());
        let patch = json!({ "metadata": { "labels": { label(&self.inner.id): "" } } });
        loop {
            match self.patch(name, &patch, patience).await {
                Err(left) if is(&left, 404) => {}
                patched => return patched,
            }
            match self.create(name, workload, patience).await {
                Err(left) if is(&left, 409) => {}
                created => return created,
            }
        }
    }

    /// Claims again what we hold, after our own Lease was not good for a while. What is not there any more
    /// was stopped.
    pub(super) async fn claim_again(&self) {
        let names = self.held().claims.clone();
        let patch = json!({ "metadata": { "labels": { label(&self.inner.id): "" } } });
        for name in names {
            let _changing = self.inner.changing.lock().await;
            let held = self.held().claims.contains(&name);
            if held {
                let _ = self.patch(&name, &patch, &mut Patience::endless()).await;
            }
        }
    }

    /// Gives back our claim. If it was the last the workload is to be stopped, and nobody else starts it
    /// until that is [done](Last::done).
    pub(crate) async fn release(
        &self,
        workload: &Workload,
        patience: &mut Patience,
    ) -> Result<Option<Last>, Left> {
        let name = lease_of(workload);
        let me = &*self.inner.id;
        let _changing = patience.wait(self.inner.changing.lock()).await?;
        let released = self.release_for(&name, me, me, patience).await;
        self.held().claims.remove(&name);
        Ok(released?.map(|(last, _)| last))
    }

    /// Gives back what `host` claims and does not know of any more. If it was the last claim, `stopper` is to
    /// stop the workload.
    pub(super) async fn release_left(
        &self,
        name: &str,
        host: &str,
        stopper: &str,
    ) -> Result<Option<(Last, Option<Workload>)>, Left> {
        let _changing = self.inner.changing.lock().await;
        if host == self.inner.id && self.held().claims.contains(name) {
            return Ok(None);
        }
        let patience = &mut Patience::endless();
        self.release_for(name, host, stopper, patience).await
    }

    /// Gives back `host`'s claim. If it was the last one, `stopper` is to stop the workload.
    async fn release_for(
        &self,
        name: &str,
        host: &str,
        stopper: &str,
        patience: &mut Patience,
    ) -> Result<Option<(Last, Option<Workload>)>, Left> {
        loop {
            let lapses = patience.wait(self.good_for(CALL_WITHIN)).await?;
            let got = patience.call(|| self.inner.leases.get_opt(name)).await?;
            let Some(lease) = got else {
                // Somebody took us for dead, and stopped it.
                return Ok(None);
            };
            if !claims(&lease).any(|(claims, _)| claims == host) {
                return Ok(None);
            }
            let last = !claims(&lease).any(|(claims, _)| claims != host);
            let mut labels = json!({ label(host): null });
            if last {
                labels[label(stopper)] = STOPS.into();
            }
            let version = lease.resource_version();
            let patch = json!({ "metadata": { "resourceVersion": version, "labels": labels } });
            match self.patch(name, &patch, patience).await {
                Ok(lease) if last => {
                    let workload = workload_of(&lease);
                    let last = Last {
                        hosts: self.clone(),
                        name: name.to_owned(),
                        stopper: stopper.to_owned(),
                        version: lease.resource_version(),
                        lapses,
                    };
                    return Ok(Some((last, workload)));
                }
                Ok(_) => return Ok(None),
                // A claim came or went meanwhile.
                Err(left) if is(&left, 409) => {}
                Err(left) if is(&left, 404) => return Ok(None),
                Err(left) => return Err(left),
            }
        }
    }

    /// Takes away what a dead host has left of a stop.
    async fn forget(&self, name: &str, host: &str, patience: &mut Patience) -> Result<(), Left> {
        let got = patience.call(|| self.inner.leases.get_opt(name)).await?;
        let Some(lease) = got.filter(|lease| claims(lease).any(|claim| claim == (host, true)))
        else {
            return Ok(());
        };
        let version = lease.resource_version();
        let labels = json!({ label(host): null });
        let patch = json!({ "metadata": { "resourceVersion": version, "labels": labels } });
        match self.patch(name, &patch, patience).await {
            Err(left) if is(&left, 404) || is(&left, 409) => Ok(()),
            patched => patched.map(drop),
        }
    }

    async fn create(
        &self,
        name: &str,
        workload: &Workload,
        patience: &mut Patience,
    ) -> Result<Lease, Left> {
        let named = Named {
            resource: (*workload.resource).clone(),
            namespace: workload.namespace.to_string(),
            name: workload.object.to_string(),
        };
        let mut lease = Lease::default();
        lease.metadata.name = Some(name.to_owned());
        let labels = [
            (KIND, "claims".to_owned()),
            (&label(&self.inner.id), String::new()),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value));
        lease.metadata.labels = Some(labels.into());
        let named = serde_json::to_string(&named).expect("strings");
        lease.metadata.annotations = Some([(WORKLOAD.to_owned(), named)].into());
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let leases = &self.inner.leases;
        patience.call(|| leases.create(&params, &lease)).await
    }

    pub(super) async fn patch(
        &self,
        name: &str,
        patch: &serde_json::Value,
        patience: &mut Patience,
    ) -> Result<Lease, Left> {
        let (params, patch) = (PatchParams::apply(MANAGER), Patch::Merge(patch));
        let leases = &self.inner.leases;
        patience.call(|| leases.patch(name, &params, &patch)).await
    }

    fn watch(&self, name: &str) -> Watched<Lease> {
        let only = Config::default().fields(&format!("metadata.name={name}"));
        Watched::new(self.inner.leases.clone(), only)
    }

    /// Resolves when the Lease of `host` is gone, or has not changed for its time, as far as we could have
    /// seen that.
    async fn until_dead(&self, host: &str) {
        let name = super::heartbeat::lease_of(host);
        let mut leases = self.watch(&name);
        let mut version = None;
        loop {
            match timeout(LASTS, leases.changed()).await {
                Ok(Ok(())) => match leases.objects().next() {
                    Some(lease) => version = lease.resource_version(),
                    None => return,
                },
                // It counts from when we can see again.
                Ok(Err(_)) => {}
                // A watch may break without a word.
                Err(_) => match timeout(CALL_WITHIN, self.inner.leases.get_opt(&name)).await {
                    Ok(Ok(None)) => return,
                    Ok(Ok(Some(lease))) if lease.resource_version() == version => return,
                    Ok(Ok(Some(lease))) => version = lease.resource_version(),
                    Ok(Err(_)) | Err(_) => sleep(Duration::from_secs(1)).await,
                },
            }
        }
    }
}

/// The workload that a Lease is about.
fn workload_of(lease: &Lease) -> Option<Workload> {
    let named: Named = serde_json::from_str(lease.annotations().get(WORKLOAD)?).ok()?;
    let Named {
        resource,
        namespace,
        name,
    } = named;
    Some(Workload::scalable(resource, &namespace, &name))
}

/// The last claim of a workload was given back, and nobody else starts it until this is
/// [done](Self::done).
pub(crate) struct Last {
    hosts: Hosts,
    name: String,
    stopper: String,
    version: Option<String>,
    lapses: u64,
}

impl Last {
    /// Whether it is still ours to stop it, for as long as one call may take.
    pub(crate) async fn holds(&self, patience: &mut Patience) -> Result<bool, Left> {
        let hosts = &self.hosts;
        let lapses = patience.wait(hosts.good_for(CALL_WITHIN)).await?;
        if lapses == self.lapses {
            return Ok(true);
        }
        let leases = &hosts.inner.leases;
        let lease = patience.call(|| leases.get_opt(&self.name)).await?;
        let mut all = lease.iter().flat_map(claims);
        Ok(all.any(|claim| claim == (&*self.stopper, true)))
    }

    /// Lets those go on who claimed it meanwhile; if nobody did nothing is left of the Lease.
    pub(crate) async fn done(self, patience: &mut Patience) -> Result<(), Left> {
        let hosts = &self.hosts;
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: self.version,
                uid: None,
            }),
            ..DeleteParams::default()
        };
        let leases = &hosts.inner.leases;
        match patience.call(|| leases.delete(&self.name, &params)).await {
            Ok(_) => Ok(()),
            Err(left) if is(&left, 404) => Ok(()),
            Err(left) if is(&left, 409) => {
                let labels = json!({ label(&self.stopper): null });
                let patch = json!({ "metadata": { "labels": labels } });
                match hosts.patch(&self.name, &patch, patience).await {
                    Err(left) if is(&left, 404) => Ok(()),
                    patched => patched.map(drop),
                }
            }
            Err(left) => Err(left),
        }
    }
}
