//! `Handle`: orders to a backend from outside its stack.

use std::{
    any::Any,
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind},
    lifecycle::{
        control::{Control, Held, Outcome},
        status::{State, Status},
    },
    target::Urgency,
};

/// Orders to one backend, and how it stands.
///
/// An order is given when the method is called, and carried out by the backend's owner whether or not the
/// [`Order`] is awaited; orders of one backend are carried out one after the other. Holding a handle
/// holds the backend, as a clone of its service does.
///
/// `T` is the target's type, for [`reload`](Self::reload). A handle that a `Group` found by name does not
/// know it, and reloads the target there is.
///
/// ```
/// # use tower::{Layer, ServiceExt, service_fn};
/// # use tower_on_demand::{DropToStop, LazyStartLayer, Runtime, State};
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_on_demand::Error> {
/// # let maker = service_fn(|_: &'static str| async {
/// #     let echo = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(n) });
/// #     Ok::<_, std::io::Error>(DropToStop::new(echo))
/// # });
/// let (layer, handle) = LazyStartLayer::new(Runtime::tokio(), "echo").pair();
/// let service = layer.layer(maker);
///
/// handle.start().await?; // before the first call needs it
/// assert_eq!(handle.status().state, State::Running);
///
/// handle.stop().await?;
/// assert_eq!(handle.status().state, State::Stopped);
/// # drop(service);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
pub struct Handle<T = AnyTarget> {
    binding: Arc<Binding>,
    target: PhantomData<fn(T)>,
}

/// The target type of a handle that does not know it. It has no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnyTarget {}

/// The backend of a handle, once there is one.
pub(crate) struct Binding {
    name: Arc<str>,
    control: OnceLock<Arc<dyn Control>>,
}

impl Binding {
    /// The first one stays.
    pub(crate) fn bind(&self, control: Arc<dyn Control>) {
        let _ = self.control.set(control);
    }
}

impl<T> Handle<T> {
    pub(crate) fn unbound(name: Arc<str>) -> Self {
        let binding = Binding {
            name,
            control: OnceLock::new(),
        };
        Self {
            binding: Arc::new(binding),
            target: PhantomData,
        }
    }

    pub(crate) fn of(control: Arc<dyn Control>) -> Self {
        let handle = Self::unbound(control.status().name);
        handle.binding.bind(control);
        handle
    }

    pub(crate) fn binding(&self) -> Weak<Binding> {
        Arc::downgrade(&self.binding)
    }

    /// This handle without the target's type.
    pub fn erase(self) -> Handle {
        Handle {
            binding: self.binding,
            target: PhantomData,
        }
    }

    fn control(&self) -> Option<&Arc<dyn Control>> {
        self.binding.control.get()
    }

    fn order(&self, give: impl FnOnce(&Arc<dyn Control>) -> Outcome) -> Order {
        Order(match self.control() {
            Some(control) => give(control),
            None => Box::pin(std::future::ready(Err(self.unknown()))),
        })
    }

    /// The backend's name.
    pub fn name(&self) -> &str {
        &self.binding.name
    }

    /// Starts the backend before a call needs it, if there is free room; nothing is evicted for it.
    /// Resolves when it runs.
    ///
    /// # Errors
    ///
    /// As a call's that waits for the start, at once where there is no free room.
    pub fn start(&self) -> Order {
        self.order(|control| control.clone().start(Urgency::FreeOnly))
    }

    /// Starts the backend as a call would: room is made for it, and waited for.
    ///
    /// # Errors
    ///
    /// As a call's that waits for the start.
    pub fn start_evicting(&self) -> Order {
        self.order(|control| control.clone().start(Urgency::Demand))
    }

    /// Starts the backend as a call would, and keeps it in use until what comes of it is dropped. In
    /// place at once, as an order is.
    pub(crate) fn hold(&self) -> Held {
        match self.control() {
            Some(control) => control.clone().hold(),
            None => Box::pin(std::future::ready(Err(self.unknown()))),
        }
    }

    fn unknown(&self) -> Error {
        Error::new(ErrorKind::Unknown).of(self.binding.name.clone())
    }

    /// Stops the backend, or the start under way. Calls in flight have the drain timeout; calls that
    /// come now wait, and start it again. Resolves when the stopped instance holds nothing any more.
    pub fn stop(&self) -> Order {
        self.order(|control| control.stop())
    }

    /// Makes a new instance, from `target` or (with `None`) the one there is, and moves the calls over
    /// once it is ready; the old one then drains and stops. It needs room for one more. If nothing runs,
    /// the next start is of `target`. Resolves when the new one serves.
    ///
    /// # Errors
    ///
    /// As a start's. Then nothing has changed: the old instance serves on. If the old instance's own
    /// room is all that is missing it fails at once, with
    /// [`NoRoom::own`](crate::NoRoom::own): use [`reload_in_place`](Self::reload_in_place).
    pub fn reload(&self, target: impl Into<Option<T>>) -> Order
    where
        T: Send + 'static,
    {
        let target = boxed(target.into());
        self.order(|control| control.reload(target))
    }

    /// Stops the old instance, then starts the new one; calls wait meanwhile, and none is lost. Needs
    /// no room beyond its own. If nothing runs, the next start is of `target`.
    ///
    /// # Errors
    ///
    /// As a start's; the new target stays, and the next call tries it again.
    pub fn reload_in_place(&self, target: impl Into<Option<T>>) -> Order
    where
        T: Send + 'static,
    {
        let target = boxed(target.into());
        self.order(|control| control.clone().reload_in_place(target))
    }

    /// Stops the backend and keeps it down, against calls, `start` and `keep_running` alike: they get
    /// [`Unloaded`](ErrorKind::Unloaded) until [`load`](Self::load).
    pub fn unload(&self) -> Order {
        self.order(|control| control.unload())
    }

    /// Takes [`unload`](Self::unload) back. The next call starts the backend.
    pub fn load(&self) {
        if let Some(control) = self.control() {
            control.load();
        }
    }

    /// Forgets failed starts and crashes: the next call tries at once.
    pub fn reset(&self) {
        if let Some(control) = self.control() {
            control.reset();
        }
    }

    /// Whether the backend is started again after a crash without waiting for a call: at once at first,
    /// then with the backoff of failed starts. Evictions and orders to stop are no crashes. It does
    /// not start what does not run yet.
    pub fn keep_running(&self, keep: bool) {
        if let Some(control) = self.control() {
            control.keep_running(keep);
        }
    }

    /// Changes the idle bound of the instance that runs and of all that follow: `None` is never for
    /// age, still for room; zero is pinned, never for either. Without `IdleEvict` beneath it does nothing.
    pub fn set_idle_after(&self, bound: impl Into<Option<Duration>>) {
        if let Some(control) = self.control() {
            control.set_idle_after(bound.into());
        }
    }

    /// One reading of the backend.
    pub fn status(&self) -> Status {
        match self.control() {
            Some(control) => control.status(),
            None => Status::of_none(self.binding.name.clone()),
        }
    }

    /// Resolves when the backend is in `state`, or was since this was called. Never, before there is one.
    pub fn until(&self, state: State) -> Until {
        Until(match self.control() {
            Some(control) => control.clone().until(state),
            None => Box::pin(std::future::pending()),
        })
    }
}

fn boxed<T: Send + 'static>(target: Option<T>) -> Option<Box<dyn Any + Send>> {
    target.map(|target| Box::new(target) as Box<dyn Any + Send>)
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        Self {
            binding: self.binding.clone(),
            target: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("name", &self.binding.name)
            .finish_non_exhaustive()
    }
}

/// An order that was given; resolves when it has been carried out.
///
/// # Cancel safety
///
/// Dropping it takes nothing back, except that a [`start`](Handle::start) nobody else waits for counts as
/// left by its caller.
#[must_use = "the order is given; await it to know what came of it"]
pub struct Order(Outcome);

impl Future for Order {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").finish_non_exhaustive()
    }
}

/// Resolves when a state is reached: see [`Handle::until`].
#[must_use = "futures do nothing unless polled"]
pub struct Until(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for Until {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Until").finish_non_exhaustive()
    }
}
