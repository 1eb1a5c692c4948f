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
    busy::Busy,
    error::{BoxError, Error, ErrorKind},
};

/// A call in flight. Where the lease does not count itself the use is in here: it ends after the
/// call is dropped, and the end of a drain cuts it.
#[pin_project]
pub(crate) struct Calling<F> {
    #[pin]
    call: Option<F>,
    busy: Busy,
}

impl<F> Calling<F> {
    /// Calls a lease that is ready.
    pub(crate) fn new<L, Req>(handed: Handed<L>, request: Req) -> Self
    where
        L: Service<Req, Future = F>,
    {
        let Handed {
            mut lease, busy, ..
        } = handed;
        let call = lease.call(request);
        // Not at the end of this function: if its drop panicked there, what is returned would leak.
        drop(lease);
        Self {
            call: Some(call),
            busy,
        }
    }
}

impl<F, R, E> Future for Calling<F>
where
    F: Future<Output = Result<R, E>>,
    E: Into<BoxError>,
{
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let call = this.call.as_mut().as_pin_mut();
        let answer = match call.expect("polled after it was done").poll(cx) {
            Poll::Ready(answer) => answer.map_err(Error::service),
            Poll::Pending => {
                ready!(this.busy.poll_cut(cx));
                Err(Error::new(ErrorKind::Stopped))
            }
        };
        this.call.set(None);
        let busy = this.busy.take();
        Poll::Ready(answer.map_err(|error| busy.named(error)))
    }
}
