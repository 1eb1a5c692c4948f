//! `Leased`: a service together with its claim on the instance behind it.

use std::{
    fmt,
    future::Future,
    ops::Deref,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project::pin_project;
use tower_service::Service;

use crate::{
    busy::{Begin, Busy, Hold, UntilResponse},
    error::{BoxError, Error, ErrorKind},
    matches::{Matches, Nothing},
    usage::{Claim, Holdouts, Refused, Usage},
};

/// A service with its claim on the instance behind it, taken when it was lent.
///
/// `poll_ready` fails with [`ErrorKind::Evicted`] if the instance was closed first, died, or was stopped
/// meanwhile, as tower has it: discard this service, send the same request to another. The claim goes from `call` into the
/// response future, and from there where [`Hold`] says; the next `poll_ready` takes a new one. A
/// readied lease that is never called keeps its claim until it is dropped.
pub struct Leased<S, H = UntilResponse, P = Nothing> {
    service: S,
    claim: State,
    hold: H,
    not_use: P,
}

enum State {
    /// Somebody above counts.
    Uncounted,
    Unclaimed(Unclaimed),
    Claimed(Busy),
    /// For one call, which takes the claim along: nothing is left to claim again with.
    Once(Option<Busy>),
}

/// A place among those who wait for a yielding instance, if it has registered.
struct Unclaimed {
    usage: Arc<Usage>,
    key: Option<usize>,
    /// From a refusal on. The service, which it vouches for, is dropped before.
    holdout: Option<Arc<Holdouts>>,
}

impl Unclaimed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Claim, Refused>> {
        let claimed = self.usage.poll_claim(&mut self.key, cx.waker());
        if claimed.is_pending() && self.holdout.is_none() {
            self.holdout = Some(self.usage.hold_out());
        }
        claimed
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        self.usage.forget_claim(&mut self.key);
    }
}

impl State {
    fn unclaimed(usage: &Arc<Usage>) -> Self {
        State::Unclaimed(Unclaimed {
            usage: usage.clone(),
            key: None,
            holdout: None,
        })
    }

    fn claim(usage: &Arc<Usage>) -> Self {
        match usage.claim() {
            Ok(claim) => State::Claimed(Busy::new(Some(claim))),
            // `poll_ready` asks again, and says which it is. Until then this keeps a service: the
            // owner, who lets go of the instance only when no lease is being taken any more, leaves its
            // room to whoever holds out.
            Err(Refused::Closed | Refused::Yielding) => State::Unclaimed(Unclaimed {
                usage: usage.clone(),
                key: None,
                holdout: Some(usage.hold_out()),
            }),
        }
    }

    /// Takes the claim out, for one call.
    fn take(&mut self) -> Busy {
        match self {
            State::Uncounted => Busy::nothing(),
            State::Unclaimed(_) => panic!("a lease was called that is not ready"),
            State::Once(claim) => claim.take().expect("a lease for one call"),
            State::Claimed(claim) => {
                let claim = claim.take();
                if let Some(usage) = claim.usage() {
                    *self = Self::unclaimed(usage);
                }
                claim
            }
        }
    }

    fn claimed(&mut self) -> Option<&mut Busy> {
        match self {
            State::Claimed(claim) | State::Once(Some(claim)) => Some(claim),
            State::Uncounted | State::Unclaimed(_) | State::Once(None) => None,
        }
    }
}

impl<S, H> Leased<S, H> {
    pub(crate) fn uncounted(service: S, hold: H) -> Self {
        Self {
            service,
            claim: State::Uncounted,
            hold,
            not_use: Nothing,
        }
    }
}

impl<S, H, P> Leased<S, H, P> {
    pub(crate) fn claimed(service: S, usage: &Arc<Usage>, hold: H, not_use: P) -> Self {
        Self {
            service,
            claim: State::claim(usage),
            hold,
            not_use,
        }
    }

    /// A lease for one call: it costs one reference less.
    pub(crate) fn once(service: S, usage: &Arc<Usage>, hold: H, not_use: P) -> Self {
        let claim = match State::claim(usage) {
            State::Claimed(claim) => State::Once(Some(claim)),
            unclaimed => unclaimed,
        };
        Self {
            service,
            claim,
            hold,
            not_use,
        }
    }

