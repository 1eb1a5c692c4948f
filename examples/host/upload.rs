//! A request's body that fails when its client falls silent.

use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};
use tower::BoxError;

/// `tower_http`'s `TimeoutBody` would do, did it not hide the length and the end of what it wraps:
/// every request would reach its backend with a body of unknown length.
pub(crate) struct Upload {
    body: Incoming,
    pause: Duration,
    silence: Option<Pin<Box<Sleep>>>,
}

/// Nothing of the body came for too long.
#[derive(Debug)]
pub(crate) struct Silent(Duration);

impl Upload {
    /// `body`, of which nothing may be missing for longer than `pause`.
    pub(crate) fn new(body: Incoming, pause: Duration) -> Self {
        Self {
            body,
            pause,
            silence: None,
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            if let Some(silence) = &mut this.silence {
                silence.as_mut().reset(Instant::now() + this.pause);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let silence = this
            .silence
            .get_or_insert_with(|| Box::pin(sleep(this.pause)));
        let silent = silence.as_mut().poll(cx);
        silent.map(|()| Some(Err(Silent(this.pause).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Silent {
    /// The one that is the cause of `error`.
    pub(crate) fn cause_of<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(silent) = error.downcast_ref() {
                return Some(silent);
            }
            cause = error.source();
        }
        None
    }
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing of the request's body came for {:?}", self.0)
    }
}

impl StdError for Silent {}
