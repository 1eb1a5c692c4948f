//! Calls of the API server: which errors pass, and how long to wait for that.

use std::{future::Future, time::Duration};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use kube::{
    Api, Client, Error,
    api::{DynamicObject, Patch, PatchParams, ScaleSpec},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{failure::Failure, workload::Workload};

/// How long one call may take. The server gives up after 60 s; what is on its way when a host has lost its
/// lease must be dead before others take that for granted.
pub(crate) const CALL_WITHIN: Duration = Duration::from_secs(10);

/// Who we are in `metadata.managedFields`.
pub(crate) const MANAGER: &str = "tower-on-demand";

/// Why one does not wait any longer.
#[derive(Debug)]
pub(crate) enum Left {
    /// Its owner says so, or is gone.
    Ordered,
    /// Its time is up; the last error, if there was one.
    Late(Option<Error>),
    Failed(Failure),
}

impl From<Failure> for Left {
    fn from(failure: Failure) -> Self {
        Left::Failed(failure)
    }
}

/// Until when one waits. Calls that are under way are not broken off by it, so that it is always known what
/// became of them.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    orders: Option<watch::Receiver<bool>>,
    deadline: Option<Instant>,
}

impl Patience {
    /// Until `deadline`, or until it is told to stop.
    pub(crate) fn until(deadline: Option<Instant>, orders: watch::Receiver<bool>) -> Self {
        Self {
            orders: Some(orders),
            deadline,
        }
    }

    /// As long as it takes.
    pub(crate) const fn endless() -> Self {
        Self {
            orders: None,
            deadline: None,
        }
    }

    /// Resolves when it is over.
    pub(crate) async fn over(&mut self) -> Left {
        let ordered = async {
            match &mut self.orders {
                Some(orders) => drop(orders.wait_for(|stop| *stop).await),
                None => std::future::pending().await,
            }
        };
        let late = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = ordered => Left::Ordered,
            () = late => Left::Late(None),
        }
    }

    /// What `work` gives, unless it is over before.
    pub(crate) async fn wait<F: Future>(&mut self, work: F) -> Result<F::Output, Left> {
        tokio::select! {
            biased;
            left = self.over() => Err(left),
            done = work => Ok(done),
        }
    }

    /// What `call` gives in the end; errors that pass are waited for.
    pub(crate) async fn call<T, F>(&mut self, call: impl Fn() -> F) -> Result<T, Left>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let mut pauses = Pauses::new();
        loop {
            if let Some(answer) = self.attempt(&mut pauses, &call).await? {
                return Ok(answer);
            }
        }
    }

    /// What `call` gives at once; nothing, after a pause, if it failed in a way that passes.
    pub(crate) async fn attempt<T, F>(
        &mut self,
        pauses: &mut Pauses,
        call: impl Fn() -> F,
    ) -> Result<Option<T>, Left>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let error = match timeout(CALL_WITHIN, call()).await {
            Ok(Ok(answer)) => return Ok(Some(answer)),
            Ok(Err(error)) => error,
            Err(late) => Error::Service(late.into()),
        };
        if !passes(&error) {
            return Err(Left::Failed(Failure::Api(error)));
        }
        let pause = pauses.next().max(asked_for(&error).unwrap_or_default());
        match self.wait(sleep(pause)).await {
            Ok(()) => Ok(None),
            Err(Left::Late(None)) => Err(Left::Late(Some(error))),
            Err(left) => Err(left),
        }
    }
}

const LONGEST: Duration = Duration::from_secs(10);

/// The pauses between attempts: 100 ms, doubling to 10 s, jittered.
pub(crate) struct Pauses(ExponentialBackoff);

impl Pauses {
    pub(crate) fn new() -> Self {
        let pauses = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(LONGEST)
            .with_jitter()
            .without_max_times();
        Self(pauses.build())
    }

    fn next(&mut self) -> Duration {
        self.0.next().unwrap_or(LONGEST)
    }
}

/// Whether the same call may succeed later.
fn passes(error: &Error) -> bool {
    match error {
        Error::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
        Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) => true,
        _ => false,
    }
}

/// How long the server wants us to wait at least.
fn asked_for(error: &Error) -> Option<Duration> {
    let Error::Api(status) = error else {
        return None;
    };
    let said = status.details.as_ref().map(|of| of.retry_after_seconds);
    match (said, status.code) {
        (Some(seconds @ 1..), _) => Some(Duration::from_secs(seconds.into())),
        // It says so in a header that we are not shown.
        (_, 429) => Some(Duration::from_secs(1)),
        _ => None,
    }
}

/// Whether an error is of this HTTP status.
pub(crate) fn is(error: &Left, code: u16) -> bool {
    matches!(error, Left::Failed(Failure::Api(Error::Api(status))) if status.code == code)
}

/// The scale subresource of one workload.
#[derive(Debug, Clone)]
pub(crate) struct Scaler {
    pub(crate) api: Api<DynamicObject>,
    name: String,
}

/// What it is scaled to.
#[derive(Debug, Clone)]
pub(crate) struct Count {
    pub(crate) replicas: i32,
    version: Option<String>,
    /// Selects its pods.
    pub(crate) selector: Option<String>,
}

impl Scaler {
    pub(crate) fn new(client: &Client, workload: &Workload) -> Self {
        let (namespace, resource) = (&workload.namespace, &workload.resource);
        Self {
            api: Api::namespaced_with(client.clone(), namespace, &**resource),
            name: workload.object.to_string(),
        }
    }

    pub(crate) async fn get(&self, patience: &mut Patience) -> Result<Count, Left> {
        let got = patience.call(|| self.api.get_scale(&self.name)).await;
        let scale = match got {
            Err(left) if is(&left, 404) => return Err(Failure::Missing.into()),
            got => got?,
        };
        Ok(Count {
            replicas: scale.spec.and_then(|spec| spec.replicas).unwrap_or(0),
            version: scale.metadata.resource_version,
            selector: scale.status.and_then(|status| status.selector),
        })
    }

    /// Scales it from `seen` to `replicas`. False if it is not as it was seen any more, or nobody knows: look
    /// again, also whether that is still to be done.
    pub(crate) async fn set(
        &self,
        seen: &Count,
        replicas: i32,
        pauses: &mut Pauses,
        patience: &mut Patience,
    ) -> Result<bool, Left> {
        let spec = ScaleSpec {
            replicas: Some(replicas),
        };
        let patch = json!({ "metadata": { "resourceVersion": seen.version }, "spec": spec });
        let (params, patch) = (PatchParams::apply(MANAGER), Patch::Merge(patch));
        let call = || self.api.patch_scale(&self.name, &params, &patch);
        match patience.attempt(pauses, call).await {
            Ok(answer) => Ok(answer.is_some()),
            Err(left) if is(&left, 409) => Ok(false),
            Err(left) => Err(left),
        }
    }
}
