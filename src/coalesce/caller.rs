//! What a caller does when it is polled: by its ticket, if it led and knows of nobody else, or in its
//! seat of a shared flight.

use std::task::{Context, Poll, Waker, ready};

use super::{
    driving::{Driving, Landing},
    flight::{Home, Name},
    parting::{Departure, Who},
    seat::{Seat, Turn},
    shards::{Parked, Taken},
};

/// The place of a caller that led and does not know that anybody joined. Dropping it leaves.
pub(crate) struct Ticket<H: Home> {
    /// `None` once it is given up for a seat or an outcome.
    home: Option<H>,
    name: Name,
}

/// What came of a poll by ticket.
pub(crate) enum Step<H: Home> {
    Pending,
    /// The flight is shared.
    Seated(Seat<H>),
    Done(H::Value, H::Tag),
}

/// What came of having a seat.
pub(crate) enum Sat<V> {
    Done(V),
    /// It is polled from within the flight that it waits for.
    Reentrant,
}

impl<H: Home> Ticket<H> {
    #[inline]
    pub(crate) fn new(home: H, name: Name) -> Self {
        let home = Some(home);
        Self { home, name }
    }

    pub(crate) fn name(&self) -> Name {
        self.name
    }

    /// # Panics
    ///
    /// After it has panicked, or was done.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Step<H> {
        let home = self.home.as_ref().expect("polled after it was done");
        let step = by_ticket(home, self.name, cx);
        if !matches!(step, Step::Pending) {
            self.home = None;
        }
        step
    }
}

impl<H: Home> Drop for Ticket<H> {
    #[inline]
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.space().leave(self.name, Who::Ticket, Departure::Left);
        }
    }
}

#[inline]
fn by_ticket<H: Home>(home: &H, name: Name, cx: &mut Context<'_>) -> Step<H> {
    let (work, polled_with) = match home.space().take(name) {
        Taken::Alone(work, polled_with) => (work, polled_with),
        Taken::Shared(seat) => return Step::Seated(seat),
        Taken::Lost => panic!("polled after it had panicked"),
    };
    let mut driving = Driving::alone(home, name, work);
    match driving.fly(cx) {
        Poll::Ready(outcome) => match driving.land(outcome) {
            Landing::Alone(value) => Step::Done(value, home.tag()),
            Landing::Told(flight) => Step::Seated(Seat::leading(flight)),
        },
        Poll::Pending => {
            let waker = match polled_with {
                Some(waker) if waker.will_wake(cx.waker()) => waker,
                other => {
                    drop(other);
                    cx.waker().clone()
                }
            };
            match home.space().park(name, driving, waker) {
                Parked::Alone => Step::Pending,
                Parked::Shared(mut seat, driving) => {
                    seat.adopt(driving);
                    Step::Seated(seat)
                }
            }
        }
    }
}

impl<H: Home> Seat<H> {
    /// Drives, waits or collects. `copy` makes another of a value.
    #[inline(always)]
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        copy: impl FnOnce(&H::Value) -> H::Value,
    ) -> Poll<Sat<H::Value>> {
        loop {
            match self.turn(cx.waker()) {
                Turn::Landed => {
                    return self.collect(cx.waker(), copy).map(Sat::Done);
                }
                Turn::Wait { driven: false } => return Poll::Pending,
                Turn::Wait { driven: true } => {
                    return match self.is_flying_here() {
                        true => Poll::Ready(Sat::Reentrant),
                        false => Poll::Pending,
                    };
                }
                Turn::Drive(waker) => ready!(self.fly(waker)),
            }
        }
    }

    #[cold]
    fn is_flying_here(&self) -> bool {
        let name = self.flight().name();
        let here = self.flight().with_home(|home| home.is_flying_here(name));
        here.unwrap_or(false)
    }

    /// Polls the work, then lands it or puts it back, which has landed if it was aborted meanwhile.
    #[inline(never)]
    fn fly(&mut self, waker: Waker) -> Poll<()> {
        self.drive(|spot, flight, mut driving| {
            let mut inner = Context::from_waker(&flight.waker);
            match driving.fly(&mut inner) {
                Poll::Ready(outcome) => {
                    driving.land_shared(flight, outcome);
                    Poll::Ready(())
                }
                Poll::Pending => flight.park(spot, driving, waker),
            }
        })
    }
}
