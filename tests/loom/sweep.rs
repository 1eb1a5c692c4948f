//! The sweeper: closing what is due against uses, registrations that come and go, changes of bounds, a stop
//! that waits for what was swept, and the end of all that could be due.

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    task::{Context, Poll, Waker},
    time::Duration,
};

use loom::{future::block_on, thread};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    UntilResponse,
    backend::{Backend, Retired, Stopped},
    busy::Busy,
    host::{Host, Signal},
    idle_evict::{Evictable, IdleEvict, IdleEvictLayer, Sweep},
    usage::Eviction,
    with::Arc,
};

/// What is started; it counts those that are gone.
struct Real(Arc<AtomicUsize>);

impl Backend for Real {
    type Lease = ();

    fn lease(&self) {}
}

impl Drop for Real {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct MakeReal(Arc<AtomicUsize>);

impl Service<()> for MakeReal {
    type Response = Real;
    type Error = Infallible;
    type Future = Ready<Result<Real, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(Real(self.0.clone())))
    }
}

type Instance = Evictable<Real, UntilResponse>;

/// The layer, whose instances are due one nanosecond after their last use, and what they share.
struct Ground {
    host: Arc<Host>,
    layer: IdleEvictLayer<UntilResponse>,
    gone: Arc<AtomicUsize>,
}

fn ground() -> (Ground, IdleEvict) {
    let host = Host::new();
    let (layer, idle_evict) = IdleEvict::pair(host.runtime(), UntilResponse);
    let ground = Ground {
        host,
        layer: layer.idle_after(Duration::from_nanos(1)),
        gone: Arc::default(),
    };
    (ground, idle_evict)
}

impl Ground {
    /// A new instance, as from now.
    fn make(&self) -> Instance {
        let mut making = pin!(self.layer.layer(MakeReal(self.gone.clone())).call(()));
        match making
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(Ok(made)) => made,
            _ => panic!("it is made at once"),
        }
    }
}

/// Waits until it is retired, as its owner does, and drops it.
fn own(instance: Instance) -> thread::JoinHandle<Retired> {
    thread::spawn(move || {
        let retired = block_on(instance.retired());
        drop(instance);
        retired
    })
}

fn for_age(retired: &Retired) -> bool {
    matches!(retired, Retired::Evicted(Eviction::Idle))
}

#[test]
fn what_is_due_is_closed_or_used_and_never_both() {
    crate::with::model(|| {
        let (ground, mut idle_evict) = ground();
        let instance = ground.make();
        let usage = instance.usage().unwrap();
        ground.host.set_time(10);
        let caller = {
            let usage = usage.clone();
            thread::spawn(move || match Busy::claim(&usage, true) {
                Some(busy) => {
                    assert!(!usage.look().is_closed());
                    drop(busy);
                    true
                }
                None => false,
            })
        };
        let swept = block_on(idle_evict.call(Sweep)).unwrap();
        let closed = !swept.retired().is_empty();
        let used = caller.join().unwrap();
        assert_eq!(usage.look().is_closed(), closed);
        assert!(used || closed, "refused, and nobody closed it");
        if used {
            // It was used at 10.
            assert!(!closed, "it was closed in use, or was not due any more");
        }
    });
}

#[test]
fn a_sweeper_that_rests_hears_of_what_comes() {
    crate::with::model(|| {
        let (ground, idle_evict) = ground();
        let sweeper = thread::spawn(move || block_on(idle_evict.run()));
        let owner = own(ground.make());
        ground.host.let_time_pass();
        assert!(for_age(&owner.join().unwrap()));
        drop(ground);
        sweeper.join().unwrap();
    });
}

#[test]
fn a_sweeper_hears_of_an_earlier_bound() {
    crate::with::model(|| {
        let (mut ground, idle_evict) = ground();
        ground.layer = ground.layer.idle_after(None);
        let instance = ground.make();
        ground.host.set_time(10);
        let usage = instance.usage().unwrap();
        let sweeper = thread::spawn(move || block_on(idle_evict.run()));
        usage.set_idle_after(Some(Duration::from_nanos(1)));
        assert!(for_age(&block_on(instance.retired())));
        drop((instance, ground));
        sweeper.join().unwrap();
    });
}

/// The use began before it was due, and its end is no sign that anybody wants it.
#[test]
fn a_sweeper_hears_of_the_end_of_what_was_no_use() {
    crate::with::model(|| {
        let (ground, idle_evict) = ground();
        let instance = ground.make();
        let usage = instance.usage().unwrap();
        let busy = Busy::claim(&usage, false);
        ground.host.set_time(10);
        let sweeper = thread::spawn(move || block_on(idle_evict.run()));
        drop(busy);
        assert!(for_age(&block_on(instance.retired())));
        drop((instance, ground));
        sweeper.join().unwrap();
    });
}

#[test]
fn a_stop_waits_for_what_was_swept_and_for_nothing_else() {
    crate::with::model(|| {
        let (ground, idle_evict) = ground();
        let due = ground.make();
        let usage = due.usage().unwrap();
        ground.host.set_time(10);
        let signal = Arc::new(Signal::default());
        let sweeper = {
            let (signal, gone) = (signal.clone(), ground.gone.clone());
            thread::spawn(move || {
                block_on(idle_evict.run_until(signal.given()));
                gone.load(SeqCst)
            })
        };
        let owner = own(due);
        signal.give();
        let gone = sweeper.join().unwrap();
        // It was closed by a sweep, or it is there.
        assert_eq!(usage.look().is_closed(), gone == 1);
        usage.close_now();
        owner.join().unwrap();
    });
}

#[test]
fn a_sweep_meets_registrations_that_come_and_go() {
    crate::with::model(|| {
        let (ground, mut idle_evict) = ground();
        let due = ground.make();
        ground.host.set_time(10);
        let goes = thread::spawn(move || drop(due));
        let comes = ground.make();
        let swept = block_on(idle_evict.call(Sweep)).unwrap();
        goes.join().unwrap();
        block_on(swept.gone());
        assert!(!comes.usage().unwrap().look().is_closed());
        assert_eq!(ground.layer.status().len(), 1);
    });
}

#[test]
fn a_sweeper_ends_when_nothing_can_come_any_more() {
    crate::with::model(|| {
        let (ground, idle_evict) = ground();
        let instance = ground.make();
        let sweeper = thread::spawn(move || block_on(idle_evict.run()));
        let last = thread::spawn(move || drop(instance));
        drop(ground);
        last.join().unwrap();
        sweeper.join().unwrap();
    });
}
