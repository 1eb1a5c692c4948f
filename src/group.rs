//! `Group`: every backend of a host, by name.

use std::{
    fmt,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use crate::{
    error::Error,
    lazy_start::Handle,
    lifecycle::{control::Member, status::Status},
    sync::lock,
};

/// Every backend of a host, by name: to find one, to look at all, to bring all down.
///
/// Cheap to clone. It holds no backend: one whose services and handles are all dropped leaves it.
///
/// ```
/// # use std::time::Duration;
/// # use tower::{Layer, service_fn};
/// # use tower_on_demand::{DropToStop, Group, LazyStartLayer, Runtime};
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let maker = service_fn(|_: &'static str| async {
/// #     let echo = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(n) });
/// #     Ok::<_, std::io::Error>(DropToStop::new(echo))
/// # });
/// let group = Group::new();
/// let probe = LazyStartLayer::new(Runtime::tokio(), "probe").join(&group).layer(maker);
///
/// assert!(group.handle("probe").is_some());
/// for status in group.status() {
///     println!("{}: {:?}", status.name, status.state);
/// }
///
/// // At the end: nothing is alive when this returns, and nothing can appear.
/// group.stopped(Duration::from_secs(30)).await;
/// # drop(probe);
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
#[derive(Clone, Default)]
pub struct Group {
    members: Arc<Mutex<Members>>,
}

#[derive(Default)]
struct Members {
    by_age: Vec<(Arc<str>, Weak<dyn Member>)>,
    /// At how many those that are gone are swept out: a join costs the same however many there are.
    sweep_at: usize,
    closed: bool,
}

impl Group {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(&self, name: Arc<str>, member: Arc<dyn Member>) {
        let mut members = lock(&self.members);
        let closed = members.closed;
        if members.by_age.len() >= members.sweep_at {
            let alive = |(_, member): &(_, Weak<dyn Member>)| member.strong_count() > 0;
            members.by_age.retain(alive);
            members.sweep_at = 16 + 2 * members.by_age.len();
        }
        members.by_age.push((name, Arc::downgrade(&member)));
        drop(members);
        if closed {
            drop(member.shut_down(None));
        }
    }

    fn members(&self) -> Vec<(Arc<str>, Arc<dyn Member>)> {
        let members = lock(&self.members);
        let alive = members.by_age.iter();
        alive
            .filter_map(|(name, member)| Some((name.clone(), member.upgrade()?)))
            .collect()
    }

    /// The backend called `name`; of several, the newest.
    pub fn handle(&self, name: &str) -> Option<Handle> {
        let mut members = self.members();
        members.retain(|(its, _)| **its == *name);
        let mut newest_first = members.into_iter().rev();
        newest_first.find_map(|(_, member)| Some(Handle::of(member.control()?)))
    }

    /// One reading of every backend, oldest first.
    ///
    /// Backends of a `KeyedLayer` are here while there is anything of them: while they are used, run, or are kept from starting. With an
    /// instance that was stopped for age goes its key, and with that its numbers; those of all time are the `metrics`.
    pub fn status(&self) -> Vec<Status> {
        let members = self.members();
        members.iter().map(|(_, member)| member.status()).collect()
    }

    /// Starts every backend that free room allows, as [`Handle::start`] does, and tells of those that
    /// could not be started.
    pub async fn start_all(&self) -> Vec<Error> {
        let members = self.members();
        let controls = members.iter().filter_map(|(_, member)| member.control());
        let starts: Vec<_> = controls.map(|c| Handle::<()>::of(c).start()).collect();
        let mut failed = Vec::new();
        for start in starts {
            failed.extend(start.await.err());
        }
        failed
    }

    /// Shuts every backend down, and every one that joins later: new calls get
    /// [`ShutDown`](crate::ErrorKind::ShutDown), those in flight have the backend's drain timeout.
    pub fn close(&self) {
        self.shut_down(None);
    }

    /// [Closes](Self::close) the group, gives the calls in flight `drain` to end, and resolves when
    /// nothing is alive any more. From then on nothing can appear. Call it as often as you like.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the group closed.
    pub async fn stopped(&self, drain: Duration) {
        let stopping = self.shut_down(Some(drain));
        for stopped in stopping {
            // An error means that its owner is gone, with all it held.
            let _ = stopped.await;
        }
    }

    fn shut_down(&self, drain: Option<Duration>) -> Vec<futures_channel::oneshot::Receiver<()>> {
        lock(&self.members).closed = true;
        let members = self.members();
        members.iter().map(|(_, m)| m.shut_down(drain)).collect()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.members();
        let names = members.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}
