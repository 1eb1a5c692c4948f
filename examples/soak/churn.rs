//! The stack, and those who call it.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::{JoinHandle, yield_now};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_on_demand::{
    BoxError, CeilingLayer, CoalesceHandle, CoalesceLayer, DropToStop, Error, ErrorKind, Group,
    IdleEvict, KeyedLayer, Runtime, UntilResponse,
};

use crate::table::Row;

const KEYS: u64 = 100_000;
const LIMIT: u64 = 64;
const CALLERS: usize = 200;
/// How many keys are remembered for failing.
const FAILING: usize = 500;
/// Between neighbours in the order of calls; it has no factor in common with [`KEYS`].
const STEP: u64 = 7_919;

/// One key in so many never starts.
fn fails(key: u64) -> bool {
    key % 20 == 0
}

/// What the backends count of themselves.
#[derive(Debug, Default)]
struct Alive {
    now: AtomicU64,
    most: AtomicU64,
    started: AtomicU64,
}

/// One backend; it counts until it is dropped.
struct Tenant(Arc<Alive>);

impl Tenant {
    fn new(alive: &Arc<Alive>) -> Arc<Self> {
        let now = alive.now.fetch_add(1, Ordering::SeqCst) + 1;
        alive.most.fetch_max(now, Ordering::SeqCst);
        alive.started.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self(alive.clone()))
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A churn that goes on until it is ended.
pub(crate) struct Churn {
    alive: Arc<Alive>,
    group: Group,
    ceiling: CeilingLayer,
    coalesce: CoalesceHandle<u64>,
    keys: Arc<dyn Fn() -> usize + Send + Sync>,
    callers: Vec<JoinHandle<()>>,
    sweeper: JoinHandle<()>,
    calls: Arc<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    begun: AtomicU64,
    wrong: AtomicU64,
    over: AtomicBool,
}

impl Churn {
    pub(crate) fn start() -> Self {
        let runtime = Runtime::tokio();
        let group = Group::new();
        let alive = Arc::<Alive>::default();
        let ceiling = CeilingLayer::new(runtime.clone(), LIMIT).wait(Duration::from_secs(600));
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let sweeper = tokio::spawn(idle_evict.run());

        let tenants = alive.clone();
        let maker = service_fn(move |name: String| {
            let tenants = tenants.clone();
            async move {
                yield_now().await;
                let key: u64 = name.parse()?;
                if fails(key) {
                    return Err("it never starts".into());
                }
                let tenant = Tenant::new(&tenants);
                let serve = service_fn(move |asked: u64| {
                    let tenant = tenant.clone();
                    async move {
                        yield_now().await;
                        drop(tenant);
                        Ok::<_, Infallible>((asked, key))
                    }
                });
                Ok::<_, BoxError>(DropToStop::new(serve))
            }
        });
        let maker = ServiceBuilder::new()
            .layer(evictable.idle_after(Duration::from_millis(20)))
            .layer(ceiling.clone())
            .service(maker);
        let joins = group.clone();
        let tenants = KeyedLayer::new(
            runtime.clone(),
            |key: &u64| Some(*key),
            |key: &u64| Ok::<_, Infallible>(key.to_string()),
        )
        .max_failing_keys(FAILING)
        .each(move |backend| backend.join(&joins))
        .layer(maker);
        let counted = tenants.clone();
        let (layer, coalesce) = CoalesceLayer::new(|key: &u64| Some(*key))
            .linger(runtime, Duration::from_millis(5))
            .with_handle();
        let service = BoxCloneSyncService::new(layer.layer(tenants));

        let calls = Arc::<Calls>::default();
        let callers = (0..CALLERS).map(|_| tokio::spawn(call_on(service.clone(), calls.clone())));
        Self {
            callers: callers.collect(),
            alive,
            group,
            ceiling,
            coalesce,
            keys: Arc::new(move || counted.keys()),
            sweeper,
            calls,
        }
    }

    /// How things stand.
    pub(crate) fn row(&self) -> Row {
        let room = self.ceiling.occupancy();
        let shared = self.coalesce.statistics();
        Row {
            keys: (self.calls.begun.load(Ordering::Relaxed) / 2).min(KEYS),
            calls: self.calls.begun.load(Ordering::Relaxed),
            wrong: self.calls.wrong.load(Ordering::Relaxed),
            starts: self.alive.started.load(Ordering::Relaxed),
            most: self.alive.most.load(Ordering::SeqCst),
            limit: LIMIT,
            alive: self.alive.now.load(Ordering::SeqCst),
            keyed: (self.keys)(),
            // Those that may be known: who lives, who is asked for, and who failed.
            keyed_at_most: LIMIT as usize + CALLERS + FAILING,
            shared: shared.in_flight + shared.lingering,
            room: room.used,
            waiting: room.waiting,
            ..Row::of_none()
        }
    }

    /// Ends the churn, and waits until nothing is left of it. What there is then.
    pub(crate) async fn end(mut self) -> Row {
        self.calls.over.store(true, Ordering::Relaxed);
        for caller in std::mem::take(&mut self.callers) {
            // It would have to panic.
            let _ = caller.await;
        }
        self.group.stopped(Duration::from_secs(10)).await;
        self.coalesce.shutdown().await;
        self.sweeper.abort();
        let _ = (&mut self.sweeper).await;
        let row = self.row();
        drop(self);
        let end = Row {
            ended: true,
            keyed_at_most: FAILING,
            ..row
        };
        end.measured()
    }
}

async fn call_on(service: BoxCloneSyncService<u64, (u64, u64), Error>, calls: Arc<Calls>) {
    while !calls.over.load(Ordering::Relaxed) {
        let n = calls.begun.fetch_add(1, Ordering::Relaxed);
        // Two in a row ask the same: the second joins the first, most often.
        let key = n / 2 * STEP % KEYS;
        let call = service.clone().oneshot(key);
        if n % 100 == 99 {
            // Some leave at once, or nearly so.
            let _ = tokio::time::timeout(Duration::ZERO, call).await;
            continue;
        }
        let as_it_should = match call.await {
            Ok((asked, by)) => asked == key && by == key,
            Err(error) => {
                let failed = matches!(
                    error_kind(&error),
                    ErrorKind::StartFailed | ErrorKind::BackingOff { .. }
                );
                failed && fails(key)
            }
        };
        if !as_it_should {
            calls.wrong.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// `Coalesce` hands on what is below it as the source of its own error.
fn error_kind(error: &Error) -> ErrorKind {
    let source = std::error::Error::source(error);
    let inner = source.and_then(|source| source.downcast_ref::<Error>());
    inner.unwrap_or(error).kind().clone()
}
