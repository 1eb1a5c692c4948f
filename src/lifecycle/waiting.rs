//! A caller's place among those who wait for an instance.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    core::{Door, wake},
    desk::Handed,
};
use crate::{backend::Backend, error::Error, sync::lock};

/// Resolves to a lease handed over by the owner, claimed, or to why there is none.
///
/// Dropping it gives the place back, and a lease that was handed over but not taken with it.
pub(crate) struct Waiting<T, B: Backend> {
    door: Arc<Door<T, B>>,
    ticket: Option<usize>,
}

impl<T, B: Backend> Waiting<T, B> {
    pub(crate) fn new(door: Arc<Door<T, B>>, ticket: usize) -> Self {
        Self {
            door,
            ticket: Some(ticket),
        }
    }

    pub(crate) fn door(&self) -> &Arc<Door<T, B>> {
        &self.door
    }
}

impl<T, B: Backend> Future for Waiting<T, B> {
    type Output = Result<Handed<B>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket.expect("polled after it was done");
        let waker = cx.waker().clone();
        let mut desk = lock(&self.door.core.desk);
        let (outcome, old) = desk.collect(ticket, waker);
        drop(desk);
        drop(old);
        match outcome {
            Some(outcome) => {
                self.ticket = None;
                Poll::Ready(outcome)
            }
            None => Poll::Pending,
        }
    }
}

impl<T, B: Backend> Drop for Waiting<T, B> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let core = &self.door.core;
        let mut desk = lock(&core.desk);
        let left = desk.leave(ticket);
        let mut owner = None;
        if core.config.cancel && desk.waiting() == 0 {
            desk.cancelled = true;
            owner = desk.owner.take();
        }
        drop(desk);
        drop(left);
        wake(owner);
    }
}
