//! The maker of a backend, its type erased: one box per start.

use std::{
    any::Any,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use pin_project::pin_project;
use tower_service::Service;

use crate::{
    error::{BoxError, Error, ErrorKind},
    target::{Intent, Target},
};

/// A start under way.
pub(crate) type Making<'a, B> = Pin<Box<dyn Future<Output = Result<B, Error>> + Send + 'a>>;

/// Any `Service<T>` that answers with a `B`.
pub(crate) trait Make<T, B>: Send {
    /// Waits until the maker is ready and calls it. A panic of it is an error.
    fn make(&mut self, target: T, intent: Intent) -> Making<'_, B>;
}

impl<M, T, B> Make<T, B> for M
where
    M: Service<T, Response = B> + Send,
    M::Error: Into<BoxError>,
    M::Future: Send,
    T: Target,
{
    fn make(&mut self, target: T, intent: Intent) -> Making<'_, B> {
        Box::pin(async move {
            let made = Caught::new(async move {
                target.validate().map_err(Error::start_failed)?;
                poll_fn(|cx| self.poll_ready(cx))
                    .await
                    .map_err(Error::start_failed)?;
                let making = intent.scope(|| self.call(target));
                making.await.map_err(Error::start_failed)
            });
            made.await?
        })
    }
}

/// A future of user code whose panic is an error of ours.
#[pin_project(project = CaughtProj)]
pub(crate) enum Caught<F> {
    Future(#[pin] F),
    /// It was not even made.
    Panicked(Option<Error>),
}

impl<F> Caught<F> {
    pub(crate) fn new(future: F) -> Self {
        Caught::Future(future)
    }

    /// The future that `make` gives, whose panic is caught as well.
    pub(crate) fn call(make: impl FnOnce() -> F) -> Self {
        match catch_unwind(AssertUnwindSafe(make)) {
            Ok(future) => Caught::Future(future),
            Err(panic) => Caught::Panicked(Some(panicked(&*panic))),
        }
    }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = match self.project() {
            CaughtProj::Future(future) => future,
            CaughtProj::Panicked(error) => {
                let error = error.take().expect("polled after it was done");
                return Poll::Ready(Err(error));
            }
        };
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panicked(&*panic))),
        }
    }
}

/// Drops what is the user's. Its panic is not that of whoever drops it.
pub(crate) fn discard<W>(what: W) -> Result<(), Error> {
    catch_unwind(AssertUnwindSafe(|| drop(what))).map_err(|panic| panicked(&*panic))
}

/// A panic as an error, with its message.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let error = Error::new(ErrorKind::Panicked);
    match message {
        Some(message) => error.because(message),
        None => error,
    }
}
