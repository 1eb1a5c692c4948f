//! `CoalesceHandle`: an identity space from outside its stack.

use std::{
    borrow::Borrow,
    fmt,
    future::Future,
    hash::{BuildHasher, Hash, Hasher},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use hashbrown::DefaultHashBuilder;
use tower_service::Service;

use super::common::{Common, Here};
use crate::{identity::Identity, sync::atomic::Ordering, wakers::Key};

/// Forgets, shuts down and counts, from outside the stack.
///
/// From [`CoalesceLayer::with_handle`](super::CoalesceLayer::with_handle). Clones are the same handle.
///
/// ```
/// use tower::{Layer, service_fn};
/// use tower_on_demand::CoalesceLayer;
///
/// let (layer, handle) = CoalesceLayer::new(|name: &String| Some(name.clone())).with_handle();
/// let service = layer.layer(service_fn(|name: String| async move {
///     Ok::<_, std::io::Error>(name.len())
/// }));
///
/// // The file was written anew: who asks from now on shall not be given what was read before.
/// handle.forget("report.csv");
/// assert_eq!(handle.statistics().led, 0);
/// # drop(service);
/// ```
pub struct CoalesceHandle<K> {
    hub: Arc<Hub<K>>,
}

/// Counts of an identity space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Statistics {
    /// Calls that led: inner calls made for whoever asks the same.
    pub led: u64,
    /// Calls that joined one.
    pub joined: u64,
    /// Calls without a key, which passed by.
    pub passed_by: u64,
    /// Callers that left before the outcome.
    pub left_early: u64,
    /// Inner calls in existence now, those without a key not counted.
    pub in_flight: usize,
    /// Callers that wait for them now.
    pub waiting: usize,
    /// Outcomes that can be joined though their call has landed: those that linger, expired ones included
    /// that nothing has touched since, and those whose body is being read.
    pub lingering: usize,
}

/// The spaces that were made of one layer: one, unless options were changed after its first use.
pub(super) struct Hub<K> {
    state: Mutex<State<K>>,
}

struct State<K> {
    spaces: Vec<Arc<dyn Control<K>>>,
    shut: bool,
}

/// An identity space, without its types.
trait Control<K>: Send + Sync {
    fn forget(&self, probe: &dyn Probe<K>) -> bool;
    fn waiting(&self, probe: &dyn Probe<K>) -> usize;
    fn statistics(&self) -> Statistics;
    fn shut(&self);
    fn poll_ended(&self, place: &mut Key, waker: &Waker) -> Poll<()>;
    fn forget_ended(&self, place: &mut Key);
}

/// A key that is looked for.
trait Probe<K> {
    fn hash(&self, hasher: &DefaultHashBuilder) -> u64;
    fn is(&self, key: &K) -> bool;
}

impl<K, Q> Probe<K> for &Q
where
    K: Borrow<Q>,
    Q: Eq + Hash + ?Sized,
{
    fn hash(&self, hasher: &DefaultHashBuilder) -> u64 {
        let mut hasher = hasher.build_hasher();
        Hash::hash(*self, &mut hasher);
        hasher.finish()
    }

    fn is(&self, key: &K) -> bool {
        key.borrow() == *self
    }
}

/// A space, as its handle knows it.
struct Held<S, I, Req, P, D>(Here<S, I, Req, P, D>)
where
    S: Service<Req>,
    I: Identity<Req>;

impl<S, I, Req, P, D> Control<I::Key> for Held<S, I, Req, P, D>
where
    S: Service<Req> + Send,
    S::Future: Send,
    S::Response: Send,
    I: Identity<Req> + Send + Sync,
    I::Key: Send + Sync,
    Req: Send,
    P: Send + Sync,
    D: Send + Sync,
{
    fn forget(&self, probe: &dyn Probe<I::Key>) -> bool {
        let hash = probe.hash(&self.0.hasher);
        self.0.space.forget(&self.0, hash, |key| probe.is(key))
    }

    fn waiting(&self, probe: &dyn Probe<I::Key>) -> usize {
        let hash = probe.hash(&self.0.hasher);
        self.0.space.waiting(&self.0, hash, |key| probe.is(key))
    }

    fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    fn shut(&self) {
        self.0.space.shut(&self.0);
    }

    fn poll_ended(&self, place: &mut Key, waker: &Waker) -> Poll<()> {
        self.0.space.poll_ended(place, waker)
    }

    fn forget_ended(&self, place: &mut Key) {
        self.0.space.forget_ended(place);
    }
}

