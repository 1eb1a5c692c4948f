//! One backend: publishing against those who wait, come and leave, an evictor, and orders.
//!
//! The owner's task, its desk, the slot and the callers' entrance are all there; the instances are
//! `Evictable`, or do not count. Whatever the order: who waited has what he was handed, nothing is stopped
//! while it is in use, and at the end all is given back.

use std::{
    convert::Infallible,
    future::{Future, Ready, poll_fn, ready},
    pin::Pin,
    sync::atomic::{AtomicUsize as Count, Ordering::SeqCst},
    task::{Context, Poll},
    time::Duration,
};

use loom::{
    sync::{Mutex, atomic::AtomicUsize},
    thread,
};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    Error, ErrorKind, UntilResponse,
    backend::{Backend, Stopped},
    host::Host,
    idle_evict::{Evictable, IdleEvict, MakeEvictable},
    lifecycle::{
        Door,
        core::Config,
        desk::{Halt, Supply},
        entrance::{Borrowed, Entrance, Joined},
        instance::Handed,
        maker::Make,
        status::State,
    },
    target::Urgency,
    usage::{Eviction, Usage},
    with::{Arc, until},
};

/// What the instances of a run see.
struct Ground {
    host: Arc<Host>,
    /// The words of those that were made, if they count.
    words: Mutex<Vec<Arc<Usage>>>,
    made: Count,
    stopped: Count,
    in_use: AtomicUsize,
}

impl Ground {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            host: Host::new(),
            words: Mutex::default(),
            made: Count::new(0),
            stopped: Count::new(0),
            in_use: AtomicUsize::new(0),
        })
    }
}

struct Real(Arc<Ground>);

/// What it lends.
#[derive(Clone)]
struct Lent;

impl Service<()> for Lent {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

impl Backend for Real {
    type Lease = Lent;

    fn lease(&self) -> Lent {
        Lent
    }

    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        assert_eq!(self.0.in_use.load(SeqCst), 0, "stopped while it is in use");
        self.0.stopped.fetch_add(1, SeqCst);
        ready(Stopped::Gone)
    }
}

struct MakeReal(Arc<Ground>);

impl Service<()> for MakeReal {
    type Response = Real;
    type Error = Infallible;
    type Future = Ready<Result<Real, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        self.0.made.fetch_add(1, SeqCst);
        ready(Ok(Real(self.0.clone())))
    }
}

type Counted = Evictable<Real, UntilResponse>;

/// Makes instances that count, and shows their words to the evictor.
struct MakeCounted(Arc<Ground>, MakeEvictable<MakeReal, UntilResponse>);

impl Service<()> for MakeCounted {
    type Response = Counted;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Counted, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.1.poll_ready(cx)
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let (ground, making) = (self.0.clone(), self.1.call(()));
        Box::pin(async move {
            let made = making.await?;
            let word = made.usage().expect("it counts");
            ground.words.lock().unwrap().push(word);
            Ok(made)
        })
    }
}

fn door<B: Backend>(ground: &Arc<Ground>, maker: Box<dyn Make<(), B>>) -> Arc<Door<(), B>> {
    let config = Config {
        drain_timeout: Duration::from_secs(3600),
        max_callers: usize::MAX,
        cancel: true,
        ..Config::default()
    };
    let supply = Supply { maker, target: () };
    let runtime = ground.host.runtime();
    Door::open(runtime, "model".into(), Arc::new(config), supply, None)
}

fn plain(ground: &Arc<Ground>) -> Arc<Door<(), Real>> {
    door(ground, Box::new(MakeReal(ground.clone())))
}

fn counted(ground: &Arc<Ground>) -> Arc<Door<(), Counted>> {
    let (layer, _) = IdleEvict::pair(ground.host.runtime(), UntilResponse);
    let maker = layer.layer(MakeReal(ground.clone()));
    door(ground, Box::new(MakeCounted(ground.clone(), maker)))
}

/// A caller who has drawn a place, or was lent an instance at once.
struct Caller<B: Backend> {
    ground: Arc<Ground>,
    door: Arc<Door<(), B>>,
    joined: Result<Joined<B::Lease>, Error>,
}

/// The generation that served it, or why none did.
type Served = Result<u64, Error>;

fn call<B: Backend>(ground: &Arc<Ground>, door: &Arc<Door<(), B>>) -> Caller<B> {
    Caller {
        ground: ground.clone(),
        door: door.clone(),
        joined: door.clone().join(None, Urgency::Demand),
    }
}

impl<B> Caller<B>
where
    B: Backend,
    B::Lease: Service<(), Error: Into<crate::BoxError>>,
{
    /// Uses what it is lent, and goes on to the next instance when that is closed. With `certain`, what one has
    /// waited for is never closed: nobody orders it down.
    fn served(self, certain: bool) -> Served {
        let Self {
            ground,
            door,
            mut joined,
        } = self;
        loop {
            let (mut handed, waited) = match joined? {
                Joined::Lease(handed) => (handed, false),
                Joined::Wait(place) => {
                    let mut place = std::pin::pin!(place);
                    (until(|cx| place.as_mut().poll(cx))?, true)
                }
            };
            if until(|cx| handed.poll_ready(cx)).is_ok() {
                ground.in_use.fetch_add(1, SeqCst);
                let generation = handed.generation;
                ground.in_use.fetch_sub(1, SeqCst);
                return Ok(generation);
            }
            assert!(!(certain && waited), "what was handed over was not claimed");
            let not = Some(handed.generation);
            drop(handed);
            joined = door.clone().join(not, Urgency::Demand);
        }
    }
}

