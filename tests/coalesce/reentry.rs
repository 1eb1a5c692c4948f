//! Code of the user's that calls into the layer from everywhere, and keys that look alike.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    hash::{Hash, Hasher},
    pin::Pin,
    rc::Rc,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use futures_util::FutureExt;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_on_demand::{CoalesceLayer, Error, ErrorKind};

use crate::inner::{Ask, Broken, Inner, Name, assert_empty, call, done, kind, pending, stack};

thread_local! {
    /// What keys and values call, wherever they are touched.
    static HOOK: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static TOUCHED: Cell<usize> = const { Cell::new(0) };
}

/// Calls the hook, unless within it.
fn touch() {
    let hook = HOOK.with_borrow(Clone::clone);
    if let (Some(hook), 0) = (hook, DEPTH.get()) {
        TOUCHED.set(TOUCHED.get() + 1);
        DEPTH.set(1);
        hook();
        DEPTH.set(0);
    }
}

/// A key whose every operation calls into the layer.
struct Key(Name);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        touch();
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        touch();
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        touch();
    }
}

/// A value that does the same.
struct Value;

impl Clone for Value {
    fn clone(&self) -> Self {
        touch();
        Self
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        touch();
    }
}

#[test]
fn c11_keys_and_values_that_call_into_the_layer_deadlock_nothing() {
    let inner = service_fn(|_: Ask| async { Ok::<_, Broken>(Value) });
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(Key(ask.0))).with_handle();
    let service = layer.layer(inner);
    let hooked = service.clone();
    HOOK.set(Some(Rc::new(move || {
        for name in ["a", "b"] {
            // Ready at the first poll, or dropped without one.
            let answer = hooked.clone().call(Ask(name)).now_or_never();
            assert!(answer.is_some_and(|answer| answer.is_ok()));
            drop(hooked.clone().call(Ask(name)));
        }
    })));
    let mut service = service;
    for _ in 0..2 {
        let mut calls: Vec<_> = (0..3).map(|_| call(&mut service, "a")).collect();
        drop(call(&mut service, "b"));
        for call in &mut calls {
            drop(done(call));
        }
    }
    // Equal keys were compared, too, and an unequal one was dropped.
    let left = call(&mut service, "a");
    drop(call(&mut service, "a"));
    drop(left);
    HOOK.set(None);
    assert!(TOUCHED.get() > 20, "{}", TOUCHED.get());
    assert_empty(&handle);
}

type Boxed = Pin<Box<dyn Future<Output = Result<Name, Error>>>>;
type Above = Rc<RefCell<Option<Box<dyn Fn(Name) -> Boxed>>>>;

/// A service that calls the layer above it, with the key that is asked for behind a `>`.
fn through(
    above: &Above,
    from_call: bool,
) -> impl Service<Ask, Response = Name, Error = Error, Future = Boxed> + Clone + use<> {
    let above = above.clone();
    service_fn(move |ask: Ask| -> Boxed {
        let above = above.clone();
        let Some((_, inner)) = ask.0.split_once('>') else {
            return Box::pin(async move { Ok(ask.0) });
        };
        let again = move || above.borrow().as_ref().expect("set")(inner);
        if from_call {
            let future = again();
            Box::pin(future)
        } else {
            Box::pin(async move { again().await })
        }
    })
}

#[test]
fn c12_a_call_from_within_a_flight_works_with_another_key_and_is_reentrant_with_its_own() {
    for from_call in [false, true] {
        let above = Above::default();
        // "a>b" asks for "b"; the identity is what stands before `>`, so "a>a" asks for itself.
        let layer = CoalesceLayer::new(|ask: &Ask| ask.0.split('>').next().map(str::to_owned));
        let service = layer.layer(through(&above, from_call));
        let hooked = service.clone();
        *above.borrow_mut() = Some(Box::new(move |name| {
            let again = hooked.clone().oneshot(Ask(name));
            Box::pin(again) as Boxed
        }));
        let ask = |name| service.clone().oneshot(Ask(name)).now_or_never();
        assert_eq!(ask("a>b").expect("no hang").unwrap(), "b");
        assert_eq!(ask("a>b>c").expect("no hang").unwrap(), "c");
        assert_eq!(kind(ask("a>a").expect("no hang")), ErrorKind::Reentrant);
        // Through another flight, on the same stack.
        assert_eq!(kind(ask("a>b>a").expect("no hang")), ErrorKind::Reentrant);
        // Shared: a joiner is told the same.
        let (mut one, mut two) = (service.clone(), service.clone());
        let mut one = call(&mut one, "a>a");
        let mut two = call(&mut two, "a>a");
        assert_eq!(kind(done(&mut two)), ErrorKind::Reentrant);
        assert_eq!(kind(done(&mut one)), ErrorKind::Reentrant);
        // Nothing is left of it.
        assert_eq!(ask("a").expect("no hang").unwrap(), "a");
        *above.borrow_mut() = None;
    }
}

#[test]
fn c12_a_joiner_that_is_polled_within_its_own_flight_is_refused_and_nothing_is_left() {
    type Joiner = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
    let joiner = Arc::new(Mutex::new(None::<Joiner>));
    let inside = joiner.clone();
    let inner = service_fn(move |_: Ask| {
        let inside = inside.clone();
        async move {
            let joiner = inside.lock().unwrap().take();
            match joiner {
                Some(joiner) => joiner.await,
                None => Ok(()),
            }
        }
    });
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(ask.0)).with_handle();
    let mut service = layer.layer(inner);
    let mut leader = call(&mut service, "a");
    *joiner.lock().unwrap() = Some(Box::pin(service.call(Ask("a"))));
    assert_eq!(kind(done(&mut leader)), ErrorKind::Reentrant);
    assert_empty(&handle);
}

