//! `Client`: a running child as a backend.

use std::{any::Any, fmt, future::Future, sync::Arc, time::Duration};

use super::{
    Protocol,
    child::{Order, Owner, Process},
    service::Http,
};
use crate::{
    backend::{Backend, Retired, Stopped},
    counted::Counted,
    http::UntilBodyEnd,
    lease::Leased,
    usage::Usage,
};

/// A running child process: what [`Spawn`](super::Spawn) makes.
///
/// It owns the process: dropping it stops it as [`stop`](Backend::stop) does, but without waiting
/// for calls in flight. Its leases count as use, from the call until the response's body has ended,
/// unless an `IdleEvict` layer above counts.
pub struct Client {
    owner: Owner,
    http: Http,
    counted: Counted,
}

impl Client {
    pub(super) fn new(owner: Owner, protocol: Protocol) -> Self {
        Self {
            http: Http::new(owner.process.clone(), protocol),
            owner,
            counted: Counted::new(),
        }
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.owner.process
    }
}

impl Backend for Client {
    type Lease = Leased<Http, UntilBodyEnd>;

    fn lease(&self) -> Self::Lease {
        self.counted.lease(self.http.clone(), UntilBodyEnd)
    }

    /// When the process has ended, or has failed its [`alive`](super::Command::alive) probes.
    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        self.owner.process.retired()
    }

    /// SIGTERM to its process group, SIGKILL after the grace; resolves when it is reaped, its group
    /// is gone and its pipes are closed. Dropping the future changes nothing of that.
    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        // A child that ends gracefully may wait for connections that nobody uses.
        self.http.close();
        self.owner.order(Order::Stop);
        let gone = self.owner.process.gone();
        let process = self.owner.process.clone();
        async move {
            gone.await;
            if process.was_killed() {
                Stopped::Killed
            } else {
                Stopped::Gone
            }
        }
    }

    /// The grace, and 5 seconds for the system to end what was killed.
    fn stop_within(&self) -> Duration {
        self.owner.grace.saturating_add(Duration::from_secs(5))
    }

    fn attach(&self, usage: &Arc<Usage>) {
        self.counted.attach(usage);
    }

    fn usage(&self) -> Option<Arc<Usage>> {
        Some(self.counted.usage().clone())
    }

    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.owner.process.keep(what);
        None
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.http.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("process", self.process())
            .finish_non_exhaustive()
    }
}
