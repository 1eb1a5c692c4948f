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
    common::{Here, Manner, Passage, Verdict, boxed},
    flight::Name,
    orders::Replaced,
    parting::Departure,
    policy::ShareAll,
    seat::Seat,
    shards::Entered,
    share::Share,
    task::{ByCallers, InFlight, Task},
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
    #[pin]
    place: Place<S, I, Req, P, D>,
}

/// Where a caller stands.
#[pin_project(project = PlaceProj)]
enum Place<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// By itself.
    Passing {
        #[pin]
        call: Work<S, Req>,
        convert: fn(S::Error) -> Error,
    },
    /// It led, and does not know that anybody joined.
    Leading(Ticket<Here<S, I, Req, P, D>>),
    /// In a flight.
    Seated(SeatIn<S, I, Req, P, D>),
    /// The same, of one that may have to make a call of its own. Boxed, so that others are small.
    Keeping(Box<Keeping<S, I, Req, P, D>>),
    Refused(Error),
    Done,
}

/// A joiner that keeps what it needs to make a call of its own.
struct Keeping<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    seat: SeatIn<S, I, Req, P, D>,
    /// `None` if there is no time at which it leads another call, or no more.
    timer: Option<Pin<Box<dyn Sleep>>>,
    /// `None` once it has led with it.
    seed: Option<(S, Req)>,
}

type SeatIn<S, I, Req, P, D> = Seat<Here<S, I, Req, P, D>>;

impl<S, I, Req, P, D> ResponseFuture<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// Nobody else's call.
    #[inline]
    pub(super) fn passing(service: S, request: Req, convert: fn(S::Error) -> Error) -> Self {
        let call = Work::Seed { service, request };
        Self {
            place: Place::Passing { call, convert },
        }
    }

    /// Joins or leads.
    #[inline]
    pub(super) fn entering(
        common: &Here<S, I, Req, P, D>,
        service: S,
        request: Req,
        key: I::Key,
    ) -> Self {
        let place = Place::entering(common, key, &mut Some((service, request)));
        Self { place }
    }
}

impl<S, I, Req, P, D> Place<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    // Put together where it stays: what is moved right after it was written is waited for.
    #[inline(always)]
    fn entering(common: &Here<S, I, Req, P, D>, key: I::Key, seed: &mut Option<(S, Req)>) -> Self {
        let hash = common.hash(&key);
        match common.enter(hash, key, seed) {
            Entered::Led(id) => {
                let flight = Name { hash, id };
                Place::Leading(Ticket::new(common.clone(), flight))
            }
            Entered::Joined(flight) => Place::joining(common, flight, seed),
            Entered::Started(flight) => {
                let seat = Seat::leading(flight);
                launch(common, &seat, seed);
                Place::Seated(seat)
            }
            Entered::Full(limit) => Place::refused(ErrorKind::TooManyWaiting { limit }),
            Entered::Shut => Place::refused(ErrorKind::ShutDown),
        }
    }

    #[inline]
    fn joining(
        common: &Here<S, I, Req, P, D>,
        flight: InFlight<S, I, Req, P, D>,
        seed: &mut Option<(S, Req)>,
    ) -> Self {
        if common.mark(flight.name()).is_polled_here() {
            Seat::joined(flight).depart(Departure::Mistaken);
            return Place::refused(ErrorKind::Reentrant);
        }
        if common.rules.keeps_requests {
            return Place::keeping(common, Seat::joined(flight), seed);
        }
        Place::Seated(Seat::joined(flight))
    }

    #[inline(never)]
    fn keeping(
        common: &Here<S, I, Req, P, D>,
        seat: SeatIn<S, I, Req, P, D>,
        seed: &mut Option<(S, Req)>,
    ) -> Self {
        let timer = common.timer(seat.flight());
        let seed = seed.take();
        Place::Keeping(Box::new(Keeping { seat, timer, seed }))
    }

    #[cold]
    fn refused(kind: ErrorKind) -> Self {
        Place::Refused(Error::new(kind))
    }
}

/// Hands the work of a flight to a task, if tasks do it.
fn launch<S, I, Req, P, D>(
    common: &Here<S, I, Req, P, D>,
    seat: &SeatIn<S, I, Req, P, D>,
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
    keeping: &mut Keeping<S, I, Req, P, D>,
) -> Option<Place<S, I, Req, P, D>>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    let Keeping { seat, seed, .. } = keeping;
    let common = seat.flight().home()?;
    let (service, request) = seed.take()?;
    let key = common.identity.identity(&request);
    let Some(key) = key.filter(|key| key == seat.flight().key()) else {
        // It is not the same call any more.
        let call = Work::Seed { service, request };
        let convert = common.rules.manner.convert;
        return Some(Place::Passing { call, convert });
    };
    *seed = Some((service, request));
    let mut key = Some(key);
    let tasks = common.rules.launch.is_some();
    let replaced = common.space.replace(&common, seat.flight(), &mut key, || {
        if tasks { None } else { boxed(None, seed) }
    });
    match replaced {
        Replaced::Landed | Replaced::Full => None,
        Replaced::Joined(seat) => {
            let (timer, seed) = (None, seed.take());
            Some(Place::Keeping(Box::new(Keeping { seat, timer, seed })))
        }
        Replaced::Led(seat) => {
            launch(&common, &seat, seed);
            Some(Place::Seated(seat))
        }
        Replaced::Closed => Some(Place::entering(&common, key?, seed)),
    }
}

