//! `Seat`: a caller's place in a shared flight, from joining to the outcome.

use std::task::{Poll, Waker};

use super::{
    driving::Driving,
    flight::{Flight, Home},
    parting::{Departure, Who},
    signal::{Note, Spot, Turned},
};
use crate::sync::{Arc, atomic::Ordering, lock};

/// A caller's place in a shared flight. Dropping it leaves.
pub(crate) struct Seat<H: Home> {
    flight: Arc<Flight<H>>,
    spot: Spot,
}

/// What a caller is to do now.
pub(crate) enum Turn {
    /// Collect.
    Landed,
    /// [Drive](Seat::drive), and park with this waker.
    Drive(Waker),
    /// Registered. `driven`: somebody polls the work just now.
    Wait { driven: bool },
}

impl<H: Home> Seat<H> {
    /// Of one who has joined.
    #[inline]
    pub(crate) fn joined(flight: Arc<Flight<H>>) -> Self {
        let note = Note {
            led: false,
            departure: Departure::Left,
            done: false,
        };
        let spot = Spot::new(note);
        Self { flight, spot }
    }

    /// Of the caller that led.
    pub(crate) fn leading(flight: Arc<Flight<H>>) -> Self {
        let spot = flight.leader_spot();
        Self { flight, spot }
    }

    pub(crate) fn flight(&self) -> &Arc<Flight<H>> {
        &self.flight
    }

    /// Whether this caller led.
    pub(crate) fn led(&self) -> bool {
        self.spot.note.led
    }

    /// Leaves, for another reason than being dropped.
    pub(crate) fn depart(mut self, how: Departure) {
        self.spot.note.departure = how;
    }

    /// The caller goes elsewhere when this is dropped.
    pub(crate) fn moves(&mut self) {
        self.spot.note.departure = Departure::Moved;
    }

    #[inline(always)]
    pub(crate) fn turn(&mut self, waker: &Waker) -> Turn {
        let signal = &self.flight.signal;
        if signal.has_landed() {
            return Turn::Landed;
        }
        match signal.turn(&mut self.spot, waker) {
            Turned::Landed => Turn::Landed,
            Turned::NotOurs { driven } => Turn::Wait { driven },
            Turned::Ours(waker) => Turn::Drive(waker),
        }
    }

    /// Takes the work, to poll it and then land or [park](Flight::park) it.
    pub(crate) fn drive<R>(
        &mut self,
        with: impl FnOnce(&mut Spot, &Flight<H>, Driving<'_, H>) -> R,
    ) -> R {
        let Self { flight, spot } = self;
        let driven = flight.with_home(|home| {
            let work = flight.work.swap(None);
            with(spot, flight, Driving::of(home, flight.name, work))
        });
        driven.expect("what is driven has not landed")
    }

    /// Puts the work into a flight that was shared while this caller, which led, polled it alone.
    pub(crate) fn adopt(&mut self, mut driving: Driving<'_, H>) {
        self.flight.put_back(&mut driving);
        if !self.flight.signal.adopt() {
            self.flight.take_again(driving);
        }
    }

    /// Takes the outcome of a flight that has landed, made by `copy` unless nobody else can ask for
    /// it. Pending while another caller copies it.
    #[inline(always)]
    pub(crate) fn collect(
        &mut self,
        waker: &Waker,
        copy: impl FnOnce(&H::Value) -> H::Value,
    ) -> Poll<H::Value> {
        if self.spot.note.led {
            if let Some(private) = self.collect_private() {
                self.spot.note.done = true;
                return Poll::Ready(private);
            }
        }
        let Some(value) = self.flight.borrow(waker) else {
            return Poll::Pending;
        };
        if Arc::strong_count(&self.flight) == 1 {
            // Nobody else is here, and nobody can join what is not in the table.
            self.spot.note.done = true;
            return Poll::Ready(*value);
        }
        let mut loan = Loan {
            flight: &self.flight,
            value: Some(value),
        };
        let copied = loan.value.as_deref().map(copy);
        loan.give_back();
        self.spot.note.done = true;
        Poll::Ready(copied.expect("it is lent to us"))
    }
}

impl<H: Home> Seat<H> {
    /// The outcome that is for the caller that led alone, if there is one.
    #[inline(never)]
    fn collect_private(&self) -> Option<H::Value> {
        match self.flight.signal.has_landed_apart() {
            true => lock(&self.flight.cargo).private.take(),
            false => None,
        }
    }
}

/// Leaves: the last to leave drops the work.
impl<H: Home> Drop for Seat<H> {
    #[inline]
    fn drop(&mut self) {
        if !self.spot.note.done {
            self.leave();
        }
    }
}

impl<H: Home> Seat<H> {
    #[cold]
    fn leave(&mut self) {
        let flight = &*self.flight;
        flight.signal.forget(&mut self.spot);
        let Note { led, departure, .. } = self.spot.note;
        flight.with_home(|home| {
            let who = Who::Seat { led };
            home.space().leave(flight.name, who, departure);
        });
        if led {
            flight.leader_left();
        }
    }
}

/// The value of a flight, out to be copied. Comes back when it is dropped.
struct Loan<'a, H: Home> {
    flight: &'a Flight<H>,
    value: Option<Box<H::Value>>,
}

impl<H: Home> Loan<'_, H> {
    #[inline(always)]
    fn give_back(&mut self) {
        self.flight.value.swap(self.value.take());
        if self.flight.wanted.load(Ordering::Relaxed) {
            self.flight.wake_borrowers();
        }
    }
}

impl<H: Home> Drop for Loan<'_, H> {
    #[inline]
    fn drop(&mut self) {
        if self.value.is_some() {
            // It panicked while it was copied.
            self.give_back();
        }
    }
}
