//! In use until the body ends.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project::pin_project;

use super::{
    silence::{Silence, Watched},
    upgrade::InUse,
};
use crate::{
    BoxError, Error, ErrorKind, Runtime,
    busy::{Begin, Busy, Hold},
};

/// In use until the response's body has ended: the hold for HTTP and gRPC.
///
/// The response's body becomes an [`InUseBody`]: the backend stays in use through data and trailers
/// until the end, an error or the drop of the body. A response without a body (`HEAD`, 204, 304,
/// `Content-Length: 0`: whatever says [`is_end_stream`](Body::is_end_stream)) ends the use at once.
/// Until the response is there the call itself is the use, so a request that uploads slowly is
/// covered as long as its answer waits for it; [`UntilBothEnd`] covers the rest.
///
/// The answer to an upgrade (101, or 2xx to `CONNECT`) has an [`InUse`] in its extensions. Keep that
/// beside the upgraded connection; the use ends when the last clone of it is dropped.
#[derive(Debug, Clone, Copy, Default)]
pub struct UntilBodyEnd;

/// In use until both bodies have ended, the response's and the request's.
///
/// As [`UntilBodyEnd`], and a request body that is still being uploaded when the response is done
/// is use as well. The backend gets `Request<InUseBody<B>>`, so it must accept that body, as any
/// service does that is generic over it. Choose this for backends that answer before they have read
/// everything (HTTP/2 streaming in both directions, uploads that are acknowledged early); with most
/// others the answer comes last, and [`UntilBodyEnd`] does the same for less.
#[derive(Debug, Clone, Copy, Default)]
pub struct UntilBothEnd;

/// Another hold, save for streams that have been silent for too long: see
/// [`UntilBodyEnd::unless_silent`].
#[derive(Debug, Clone)]
pub struct UnlessSilent<H> {
    hold: H,
    silence: Silence,
}

impl UntilBodyEnd {
    /// A stream through which nothing has passed for `after` does not count any more.
    ///
    /// For clients that vanish without closing their connection, and would keep a backend for ever.
    /// The stream is not ended: it only loses its claim, so that from then on policies may stop the
    /// backend under it; the next frame that passes takes the claim back, if the backend is still
    /// there. Choose `after` longer than the longest pause of a healthy stream. It costs a background
    /// task per body that does not end with the head. Upgraded connections are not watched.
    pub fn unless_silent(self, runtime: Runtime, after: Duration) -> UnlessSilent<Self> {
        UnlessSilent {
            hold: self,
            silence: Silence { runtime, after },
        }
    }
}

impl UntilBothEnd {
    /// As [`UntilBodyEnd::unless_silent`], for each of the two bodies by itself.
    pub fn unless_silent(self, runtime: Runtime, after: Duration) -> UnlessSilent<Self> {
        UnlessSilent {
            hold: self,
            silence: Silence { runtime, after },
        }
    }
}

/// What holds the response to one request.
#[derive(Debug)]
pub struct BodyHold {
    connect: bool,
    silence: Option<Silence>,
}

impl BodyHold {
    fn of<B>(request: &Request<B>) -> Self {
        Self {
            connect: request.method() == Method::CONNECT,
            silence: None,
        }
    }
}

impl<B> Begin<Request<B>> for UntilBodyEnd {
    type Request = Request<B>;
    type Hold = BodyHold;

    fn begin(&self, request: Request<B>, _busy: &mut Busy) -> (Request<B>, BodyHold) {
        let hold = BodyHold::of(&request);
        (request, hold)
    }
}

impl<B: Body> Begin<Request<B>> for UntilBothEnd {
    type Request = Request<InUseBody<B>>;
    type Hold = BodyHold;

    fn begin(&self, request: Request<B>, busy: &mut Busy) -> (Self::Request, BodyHold) {
        let hold = BodyHold::of(&request);
        let request = request.map(|body| {
            if body.is_end_stream() {
                InUseBody::done(body)
            } else {
                InUseBody::new(body, busy.share())
            }
        });
        (request, hold)
    }
}

impl<B> Begin<Request<B>> for UnlessSilent<UntilBodyEnd> {
    type Request = Request<B>;
    type Hold = BodyHold;

