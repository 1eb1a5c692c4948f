//! `Driving`: the work of a flight in the hands of whoever polls it, until it is put back or has landed.

use std::task::{Context, Poll};

use super::{
    flight::{Flight, Home, Keep, Lost, Name, Outcome, Parcel, Whose},
    parting::Unlinked,
};
use crate::sync::Arc;

/// The work of a flight, out to be polled. Dropped before it is landed or put back, which is a panic
/// of the work's, it lands the flight as `Panicked`.
pub(crate) struct Driving<'a, H: Home> {
    home: &'a H,
    name: Name,
    /// By the caller that led, which does not know whether anybody joined.
    by_ticket: bool,
    pub(super) work: Option<Parcel<H>>,
    pub(super) armed: bool,
}

/// How a flight landed.
pub(crate) enum Landing<H: Home> {
    /// Nobody else has joined: the outcome is the driver's.
    Alone(H::Value),
    /// Everybody is told.
    Told(Arc<Flight<H>>),
}

impl<'a, H: Home> Driving<'a, H> {
    pub(super) fn of(home: &'a H, name: Name, work: Option<Parcel<H>>) -> Self {
        Self {
            home,
            name,
            by_ticket: false,
            work,
            armed: true,
        }
    }

    /// Of a call that nobody has joined, as far as is known.
    #[inline]
    pub(crate) fn alone(home: &'a H, name: Name, work: Parcel<H>) -> Self {
        Self {
            home,
            name,
            by_ticket: true,
            work: Some(work),
            armed: true,
        }
    }

    /// By a task, which has the work itself.
    pub(crate) fn by_task(home: &'a H, flight: &Flight<H>) -> Self {
        Self::of(home, flight.name, None)
    }

    #[inline]
    pub(crate) fn fly(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<H::Value>> {
        let work = self.work.as_mut().expect("the work is out");
        self.home.fly(self.name, work.as_mut(), cx)
    }

    /// A task's, between two polls.
    pub(crate) fn release(mut self) {
        self.armed = false;
    }

    /// Takes the work, to put it back into the table.
    #[inline]
    pub(crate) fn into_work(mut self) -> Option<Parcel<H>> {
        self.armed = false;
        self.work.take()
    }

    /// Unlinks the flight, or lets it be joined for a while; tells all.
    #[inline]
    pub(crate) fn land(&mut self, outcome: Outcome<H::Value>) -> Landing<H> {
        match self.unlink(outcome.keep) {
            (None, _) => Landing::Alone(match outcome.whose {
                Whose::All | Whose::Leaders => outcome.value,
                Whose::Others(private) => *private,
            }),
            (Some(flight), kept) => {
                self.tell(&flight, outcome, kept);
                Landing::Told(flight)
            }
        }
    }

    /// The same, of a flight that is known.
    pub(crate) fn land_shared(mut self, flight: &Flight<H>, outcome: Outcome<H::Value>) {
        let (_, kept) = self.unlink(outcome.keep);
        self.tell(flight, outcome, kept);
    }

    fn tell(&self, flight: &Flight<H>, outcome: Outcome<H::Value>, kept: Option<Keep>) {
        let (value, private) = match outcome.whose {
            Whose::All => (outcome.value, None),
            Whose::Leaders => (self.home.apart(), Some(outcome.value)),
            Whose::Others(private) => (outcome.value, Some(*private)),
        };
        flight.publish(value, private, kept);
    }

    /// Lands it without an outcome.
    pub(crate) fn give_up(mut self, how: Lost) {
        self.work = None;
        self.lose(how);
    }

    /// The work is dropped.
    #[cold]
    fn lose(&mut self, how: Lost) {
        if let (Some(flight), _) = self.unlink(None) {
            flight.publish(self.home.lost(how), None, None);
        }
    }

    /// What was unlinked, if it is shared, and whether it is kept.
    #[inline]
    fn unlink(&mut self, keep: Option<Keep>) -> (Option<Arc<Flight<H>>>, Option<Keep>) {
        self.armed = false;
        let spent = if H::REUSE { self.work.take() } else { None };
        let space = self.home.space();
        match space.unlink(self.home, self.name, self.by_ticket, keep, spent) {
            Unlinked::Alone => (None, None),
            Unlinked::Shared { flight, kept } => (Some(flight), kept),
        }
    }
}

impl<H: Home> Drop for Driving<'_, H> {
    #[inline]
    fn drop(&mut self) {
        if self.armed {
            self.work = None;
            self.lose(Lost::Panicked);
        }
    }
}
