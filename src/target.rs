//! `Target`: the name of what is started; `Intent`: what its starter says of a start.

use std::{
    any::Any,
    cell::RefCell,
    fmt,
    ops::Deref,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    error::BoxError,
    sync::{Arc, Mutex, lock},
};

/// What a backend is started from, with the name that errors, events and status give it.
///
/// A maker (`MakeService`) gets a clone of it at every start. Strings are their own names; anything
/// else gets one by [`Named`] or by an impl of its own. (`LazyStartLayer::name` calls the backend
/// something else than its target.)
///
/// ```
/// use tower_on_demand::{Named, Target};
///
/// let target = Named::new("probe", 8080_u16);
/// assert_eq!(target.name(), "probe");
/// assert_eq!(*target, 8080);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Target`: it has no name",
    label = "has no name",
    note = "`Named::new(name, value)` gives one to any `Clone` value"
)]
pub trait Target: Clone + Send + 'static {
    /// The name.
    fn name(&self) -> &str;

    /// Whether it can be started at all. Asked at each start, before there is any question of room, so that
    /// nothing is stopped for what is sure to fail. Default: it can.
    ///
    /// # Errors
    ///
    /// What is wrong; the start fails with it, as [`StartFailed`](crate::ErrorKind::StartFailed).
    fn validate(&self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl Target for String {
    fn name(&self) -> &str {
        self
    }
}

impl Target for &'static str {
    fn name(&self) -> &str {
        self
    }
}

impl Target for Arc<str> {
    fn name(&self) -> &str {
        self
    }
}

/// For makers that always make the same.
impl Target for () {
    fn name(&self) -> &str {
        "backend"
    }
}

/// A target with a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Named<T> {
    name: Arc<str>,
    target: T,
}

impl<T> Named<T> {
    /// `target`, named `name`.
    pub fn new(name: impl Into<Arc<str>>, target: T) -> Self {
        Self {
            name: name.into(),
            target,
        }
    }

    /// The target itself.
    pub fn into_inner(self) -> T {
        self.target
    }
}

impl<T> Deref for Named<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.target
    }
}

impl<T: Clone + Send + 'static> Target for Named<T> {
    fn name(&self) -> &str {
        &self.name
    }
}

/// What the one who starts a backend says of this start to the layers below.
///
/// The layers do not know each other, and a maker is anybody's `Service<Target>`, so it goes along
/// beside the target: set while the maker is called (`call`, not the future), read by whoever is
/// called. A layer that calls from elsewhere, tower's `Buffer` for one, loses it, and the start is
/// an ordinary one.
#[derive(Debug, Clone)]
pub(crate) struct Intent {
    pub(crate) name: Arc<str>,
    pub(crate) urgency: Urgency,
    /// Names this start among all of this process.
    pub(crate) start: StartId,
    /// The start of the instance this one replaces while that still runs.
    pub(crate) replaces: Option<StartId>,
    /// The room of an instance that is gone, for this one to take over.
    pub(crate) room: Option<Room>,
    /// Where the start stands.
    pub(crate) course: Arc<Course>,
}

/// A start's place in the line for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Queued {
    /// The place: 1 is the next to be served.
    pub place: usize,
    /// What those before it weigh, in the units of the ceiling's limit.
    pub ahead: u64,
    /// How long it has waited.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "waited_seconds",
            serialize_with = "crate::serialize::seconds"
        )
    )]
    pub waited: Duration,
}

/// Where a start stands, as the layers beneath tell its starter while it is under way.
#[derive(Default)]
pub(crate) struct Course(Mutex<Waits>);

#[derive(Default)]
struct Waits {
    /// Where it waits for room now.
    line: Option<Arc<dyn Line>>,
    /// How long it has waited before.
    waited: Duration,
}

/// A place in a line.
pub(crate) trait Line: Send + Sync {
    /// `None` once it was left.
    fn queued(&self) -> Option<Queued>;
}

