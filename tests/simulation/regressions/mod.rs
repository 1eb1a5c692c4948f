//! What the simulation and a hostile reading have found, each as a test of its own.

mod bounds;
mod calls;
mod keys;
mod orders;
mod panics;
mod room;

use std::{
    future::{Future, Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_on_demand::{
    Backend, BoxError, CeilingLayer, DropToStop, Error, ErrorKind, Group, IdleEvict, KeyedLayer,
    LazyStart, LazyStartLayer, Retired, Runtime, State, Stopped, UntilResponse,
    test_util::{self, Clock, Task},
};
use tower_service::Service;

use crate::support::{BoxFuture, Caller, World, ms, secs};

type Stack = LazyStart<String, Caller>;

fn world(seed: u64) -> (Runtime, Clock, World) {
    let (runtime, clock) = test_util::runtime(seed);
    let world = World::new(&runtime);
    (runtime, clock, world)
}

fn layer(runtime: &Runtime) -> LazyStartLayer<String> {
    LazyStartLayer::new(runtime.clone(), "a".to_owned())
}

fn call<S>(clock: &Clock, stack: &S, takes: Duration) -> Task<Result<(), Error>>
where
    S: Service<Duration, Response = (), Error = Error> + Clone + Send + 'static,
    S::Future: Send,
{
    clock.spawn(stack.clone().oneshot(takes))
}

/// What user code does in an [`Odd`] backend.
#[derive(Default)]
struct Oddity {
    lease: AtomicBool,
    retired: AtomicBool,
    stop: AtomicBool,
    drop: AtomicBool,
    /// A stop never ends.
    endless: AtomicBool,
    /// The leases say that something beneath was evicted.
    evicted: AtomicBool,
    /// The leases never become ready.
    slow: AtomicBool,
    made: AtomicU32,
    dropped: AtomicU32,
}

impl Oddity {
    fn panic_if(&self, what: fn(&Self) -> &AtomicBool) {
        assert!(!what(self).load(Ordering::Relaxed), "as planned");
    }
}

/// A backend of user code that panics.
struct Odd(Arc<Oddity>);

impl Backend for Odd {
    type Lease = Serve;

    fn lease(&self) -> Serve {
        self.0.panic_if(|odd| &odd.lease);
        Serve(self.0.clone())
    }

    #[allow(clippy::manual_async_fn, reason = "the panic is not the future's")]
    fn retired(&self) -> impl Future<Output = Retired> + Send + 'static {
        self.0.panic_if(|odd| &odd.retired);
        std::future::pending()
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        self.0.panic_if(|odd| &odd.stop);
        let endless = self.0.endless.load(Ordering::Relaxed);
        async move {
            if endless {
                std::future::pending::<()>().await;
            }
            Stopped::Gone
        }
    }
}

impl Drop for Odd {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
        if !std::thread::panicking() {
            self.0.panic_if(|odd| &odd.drop);
        }
    }
}

#[derive(Clone)]
struct Serve(Arc<Oddity>);

impl Service<Duration> for Serve {
    type Response = ();
    type Error = Error;
    type Future = Ready<Result<(), Error>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.0.slow.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Poll::Ready(if self.0.evicted.load(Ordering::Relaxed) {
            Err(Error::new(ErrorKind::Evicted))
        } else {
            Ok(())
        })
    }

    fn call(&mut self, _takes: Duration) -> Self::Future {
        ready(Ok(()))
    }
}

fn odd(runtime: &Runtime) -> (LazyStart<String, Serve>, Arc<Oddity>) {
    let oddity = Arc::new(Oddity::default());
    let maker = service_fn({
        let oddity = oddity.clone();
        move |_: String| {
            oddity.made.fetch_add(1, Ordering::Relaxed);
            ready(Ok::<_, std::io::Error>(Odd(oddity.clone())))
        }
    });
    (layer(runtime).layer(maker), oddity)
}
