//! `SharedBody`: a body that several callers read.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project::{pin_project, pinned_drop};

use super::{
    source::{Place, Read, Source},
    window::Finish,
};
use crate::{
    BoxError, Error, ErrorKind,
    coalesce::{Lasts, Tie},
};

/// A body whose clones are read each from the first byte: see [`ShareBodyLayer`](super::ShareBodyLayer).
///
/// Its errors are of the kind [`Service`](ErrorKind::Service), with the body's own as their source, the
/// same for all who read it; or [`Lagged`](ErrorKind::Lagged) for a reader that fell too far behind, or
/// began too late.
///
/// # Cancel safety
///
/// Dropping it ends one reader; the last one takes the body along.
#[pin_project(PinnedDrop)]
pub struct SharedBody<B> {
    #[pin]
    kind: Kind<B>,
}

#[pin_project(project = KindProj)]
enum Kind<B> {
    /// Nobody else's: it was not to be shared.
    Sole(#[pin] B),
    Shared(Reader<B>),
    /// A clone of one that was not to be shared.
    None,
}

struct Reader<B> {
    source: Arc<Source<B>>,
    /// `None` before it begins, and when it is over.
    place: Option<Place>,
    /// The flight it came by counts it.
    counted: bool,
    over: bool,
}

impl<B> Reader<B> {
    fn begin(&mut self) -> bool {
        if self.place.is_none() && !self.over {
            self.place = self.source.begin();
        }
        self.place.is_some()
    }

    fn end(&mut self) {
        self.over = true;
        if let Some(place) = self.place.take() {
            self.source.end(place);
        }
        if std::mem::take(&mut self.counted) {
            if let Some(tie) = self.source.tie() {
                tie.left();
            }
        }
    }
}

impl<B> SharedBody<B> {
    pub(super) fn sole(body: B) -> Self {
        let kind = Kind::Sole(body);
        Self { kind }
    }

    pub(super) fn shared(source: Source<B>) -> Self {
        let kind = Kind::Shared(Reader {
            source: Arc::new(source),
            place: None,
            counted: false,
            over: false,
        });
        Self { kind }
    }

    /// Ties the body to the flight it came by.
    pub(super) fn tie(&self, tie: &dyn Fn() -> Arc<dyn Tie>) -> Lasts {
        match &self.kind {
            Kind::Sole(_) | Kind::None => Lasts::Sole,
            Kind::Shared(reader) => match reader.source.tie_to(tie) {
                true => Lasts::Yes,
                false => Lasts::No,
            },
        }
    }

    /// Begins to read, for a caller that the flight counts. False if it is too late.
    pub(super) fn enlist(&mut self) -> bool {
        match &mut self.kind {
            Kind::Sole(_) => true,
            Kind::None => false,
            Kind::Shared(reader) => {
                let in_time = reader.begin();
                reader.counted = in_time && reader.source.tie().is_some();
                in_time
            }
        }
    }
}

/// A clone begins at the first byte; or fails when it is read, if that is gone.
impl<B> Clone for SharedBody<B> {
    fn clone(&self) -> Self {
        let kind = match &self.kind {
            Kind::Sole(_) | Kind::None => Kind::None,
            Kind::Shared(reader) => Kind::Shared(Reader {
                source: reader.source.clone(),
                place: reader.source.begin(),
                counted: false,
                over: false,
            }),
        };
        Self { kind }
    }
}

impl<B> Body for SharedBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let mut kind = self.project().kind;
        let reader = match kind.as_mut().project() {
            KindProj::Shared(reader) => reader,
            KindProj::Sole(body) => {
                let frame = ready!(body.poll_frame(cx));
                return Poll::Ready(frame.map(|frame| match frame {
                    Ok(frame) => {
                        Ok(frame.map_data(|mut data| data.copy_to_bytes(data.remaining())))
                    }
                    Err(error) => Err(Error::service(error)),
                }));
            }
            KindProj::None => {
                let error = Error::new(ErrorKind::Lagged).seen("this body was not to be shared");
                kind.set(Kind::None);
                return Poll::Ready(Some(Err(error)));
            }
        };
        if reader.over {
            return Poll::Ready(None);
        }
        let read = match reader.begin() {
            false => Read::Lagged,
            true => match &mut reader.place {
                Some(place) => ready!(reader.source.poll_read(place, cx)),
                None => Read::Lagged,
            },
        };
        let frame = match read {
            Read::Bytes(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Read::Finish(Finish::Done(trailers)) => trailers.map(|map| Ok(Frame::trailers(map))),
            Read::Finish(Finish::Failed(error)) => Some(Err(error)),
            Read::Lagged => Some(Err(Error::new(ErrorKind::Lagged))),
        };
        reader.end();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Sole(body) => body.is_end_stream(),
            Kind::None => false,
            Kind::Shared(reader) => reader.over || reader.source.is_over(reader.place.as_ref()),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let left = match &self.kind {
            Kind::Sole(body) => return body.size_hint(),
            Kind::Shared(reader) if !reader.over => reader.source.left(reader.place.as_ref()),
            Kind::Shared(_) | Kind::None => Some(0),
        };
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[pinned_drop]
impl<B> PinnedDrop for SharedBody<B> {
    fn drop(self: Pin<&mut Self>) {
        if let KindProj::Shared(reader) = self.project().kind.project() {
            reader.end();
        }
    }
}

impl<B> fmt::Debug for SharedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::Sole(_) => "sole",
            Kind::Shared(reader) if reader.over => "over",
            Kind::Shared(_) => "shared",
            Kind::None => "none",
        };
        f.debug_tuple("SharedBody").field(&kind).finish()
    }
}
