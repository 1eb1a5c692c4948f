//! `ResponseFuture`: one caller's way to the outcome.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper::rt::Sleep;
use pin_project::pin_project;
use tower_service::Service;

use super::{
    caller::{Sat, Step, Ticket},
    common::{Common, Here, Passage, Verdict, boxed},
    flight::Home,
    orders::Replaced,
    parting::Departure,
    policy::ShareAll,
    seat::Seat,
    shards::Entered,
    share::Share,
    task::{ByCallers, Task},
    work::Work,
};
use crate::{Error, ErrorKind, identity::Identity};

/// What [`Coalesce`](super::Coalesce) answers with.
///
/// # Cancel safety
///
/// Dropping it leaves the call, which goes on while anybody else waits for it. The last to leave drops
/// the inner call within that drop (unless it is [a task](super::CoalesceLayer::spawn_on)).
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<S, I, Req, P = ShareAll, D = ByCallers>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    place: PlaceIn<S, I, Req, P, D>,
    /// The call of this caller's own, if it passes by, or may come to.
    #[pin]
    own: Work<S, Req>,
    convert: fn(S::Error) -> Error,
}

/// Boxed once more, so that callers without one are small.
type Timer = Pin<Box<dyn Sleep>>;

/// Where a caller stands.
enum Place<H: Home> {
    /// By itself.
    Passing,
    /// It led, and does not know that anybody joined.
    Leading(Ticket<H>),
    /// In a flight, until the time comes, if one is set, to lead another.
    Seated(Seat<H>, Option<Box<Timer>>),
    Refused(Error),
    Done,
}

type PlaceIn<S, I, Req, P, D> = Place<Here<S, I, Req, P, D>>;
/// A place, and what of its own call the caller keeps.
type Begun<S, I, Req, P, D> = (PlaceIn<S, I, Req, P, D>, Work<S, Req>);

impl<S, I, Req, P, D> ResponseFuture<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// Nobody else's call.
    pub(super) fn passing(service: S, request: Req, convert: fn(S::Error) -> Error) -> Self {
        Self {
            place: Place::Passing,
            own: Work::Seed { service, request },
            convert,
        }
    }

    /// Joins or leads.
    pub(super) fn entering(
        common: &Here<S, I, Req, P, D>,
        service: S,
        request: Req,
        key: I::Key,
    ) -> Self {
        let hash = common.hash(&key);
        let mut seed = Some((service, request));
        let (place, own) = match common.enter(hash, key, &mut seed) {
            Entered::Led(flight) => {
                let ticket = Ticket::new(common.clone(), flight);
                (Place::Leading(ticket), Work::Empty)
            }
            Entered::Joined(seat) => return Self::joining(common, seat, seed),
            Entered::Started(seat) => {
                launch(common, &seat, &mut seed);
                (Place::Seated(seat, None), Work::Empty)
            }
            Entered::Full(limit) => refused(ErrorKind::TooManyWaiting { limit }),
            Entered::Shut => refused(ErrorKind::ShutDown),
        };
        Self {
            place,
            own,
            convert: common.rules.convert,
        }
    }

    #[inline]
    fn joining(
        common: &Here<S, I, Req, P, D>,
        seat: Seat<Here<S, I, Req, P, D>>,
        seed: Option<(S, Req)>,
    ) -> Self {
        let (place, own) = if common.mark(seat.flight().name()).is_polled_here() {
            seat.depart(Departure::Mistaken);
            refused(ErrorKind::Reentrant)
        } else {
            let timer = match &common.max_wait {
                Some(wait) if !seat.flight().is_replacement() => {
                    Some(Box::new(wait.runtime.sleep(wait.after)))
                }
                _ => None,
            };
            (Place::Seated(seat, timer), keep(common, seed))
        };
        Self {
            place,
            own,
            convert: common.rules.convert,
        }
    }
}

fn refused<S, I, Req, P, D>(kind: ErrorKind) -> Begun<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    (Place::Refused(Error::new(kind)), Work::Empty)
}

/// What a joiner keeps of its call.
fn keep<S, I, Req, P, D>(common: &Common<S, I, Req, P, D>, seed: Option<(S, Req)>) -> Work<S, Req>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    match seed.filter(|_| common.rules.keeps_requests) {
        Some((service, request)) => Work::Seed { service, request },
        None => Work::Empty,
    }
}

/// Hands the work of a flight to a task, if tasks do it.
fn launch<S, I, Req, P, D>(
    common: &Here<S, I, Req, P, D>,
    seat: &Seat<Here<S, I, Req, P, D>>,
    seed: &mut Option<(S, Req)>,
) where
    S: Service<Req>,
    I: Identity<Req>,
{
    if let (Some(launch), Some((service, request))) = (common.rules.launch, seed.take()) {
        let task = Task::new(common.clone(), seat.flight().clone(), service, request);
        launch(&common.driver, task);
    }
}