/// Keys that all have the same hash.
#[derive(PartialEq, Eq)]
struct Alike(Name);

impl Hash for Alike {
    fn hash<H: Hasher>(&self, state: &mut H) {
        0.hash(state);
    }
}

#[test]
fn c18_keys_with_the_same_hash_stay_apart() {
    let inner = Inner::new();
    let names = ["a", "b", "c", "d"];
    let (layer, handle) = CoalesceLayer::new(|ask: &Ask| Some(Alike(ask.0))).with_handle();
    let mut service = layer.layer(inner.clone());
    let mut leaders: Vec<_> = names.map(|name| call(&mut service, name)).into();
    leaders.iter_mut().for_each(pending);
    let mut joiners: Vec<_> = names.map(|name| call(&mut service, name)).into();
    joiners.iter_mut().for_each(pending);
    assert_eq!(inner.names(), names);
    let counts = handle.statistics();
    assert_eq!((counts.led, counts.joined, counts.left_early), (4, 4, 0));
    for n in [2, 0, 3, 1] {
        inner.answer(n);
        assert_eq!(done(&mut joiners[n]).unwrap().call, n);
        assert_eq!(done(&mut leaders[n]).unwrap().call, n);
        assert_eq!((leaders[n].wakes(), joiners[n].wakes()), (1, 1));
    }
    assert_empty(&handle);
}

#[test]
fn a_key_that_panics_harms_nobody() {
    thread_local! {
        static FRAGILE: Cell<bool> = const { Cell::new(false) };
    }
    struct Fragile;
    impl Hash for Fragile {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }
    impl PartialEq for Fragile {
        fn eq(&self, _: &Self) -> bool {
            assert!(!FRAGILE.get(), "the comparison panics");
            true
        }
    }
    impl Eq for Fragile {}
    let inner = Inner::new();
    let (layer, handle) = CoalesceLayer::new(|_: &Ask| Some(Fragile)).with_handle();
    let mut service = layer.layer(inner.clone());
    let mut leader = call(&mut service, "a");
    pending(&mut leader);
    FRAGILE.set(true);
    let panic = crate::inner::panics(|| service.call(Ask("a")));
    assert_eq!(panic, "the comparison panics");
    FRAGILE.set(false);
    assert_eq!(handle.statistics().waiting, 1);
    inner.answer(0);
    assert_eq!(done(&mut leader).unwrap().call, 0);
    assert_empty(&handle);
}

#[test]
fn a_drop_of_the_inner_future_may_call_the_layer_with_its_own_key() {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let gate = Inner::new();
    let again = Rc::new(RefCell::new(None::<Box<dyn Fn() -> Option<ErrorKind>>>));
    let said = Rc::new(RefCell::new(Vec::new()));
    let inner = {
        let (gate, again, said) = (gate.clone(), again.clone(), said.clone());
        service_fn(move |ask: Ask| {
            let answer = gate.clone().call(ask);
            let (again, said) = (again.clone(), said.clone());
            let on_drop = OnDrop(move || {
                let again = again.borrow_mut().take();
                if let Some(again) = again {
                    said.borrow_mut().push(again());
                }
            });
            async move {
                let _on_drop = on_drop;
                answer.await
            }
        })
    };
    let layer = CoalesceLayer::new(|ask: &Ask| Some(ask.0));
    let mut service = layer.layer(inner);
    let hooked = service.clone();
    let call_again = move || {
        let answer = hooked.clone().call(Ask("a")).now_or_never()?;
        answer.err().map(|error| error.kind().clone())
    };
    // Abandoned: it leads another.
    let mut one = call(&mut service, "a");
    pending(&mut one);
    *again.borrow_mut() = Some(Box::new(call_again.clone()));
    drop(one);
    assert_eq!(gate.calls(), 2);
    assert_eq!(*said.borrow(), [None]);
    // In its last poll: it would wait for itself.
    let mut two = call(&mut service, "a");
    pending(&mut two);
    *again.borrow_mut() = Some(Box::new(call_again));
    gate.answer(2);
    done(&mut two).unwrap();
    assert_eq!(*said.borrow(), [None, Some(ErrorKind::Reentrant)]);
    assert_eq!((gate.calls(), gate.live()), (3, 0));
}

#[test]
fn a_response_future_that_is_dropped_unpolled_leaves() {
    let (mut service, handle) = stack(Inner::new());
    let leader = service.call(Ask("a"));
    let joiner = service.call(Ask("a"));
    drop(leader);
    assert_eq!(handle.statistics().waiting, 1);
    drop(joiner);
    assert_empty(&handle);
}

#[test]
fn a_waker_may_drop_its_own_caller() {
    let inner = Inner::new();
    let (mut service, handle) = stack(inner.clone());
    let slot = Arc::new(Mutex::new(None));
    type Caller = Pin<Box<dyn Future<Output = ()> + Send>>;
    struct DropIt(Arc<Mutex<Option<Caller>>>);
    impl std::task::Wake for DropIt {
        fn wake(self: Arc<Self>) {
            let gone = self.0.lock().unwrap().take();
            drop(gone);
        }
    }
    let waker = Waker::from(Arc::new(DropIt(slot.clone())));
    let future = service.call(Ask("a"));
    let mut joiner = call(&mut service, "a");
    let mut future: Caller = Box::pin(future.map(drop));
    assert_eq!(
        future.as_mut().poll(&mut Context::from_waker(&waker)),
        Poll::Pending
    );
    *slot.lock().unwrap() = Some(future);
    pending(&mut joiner);
    inner.answer(0);
    assert!(slot.lock().unwrap().is_none());
    assert_eq!(done(&mut joiner).unwrap().call, 0);
    assert_empty(&handle);
}
