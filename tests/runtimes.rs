//! The four layers on runtimes that are not tokio: smol, and a plain thread pool with a timer of its own.
#![allow(
    clippy::disallowed_methods,
    reason = "a timer of real time reads the real time"
)]
#![cfg(all(feature = "ceiling", feature = "idle-evict", feature = "lazy-start"))]

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use hyper::rt::{Executor, Sleep, Timer};
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    BoxFuture, CeilingLayer, CoalesceLayer, DropToStop, IdleEvict, LazyStartLayer, Runtime,
    UntilResponse,
};

const NAMES: [&str; 5] = ["ada", "bob", "cyd", "dee", "eve"];
const LIMIT: u64 = 2;

/// What the backends saw of themselves.
#[derive(Default)]
struct Seen {
    alive: AtomicUsize,
    peak: AtomicUsize,
    started: AtomicUsize,
    calls: AtomicUsize,
    on_tokio: AtomicUsize,
}

/// One instance of a backend. Its end is an event.
struct Instance {
    name: &'static str,
    seen: Arc<Seen>,
    gone: futures_channel::mpsc::UnboundedSender<&'static str>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.seen.alive.fetch_sub(1, Ordering::SeqCst);
        let _ = self.gone.unbounded_send(self.name);
    }
}

/// Five backends in turn and all at once under a ceiling of two, until every one is stopped for idleness.
async fn serve(runtime: Runtime) {
    let seen = Arc::new(Seen::default());
    let (gone, mut ended) = futures_channel::mpsc::unbounded();
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
    let ceiling = CeilingLayer::new(runtime.clone(), LIMIT);

    let stacks: BTreeMap<_, _> = NAMES
        .into_iter()
        .map(|name| {
            let (seen, gone, timer) = (seen.clone(), gone.clone(), runtime.clone());
            let maker = service_fn(move |name: &'static str| {
                let (seen, gone, timer) = (seen.clone(), gone.clone(), timer.clone());
                let alive = seen.alive.fetch_add(1, Ordering::SeqCst) + 1;
                seen.peak.fetch_max(alive, Ordering::SeqCst);
                seen.started.fetch_add(1, Ordering::SeqCst);
                let instance = Arc::new(Instance { name, seen, gone });
                async move {
                    timer.sleep(Duration::from_millis(2)).await;
                    Ok::<_, io::Error>(DropToStop::new(service_fn(move |n: u32| {
                        let (instance, timer) = (instance.clone(), timer.clone());
                        async move {
                            let seen = &instance.seen;
                            seen.calls.fetch_add(1, Ordering::SeqCst);
                            if tokio::runtime::Handle::try_current().is_ok() {
                                seen.on_tokio.fetch_add(1, Ordering::SeqCst);
                            }
                            timer.sleep(Duration::from_millis(1)).await;
                            Ok::<_, Infallible>(format!("{} {n}", instance.name))
                        }
                    })))
                }
            });
            let stack = ServiceBuilder::new()
                .layer(CoalesceLayer::new(|n: &u32| Some(*n)))
                .layer(LazyStartLayer::new(runtime.clone(), name))
                .layer(evictable.clone().idle_after(Duration::from_millis(20)))
                .layer(ceiling.clone().wait(Duration::from_secs(60)))
                .service(maker);
            (name, stack)
        })
        .collect();
    runtime.spawn(async move {
        idle_evict.run().await;
    });

    let mut asked = 0;
    for round in 0..10 {
        // The same four callers for each: the calls may be shared, the answers are theirs.
        let calls: FuturesUnordered<_> = NAMES
            .into_iter()
            .flat_map(|name| [(name, round); 4])
            .map(|(name, n)| {
                let stack = stacks[name].clone();
                async move { (name, n, stack.oneshot(n).await) }
            })
            .collect();
        for (name, n, answer) in calls.collect::<Vec<_>>().await {
            asked += 1;
            assert_eq!(answer.unwrap(), format!("{name} {n}"));
        }
    }
    assert_eq!(asked, 200);
    assert!(seen.calls.load(Ordering::SeqCst) < 200, "calls were shared");
    assert_eq!(seen.peak.load(Ordering::SeqCst), LIMIT as usize);
    assert_eq!(seen.on_tokio.load(Ordering::SeqCst), 0);

    // The sweeper stops the rest. Nobody calls any more.
    let mut started = seen.started.load(Ordering::SeqCst);
    while started > 0 {
        ended.next().await.unwrap();
        started -= 1;
    }
    assert_eq!(seen.alive.load(Ordering::SeqCst), 0);

    // And the next call starts one again.
    let answers = join_all((0..3).map(|n| stacks["ada"].clone().oneshot(n))).await;
    assert!(answers.into_iter().all(|answer| answer.is_ok()));
}

#[cfg(feature = "smol")]
#[test]
fn the_layers_run_on_smol() {
    smol::block_on(serve(Runtime::smol()));
}

#[test]
fn the_layers_run_on_a_plain_thread_pool_with_a_timer_of_its_own() {
    let pool = futures_executor::ThreadPool::builder()
        .pool_size(2)
        .create()
        .unwrap();
    let runtime = Runtime::new(Alarm::start(), Pool(pool));
    futures_executor::block_on(serve(runtime));
}

struct Pool(futures_executor::ThreadPool);

impl Executor<BoxFuture> for Pool {
    fn execute(&self, future: BoxFuture) {
        self.0.spawn_ok(future);
    }
}

/// A timer: a thread, and the wakers it wakes.
#[derive(Clone)]
struct Alarm(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<BTreeMap<(Instant, u64), Waker>>,
    earlier: Condvar,
    number: AtomicU64,
}

impl Alarm {
    fn start() -> Self {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::downgrade(&shared);
        std::thread::spawn(move || {
            while let Some(shared) = of_thread.upgrade() {
                let mut waiting = shared.waiting.lock().unwrap();
                let now = Instant::now();
                let later = waiting.split_off(&(now, u64::MAX));
                let due = std::mem::replace(&mut *waiting, later);
                if due.is_empty() {
                    let next = waiting.keys().next().map(|(at, _)| *at - now);
                    let pause = next.unwrap_or(Duration::from_millis(50));
                    drop(shared.earlier.wait_timeout(waiting, pause).unwrap());
                } else {
                    drop(waiting);
                    due.into_values().for_each(Waker::wake);
                }
            }
        });
        Self(shared)
    }
}

impl Timer for Alarm {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let number = self.0.number.fetch_add(1, Ordering::Relaxed);
        Box::pin(Nap {
            shared: self.0.clone(),
            key: (deadline, number),
        })
    }
}

struct Nap {
    shared: Arc<Shared>,
    key: (Instant, u64),
}

impl Future for Nap {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.key.0 <= Instant::now() {
            return Poll::Ready(());
        }
        let mut waiting = self.shared.waiting.lock().unwrap();
        waiting.insert(self.key, cx.waker().clone());
        self.shared.earlier.notify_one();
        Poll::Pending
    }
}

impl Sleep for Nap {}

impl Drop for Nap {
    fn drop(&mut self) {
        self.shared.waiting.lock().unwrap().remove(&self.key);
    }
}
