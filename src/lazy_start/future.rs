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

use crate::{
    error::{BoxError, Error, ErrorKind},
    lifecycle::{
        calling::Calling,
        entrance::{Borrowed, Entrance, Joined, Waiting},
        instance::Handed,
    },
    target::Urgency,
};

/// How many instances a call is handed to in turn, when each is retired before it takes the call.
const MOST_TRIES: u8 = 4;

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
    /// Waiting → Readying, when the owner hands a lease over.
    Waiting {
        waiting: Waiting<L>,
        request: Req,
        tries: u8,
    },
    /// Readying → Calling, when the lease is ready; → Waiting, when its instance was closed before.
    Readying(Readying<L, Req>),
    Calling(#[pin] Calling<L::Future>),
    Failed(Error),
    Done,
}

struct Readying<L, Req> {
    entrance: Arc<dyn Entrance<L>>,
    handed: Handed<L>,
    request: Req,
    tries: u8,
    may_start: bool,
}

impl<L, Req> ResponseFuture<L, Req>
where
    L: Service<Req>,
    L::Error: Into<BoxError>,
{
    pub(crate) fn new(entrance: &Arc<dyn Entrance<L>>, request: Req, may_start: bool) -> Self {
        // A running instance whose lease is ready takes the call here, without a waker of anybody's.
        let state = match entrance.borrow_once() {
            Borrowed::Lease(mut handed) => {
                match handed.poll_ready(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(Ok(())) => State::Calling(Calling::new(handed, request)),
                    Poll::Pending => State::Readying(Readying {
                        entrance: entrance.clone(),
                        handed,
                        request,
                        tries: 0,
                        may_start,
                    }),
                    Poll::Ready(Err(error)) => {
                        let generation = handed.generation;
                        drop(handed);
                        State::again(entrance, request, generation, error, 0, may_start)
                    }
                }
            }
            _ if !may_start => State::Failed(not_running(entrance)),
            Borrowed::Closed(generation) => State::join(entrance, request, Some(generation), 0),
            Borrowed::Nothing => State::join(entrance, request, None, 0),
        };
        Self { state }
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
            State::Waiting { waiting, .. } => Some(waiting.entrance()),
            _ => None,
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.state, State::Failed(_))
    }
}

impl<L: Service<Req>, Req> State<L, Req> {
    /// A lease, or a place among those who wait.
    fn join(entrance: &Arc<dyn Entrance<L>>, request: Req, not: Option<u64>, tries: u8) -> Self {
        match entrance.clone().join(not, Urgency::Demand) {
            Ok(Joined::Wait(waiting)) => State::Waiting {
                waiting,
                request,
                tries,
            },
            Ok(Joined::Lease(handed)) => State::Readying(Readying {
                entrance: entrance.clone(),
                handed,
                request,
                tries,
                may_start: true,
            }),
            Err(error) => State::Failed(error),
        }
    }

    /// The instance was retired before it took the call: the very same request goes to another
    /// generation. If it is not closed, its owner hears that it is broken: then the error, be it
    /// `Evicted`, is of something beneath.
    fn again(
        entrance: &Arc<dyn Entrance<L>>,
        request: Req,
        generation: u64,
        error: Error,
        tries: u8,
        may_start: bool,
    ) -> Self {
        let error = error.of(entrance.name());
        let evicted = matches!(error.kind(), ErrorKind::Evicted);
        entrance.distrust(generation, error.clone());
        if !may_start {
            return State::Failed(if evicted {
                not_running(entrance)
            } else {
                error
            });
        }
        if tries + 1 >= MOST_TRIES {
            return State::Failed(error);
        }
        Self::join(entrance, request, Some(generation), tries + 1)
    }
}

fn not_running<L>(entrance: &Arc<dyn Entrance<L>>) -> Error {
    Error::new(ErrorKind::NotRunning).of(entrance.name())
}

impl<L, Req> Future for ResponseFuture<L, Req>
where
    L: Service<Req>,
    L::Error: Into<BoxError>,
{
    type Output = Result<L::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Project::Calling(calling) => return calling.poll(cx),
                Project::Readying(readying) => {
                    let ready = ready!(readying.handed.poll_ready(cx));
                    let Replaced::Readying(it) = state.as_mut().project_replace(State::Done) else {
                        unreachable!("it was readying")
                    };
                    match ready {
                        Ok(()) => State::Calling(Calling::new(it.handed, it.request)),
                        Err(error) => {
                            let generation = it.handed.generation;
                            drop(it.handed);
                            State::again(
                                &it.entrance,
                                it.request,
                                generation,
                                error,
                                it.tries,
                                it.may_start,
                            )
                        }
                    }
                }
                Project::Waiting { waiting, .. } => {
                    let outcome = ready!(Pin::new(waiting).poll(cx));
                    let Replaced::Waiting {
                        waiting,
                        request,
                        tries,
                    } = state.as_mut().project_replace(State::Done)
                    else {
                        unreachable!("it was waiting")
                    };
                    match outcome {
                        Ok(handed) => State::Readying(Readying {
                            entrance: waiting.entrance().clone(),
                            handed,
                            request,
                            tries,
                            may_start: true,
                        }),
                        Err(error) => State::Failed(error),
                    }
                }
                Project::Failed(_) => match state.as_mut().project_replace(State::Done) {
                    Replaced::Failed(error) => return Poll::Ready(Err(error)),
                    _ => unreachable!("it had failed"),
                },
                Project::Done => panic!("polled after it was done"),
            };
            state.set(next);
        }
    }
}

impl<L: Service<Req>, Req> fmt::Debug for ResponseFuture<L, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting { .. } => "waiting",
            State::Readying(_) => "readying",
            State::Calling(_) => "calling",
            State::Failed(_) => "failed",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish()
    }
}
