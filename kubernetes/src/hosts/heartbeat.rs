//! The heartbeat: renews this host's Lease, and looks after the Leases of others.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
};

use k8s_openapi::{
    api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    Hosts, LASTS, SWEEP_EVERY,
    claims::{KIND, label},
};
use crate::{
    api::{CALL_WITHIN, Left, MANAGER, Patience, Pauses, Scaler, is},
    workload::Workload,
};

/// Ends the name by which a host stops what a dead one has left, so that it does not stand in its own way.
pub(super) const SWEEP: &str = ".sweep";

/// The Lease of a host.
pub(super) fn lease_of(host: &str) -> String {
    let host = host.strip_suffix(SWEEP).unwrap_or(host);
    format!("host.{host}")
}

/// What must run beside [`Hosts`]: made by [`Hosts::pair`].
///
/// It renews this host's Lease every 10 s, and now and then looks for hosts that do not renew theirs.
#[must_use = "nothing can be claimed unless it runs"]
pub struct Heartbeat {
    hosts: Hosts,
}

impl Heartbeat {
    pub(super) fn new(hosts: Hosts) -> Self {
        Self { hosts }
    }

    /// Runs until it is dropped. Whoever drops it before the last claim is given back looks dead to the
    /// others.
    pub fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let hosts = self.hosts;
        async move {
            tokio::join!(hosts.renew(), hosts.look_after());
        }
    }
}

impl fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heartbeat")
            .field("hosts", &self.hosts)
            .finish()
    }
}

impl Hosts {
    // ===== Our own Lease =====

    async fn renew(&self) {
        loop {
            let begun = Instant::now();
            let before = *self.inner.good_until.borrow();
            let lapsed = before.is_some_and(|until| until <= begun);
            match timeout(CALL_WITHIN, self.write_lease()).await {
                Ok(Ok(made)) => {
                    let lapsed = lapsed || (made && before.is_some());
                    self.held().lapses += u64::from(lapsed);
                    self.inner.good_until.send_replace(Some(begun + LASTS));
                    if lapsed {
                        self.claim_again().await;
                    } else if before.is_none() && !made {
                        // Of a last life under this name.
                        self.told(self.release_all(&self.inner.id).await);
                    }
                    sleep_until(begun + LASTS / 4).await;
                }
                Ok(Err(error)) => {
                    tracing::warn!(
                        target: "tower_on_demand::kubernetes",
                        host = self.id(), %error, "this host's Lease was not renewed"
                    );
                    sleep(LASTS / 20).await;
                }
                Err(_) => {}
            }
        }
    }

    /// Writes our Lease. True if there was none.
    async fn write_lease(&self) -> kube::Result<bool> {
        let name = lease_of(&self.inner.id);
        let spec = json!({
            "holderIdentity": self.inner.id,
            "leaseDurationSeconds": LASTS.as_secs(),
            "renewTime": MicroTime(Timestamp::now()),
        });
        let (params, leases) = (PatchParams::apply(MANAGER), &self.inner.leases);
        let patch = Patch::Merge(json!({ "spec": spec }));
        match leases.patch(&name, &params, &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            patched => return patched.map(|_| false),
        }
        let mut lease = Lease::default();
        lease.metadata.name = Some(name);
        lease.metadata.labels = Some([(KIND.to_owned(), "host".to_owned())].into());
        lease.spec = serde_json::from_value(spec).ok();
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        leases.create(&params, &lease).await.map(|_| true)
    }

    // ===== The Leases of others =====

    /// Looks for dead hosts again and again. The more hosts there are the less often each of them looks:
    /// together they do it about once in the same time.
    async fn look_after(&self) {
        let mut hosts = 1;
        for turn in 0_u64.. {
            let pause = SWEEP_EVERY.mul_f64(hosts as f64 * self.between(turn, 0.5, 1.5));
            sleep(pause).await;
            let Some(first) = self.leases_of_hosts().await else {
                continue;
            };
            hosts = first.len().max(1);
            sleep(LASTS).await;
            let Some(second) = self.leases_of_hosts().await else {
                continue;
            };
            for (name, (host, version)) in second {
                let unchanged = first.get(&name).is_some_and(|(_, seen)| *seen == version);
                if unchanged && host != self.inner.id {
                    self.told(self.bury(&name, &host, version).await);
                }
            }
        }
    }

    fn told(&self, released: Result<(), Left>) {
        if let Err(Left::Failed(failure)) = released {
            tracing::warn!(
                target: "tower_on_demand::kubernetes",
                host = self.id(), error = %failure, "what a host has left could not be released"
            );
        }
    }

    /// A number that differs from host to host and from turn to turn, and is the same in every run.
    fn between(&self, turn: u64, low: f64, high: f64) -> f64 {
        let mut hasher = DefaultHasher::new();
        (&self.inner.id, turn).hash(&mut hasher);
        low + (high - low) * (hasher.finish() as f64 / u64::MAX as f64)
    }

    /// By name: whose it is, and its version.
    async fn leases_of_hosts(&self) -> Option<HashMap<String, (String, Option<String>)>> {
        let params = ListParams::default().labels(&format!("{KIND}=host"));
        let list = timeout(CALL_WITHIN, self.inner.leases.list(&params)).await;
        let leases = list.ok()?.ok()?;
        let leases = leases.into_iter().filter_map(|lease| {
            let version = lease.resource_version();
            let host = lease.spec.as_ref()?.holder_identity.clone()?;
            Some((lease.name_any(), (host, version)))
        });
        Some(leases.collect())
    }

    /// Gives back what a dead host claims, and forgets it.
    async fn bury(&self, name: &str, host: &str, version: Option<String>) -> Result<(), Left> {
        tracing::warn!(target: "tower_on_demand::kubernetes", host, "taken for dead");
        self.release_all(host).await?;
        self.release_all(&format!("{host}{SWEEP}")).await?;
        let patience = &mut Patience::endless();
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: version,
                uid: None,
            }),
            ..DeleteParams::default()
        };
        let leases = &self.inner.leases;
        match patience.call(|| leases.delete(name, &params)).await {
            // It lives, and claims again what it is told of.
            Err(left) if is(&left, 409) || is(&left, 404) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Gives back every claim of `host` that nobody knows of any more, and stops what nobody else claims.
    async fn release_all(&self, host: &str) -> Result<(), Left> {
        let patience = &mut Patience::endless();
        let params = ListParams::default().labels(&label(host));
        let leases = &self.inner.leases;
        let stopper = format!("{}{SWEEP}", self.inner.id);
        for lease in patience.call(|| leases.list(&params)).await? {
            let released = self.release_left(&lease.name_any(), host, &stopper).await?;
            let Some((last, workload)) = released else {
                continue;
            };
            let down = match workload {
                Some(workload) => self.scale_to_zero(&workload, &last, patience).await,
                None => Ok(()),
            };
            last.done(patience).await?;
            down?;
        }
        Ok(())
    }

    async fn scale_to_zero(
        &self,
        workload: &Workload,
        last: &super::Last,
        patience: &mut Patience,
    ) -> Result<(), Left> {
        let scaled = Scaler::new(&self.inner.client, workload);
        let mut pauses = Pauses::new();
        loop {
            let seen = scaled.get(patience).await?;
            if seen.replicas == 0 || !last.holds(patience).await? {
                return Ok(());
            }
            if scaled.set(&seen, 0, &mut pauses, patience).await? {
                return Ok(());
            }
        }
    }
}
