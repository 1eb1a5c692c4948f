//! A call on a lease, with the use it is.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project::pin_project;
use tower_service::Service;

use super::instance::Handed;
use crate::{
    busy::Share,
    error::{BoxError, Error, ErrorKind},
};

/// A call in flight. Where the lease does not count itself the use is in here: it ends after the
/// call is dropped, and the end of a drain cuts it.
///
/// Whoever polls it drops it as soon as it is ready if it [has a share](Self::has_share): the use is over then.
#[pin_project]
pub(crate) struct Calling<F> {
    /// Dropped first.
    #[pin]
    call: F,
    share: Share,
}

impl<F> Calling<F> {
    /// Calls a lease that is ready.
    #[inline(always)]
    pub(crate) fn new<L, Req>(handed: Handed<L>, request: Req) -> Self
    where
        L: Service<Req, Future = F>,
    {
        let Handed { lease, share, .. } = handed;
        let call;
        {
            // Not at the end of this function: if its drop panicked there, what is returned would leak.
            let mut lease = lease;
            call = lease.call(request);
        }
        Self { call, share }
    }
}

impl<F> Calling<F> {
    /// Whether the use ends with this.
    #[inline]
    pub(crate) fn has_share(&self) -> bool {
        self.share.counts()
    }
}

impl<F, R, E> Future for Calling<F>
where
    F: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
{
    type Output = Result<R, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = match this.call.poll(cx) {
            Poll::Ready(answer) => answer.map_err(Error::service),
            Poll::Pending => {
                ready!(this.share.poll_cut(cx));
                Err(Error::new(ErrorKind::Stopped))
            }
        };
        Poll::Ready(answer.map_err(|error| this.share.named(error)))
    }
}
