//! Several hosts in front of the same workloads.
//!
//! Each host says by a *claim* that it uses a workload, from before it scales it up until its own policies
//! stop it. Whoever gives back the last claim scales the workload to zero. So it is stopped only when no host
//! has used it within that host's idle bound, and no host need know another.
//!
//! The API server decides between a claim and a stop that meet. The claims of a workload are labels of one
//! Lease, and every change that rests on what the others claim is made on the condition that the Lease is
//! still the one that was read (its `resourceVersion`): a claim that lands before makes it fail, and it is
//! decided anew; one that lands after sees that the workload is being stopped, waits, and starts it again.
//!
//! # When a host dies
//!
//! Every host renews a Lease of its own every 10 s. One whose Lease nobody has seen change for
//! 40 s is taken for dead: its claims are given back, and what it alone used is scaled to zero. The hosts
//! look after each other in turn, about one look a minute in all, however many they are. Time is each
//! host's own, from the last change that it saw: clocks need not agree.
//!
//! # When a host is cut off
//!
//! A host that cannot reach the API server goes on serving with what it has, and cannot start or stop
//! anything. If the others can reach it, they take the host for dead after a while: then what it alone used
//! is stopped, which it notices by failing calls. When it is back it claims again what still runs, and
//! learns that the rest is retired. If nobody can reach the API server nothing changes anywhere, and nobody
//! is taken for dead on its return: what counts is time in which changes could be seen.
//!
//! A host that is cut off in the very moment in which it stops a workload does not stop it later: it asks
//! only while its Lease is good for longer than the call may take, and looks whose turn it is otherwise.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::{
    sync::{self, watch},
    time::Instant,
};

mod claims;
mod heartbeat;

pub(crate) use self::claims::Last;
pub use self::heartbeat::Heartbeat;

/// This host among those that front the same workloads: see the [module](self).
///
/// A cheap clone; all clones are the same host.
///
/// ```
/// # use tower_on_demand_kubernetes::{Scale, hosts::Hosts};
/// # fn of(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let id = std::env::var("HOSTNAME")?; // a pod's name, say: no two hosts have the same
/// let (hosts, heartbeat) = Hosts::pair(client.clone(), "front", &id)?;
/// tokio::spawn(heartbeat.run());
/// let scale = Scale::http::<String>(client).shared(hosts);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Hosts {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    leases: Api<Lease>,
    id: String,
    /// Until when our own Lease is good; nothing before it was first written.
    good_until: watch::Sender<Option<Instant>>,
    held: Mutex<Held>,
    /// Held while our own claim of any workload changes: those that claim, give back and claim again do not
    /// see each other's changes half done.
    changing: sync::Mutex<()>,
}

/// How long the Lease of a host lasts, as those of nodes do. It is renewed four times in that.
const LASTS: Duration = Duration::from_secs(40);
/// How often dead hosts are looked for, by whichever host.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// What we claim, by the names of the Leases.
#[derive(Default)]
struct Held {
    claims: BTreeSet<String>,
    /// How often our own Lease was no longer good.
    lapses: u64,
}

impl Hosts {
    /// This host, called `id`, and the [`Heartbeat`] that must run beside it: until it does nothing can be
    /// claimed.
    ///
    /// All Leases are in `namespace`, which the hosts have in common. No two hosts may have the same `id` at
    /// the same time. One that is started again under its name gives back what its last life has claimed.
    ///
    /// # Errors
    ///
    /// If `id` is not at most 50 lower case letters, digits, `-` and `.`, with a letter or digit at both ends,
    /// or ends with `.sweep`.
    pub fn pair(client: Client, namespace: &str, id: &str) -> Result<(Self, Heartbeat), InvalidId> {
        let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = id.len() <= 50
            && id.starts_with(ends)
            && id.ends_with(ends)
            && !id.ends_with(heartbeat::SWEEP)
            && id.chars().all(|c| ends(c) || "-.".contains(c));
        if !valid {
            return Err(InvalidId(id.to_owned()));
        }
        let hosts = Self {
            inner: Arc::new(Inner {
                leases: Api::namespaced(client.clone(), namespace),
                client,
                id: id.to_owned(),
                good_until: watch::Sender::default(),
                held: Mutex::default(),
                changing: sync::Mutex::default(),
            }),
        };
        let heartbeat = Heartbeat::new(hosts.clone());
        Ok((hosts, heartbeat))
    }

    /// The name of this host.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        let held = self.inner.held.lock();
        held.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until our own Lease is good for `time` more. How often it was not, so far.
    async fn good_for(&self, time: Duration) -> u64 {
        let mut good_until = self.inner.good_until.subscribe();
        let good =
            |until: &Option<Instant>| until.is_some_and(|until| Instant::now() + time < until);
        // The sender is ours.
        let _ = good_until.wait_for(good).await;
        self.held().lapses
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosts")
            .field("id", &self.inner.id)
            .finish_non_exhaustive()
    }
}

/// A name that a host cannot have: [`Hosts::pair`] says what it can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidId(String);

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} cannot name a host: at most 50 lower case letters, digits, '-' and '.', with a letter or digit at both ends",
            self.0
        )
    }
}

impl std::error::Error for InvalidId {}
