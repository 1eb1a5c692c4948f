//! What may come before a call: waiting for a start, and for the lease to be ready.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use crate::{
    error::{BoxError, Error, ErrorKind},
    lifecycle::{
        entrance::{Entrance, Joined, Waiting},
        instance::Handed,
    },
    target::Urgency,
};

/// How many instances a call is handed to in turn, when each is retired before it takes the call.
const MOST_TRIES: u8 = 4;

/// A call that found no instance, or none whose lease was ready: it waits with its request in hand.
///
/// It stands in a box. Few calls ever wait, and those are long; the future of all others is smaller, and
/// small enough to become part of its caller.
pub(super) struct Before<L, Req> {
    entrance: Arc<dyn Entrance<L>>,
    request: Option<Req>,
    may_start: bool,
    tries: u8,
    step: Step<L>,
}

enum Step<L> {
    /// Waiting → Readying, when the owner hands a lease over.
    Waiting(Waiting<L>),
    /// Readying → over, when the lease is ready; → Waiting, when its instance was closed before.
    Readying(Handed<L>),
    Over,
}

impl<L, Req> Before<L, Req> {
    /// For a call that there was no lease for.
    #[cold]
    pub(super) fn unborrowed(
        entrance: &Arc<dyn Entrance<L>>,
        request: Req,
        closed: Option<u64>,
        may_start: bool,
    ) -> Result<Box<Self>, Error> {
        if !may_start {
            return Err(not_running(entrance));
        }
        let step = join(entrance, closed)?;
        Ok(Self::at(entrance, request, step, may_start))
    }

    /// For a call whose lease is not ready yet.
    #[cold]
    pub(super) fn unready(
        entrance: &Arc<dyn Entrance<L>>,
        request: Req,
        handed: Handed<L>,
        may_start: bool,
    ) -> Box<Self> {
        Self::at(entrance, request, Step::Readying(handed), may_start)
    }

    /// For a call whose lease is not ready any more.
    #[cold]
    pub(super) fn retired(
        entrance: &Arc<dyn Entrance<L>>,
        request: Req,
        handed: Handed<L>,
        error: Error,
        may_start: bool,
    ) -> Result<Box<Self>, Error> {
        let mut before = Self::at(entrance, request, Step::Over, may_start);
        before.step = before.again(handed, error)?;
        Ok(before)
    }

    fn at(
        entrance: &Arc<dyn Entrance<L>>,
        request: Req,
        step: Step<L>,
        may_start: bool,
    ) -> Box<Self> {
        Box::new(Self {
            entrance: entrance.clone(),
            request: Some(request),
            may_start,
            tries: 0,
            step,
        })
    }

    /// The instance was retired before it took the call: the very same request goes to another
    /// generation. If it is not closed, its owner hears that it is broken: then the error, be it
    /// `Evicted`, is of something beneath.
    fn again(&mut self, handed: Handed<L>, error: Error) -> Result<Step<L>, Error> {
        let generation = handed.generation;
        drop(handed);
        let error = error.of(self.entrance.name());
        let evicted = matches!(error.kind(), ErrorKind::Evicted);
        self.entrance.distrust(generation, error.clone());
        self.tries += 1;
        if !self.may_start && evicted {
            Err(not_running(&self.entrance))
        } else if !self.may_start || self.tries == MOST_TRIES {
            Err(error)
        } else {
            join(&self.entrance, Some(generation))
        }
    }

    /// The backend whose start it waits for.
    #[cfg(feature = "http")]
    pub(super) fn waits_for(&self) -> Option<&Arc<dyn Entrance<L>>> {
        matches!(self.step, Step::Waiting(_)).then_some(&self.entrance)
    }

    /// Where it stands, in a word.
    pub(super) fn state(&self) -> &'static str {
        match self.step {
            Step::Waiting(_) => "waiting",
            Step::Readying(_) => "readying",
            Step::Over => "done",
        }
    }
}

impl<L, Req> Before<L, Req>
where
    L: Service<Req>,
    L::Error: Into<BoxError>,
{
    /// A lease that is ready, and the request it is for.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Handed<L>, Req), Error>> {
        loop {
            self.step = match mem::replace(&mut self.step, Step::Over) {
                Step::Waiting(mut waiting) => match Pin::new(&mut waiting).poll(cx) {
                    Poll::Ready(handed) => Step::Readying(handed?),
                    Poll::Pending => {
                        self.step = Step::Waiting(waiting);
                        return Poll::Pending;
                    }
                },
                Step::Readying(mut handed) => match handed.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {
                        let request = self.request.take();
                        let request = request.expect("it is there until it is called");
                        return Poll::Ready(Ok((handed, request)));
                    }
                    Poll::Ready(Err(error)) => self.again(handed, error)?,
                    Poll::Pending => {
                        self.step = Step::Readying(handed);
                        return Poll::Pending;
                    }
                },
                Step::Over => panic!("polled after it was done"),
            };
        }
    }
}

/// A lease, or a place among those who wait.
fn join<L>(entrance: &Arc<dyn Entrance<L>>, not: Option<u64>) -> Result<Step<L>, Error> {
    Ok(match entrance.clone().join(not, Urgency::Demand)? {
        Joined::Wait(waiting) => Step::Waiting(waiting),
        Joined::Lease(handed) => Step::Readying(handed),
    })
}

fn not_running<L>(entrance: &Arc<dyn Entrance<L>>) -> Error {
    Error::new(ErrorKind::NotRunning).of(entrance.name())
}
