//! A backend as its callers see it: known by what it lends, and by nothing else.
//!
//! The service, its future and a caller's place hold a trait object, so that their types name neither
//! the target nor the backend. A future that a spawned task awaits is looked at with its lifetimes
//! erased, and then no bound with `'static` can be shown of any type that has one: a `&'static str`
//! as the target, or one captured by the backend, and `tokio::spawn` would refuse ("implementation
//! of `Clone` is not general enough"). The price is one indirect call per request.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use super::{control::Control, instance::Handed, status::Status};
use crate::{error::Error, target::Urgency, usage::Usage};

/// What callers can do to a backend that lends `L`. Holding one holds the backend.
pub(crate) trait Entrance<L>: Send + Sync {
    fn name(&self) -> Arc<str>;
    fn status(&self) -> Status;
    fn control(self: Arc<Self>) -> Arc<dyn Control>;
    /// The word of instance `generation`, if it is the running one: `None` within where its leases
    /// do not count.
    fn counted(&self, generation: u64) -> Option<Option<Arc<Usage>>>;
    /// A lease of the running instance, for one call.
    fn borrow_once(&self) -> Borrowed<L>;
    /// A lease, or a place among those who wait for the next instance. The first of them starts it.
    fn join(self: Arc<Self>, not: Option<u64>, urgency: Urgency) -> Result<Joined<L>, Error>;
    /// The lease of `generation` failed to become ready.
    fn distrust(&self, generation: u64, error: Error);
    /// The outcome of a place, which ends it; or `waker` is kept for when there is one.
    fn collect(&self, ticket: usize, waker: Waker) -> Option<Verdict<L>>;
    /// What would be lost with it.
    fn remembered(&self, now: Instant) -> Remembered;
    /// Gives a place back, and what was handed to it.
    fn leave(&self, ticket: usize);
}

/// What a caller gets who joins.
pub(crate) enum Joined<L> {
    Lease(Handed<L>),
    Wait(Waiting<L>),
}

/// What is to be had of the running instance.
pub(crate) enum Borrowed<L> {
    Lease(Handed<L>),
    /// This generation was closed and waits for its owner.
    Closed(u64),
    Nothing,
}

/// What a backend that rests is remembered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// It does not rest.
    InUse,
    /// Its starts failed, or it crashed, lately.
    Failing,
    /// It was unloaded, or an order made it another than its layer would.
    Ordered,
    Nothing,
}

/// What comes of a place.
pub(crate) type Verdict<L> = Result<Handed<L>, Error>;

/// A caller's place among those who wait. Resolves to a lease handed over by the owner, claimed, or
/// to why there is none.
///
/// Dropping it gives the place back, and a lease that was handed over but not taken with it.
pub(crate) struct Waiting<L> {
    entrance: Arc<dyn Entrance<L>>,
    ticket: Option<usize>,
}

impl<L> Waiting<L> {
    pub(crate) fn new(entrance: Arc<dyn Entrance<L>>, ticket: usize) -> Self {
        Self {
            entrance,
            ticket: Some(ticket),
        }
    }
}

impl<L> Future for Waiting<L> {
    type Output = Verdict<L>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket.expect("polled after it was done");
        match self.entrance.collect(ticket, cx.waker().clone()) {
            Some(outcome) => {
                self.ticket = None;
                Poll::Ready(outcome)
            }
            None => Poll::Pending,
        }
    }
}

impl<L> Drop for Waiting<L> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.entrance.leave(ticket);
        }
    }
}
