//! The response future of `LazyStart`.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use pin_project::pin_project;
use tower_service::Service;

use super::before::Before;
use crate::{
    error::{BoxError, Error},
    lifecycle::{
        calling::Calling,
        entrance::{Borrowed, Entrance},
    },
};

/// Waits for an instance if need be, then for its answer.
///
/// # Cancel safety
///
/// Dropping it at any moment gives back its place among those who wait, the lease it was handed, and
/// the call.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<L: Service<Req>, Req> {
    #[pin]
    state: State<L, Req>,
}

#[pin_project(project = Project, project_replace = Replaced)]
enum State<L: Service<Req>, Req> {
    /// Before → Calling, when it has a lease that is ready.
    Before(Box<Before<L, Req>>),
    Calling(#[pin] Calling<L::Future>),
    Failed(Error),
    Done,
}

impl<L, Req> ResponseFuture<L, Req>
where
    L: Service<Req>,
    L::Error: Into<BoxError>,
{
    /// A running instance whose lease is ready takes the call here, without a waker of anybody's. That is the
    /// hot path, and no more than that is in line.
    #[inline]
    pub(crate) fn new(entrance: &Arc<dyn Entrance<L>>, request: Req, may_start: bool) -> Self {
        let before = match entrance.borrow_once() {
            Borrowed::Lease(mut handed) => {
                // It was open when it was borrowed, just now.
                let mut cx = Context::from_waker(Waker::noop());
                match handed.lease.poll_ready(&mut cx).map_err(Error::service) {
                    Poll::Ready(Ok(())) => {
                        let state = State::Calling(Calling::new(handed, request));
                        return Self { state };
                    }
                    Poll::Ready(Err(error)) => {
                        Before::retired(entrance, request, handed, error, may_start)
                    }
                    Poll::Pending => Ok(Before::unready(entrance, request, handed, may_start)),
                }
            }
            Borrowed::Closed(generation) => {
                Before::unborrowed(entrance, request, Some(generation), may_start)
            }
            Borrowed::Nothing => Before::unborrowed(entrance, request, None, may_start),
        };
        Self {
            state: match before {
                Ok(before) => State::Before(before),
                Err(error) => State::Failed(error),
            },
        }
    }
}

impl<L: Service<Req>, Req> ResponseFuture<L, Req> {
    /// The outcome is known.
    pub(crate) fn failed(error: Error) -> Self {
        Self {
            state: State::Failed(error),
        }
    }

    /// The backend whose start it waits for.
    #[cfg(feature = "http")]
    pub(crate) fn waits_for(&self) -> Option<&Arc<dyn Entrance<L>>> {
        match &self.state {
            State::Before(before) => before.waits_for(),
            _ => None,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }
}

impl<L, Req> Future for ResponseFuture<L, Req>
where
    L: Service<Req>,
    L::Error: Into<BoxError>,
{
    type Output = Result<L::Response, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                Project::Calling(mut calling) => {
                    let answer = ready!(calling.as_mut().poll(cx));
                    // A lease that counts itself has ended its use by now.
                    if calling.has_share() {
                        state.set(State::Done);
                    }
                    return Poll::Ready(answer);
                }
                Project::Before(before) => match ready!(before.poll(cx)) {
                    Ok((handed, request)) => {
                        state.set(State::Done);
                        state.set(State::Calling(Calling::new(handed, request)));
                    }
                    Err(error) => {
                        state.set(State::Done);
                        return Poll::Ready(Err(error));
                    }
                },
                Project::Failed(_) => match state.as_mut().project_replace(State::Done) {
                    Replaced::Failed(error) => return Poll::Ready(Err(error)),
                    _ => unreachable!("it had failed"),
                },
                Project::Done => panic!("polled after it was done"),
            }
        }
    }
}

impl<L: Service<Req>, Req> fmt::Debug for ResponseFuture<L, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Before(before) => before.state(),
            State::Calling(_) => "calling",
            State::Failed(_) => "failed",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish()
    }
}
