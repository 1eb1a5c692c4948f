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
    backend::Backend,
    error::{BoxError, Error, ErrorKind},
    lifecycle::{Door, Waiting, core::Joined},
    target::Urgency,
};

/// How many instances a call is handed to in turn, when each is retired before it takes the call.
const MOST_TRIES: u8 = 4;

type CallOf<B, Req> = <<B as Backend>::Lease as Service<Req>>::Future;

/// Waits for an instance if need be, then for its answer.
///
/// # Cancel safety
///
/// Dropping it at any moment gives back its place among those who wait, the lease it was handed, and
/// the call.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<T, B, Req>
where
    B: Backend,
    B::Lease: Service<Req>,
{
    #[pin]
    state: State<T, B, Req>,
}

#[pin_project(project = Project, project_replace = Replaced)]
enum State<T, B, Req>
where
    B: Backend,
    B::Lease: Service<Req>,
{
    /// Waiting → Readying, when the owner hands a lease over.
    Waiting {
        waiting: Waiting<T, B>,
        request: Req,
        tries: u8,
    },
    /// Readying → Calling, when the lease is ready; → Waiting, when its instance was closed before.
    Readying(Readying<T, B, Req>),
    Calling(#[pin] CallOf<B, Req>),
    Failed(Error),
    Done,
}

struct Readying<T, B, Req>
where
    B: Backend,
{
    door: Arc<Door<T, B>>,
    lease: B::Lease,
    generation: u64,
    request: Req,
    tries: u8,
    may_start: bool,
}

impl<T, B, Req> ResponseFuture<T, B, Req>
where
    T: Clone + Send + 'static,
    B: Backend,
    B::Lease: Service<Req>,
    <B::Lease as Service<Req>>::Error: Into<BoxError>,
{
    pub(crate) fn new(door: &Arc<Door<T, B>>, request: Req, may_start: bool) -> Self {
        // A running instance whose lease is ready takes the call here, without a waker of anybody's.
        let state = match door.core.borrow(None) {
            Some((mut lease, generation)) => {
                let ready = lease.poll_ready(&mut Context::from_waker(Waker::noop()));
                match ready {
                    Poll::Ready(Ok(())) => State::Calling(lease.call(request)),
                    Poll::Pending => State::Readying(Readying {
                        door: door.clone(),
                        lease,
                        generation,
                        request,
                        tries: 0,
                        may_start,
                    }),
                    Poll::Ready(Err(error)) => {
                        State::again(door, request, generation, error.into(), 0, may_start)
                    }
                }
            }
            None if !may_start => State::Failed(not_running(door)),
            None => State::join(door, request, None, 0),
        };
        Self { state }
    }
}

impl<T, B, Req> State<T, B, Req>
where
    T: Clone + Send + 'static,
    B: Backend,
    B::Lease: Service<Req>,
{
    /// A lease, or a place among those who wait.
    fn join(door: &Arc<Door<T, B>>, request: Req, not: Option<u64>, tries: u8) -> Self {
        match door.join(not, Urgency::Demand) {
            Ok(Joined::Wait(waiting)) => State::Waiting {
                waiting,
                request,
                tries,
            },
            Ok(Joined::Lease(lease, generation)) => State::Readying(Readying {
                door: door.clone(),
                lease,
                generation,
                request,
                tries,
                may_start: true,
            }),
            Err(error) => State::Failed(error),
        }
    }

    /// The instance was retired before it took the call: the very same request goes to another
    /// generation. An error other than `Evicted` tells the owner that this one is broken.
    fn again(
        door: &Arc<Door<T, B>>,
        request: Req,
        generation: u64,
        error: BoxError,
        tries: u8,
        may_start: bool,
    ) -> Self {
        let error = Error::service(error).of(door.core.config.name.clone());
        let evicted = matches!(error.kind(), ErrorKind::Evicted);
        if !evicted {
            door.core.distrust(generation, error.clone());
        }
        if !may_start {
            return State::Failed(if evicted { not_running(door) } else { error });
        }
        if tries + 1 >= MOST_TRIES {
            return State::Failed(error);
        }
        Self::join(door, request, Some(generation), tries + 1)
    }
}

fn not_running<T, B: Backend>(door: &Door<T, B>) -> Error {
    Error::new(ErrorKind::NotRunning).of(door.core.config.name.clone())
}

impl<T, B, Req> Future for ResponseFuture<T, B, Req>
where
    T: Clone + Send + 'static,
    B: Backend,
    B::Lease: Service<Req>,
    <B::Lease as Service<Req>>::Error: Into<BoxError>,
{
    type Output = Result<<B::Lease as Service<Req>>::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Project::Calling(call) => {
                    let answer = ready!(call.poll(cx));
                    return Poll::Ready(answer.map_err(Error::service));
                }
                Project::Readying(readying) => {
                    let ready = ready!(readying.lease.poll_ready(cx));
                    let Replaced::Readying(mut it) = state.as_mut().project_replace(State::Done)
                    else {
                        unreachable!("it was readying")
                    };
                    match ready {
                        Ok(()) => State::Calling(it.lease.call(it.request)),
                        Err(error) => {
                            drop(it.lease);
                            let (error, tries) = (error.into(), it.tries);
                            State::again(
                                &it.door,
                                it.request,
                                it.generation,
                                error,
                                tries,
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
                            door: waiting.door().clone(),
                            lease: handed.lease,
                            generation: handed.generation,
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

impl<T, B, Req> fmt::Debug for ResponseFuture<T, B, Req>
where
    B: Backend,
    B::Lease: Service<Req>,
{
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