/// The time has come to lead another call. `None`: this caller stays where it is.
fn replace<S, I, Req, P, D>(
    seat: &Seat<Here<S, I, Req, P, D>>,
    mut own: Pin<&mut Work<S, Req>>,
) -> Option<PlaceIn<S, I, Req, P, D>>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    let common = seat.flight().home()?;
    let (service, request) = own.as_mut().take_seed()?;
    let key = common.identity.identity(&request);
    let Some(key) = key.filter(|key| key == seat.flight().key()) else {
        // It is not the same call any more.
        own.set(Work::Seed { service, request });
        return Some(Place::Passing);
    };
    let mut seed = Some((service, request));
    let mut key = Some(key);
    let tasks = common.rules.launch.is_some();
    let replaced = common.space.replace(&common, seat.flight(), &mut key, || {
        if tasks { None } else { boxed(None, &mut seed) }
    });
    let place = match replaced {
        Replaced::Landed | Replaced::Full => {
            let (service, request) = seed?;
            own.set(Work::Seed { service, request });
            return None;
        }
        Replaced::Joined(seat) => Place::Seated(seat, None),
        Replaced::Led(seat) => {
            launch(&common, &seat, &mut seed);
            Place::Seated(seat, None)
        }
        Replaced::Closed => {
            let ((service, request), key) = (seed?, key?);
            let begun = ResponseFuture::entering(&common, service, request, key);
            own.set(begun.own);
            return Some(begun.place);
        }
    };
    own.set(keep(&common, seed));
    Some(place)
}

impl<S, I, Req, P, D> Future for ResponseFuture<S, I, Req, P, D>
where
    S: Service<Req>,
    S::Response: Share,
    I: Identity<Req>,
{
    type Output = Result<S::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let (verdict, manner, passage) = match this.place {
                Place::Leading(ticket) => match ticket.poll(cx) {
                    Step::Pending => return Poll::Pending,
                    Step::Seated(seat) => {
                        *this.place = Place::Seated(seat, None);
                        continue;
                    }
                    Step::Done(verdict, manner) => {
                        let flight = ticket.name().id;
                        (verdict, manner, Passage { flight, led: true })
                    }
                },
                Place::Seated(seat, timer) => match seat.poll(cx, Verdict::copy) {
                    Sat::Done(verdict) => {
                        let passage = Passage {
                            flight: seat.flight().name().id,
                            led: seat.led(),
                        };
                        (verdict, seat.flight().tag(), passage)
                    }
                    Sat::Reentrant => {
                        *this.place = Place::Done;
                        return Poll::Ready(Err(Error::new(ErrorKind::Reentrant)));
                    }
                    Sat::Pending => {
                        match timer {
                            Some(timer) => ready!(Pin::new(&mut **timer).poll(cx)),
                            None => return Poll::Pending,
                        }
                        *timer = None;
                        if let Some(next) = replace(seat, this.own.as_mut()) {
                            let old = std::mem::replace(this.place, next);
                            if let Place::Seated(seat, _) = old {
                                seat.depart(Departure::Moved);
                            }
                        }
                        continue;
                    }
                },
                Place::Passing => {
                    let result = ready!(this.own.as_mut().poll(cx));
                    *this.place = Place::Done;
                    this.own.set(Work::Empty);
                    return Poll::Ready(result.map_err(*this.convert));
                }
                Place::Refused(error) => {
                    let error = error.clone();
                    *this.place = Place::Done;
                    return Poll::Ready(Err(error));
                }
                Place::Done => panic!("polled after it was done"),
            };
            // It may have to go alone yet, and then keeps what it has of its own.
            let result = match verdict {
                Verdict::Answer(mut response) => {
                    let in_time = manner.enlist.is_none_or(|enlist| enlist(&mut response));
                    if let (true, Some(label)) = (in_time, manner.label) {
                        label(&mut response, passage);
                    }
                    in_time.then_some(Ok(response))
                }
                Verdict::Failed(error) => Some(Err(error)),
                Verdict::Alone => None,
            };
            match result {
                Some(result) => {
                    *this.place = Place::Done;
                    return Poll::Ready(result);
                }
                // Seated => Passing
                None => *this.place = Place::Passing,
            }
        }
    }
}

impl<S, I, Req, P, D> fmt::Debug for ResponseFuture<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Passing => "passing by",
            Place::Leading(_) => "led",
            Place::Seated(seat, _) if seat.led() => "led",
            Place::Seated(..) => "joined",
            Place::Refused(_) => "refused",
            Place::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("place", &place)
            .finish_non_exhaustive()
    }
}