/// Makes room of the instance, if it may. Whether it has closed it.
fn evict(ground: &Ground) -> bool {
    let word = ground.words.lock().unwrap().last().cloned();
    word.is_some_and(|word| {
        let look = word.look();
        let idle = look.is_idle() && !look.is_born();
        idle && word.start_closing(look, Eviction::Room).is_some()
    })
}

/// Everybody has left: the owner brings down what is up, and rests.
fn end<B: Backend>(ground: &Arc<Ground>, door: Arc<Door<(), B>>, executor: thread::JoinHandle<()>) {
    let core = door.core.clone();
    drop(door);
    ground.host.close();
    executor.join().unwrap();
    let status = core.status();
    assert_eq!(status.state, State::Stopped);
    assert_eq!((status.waiting, status.in_flight), (0, None));
    assert_eq!(Arc::strong_count(&core), 1, "somebody holds it");
    assert_eq!(ground.made.load(SeqCst), ground.stopped.load(SeqCst));
    let words = ground.words.lock().unwrap();
    assert!(words.iter().all(|word| word.look().is_drained()));
}

#[test]
fn who_waits_and_who_comes_as_it_is_published_are_lent_the_same_instance() {
    crate::with::model(|| {
        let ground = Ground::new();
        let door = plain(&ground);
        let waits = call(&ground, &door);
        let executor = ground.host.executor();
        let comes = {
            let (ground, door) = (ground.clone(), door.clone());
            thread::spawn(move || call(&ground, &door).served(true))
        };
        assert_eq!(waits.served(true).unwrap(), 1);
        assert_eq!(comes.join().unwrap().unwrap(), 1);
        end(&ground, door, executor);
        assert_eq!(ground.made.load(SeqCst), 1);
    });
}

#[test]
fn what_was_published_is_taken_from_nobody_who_waited() {
    crate::with::model(|| {
        let ground = Ground::new();
        let door = counted(&ground);
        let waits = call(&ground, &door);
        let also = call(&ground, &door);
        let executor = ground.host.executor();
        let evictor = {
            let ground = ground.clone();
            thread::spawn(move || evict(&ground))
        };
        assert_eq!(waits.served(true).unwrap(), 1);
        assert_eq!(also.served(true).unwrap(), 1);
        evictor.join().unwrap();
        end(&ground, door, executor);
        assert_eq!(ground.made.load(SeqCst), 1);
    });
}

#[test]
fn who_leaves_as_it_is_published_leaves_nothing_behind() {
    crate::with::model(|| {
        let ground = Ground::new();
        let door = counted(&ground);
        let leaves = call(&ground, &door);
        let executor = ground.host.executor();
        let comes = {
            let (ground, door) = (ground.clone(), door.clone());
            thread::spawn(move || call(&ground, &door).served(true))
        };
        drop(leaves);
        comes.join().unwrap().unwrap();
        end(&ground, door, executor);
    });
}

/// The instance is running and idle, and has served once.
fn running<B>(ground: &Arc<Ground>, door: &Arc<Door<(), B>>) -> thread::JoinHandle<()>
where
    B: Backend,
    B::Lease: Service<(), Error: Into<crate::BoxError>>,
{
    let waits = call(ground, door);
    let executor = ground.host.executor();
    assert_eq!(waits.served(true).unwrap(), 1);
    executor
}

#[test]
fn who_finds_it_closed_is_lent_the_next_one() {
    crate::with::model(|| {
        let ground = Ground::new();
        let door = counted(&ground);
        // How it came up is for the models above.
        loom::stop_exploring();
        let executor = running(&ground, &door);
        loom::explore();
        let comes = {
            let (ground, door) = (ground.clone(), door.clone());
            thread::spawn(move || call(&ground, &door).served(true))
        };
        let evicted = evict(&ground);
        let served = comes.join().unwrap().unwrap();
        end(&ground, door, executor);
        assert_eq!(served as usize, ground.made.load(SeqCst));
        assert!(
            served == 1 || evicted,
            "another one, and nobody closed the first"
        );
    });
}

#[test]
fn an_order_to_stop_meets_who_comes_as_it_is_published() {
    crate::with::model(|| {
        let ground = Ground::new();
        let door = plain(&ground);
        let waits = call(&ground, &door);
        let executor = ground.host.executor();
        let order = {
            let door = door.clone();
            thread::spawn(move || door.core.halt(Halt::Stop, None, |_| {}))
        };
        match waits.served(false) {
            Ok(_) => {}
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Stopped), "{error}"),
        }
        order.join().unwrap();
        end(&ground, door, executor);
    });
}