    fn begin(&self, request: Request<B>, busy: &mut Busy) -> (Request<B>, BodyHold) {
        let (request, mut hold) = self.hold.begin(request, busy);
        hold.silence = Some(self.silence.clone());
        (request, hold)
    }
}

impl<B: Body> Begin<Request<B>> for UnlessSilent<UntilBothEnd> {
    type Request = Request<InUseBody<B>>;
    type Hold = BodyHold;

    fn begin(&self, request: Request<B>, busy: &mut Busy) -> (Self::Request, BodyHold) {
        let (request, mut hold) = self.hold.begin(request, busy);
        hold.silence = Some(self.silence.clone());
        (request.map(|body| body.watched(&self.silence)), hold)
    }
}

impl<B: Body> Hold<Response<B>> for BodyHold {
    type Response = Response<InUseBody<B>>;

    fn hold(&self, mut response: Response<B>, mut busy: Busy) -> Self::Response {
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS || (self.connect && status.is_success()) {
            response.extensions_mut().insert(InUse::new(busy.share()));
        }
        response.map(|body| {
            if body.is_end_stream() {
                return InUseBody::done(body);
            }
            let body = InUseBody::new(body, busy);
            match &self.silence {
                Some(silence) => body.watched(silence),
                None => body,
            }
        })
    }
}

/// A body that keeps a backend in use until it has ended.
///
/// The use ends with the last frame, an error or the drop, after the body inside is dropped. When
/// the backend is stopped and the drain is over, the body ends with
/// [`Stopped`](ErrorKind::Stopped). Its other errors are of the kind [`Service`](ErrorKind::Service),
/// with the body's own as their source.
#[pin_project]
pub struct InUseBody<B> {
    /// `None` once it has ended. Dropped before the use ends.
    #[pin]
    body: Option<B>,
    kept: Kept,
}

enum Kept {
    Busy(Busy),
    Watched(Watched),
}

impl<B> InUseBody<B> {
    fn new(body: B, busy: Busy) -> Self {
        Self {
            body: Some(body),
            kept: Kept::Busy(busy),
        }
    }

    fn done(body: B) -> Self {
        Self {
            body: Some(body),
            kept: Kept::Busy(Busy::new(None)),
        }
    }

    /// Ends the use when nothing has passed for too long.
    fn watched(self, silence: &Silence) -> Self {
        let kept = match self.kept {
            Kept::Busy(busy) => match Watched::new(busy, silence) {
                Ok(watched) => Kept::Watched(watched),
                Err(uncounted) => Kept::Busy(uncounted),
            },
            watched @ Kept::Watched(_) => watched,
        };
        Self { kept, ..self }
    }

    /// The body inside, until it has ended.
    pub const fn get_ref(&self) -> Option<&B> {
        self.body.as_ref()
    }
}

impl Kept {
    /// A frame passes.
    fn moved(&mut self) {
        if let Kept::Watched(watched) = self {
            watched.moved();
        }
    }

    fn is_cut(&self) -> bool {
        match self {
            Kept::Busy(busy) => busy.is_cut(),
            Kept::Watched(watched) => watched.is_cut(),
        }
    }

    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Kept::Busy(busy) => busy.poll_cut(cx),
            Kept::Watched(watched) => watched.poll_cut(cx),
        }
    }
}

impl<B> Body for InUseBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Error>>> {
        let mut this = self.project();
        let Some(mut body) = this.body.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        // Also asked of a body that always has a frame, and would never get to `poll_cut`.
        let frame = if this.kept.is_cut() {
            Some(Err(Error::new(ErrorKind::Stopped)))
        } else {
            match body.as_mut().poll_frame(cx) {
                Poll::Ready(frame) => frame.map(|frame| frame.map_err(Error::service)),
                Poll::Pending => {
                    ready!(this.kept.poll_cut(cx));
                    Some(Err(Error::new(ErrorKind::Stopped)))
                }
            }
        };
        if matches!(frame, Some(Ok(_))) && !body.is_end_stream() {
            this.kept.moved();
        } else {
            this.body.set(None);
            *this.kept = Kept::Busy(Busy::new(None));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

impl<B> fmt::Debug for InUseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("InUseBody");
        match &self.kept {
            Kept::Busy(busy) => out.field("busy", busy),
            Kept::Watched(watched) => out.field("busy", watched),
        };
        out.finish_non_exhaustive()
    }
}
