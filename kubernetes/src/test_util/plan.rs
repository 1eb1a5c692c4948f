//! How the pods of a workload behave.

use std::{net::SocketAddr, time::Duration};

/// How the pods of a workload behave in a [`Cluster`](super::Cluster).
///
/// ```
/// use std::time::Duration;
/// use tower_on_demand_kubernetes::test_util::{Plan, Trouble};
///
/// let slow = Plan { starts: Duration::from_secs(20), ..Plan::default() };
/// let broken = Plan { trouble: Some(Trouble::ImagePull), ..Plan::default() };
/// # let _ = (slow, broken);
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    /// From when a pod is made until it is ready. Default: 2 s.
    pub starts: Duration,
    /// From when a pod is told to end until it is gone. Default: 1 s.
    pub stops: Duration,
    /// How far the EndpointSlices run behind the pods. Default: 0.
    pub lag: Duration,
    /// Why pods do not become ready, if they do not.
    pub trouble: Option<Trouble>,
    /// Where its pods really listen. Default: each pod has an address of its own where nobody does.
    pub address: Option<SocketAddr>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            starts: Duration::from_secs(2),
            stops: Duration::from_secs(1),
            lag: Duration::ZERO,
            trouble: None,
            address: None,
        }
    }
}

/// Why pods do not become ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// `ErrImagePull` after 1 s, `ImagePullBackOff` 10 s later.
    ImagePull,
    /// The container ends when it would be ready, twice, and then is in `CrashLoopBackOff`.
    CrashLoop,
    /// `CreateContainerConfigError` after 1 s: a Secret that is not there.
    Config,
    /// No node has enough CPU, at once and for good.
    Unschedulable,
    /// The API server refuses the pods: the namespace's quota is used up.
    Quota,
    /// The Deployment says `ProgressDeadlineExceeded` after 30 s.
    ProgressDeadline,
    /// Nothing, and nobody says why.
    Silent,
}