impl Course {
    /// It waits for room in `line`.
    pub(crate) fn waits(&self, line: Arc<dyn Line>) {
        let old = lock(&self.0).line.replace(line);
        drop(old);
    }

    /// It has waited so long for room, and is out of line.
    pub(crate) fn waited_for_room(&self, waited: Duration) {
        let mut waits = lock(&self.0);
        waits.waited += waited;
        let line = waits.line.take();
        drop(waits);
        drop(line);
    }

    pub(crate) fn queued(&self) -> Option<Queued> {
        let line = lock(&self.0).line.clone();
        line?.queued()
    }

    pub(crate) fn waited(&self) -> Duration {
        lock(&self.0).waited
    }
}

impl fmt::Debug for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Course")
            .field("queued", &self.queued())
            .field("waited", &self.waited())
            .finish()
    }
}

/// Names a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StartId(pub(crate) u64);

impl StartId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a start may do to others, and where it stands in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Urgency {
    /// Calls wait for it: room is made for it, in arrival order.
    #[default]
    Demand,
    /// Nobody waits for it: it takes free room or none, and evicts nobody.
    FreeOnly,
    /// What must keep running has crashed: room is made for it, before all others.
    Restart,
}

thread_local! {
    static INTENT: RefCell<Option<Intent>> = const { RefCell::new(None) };
    static ROOM: RefCell<Option<Room>> = const { RefCell::new(None) };
}

/// The room of one start, given back when the last clone is dropped.
///
/// See [`current_room`].
pub type Room = Arc<dyn Any + Send + Sync>;

/// Looks through `room`, which may be that of several ceilings, for one of them.
pub(crate) fn find_room<T>(room: &Room, find: &mut impl FnMut(&dyn Any) -> Option<T>) -> Option<T> {
    match room.downcast_ref::<(Room, Room)>() {
        Some((outer, inner)) => find_room(outer, find).or_else(|| find_room(inner, find)),
        None => find(&**room),
    }
}

/// For makers: the room of the start whose maker is being called on this thread, if there is a
/// [`Ceiling`](crate::Ceiling) above it.
///
/// A maker whose instances take time to be gone (a process that was killed, pods that end) keeps it until they
/// are: so a start that failed or was dropped does not make room for another while its remains are there. It is
/// known while `call` runs, and not in the future.
///
/// ```
/// use std::convert::Infallible;
/// use tower::{service_fn, util::BoxService};
/// use tower_on_demand::{DropToStop, current_room};
///
/// let maker = service_fn(|name: String| {
///     let room = current_room();
///     async move {
///         // … what cleans up after a start that comes to nothing drops it at its end …
///         drop(room);
///         Ok::<_, Infallible>(DropToStop::new(name))
///     }
/// });
/// # let _ = BoxService::new(maker);
/// ```
pub fn current_room() -> Option<Room> {
    ROOM.with_borrow(Clone::clone)
}

/// Runs `call` with `room` as its start's.
pub(crate) fn within_room<R>(room: Room, call: impl FnOnce() -> R) -> R {
    struct Restore(Option<Room>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let ours = ROOM.replace(self.0.take());
            drop(ours);
        }
    }
    let outer = current_room();
    let room: Room = match &outer {
        // A ceiling under another: the start holds room of both.
        Some(outer) => Arc::new((outer.clone(), room)),
        None => room,
    };
    ROOM.set(Some(room));
    let _restore = Restore(outer);
    call()
}

impl Intent {
    /// The intent of the start whose maker is being called on this thread.
    pub(crate) fn current() -> Option<Self> {
        INTENT.with_borrow(Clone::clone)
    }

    /// Runs `call` under this intent.
    pub(crate) fn scope<R>(self, call: impl FnOnce() -> R) -> R {
        struct Restore(Option<Intent>);
        impl Drop for Restore {
            fn drop(&mut self) {
                INTENT.set(self.0.take());
            }
        }
        let _restore = Restore(INTENT.replace(Some(self)));
        call()
    }
}
