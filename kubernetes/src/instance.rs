//! One start of a workload, as it is seen from outside its keeper.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;
use tower_on_demand::{Error, ErrorKind, Retired, Target as _};

use crate::{
    endpoints::{Endpoints, Ready},
    workload::Workload,
};

/// What became of it; each is said once and stays.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) ready: bool,
    pub(crate) failed: Option<Error>,
    pub(crate) retired: Option<Retired>,
    /// Nothing of it is left.
    pub(crate) gone: bool,
}

/// One start: shared by its keeper and its owner.
pub(crate) struct Instance {
    pub(crate) workload: Workload,
    state: watch::Sender<State>,
    endpoints: watch::Sender<Ready>,
    /// What is kept until it is gone; nothing then.
    kept: Mutex<Option<Vec<Box<dyn Any + Send>>>>,
}

impl Instance {
    pub(crate) fn new(workload: Workload) -> Arc<Self> {
        Arc::new(Self {
            workload,
            state: watch::Sender::default(),
            endpoints: watch::Sender::new(Arc::from([])),
            kept: Mutex::new(Some(Vec::new())),
        })
    }

    pub(crate) fn endpoints(&self) -> Endpoints {
        Endpoints::new(self.workload.clone(), self.endpoints.subscribe())
    }

    pub(crate) fn serves(&self, ready: &[std::net::SocketAddr]) {
        self.endpoints.send_if_modified(|now| {
            let differs = **now != *ready;
            if differs {
                *now = ready.into();
            }
            differs
        });
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    pub(crate) fn retire(&self, why: &str) {
        let died = self.named(Error::new(ErrorKind::Died).because(why));
        tracing::info!(
            target: "tower_on_demand::kubernetes",
            backend = self.workload.name(), why, "retired"
        );
        self.tell(|state| state.retired = Some(Retired::Died(Some(died))));
    }

    pub(crate) fn named(&self, error: Error) -> Error {
        error.of(self.workload.name())
    }

    /// Waits until `of` finds something in the state.
    pub(crate) async fn until<T>(&self, mut of: impl FnMut(&State) -> Option<T>) -> T {
        let mut found = None;
        let mut state = self.state.subscribe();
        let waited = state.wait_for(|state| {
            found = of(state);
            found.is_some()
        });
        // The sender is ours: it does not go before.
        let _ = waited.await;
        found.expect("it was waited for")
    }

    pub(crate) async fn gone(&self) {
        self.until(|state| state.gone.then_some(())).await;
    }

    /// Keeps `what` until it is gone.
    pub(crate) fn keep(&self, what: Box<dyn Any + Send>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let too_late = match &mut *kept {
            Some(kept) => {
                kept.push(what);
                None
            }
            None => Some(what),
        };
        drop(kept);
        drop(too_late);
    }

    fn let_go(&self) {
        let kept = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.take()
        };
        drop(kept);
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("workload", &self.workload)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}

/// The keeper's handle: whatever way it ends, all are told that it has.
pub(crate) struct Kept(pub(crate) Arc<Instance>);

impl Drop for Kept {
    fn drop(&mut self) {
        let instance = &self.0;
        instance.serves(&[]);
        instance.let_go();
        instance.tell(|state| {
            if !state.ready && state.failed.is_none() {
                let error = Error::new(ErrorKind::ShutDown);
                state.failed = Some(error.because("the runtime dropped the task that kept it"));
            }
            if state.retired.is_none() {
                state.retired = Some(Retired::Died(None));
            }
            state.gone = true;
        });
    }
}

/// Whose it is. When this is dropped it is stopped.
pub(crate) struct Owner {
    pub(crate) instance: Arc<Instance>,
    orders: watch::Sender<bool>,
}

impl Owner {
    pub(crate) fn new(instance: Arc<Instance>) -> (Self, watch::Receiver<bool>) {
        let (orders, receiver) = watch::channel(false);
        (Self { instance, orders }, receiver)
    }

    pub(crate) fn stop(&self) {
        self.orders.send_replace(true);
    }
}
