//! `CeilingLayer`: one limit, shared by all its clones.

use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use super::{
    room::Room,
    service::Ceiling,
    state::Occupancy,
    status::Status,
    weight::{By, Fixed, SaysWeight, Unweighed},
};
use crate::runtime::Runtime;

/// Admits only as many instances as there is room for.
///
/// It wraps the maker of a [`Backend`](crate::Backend). A start takes room before the instance exists
/// and gives it back when the instance is gone: starting, running, draining and stopping all count. If
/// there is none, the coldest idle instance under the same limit is stopped for it (this needs
/// `IdleEvict` above, which knows who is idle: without it, or with it below, nobody is); if none is idle
/// the start waits, in arrival order, until its `wait` is over. No call in flight is ever cut.
///
/// The limit belongs to the layer and is shared by its clones; the options belong to the clone they are
/// set on, so each stack can have its own.
///
/// # Order
///
/// Starts are served in the order in which they asked. One that is heavy holds up lighter ones behind
/// it until it fits or gives up: otherwise it might never be served. Room that comes back is handed to
/// the first in line there and then, by an event, never found by polling. What is pinned and kept running
/// (`LazyStartLayer::keep_running`) keeps its room through a crash, and goes before all others.
///
/// # Victims
///
/// An instance is stopped for room only if it is idle, and only if what is idle suffices for the first in
/// line; the one whose last use ended first goes first. Never stopped are pinned ones, those that nobody has used yet, those whose
/// uses nobody counts (a stack without `IdleEvict`), and those of other ceilings; they count all the same.
///
/// # Under other parts
///
/// It works under anything that calls makers, hyper-util's pools for one, with `KeepLayer` on top. A
/// stack with two ceilings takes room of the outer one first and holds it while it waits for the other.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use std::time::Duration;
/// use tower_on_demand::{CeilingLayer, Runtime};
///
/// let ceiling = CeilingLayer::new(Runtime::tokio(), 8);
/// let patient = ceiling.clone().wait(Duration::from_secs(60));
/// let heavy = ceiling.clone().weight(4);
/// # let _ = (patient, heavy);
/// # }
/// ```
#[derive(Clone)]
pub struct CeilingLayer<W = Fixed> {
    room: Arc<Room>,
    weigh: W,
    options: Arc<Options>,
}

/// What all stacks of one clone share.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) runtime: Runtime,
    pub(super) wait: Duration,
    pub(super) max_waiting: Option<usize>,
    pub(super) strict: bool,
    pub(super) yield_after: Option<Duration>,
    pub(super) min_residency: Duration,
}

impl CeilingLayer {
    /// Room for `limit` units. Every start weighs 1, unless its stack says otherwise.
    ///
    /// A limit of 0 admits nothing.
    pub fn new(runtime: Runtime, limit: u64) -> Self {
        Self::with(runtime, limit, Fixed(1))
    }

    /// Room without end: it counts, and [`set_limit`](Self::set_limit) can bound it later.
    pub fn unbounded(runtime: Runtime) -> Self {
        Self::new(runtime, u64::MAX)
    }
}

impl CeilingLayer<Unweighed> {
    /// As [`CeilingLayer::new`], for limits that are not head counts (MiB, say): a stack that does not
    /// say what it weighs, by [`weight`](Self::weight) or [`weigh`](Self::weigh), does not compile.
    ///
    /// ```
    /// # use std::{convert::Infallible, future::ready};
    /// # use tower::{Layer, Service, service_fn};
    /// # use tower_on_demand::{CeilingLayer, DropToStop, Runtime};
    /// # fn example(runtime: Runtime) {
    /// # let maker = service_fn(|_: String| ready(Ok::<_, Infallible>(DropToStop::new(()))));
    /// let memory = CeilingLayer::weighed(runtime, 4096);
    /// let mut small = memory.clone().weight(150).layer(maker);
    /// let mut by_name = memory.weigh(|name: &String| if name == "index" { 2048 } else { 256 }).layer(maker);
    /// let _ = small.call("echo".to_owned());
    /// # let _ = by_name.call("index".to_owned());
    /// # }
    /// ```
    ///
    /// This one forgot:
    ///
    /// ```compile_fail,E0599
    /// # use std::{convert::Infallible, future::ready};
    /// # use tower::{Layer, Service, service_fn};
    /// # use tower_on_demand::{CeilingLayer, DropToStop, Runtime};
    /// # fn example(runtime: Runtime) {
    /// # let maker = service_fn(|_: String| ready(Ok::<_, Infallible>(DropToStop::new(()))));
    /// let memory = CeilingLayer::weighed(runtime, 4096);
    /// let _ = tower::ServiceBuilder::new().layer(memory).service(maker);
    /// # }
    /// ```
    pub fn weighed(runtime: Runtime, limit: u64) -> Self {
        Self::with(runtime, limit, Unweighed)
    }
}

