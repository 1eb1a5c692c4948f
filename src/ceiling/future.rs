//! The future of a start: in line, admitted, made.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use hyper::rt::Sleep;
use pin_project::pin_project;
use tower_service::Service;

use super::{
    error::MakeError,
    layer::Options,
    occupied::Occupied,
    queue::Rank,
    room::{Asked, Permit, Place, Room},
};
use crate::{
    backend::Backend,
    error::Error,
    events,
    runtime::Runtime,
    target::{Intent, Line, Queued, within_room},
};

/// The response future of [`Ceiling`](super::Ceiling).
///
/// # Cancel safety
///
/// Dropped while it waits it leaves the line, without a hole; dropped with room in hand it gives that
/// to the next in line, after the maker's future is dropped.
#[pin_project]
#[must_use = "futures do nothing unless polled, and this one holds a place in line"]
pub struct ResponseFuture<M, T>
where
    M: Service<T>,
{
    #[pin]
    state: State<M, T, M::Future>,
    /// In a box, so that the future is little more than the maker's.
    intent: Option<Box<Intent>>,
}

#[pin_project(project = StateProj)]
enum State<M, T, F> {
    Refused(Option<Error>),
    /// In line.
    Waiting {
        waiting: Box<Waiting>,
        start: Option<(M, T)>,
    },
    /// Admitted; the maker gets ready.
    Admitted {
        start: Option<(M, T)>,
        permit: Option<Permit>,
    },
    /// The maker makes. Its future is dropped before the room comes back.
    Making {
        #[pin]
        future: F,
        held: Held,
    },
    Done,
}

/// The room of a start that makes. Whoever else keeps it for what the maker has left behind: unless an
/// instance takes it over, it is on its way back from here on.
struct Held(Option<Arc<Permit>>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.seat().leaving();
        }
    }
}

struct Waiting {
    place: Place,
    began: Instant,
    runtime: Runtime,
    deadline: Timer,
    patience: Timer,
    /// For what time alone will change.
    look: Timer,
    look_at: Option<u64>,
}

/// Where a start stands in line.
struct Spot {
    room: Weak<Room>,
    rank: Rank,
}

impl Line for Spot {
    fn queued(&self) -> Option<Queued> {
        let (before, ahead, waited) = self.room.upgrade()?.queued(self.rank)?;
        Some(Queued {
            place: before + 1,
            ahead,
            waited,
        })
    }
}

/// A point in time, and its timer once it was polled.
struct Timer {
    at: Option<Instant>,
    sleep: Option<Pin<Box<dyn Sleep>>>,
}

impl Timer {
    fn at(at: Option<Instant>) -> Self {
        Self { at, sleep: None }
    }

    /// True once, when it is due.
    fn fired(&mut self, runtime: &Runtime, cx: &mut Context<'_>) -> bool {
        let Some(at) = self.at else { return false };
        let sleep = self.sleep.get_or_insert_with(|| runtime.sleep_until(at));
        let fired = sleep.as_mut().poll(cx).is_ready();
        if fired {
            *self = Self::at(None);
        }
        fired
    }
}

