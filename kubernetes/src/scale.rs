//! `Scale`: the maker.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context as Task, Poll},
    time::Duration,
};

use http_body::Body;
use kube::Client;
use tower_on_demand::{Backend, BoxError, Error, Retired, Stopped, Target as _, current_room};
use tower_service::Service;

use crate::{
    endpoints::Endpoints,
    hosts::Hosts,
    http::Http,
    instance::{Instance, Owner},
    keeper::{Context, Keeper},
    workload::Workload,
};

/// Makes backends of workloads: a `MakeService<Workload>` that scales up, and answers with a [`Scaled`].
///
/// A cheap clone; all clones share what is known of workloads that are up.
///
/// What a start does: it reads the workload's scale subresource and, if that is zero, patches it; it watches
/// the EndpointSlices of the workload's Service until one endpoint is ready, the workload itself, and its
/// pods, for what the cluster says is wrong with them. If the workload runs already that is all to it: who
/// scaled it up does not matter, whoever uses it last scales it down.
///
/// # Errors
///
/// | kind | when |
/// |---|---|
/// | [`NoRoom`](tower_on_demand::ErrorKind::NoRoom) | no node has room for a pod for longer than [`room_within`](Workload::room_within), or the namespace's quota is used up |
/// | [`StartFailed`](tower_on_demand::ErrorKind::StartFailed) | the cluster says why it will not become ready, or the API server refuses a call |
/// | [`StartTimeout`](tower_on_demand::ErrorKind::StartTimeout) | no endpoint was ready within [`ready_within`](Workload::ready_within) |
///
/// The cause is a [`Failure`](crate::Failure) in the first two. What had been scaled up by then is scaled down
/// again, in the background. Errors of the API server that pass (no connection, 429, 5xx) are waited for.
///
/// # Cancel safety
///
/// A start may be dropped at any moment. A task undoes what it had done.
///
/// # Panics
///
/// `call` spawns a task, and so panics outside a tokio runtime.
pub struct Scale<C> {
    context: Arc<Context>,
    connect: C,
}

impl Scale<()> {
    /// For workloads that speak HTTP/1.1. `B` is the body of the requests, inferred where it is called.
    pub fn http<B>(client: Client) -> Scale<fn(Endpoints) -> Http<B>>
    where
        B: Body + Send + Unpin + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        Scale::new(client, Http::new)
    }
}

impl<C> Scale<C> {
    /// `connect` makes of a started workload's [`Endpoints`] what is lent to callers: a service of your own,
    /// a tonic channel, a pool.
    ///
    /// It is called once for each start, with endpoints of which at least one is ready.
    pub fn new(client: Client, connect: C) -> Self {
        Self {
            context: Arc::new(Context::new(client, None)),
            connect,
        }
    }

    /// The workloads are those of several hosts: see [`hosts`](crate::hosts).
    ///
    /// Without it this process takes what it fronts for its own, and scales it to zero when it does not need
    /// it any more.
    #[must_use]
    pub fn shared(self, hosts: Hosts) -> Self {
        let client = self.context.client.clone();
        Self {
            context: Arc::new(Context::new(client, Some(hosts))),
            connect: self.connect,
        }
    }
}

impl<C, S> Service<Workload> for Scale<C>
where
    C: Fn(Endpoints) -> S + Clone + Send + 'static,
    S: Clone + Send + Sync + 'static,
{
    type Response = Scaled<S>;
    type Error = Error;
    type Future = Starting<S>;

    fn poll_ready(&mut self, _cx: &mut Task<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, workload: Workload) -> Starting<S> {
        let instance = Instance::new(workload);
        // Pods take a while to be gone: so long their room is not another's.
        if let Some(room) = current_room() {
            instance.keep(Box::new(room));
        }
        let (owner, orders) = Owner::new(instance.clone());
        let keeper = Keeper::new(self.context.clone(), instance);
        tokio::spawn(keeper.run(orders));
        let connect = self.connect.clone();
        Starting(Box::pin(async move {
            let instance = &owner.instance;
            let started = instance.until(|state| match (&state.failed, state.ready) {
                (Some(error), _) => Some(Err(error.clone())),
                (None, true) => Some(Ok(())),
                (None, false) => None,
            });
            started.await?;
            let service = connect(instance.endpoints());
            Ok(Scaled { service, owner })
        }))
    }
}

impl<C: Clone> Clone for Scale<C> {
    fn clone(&self) -> Self {
        Self {
            context: self.context.clone(),
            connect: self.connect.clone(),
        }
    }
}

impl<C> fmt::Debug for Scale<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scale")
            .field("hosts", &self.context.hosts)
            .finish_non_exhaustive()
    }
}

/// A start in progress: the future of [`Scale`]. Dropping it scales down again what it has scaled up.
#[must_use = "futures do nothing unless polled"]
pub struct Starting<S>(Pin<Box<dyn Future<Output = Result<Scaled<S>, Error>> + Send>>);

impl<S> Future for Starting<S> {
    type Output = Result<Scaled<S>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Task<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<S> fmt::Debug for Starting<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starting").finish_non_exhaustive()
    }
}

/// A workload that is scaled up, as a backend: what [`Scale`] makes.
///
/// Each lease is a clone of what `connect` made. Uses are counted by an `IdleEvict` above; where there is none
/// `LazyStart` counts them until the head of the response. Dropping it scales the workload down as
/// [`stop`](Backend::stop) does.
pub struct Scaled<S> {
    service: S,
    owner: Owner,
}

impl<S> Scaled<S> {
    /// Its endpoints.
    pub fn endpoints(&self) -> Endpoints {
        self.owner.instance.endpoints()
    }

    /// What is lent.
    pub const fn get_ref(&self) -> &S {
        &self.service
    }
}

impl<S: Clone + Send + Sync + 'static> Backend for Scaled<S> {
    type Lease = S;

    fn lease(&self) -> S {
        self.service.clone()
    }

    /// When its last endpoint is not ready any more, or somebody else has scaled it to zero.
    ///
    /// While the API server is away nothing is known to have changed, and it is not retired.
    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        let instance = self.owner.instance.clone();
        async move { instance.until(|state| state.retired.clone()).await }
    }

    /// Scales the workload to zero, and resolves when its pods are gone. Dropping the future changes nothing of
    /// that.
    ///
    /// The patch is made on the condition that the workload is still what was read just before. It is left as
    /// it is if others use it: another instance in this process, another [host](crate::hosts), or whoever
    /// scaled it further up meanwhile by hand.
    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        self.owner.stop();
        let instance = self.owner.instance.clone();
        async move {
            instance.gone().await;
            Stopped::Gone
        }
    }

    fn stop_within(&self) -> Duration {
        self.owner.instance.workload.stop_within
    }

    fn keep_until_gone(&self, what: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.owner.instance.keep(what);
        None
    }
}

impl<S> fmt::Debug for Scaled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scaled")
            .field("workload", &self.owner.instance.workload.name())
            .field("endpoints", &self.endpoints().ready())
            .finish_non_exhaustive()
    }
}