    /// The service.
    pub const fn get_ref(&self) -> &S {
        &self.service
    }

    /// The service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.service
    }
}

/// A clone has no claim: its `poll_ready` takes its own.
impl<S: Clone, H: Clone, P: Clone> Clone for Leased<S, H, P> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            claim: match &self.claim {
                State::Uncounted => State::Uncounted,
                State::Unclaimed(unclaimed) => State::unclaimed(&unclaimed.usage),
                State::Claimed(claim) | State::Once(Some(claim)) => match claim.usage() {
                    Some(usage) => State::unclaimed(usage),
                    None => State::Uncounted,
                },
                State::Once(None) => State::Once(None),
            },
            hold: self.hold.clone(),
            not_use: self.not_use.clone(),
        }
    }
}

impl<S, H, P, Req> Service<Req> for Leased<S, H, P>
where
    H: Begin<Req>,
    H::Hold: Hold<S::Response>,
    S: Service<H::Request>,
    S::Error: Into<BoxError>,
    P: Matches<Req>,
{
    type Response = <H::Hold as Hold<S::Response>>::Response;
    type Error = Error;
    type Future = LeasedFuture<S::Future, H::Hold>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match &mut self.claim {
            State::Uncounted => {}
            State::Claimed(claim) | State::Once(Some(claim)) => {
                if claim.is_void() {
                    return Poll::Ready(Err(Error::new(ErrorKind::Evicted)));
                }
            }
            State::Once(None) => return Poll::Ready(Err(Error::new(ErrorKind::Evicted))),
            State::Unclaimed(unclaimed) => match ready!(unclaimed.poll(cx)) {
                Ok(claim) => self.claim = State::Claimed(Busy::new(Some(claim))),
                Err(_) => return Poll::Ready(Err(Error::new(ErrorKind::Evicted))),
            },
        }
        match (self.service.poll_ready(cx), self.claim.claimed()) {
            (Poll::Pending, Some(claim)) => {
                // It may never be ready any more.
                ready!(claim.poll_void(cx));
                Poll::Ready(Err(Error::new(ErrorKind::Evicted)))
            }
            (poll, _) => poll.map_err(Error::service),
        }
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let mut busy = self.claim.take();
        if busy.usage().is_some() && self.not_use.matches(&request) {
            busy.keep_recency();
        }
        let (request, hold) = self.hold.begin(request, &mut busy);
        LeasedFuture {
            future: Some(self.service.call(request)),
            busy,
            hold,
        }
    }
}

/// For leases that are not services.
impl<S, H, P> Deref for Leased<S, H, P> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.service
    }
}

impl<S: fmt::Debug, H, P> fmt::Debug for Leased<S, H, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("service", &self.service)
            .field(
                "claimed",
                &matches!(self.claim, State::Claimed(_) | State::Once(Some(_))),
            )
            .finish_non_exhaustive()
    }
}

/// The response future of [`Leased`]. Dropping it drops the call and then ends the use.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct LeasedFuture<F, H> {
    /// Dropped before the claim: the use lasts as long as the call has anything in hand.
    #[pin]
    future: Option<F>,
    busy: Busy,
    hold: H,
}

impl<F, H, Res, E> Future for LeasedFuture<F, H>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    H: Hold<Res>,
{
    type Output = Result<H::Response, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let future = this.future.as_mut().as_pin_mut();
        let result = match future.expect("polled after it was done").poll(cx) {
            Poll::Ready(result) => result.map_err(Error::service),
            Poll::Pending => {
                ready!(this.busy.poll_cut(cx));
                Err(Error::new(ErrorKind::Stopped))
            }
        };
        let result = result.map_err(|error| this.busy.named(error));
        this.future.set(None);
        let busy = this.busy.take();
        Poll::Ready(result.map(|response| this.hold.hold(response, busy)))
    }
}

impl<F, H> fmt::Debug for LeasedFuture<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedFuture")
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}