impl<M, T> ResponseFuture<M, T>
where
    M: Service<T>,
{
    pub(super) fn new(
        asked: Asked,
        maker: M,
        target: T,
        intent: Option<Intent>,
        options: &Options,
        weight: u64,
    ) -> Self {
        let start = Some((maker, target));
        let state = match asked {
            Asked::Refused(error) => State::Refused(Some(error)),
            Asked::Granted(permit) => State::Admitted {
                start,
                permit: Some(permit),
            },
            Asked::Waiting(place) => {
                let now = options.runtime.now();
                if let Some(intent) = &intent {
                    let (room, rank) = place.spot();
                    let spot = Arc::new(Spot { room, rank });
                    // It may have been served since.
                    if let Some(queued) = spot.queued() {
                        events::waits_for_room(&intent.name, weight, queued);
                    }
                    intent.course.waits(spot);
                }
                let patience = options.yield_after.and_then(|after| now.checked_add(after));
                let waiting = Waiting {
                    place,
                    began: now,
                    runtime: options.runtime.clone(),
                    deadline: Timer::at(now.checked_add(options.wait)),
                    patience: Timer::at(patience),
                    look: Timer::at(None),
                    look_at: None,
                };
                State::Waiting {
                    waiting: Box::new(waiting),
                    start,
                }
            }
        };
        Self {
            state,
            intent: intent.map(Box::new),
        }
    }
}

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, Error>> {
        loop {
            if let Poll::Ready(answer) = self.place.poll(cx.waker()) {
                return Poll::Ready(answer);
            }
            // The deadline first: a refusal is due exactly then.
            if self.deadline.fired(&self.runtime, cx) {
                return Poll::Ready(self.place.give_up());
            }
            if self.patience.fired(&self.runtime, cx) {
                self.place.lose_patience();
                continue;
            }
            let look_at = self.place.look_at();
            if look_at != self.look_at {
                self.look_at = look_at;
                let at = look_at.and_then(|at| {
                    let after = Duration::from_nanos(at.saturating_sub(self.place.now()));
                    self.runtime.now().checked_add(after)
                });
                self.look = Timer::at(at);
            }
            if self.look.fired(&self.runtime, cx) {
                self.place.look_again();
                continue;
            }
            return Poll::Pending;
        }
    }
}

impl<M, T> Future for ResponseFuture<M, T>
where
    M: Service<T>,
    M::Response: Backend,
{
    type Output = Result<Occupied<M::Response>, MakeError<M::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let intent = this.intent.as_deref();
        let refused = |error: Error| {
            let error = match intent {
                Some(intent) => error.of(intent.name.clone()),
                None => error,
            };
            Poll::Ready(Err(MakeError::Refused(error)))
        };
        loop {
            match this.state.as_mut().project() {
                StateProj::Refused(error) => {
                    let error = error.take().expect("polled after it was done");
                    this.state.set(State::Done);
                    return refused(error);
                }
                StateProj::Waiting { waiting, start } => {
                    let answer = ready!(waiting.poll(cx));
                    if let Some(intent) = intent {
                        let now = waiting.runtime.now();
                        let waited = now.saturating_duration_since(waiting.began);
                        intent.course.waited_for_room(waited);
                        events::waited_for_room(&intent.name, waited, answer.is_ok());
                    }
                    match answer {
                        Ok(permit) => {
                            let start = start.take();
                            this.state.set(State::Admitted {
                                start,
                                permit: Some(permit),
                            });
                        }
                        Err(error) => {
                            this.state.set(State::Done);
                            return refused(error);
                        }
                    }
                }
                StateProj::Admitted { start, permit } => {
                    if let Some((maker, _)) = start {
                        if let Err(error) = ready!(maker.poll_ready(cx)) {
                            this.state.set(State::Done);
                            return Poll::Ready(Err(MakeError::Make(error)));
                        }
                    }
                    let held = Held(permit.take().map(Arc::new));
                    let (mut maker, target) = start.take().expect("admitted once");
                    let call = || match intent {
                        Some(intent) => intent.clone().scope(|| maker.call(target)),
                        None => maker.call(target),
                    };
                    let future = match &held.0 {
                        Some(permit) => within_room(permit.clone(), call),
                        None => call(),
                    };
                    this.state.set(State::Making { future, held });
                }
                StateProj::Making { future, held } => {
                    let result = match ready!(future.poll(cx)) {
                        Ok(backend) => {
                            let permit = held.0.take().expect("made once");
                            Ok(Occupied::new(backend, permit))
                        }
                        Err(error) => Err(MakeError::Make(error)),
                    };
                    this.state.set(State::Done);
                    return Poll::Ready(result);
                }
                StateProj::Done => panic!("polled after it was done"),
            }
        }
    }
}

impl<M, T> fmt::Debug for ResponseFuture<M, T>
where
    M: Service<T>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Refused(_) => "refused",
            State::Waiting { .. } => "waiting",
            State::Admitted { .. } => "admitted",
            State::Making { .. } => "making",
            State::Done => "done",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