/// What a caller is given of an outcome; `None`: nothing, it is to go alone.
#[inline]
fn given<R, E>(
    verdict: Verdict<R>,
    manner: Manner<R, E>,
    flight: Name,
    led: bool,
) -> Option<Result<R, Error>> {
    match verdict {
        Verdict::Answer(mut response) => {
            if manner.enlist.is_some_and(|enlist| !enlist(&mut response)) {
                return None;
            }
            if let Some(label) = manner.label {
                let flight = flight.id;
                label(&mut response, Passage { flight, led });
            }
            Some(Ok(response))
        }
        Verdict::Failed(error) => Some(Err(error)),
        Verdict::Alone => None,
    }
}

/// What a caller is answered.
type Answer<S, Req> = Result<<S as Service<Req>>::Response, Error>;

// A function for each place, so that none pays for what the others need on the stack.
impl<S, I, Req, P, D> Place<S, I, Req, P, D>
where
    S: Service<Req>,
    S::Response: Share,
    I: Identity<Req>,
{
    #[inline(never)]
    fn poll_leading(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<S, Req>> {
        let PlaceProj::Leading(ticket) = self.as_mut().project() else {
            unreachable!("it leads");
        };
        match ticket.poll(cx) {
            Step::Pending => Poll::Pending,
            Step::Seated(seat) => {
                self.set(Place::Seated(seat));
                self.poll_seated(cx)
            }
            Step::Done(verdict, manner) => match given(verdict, manner, ticket.name(), true) {
                Some(result) => {
                    self.set(Place::Done);
                    Poll::Ready(result)
                }
                None => self.go_alone(None, manner.convert, cx),
            },
        }
    }

    #[inline(never)]
    fn poll_seated(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<S, Req>> {
        let PlaceProj::Seated(seat) = self.as_mut().project() else {
            unreachable!("it has a seat");
        };
        match ready!(seat.poll(cx, Verdict::copy)) {
            Sat::Done(verdict) => {
                let manner = seat.flight().tag();
                match given(verdict, manner, seat.flight().name(), seat.led()) {
                    Some(result) => {
                        self.set(Place::Done);
                        Poll::Ready(result)
                    }
                    None => self.go_alone(None, manner.convert, cx),
                }
            }
            Sat::Reentrant => self.refuse(cx),
        }
    }

    #[inline(never)]
    fn poll_keeping(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<S, Req>> {
        let PlaceProj::Keeping(keeping) = self.as_mut().project() else {
            unreachable!("it has a seat, and its request");
        };
        let Keeping { seat, timer, seed } = &mut **keeping;
        match seat.poll(cx, Verdict::copy) {
            Poll::Ready(Sat::Done(verdict)) => {
                let manner = seat.flight().tag();
                match given(verdict, manner, seat.flight().name(), seat.led()) {
                    Some(result) => {
                        self.set(Place::Done);
                        Poll::Ready(result)
                    }
                    None => {
                        let seed = seed.take();
                        self.go_alone(seed, manner.convert, cx)
                    }
                }
            }
            Poll::Ready(Sat::Reentrant) => self.refuse(cx),
            Poll::Pending => {
                let Some(sleep) = timer else {
                    return Poll::Pending;
                };
                ready!(sleep.as_mut().poll(cx));
                *timer = None;
                if let Some(next) = replace(keeping) {
                    keeping.seat.moves();
                    self.set(next);
                }
                self.poll(cx)
            }
        }
    }

    #[cold]
    fn refuse(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<S, Req>> {
        self.set(Place::refused(ErrorKind::Reentrant));
        self.poll_alone(cx)
    }

    /// In a flight => Passing, with what it kept for that. (Who has kept nothing cannot come to it.)
    #[cold]
    fn go_alone(
        mut self: Pin<&mut Self>,
        seed: Option<(S, Req)>,
        convert: fn(S::Error) -> Error,
        cx: &mut Context<'_>,
    ) -> Poll<Answer<S, Req>> {
        let call = match seed {
            Some((service, request)) => Work::Seed { service, request },
            None => Work::Empty,
        };
        self.set(Place::Passing { call, convert });
        self.poll_alone(cx)
    }

    #[inline(never)]
    fn poll_alone(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<S, Req>> {
        let result = match self.as_mut().project() {
            PlaceProj::Passing { call, convert } => ready!(call.poll(cx)).map_err(*convert),
            PlaceProj::Refused(error) => Err(error.clone()),
            PlaceProj::Done => panic!("polled after it was done"),
            PlaceProj::Leading(_) | PlaceProj::Seated(_) | PlaceProj::Keeping(_) => {
                unreachable!("it is not alone")
            }
        };
        self.set(Place::Done);
        Poll::Ready(result)
    }

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer<S, Req>> {
        match &*self {
            Place::Leading(_) => self.poll_leading(cx),
            Place::Seated(_) => self.poll_seated(cx),
            Place::Keeping(_) => self.poll_keeping(cx),
            Place::Passing { .. } | Place::Refused(_) | Place::Done => self.poll_alone(cx),
        }
    }
}

impl<S, I, Req, P, D> Future for ResponseFuture<S, I, Req, P, D>
where
    S: Service<Req>,
    S::Response: Share,
    I: Identity<Req>,
{
    type Output = Result<S::Response, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().place.poll(cx)
    }
}

impl<S, I, Req, P, D> fmt::Debug for ResponseFuture<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.place {
            Place::Passing { .. } => "passing by",
            Place::Leading(_) => "led",
            Place::Seated(seat) if seat.led() => "led",
            Place::Seated(_) | Place::Keeping(_) => "joined",
            Place::Refused(_) => "refused",
            Place::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("place", &place)
            .finish_non_exhaustive()
    }
}
