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
    usage::{Holdouts, Refused, Usage},
    wakers::Key,
};

/// A service with its claim on the instance behind it, taken when it was lent.
///
/// `poll_ready` fails with [`ErrorKind::Evicted`] if the instance was closed first, died, or was stopped
/// meanwhile, as tower has it: discard this service, send the same request to another. The claim goes from `call` into the
/// response future, and from there where [`Hold`] says; the next `poll_ready` takes a new one. A
/// readied lease that is never called keeps its claim until it is dropped.
pub struct Leased<S, H = UntilResponse, P = Nothing> {
    service: S,
    stake: Stake,
    hold: H,
    not_use: P,
}

/// Beside the claim, if there is one: whence the next.
enum Source {
    /// Somebody above counts.
    Uncounted,
    /// For one call, which takes the claim along: nothing is left to claim again with.
    Once,
    /// The claim has the word, for the next one too.
    Claim,
    /// The next `poll_ready` claims.
    Word(Arc<Usage>),
    /// The claim was refused: for good, or while the instance yields. In a box, since few are.
    Refused(Box<Refusal>),
}

/// What a lease has whose claim was refused: a place among those who wait for a yielding instance, if it
/// has registered.
struct Refusal {
    usage: Arc<Usage>,
    key: Key,
    /// The service, which it vouches for, is dropped before.
    _holdout: Arc<Holdouts>,
}

impl Refusal {
    #[cold]
    fn new(usage: &Arc<Usage>) -> Box<Self> {
        Box::new(Self {
            usage: usage.clone(),
            key: None,
            _holdout: usage.hold_out(),
        })
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        self.usage.forget_claim(&mut self.key);
    }
}

/// A claim, and its source once it has ended. The claim is moved as it is, from the lease into the future
/// and on: a call is too short to put it together anew.
struct Stake {
    busy: Busy,
    source: Source,
}

impl Stake {
    /// `claimed` is the source of what comes after the claim.
    #[inline]
    fn claim(usage: &Arc<Usage>, claimed: Source) -> Self {
        match usage.claim() {
            Ok(claim) => Self {
                busy: Busy::new(Some(claim)),
                source: claimed,
            },
            // `poll_ready` asks again, and says which it is. Until then this keeps a service: the
            // owner, who lets go of the instance only when no lease is being taken any more, leaves its
            // room to whoever holds out.
            Err(Refused::Closed | Refused::Yielding) => Self {
                busy: Busy::nothing(),
                source: Source::Refused(Refusal::new(usage)),
            },
        }
    }

    /// Takes the claim out, for one call.
    #[inline(always)]
    fn take(&mut self) -> Busy {
        match (&self.source, self.busy.usage()) {
            (Source::Uncounted, _) | (Source::Once, Some(_)) => {}
            (Source::Claim, Some(usage)) => self.source = Source::Word(usage.clone()),
            _ => panic!("a lease was called that is not ready"),
        }
        self.busy.take()
    }

    /// Ready when there is a claim, or none to be had.
    #[inline]
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match (&self.source, self.busy.usage()) {
            (Source::Uncounted, _) => Poll::Ready(Ok(())),
            (_, Some(usage)) if !usage.look().is_void() => Poll::Ready(Ok(())),
            (Source::Word(_) | Source::Refused(_), _) => self.poll_claim(cx),
            _ => Poll::Ready(Err(Error::new(ErrorKind::Evicted))),
        }
    }

    #[cold]
    fn poll_claim(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Source::Word(usage) = &self.source {
            *self = Self::claim(&usage.clone(), Source::Claim);
        }
        if let Source::Refused(refusal) = &mut self.source {
            let Refusal { usage, key, .. } = &mut **refusal;
            match ready!(usage.poll_claim(key, cx.waker())) {
                Ok(claim) => {
                    self.busy = Busy::new(Some(claim));
                    self.source = Source::Claim;
                }
                Err(_) => return Poll::Ready(Err(Error::new(ErrorKind::Evicted))),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// For a clone of the lease, without a claim of its own.
    fn again(&self) -> Self {
        let source = match (&self.source, self.busy.usage()) {
            (Source::Uncounted, _) => Source::Uncounted,
            (Source::Word(usage), _) | (_, Some(usage)) => Source::Word(usage.clone()),
            (Source::Refused(refusal), _) => Source::Word(refusal.usage.clone()),
            (Source::Once | Source::Claim, None) => Source::Once,
        };
        Self {
            busy: Busy::nothing(),
            source,
        }
    }
}

impl<S, H> Leased<S, H> {
    pub(crate) fn uncounted(service: S, hold: H) -> Self {
        Self {
            service,
            stake: Stake {
                busy: Busy::nothing(),
                source: Source::Uncounted,
            },
            hold,
            not_use: Nothing,
        }
    }
}

impl<S, H, P> Leased<S, H, P> {
    pub(crate) fn claimed(service: S, usage: &Arc<Usage>, hold: H, not_use: P) -> Self {
        Self {
            service,
            stake: Stake::claim(usage, Source::Claim),
            hold,
            not_use,
        }
    }

    /// A lease for one call: it costs one reference less.
    #[inline]
    pub(crate) fn once(service: S, usage: &Arc<Usage>, hold: H, not_use: P) -> Self {
        Self {
            service,
            stake: Stake::claim(usage, Source::Once),
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
            stake: self.stake.again(),
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

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.stake.poll(cx))?;
        match self.service.poll_ready(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map_err(Error::service)),
            Poll::Pending => {
                // It may never be ready any more.
                ready!(self.stake.busy.poll_void(cx));
                Poll::Ready(Err(Error::new(ErrorKind::Evicted)))
            }
        }
    }

    #[inline(always)]
    fn call(&mut self, request: Req) -> Self::Future {
        let mut busy = self.stake.take();
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
            .field("claimed", &self.stake.busy.usage().is_some())
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

    #[inline]
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