impl<S, I, Req, P, D> Common<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    pub(super) fn statistics(&self) -> Statistics {
        let standing = self.space.standing();
        Statistics {
            led: standing.counts.led,
            joined: standing.counts.joined,
            passed_by: self.passed.0.load(Ordering::Relaxed),
            left_early: standing.counts.left,
            in_flight: standing.running,
            waiting: standing.waiting,
            lingering: standing.kept,
        }
    }
}

impl<K> Hub<K> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                spaces: Vec::new(),
                shut: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spaces(&self) -> Vec<Arc<dyn Control<K>>> {
        self.state().spaces.clone()
    }

    fn add(&self, space: Arc<dyn Control<K>>) {
        let shut = {
            let mut state = self.state();
            state.spaces.push(space.clone());
            state.shut
        };
        if shut {
            space.shut();
        }
    }
}

/// Tells a handle of a new space.
pub(super) fn attach<S, I, Req, P, D>(hub: &Hub<I::Key>, common: &Here<S, I, Req, P, D>)
where
    S: Service<Req> + Send + 'static,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: 'static,
    I: Identity<Req> + Send + Sync + 'static,
    I::Key: Send + Sync + 'static,
    Req: Send + 'static,
    P: Send + Sync + 'static,
    D: Send + Sync + 'static,
{
    hub.add(Arc::new(Held(common.clone())));
}

impl<K> CoalesceHandle<K> {
    pub(super) fn new(hub: Arc<Hub<K>>) -> Self {
        Self { hub }
    }

    /// Nobody joins the call in flight for `key` any more, and what lingers of it is gone: the next
    /// call is made anew. Those who wait already get their outcome, which will not linger. False if
    /// there was nothing to forget.
    pub fn forget<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let mut forgotten = false;
        for space in self.hub.spaces() {
            forgotten |= space.forget(&key);
        }
        forgotten
    }

    /// How many callers wait for the call in flight that a call with `key` would join.
    pub fn waiting<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let spaces = self.hub.spaces();
        spaces.iter().map(|space| space.waiting(&key)).sum()
    }

    /// The counts. Takes every lock of the table in turn: for dashboards, not for each call.
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::default();
        for space in self.hub.spaces() {
            let one = space.statistics();
            sum.led += one.led;
            sum.joined += one.joined;
            sum.passed_by += one.passed_by;
            sum.left_early += one.left_early;
            sum.in_flight += one.in_flight;
            sum.waiting += one.waiting;
            sum.lingering += one.lingering;
        }
        sum
    }

    /// Ends every call in flight: its inner call is dropped and all who wait get
    /// [`ShutDown`](crate::ErrorKind::ShutDown), as does every later call that has a key. (Calls
    /// without one pass by as ever.) Again is harmless.
    ///
    /// It takes effect at once. Await what it returns to know that no inner call is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing back.
    pub fn shutdown(&self) -> Shutdown<K> {
        let spaces = {
            let mut state = self.hub.state();
            state.shut = true;
            state.spaces.clone()
        };
        for space in &spaces {
            space.shut();
        }
        Shutdown {
            spaces,
            place: None,
        }
    }
}

impl<K> Clone for CoalesceHandle<K> {
    fn clone(&self) -> Self {
        Self::new(self.hub.clone())
    }
}

impl<K> fmt::Debug for CoalesceHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoalesceHandle")
            .field("statistics", &self.statistics())
            .finish()
    }
}

/// Ready when no inner call is left: see [`CoalesceHandle::shutdown`].
#[must_use = "await it to know that no inner call is left"]
pub struct Shutdown<K> {
    spaces: Vec<Arc<dyn Control<K>>>,
    /// In the last of them.
    place: Key,
}

impl<K> Future for Shutdown<K> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self.get_mut();
        while let Some(space) = this.spaces.last() {
            ready!(space.poll_ended(&mut this.place, cx.waker()));
            this.spaces.pop();
        }
        Poll::Ready(())
    }
}

impl<K> Drop for Shutdown<K> {
    fn drop(&mut self) {
        if let Some(space) = self.spaces.last() {
            space.forget_ended(&mut self.place);
        }
    }
}

impl<K> fmt::Debug for Shutdown<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown").finish_non_exhaustive()
    }
}
