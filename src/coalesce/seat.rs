//! `Seat`: a caller's place in a shared flight, from joining to the outcome.

use std::task::{Poll, Waker};

use super::{
    driving::Driving,
    flight::{Flight, Home, Outcome, Parcel},
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
pub(crate) enum Turn<H: Home> {
    /// Collect.
    Landed,
    /// Poll the work by [`Seat::drive`], then land or park it, with this waker.
    Drive(H, Option<Parcel<H>>, Waker),
    /// Registered. `driven`: somebody polls the work just now.
    Wait { driven: bool },
}

impl<H: Home> Seat<H> {
    /// Of one who does not know yet whether it has the same key. `full`: it is not counted in.
    pub(crate) fn joining(flight: Arc<Flight<H>>, full: bool) -> Self {
        let note = Note {
            led: false,
            departure: Departure::Mistaken,
            done: full,
        };
        let spot = Spot::new(note);
        Self { flight, spot }
    }

    /// It has the same key.
    #[inline]
    pub(crate) fn settle(&mut self) {
        self.spot.note.departure = Departure::Left;
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

    #[inline]
    pub(crate) fn turn(&mut self, waker: &Waker) -> Turn<H> {
        let signal = &self.flight.signal;
        if signal.has_landed() {
            return Turn::Landed;
        }
        match signal.turn(&mut self.spot, waker) {
            Turned::Landed => Turn::Landed,
            Turned::NotOurs { driven } => Turn::Wait { driven },
            Turned::Ours(waker) => {
                let mut cargo = lock(&self.flight.cargo);
                let home = cargo.home.clone();
                let home = home.expect("what is driven has not landed");
                Turn::Drive(home, cargo.work.take(), waker)
            }
        }
    }

    /// Drives, with what it was given for it.
    pub(crate) fn drive<'a>(&self, home: &'a H, work: Option<Parcel<H>>) -> Driving<'a, H> {
        Driving::of(home, self.flight.name, work)
    }

    /// Unlinks the flight, or lets it be joined for a while; tells all.
    pub(crate) fn land(&self, driving: Driving<'_, H>, outcome: Outcome<H::Value>) {
        driving.land_shared(&self.flight, outcome);
    }

    /// The waker that the work is polled with.
    pub(crate) fn waker(&self) -> &Waker {
        &self.flight.waker
    }

    /// Puts the work back. `waker` is this caller's. False: it was aborted, and has landed.
    pub(crate) fn park(&mut self, mut driving: Driving<'_, H>, waker: Waker) -> bool {
        self.flight.put_back(&mut driving);
        let parked = self.flight.signal.park(&mut self.spot, waker);
        if !parked {
            self.flight.take_again(driving);
        }
        parked
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
    pub(crate) fn collect(
        &mut self,
        waker: &Waker,
        copy: impl FnOnce(&H::Value) -> H::Value,
    ) -> Poll<H::Value> {
        if self.spot.note.led && self.flight.signal.has_landed_apart() {
            let private = lock(&self.flight.cargo).private.take();
            if let Some(private) = private {
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
        let loan = Loan {
            flight: &self.flight,
            value: Some(value),
        };
        let copied = loan.value.as_deref().map(copy);
        drop(loan);
        self.spot.note.done = true;
        Poll::Ready(copied.expect("it is lent to us"))
    }
}

/// Leaves: the last to leave drops the work.
impl<H: Home> Drop for Seat<H> {
    fn drop(&mut self) {
        if self.spot.note.done {
            return;
        }
        let flight = &*self.flight;
        flight.signal.forget(&mut self.spot);
        if let Some(home) = flight.home() {
            let who = Who::Seat {
                led: self.spot.note.led,
            };
            home.space()
                .leave(flight.name, who, self.spot.note.departure);
        }
        if self.spot.note.led {
            flight.leader_left();
        }
    }
}

/// The value of a flight, out to be copied. Comes back when it is dropped.
struct Loan<'a, H: Home> {
    flight: &'a Flight<H>,
    value: Option<Box<H::Value>>,
}

impl<H: Home> Drop for Loan<'_, H> {
    #[inline]
    fn drop(&mut self) {
        self.flight.value.swap(self.value.take());
        if self.flight.wanted.load(Ordering::Relaxed) {
            self.flight.wake_borrowers();
        }
    }
}