impl<W> CeilingLayer<W> {
    fn with(runtime: Runtime, limit: u64, weigh: W) -> Self {
        // Not the recency clock: waits are the timer's.
        let clock = Arc::new(runtime.timer_clock());
        Self {
            room: Room::new(limit, clock),
            weigh,
            options: Arc::new(Options {
                runtime,
                wait: Duration::from_secs(10),
                max_waiting: None,
                strict: false,
                yield_after: None,
                min_residency: Duration::ZERO,
            }),
        }
    }

    /// Every start of this stack weighs `weight` units.
    ///
    /// One that weighs more than the whole limit is refused at once, with
    /// [`NeverFits`](crate::ErrorKind::NeverFits), and nothing is stopped for it.
    #[must_use]
    pub fn weight(self, weight: u64) -> CeilingLayer<Fixed> {
        self.weighing(Fixed(weight))
    }

    /// A start weighs what `weigh` says of its target: any `Fn(&Target) -> u64`.
    ///
    /// It is asked once per start, outside of all locks.
    #[must_use]
    pub fn weigh<F>(self, weigh: F) -> CeilingLayer<By<F>> {
        self.weighing(By(weigh))
    }

    fn weighing<V>(self, weigh: V) -> CeilingLayer<V> {
        CeilingLayer {
            room: self.room,
            weigh,
            options: self.options,
        }
    }

    fn options(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.options)
    }

    /// How long a start of this stack waits for room, from asking for it. 10 s unless set;
    /// `Duration::MAX` is for ever.
    ///
    /// When it is over the start is refused with [`NoRoom`](crate::ErrorKind::NoRoom) and the numbers.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options().wait = wait;
        self
    }

    /// How many starts may wait under this limit, of whatever stack, for one of this stack to join
    /// them. Beyond, it is refused at once with [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting).
    /// Unbounded unless set.
    ///
    /// A start for which something idle is being stopped waits as well, if only for that.
    #[must_use]
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.options().max_waiting = Some(max_waiting);
        self
    }

    /// Never exceeds the limit for a start of this stack.
    ///
    /// Without it, a start that could never get room, since everything that holds it is explicitly
    /// pinned and nothing is starting or stopping, is admitted over the limit: a host is better over its
    /// budget than deaf. The first instance that is no longer in use then goes, for
    /// [`Eviction::Over`](crate::Eviction::Over).
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.options().strict = true;
        self
    }

    /// After a start of this stack has waited `after`, the coldest *busy* instance yields: calls in
    /// flight on it finish, new ones wait, and when none is left it goes. So endless traffic to one
    /// backend does not starve another. If the start leaves, the instance serves on. Off unless set.
    #[must_use]
    pub fn yield_after(mut self, after: Duration) -> Self {
        self.options().yield_after = Some(after);
        self
    }

    /// For this long from being ready, an instance of this stack is not evicted for room (it still is
    /// for age, and to get back under the limit). It keeps a tight ceiling from thrashing. Off unless
    /// set.
    #[must_use]
    pub fn min_residency(mut self, residency: Duration) -> Self {
        self.options().min_residency = residency;
        self
    }

    /// Changes the limit, for all who share it.
    ///
    /// Below what runs, idle instances are retired until it is kept, and busy ones when they fall idle;
    /// none is cut. Starts in line that can never fit any more are refused.
    pub fn set_limit(&self, limit: u64) {
        self.room.set_limit(limit);
    }

    /// The limit, in units.
    pub fn limit(&self) -> u64 {
        self.room.limit()
    }

    /// How the room stands now.
    pub fn occupancy(&self) -> Occupancy {
        self.room.occupancy()
    }

    /// Who holds the room now, and who waits for it.
    ///
    /// It looks at every holder: for people and dashboards, not for each call.
    pub fn status(&self) -> Status {
        self.room.status()
    }
}

impl<M, W: SaysWeight> Layer<M> for CeilingLayer<W> {
    type Service = Ceiling<M, W>;

    fn layer(&self, maker: M) -> Self::Service {
        Ceiling::new(
            maker,
            self.room.clone(),
            self.weigh.clone(),
            self.options.clone(),
        )
    }
}

impl<W> fmt::Debug for CeilingLayer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CeilingLayer")
            .field("occupancy", &self.occupancy())
            .field("wait", &self.options.wait)
            .finish_non_exhaustive()
    }
}
