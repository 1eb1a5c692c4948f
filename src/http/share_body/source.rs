//! `Source`: the body itself, pulled by whichever reader is there.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, OnceLock},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame};
use hyper::rt::Sleep;

use super::window::{Finish, Next, Window};
use crate::{
    BoxError, Error, ErrorKind, Runtime,
    coalesce::{Signal, Spot, Tie, Turned},
    sync::lock,
};

/// What the readers of one body share.
///
/// As in a flight, it is nobody's turn to pull: a wake of the body wakes all readers that wait, and the
/// first to be polled pulls. The body is taken out to be polled.
pub(super) struct Source<B> {
    runtime: Runtime,
    patience: Duration,
    signal: Arc<Signal>,
    /// Of `signal`.
    waker: Waker,
    /// The length that was declared, in bytes.
    length: Option<u64>,
    state: Mutex<State<B>>,
    tie: OnceLock<Arc<dyn Tie>>,
}

struct State<B> {
    /// Out while it is polled; gone when it has ended.
    body: Option<Pin<Box<B>>>,
    window: Window,
}

/// One reader's place.
pub(super) struct Place {
    reader: usize,
    spot: Spot,
    /// How long it waits for the slowest one.
    sleep: Option<Pin<Box<dyn Sleep>>>,
}

/// What a reader is given.
pub(super) enum Read {
    Bytes(Bytes),
    Finish(Finish),
    Lagged,
}

impl<B: Body> Source<B> {
    pub(super) fn new(runtime: Runtime, cap: u64, patience: Duration, body: B) -> Self {
        let signal = Signal::new(false, None);
        let mut window = Window::new(cap);
        let length = body.size_hint().exact();
        let body = if body.is_end_stream() {
            window.finish_with(Finish::Done(None));
            None
        } else {
            Some(Box::pin(body))
        };
        Self {
            runtime,
            patience,
            waker: Waker::from(signal.clone()),
            signal,
            length,
            state: Mutex::new(State { body, window }),
            tie: OnceLock::new(),
        }
    }
}

impl<B> Source<B> {
    pub(super) fn tie(&self) -> Option<&dyn Tie> {
        self.tie.get().map(|tie| &**tie)
    }

    /// Ties it to the flight it came by, unless it has ended. True if it is tied.
    pub(super) fn tie_to(&self, tie: impl FnOnce() -> Arc<dyn Tie>) -> bool {
        if lock(&self.state).window.finish().is_some() {
            return false;
        }
        self.tie.get_or_init(tie);
        true
    }

    /// A reader at the first byte; `None` if it is too late for that.
    pub(super) fn begin(&self) -> Option<Place> {
        let reader = lock(&self.state).window.add()?;
        Some(Place {
            reader,
            spot: Spot::default(),
            sleep: None,
        })
    }

    pub(super) fn end(&self, mut place: Place) {
        let room = lock(&self.state).window.remove(place.reader);
        self.signal.forget(&mut place.spot);
        if room {
            self.signal.rouse();
        }
    }

    /// How many bytes are left for a reader, if the length was declared.
    pub(super) fn left(&self, place: Option<&Place>) -> Option<u64> {
        let at = place.map_or(0, |place| lock(&self.state).window.at(place.reader));
        self.length.map(|length| length.saturating_sub(at))
    }

    /// Whether a reader has read everything, and no trailers follow.
    pub(super) fn is_over(&self, place: Option<&Place>) -> bool {
        let state = lock(&self.state);
        let at = place.map_or(0, |place| state.window.at(place.reader));
        matches!(state.window.finish(), Some(Finish::Done(None))) && at == state.window.end()
    }
}

impl<B> Source<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    /// What is next for a reader.
    pub(super) fn poll_read(&self, place: &mut Place, cx: &mut Context<'_>) -> Poll<Read> {
        let mut registered = false;
        loop {
            let next = lock(&self.state).window.next(place.reader);
            match next {
                Next::Frame { bytes, rouse } => {
                    place.sleep = None;
                    if rouse {
                        self.signal.rouse();
                    }
                    return Poll::Ready(Read::Bytes(bytes));
                }
                Next::Finish(finish) => return Poll::Ready(Read::Finish(finish)),
                Next::Lagged => return Poll::Ready(Read::Lagged),
                Next::Nothing => {
                    place.sleep = None;
                    ready!(self.poll_pull(place, cx));
                }
                Next::Full => {
                    let sleep = place
                        .sleep
                        .get_or_insert_with(|| self.runtime.sleep(self.patience));
                    if sleep.as_mut().poll(cx).is_ready() {
                        place.sleep = None;
                        if lock(&self.state).window.lag_out() {
                            self.signal.rouse();
                        }
                    } else if registered {
                        return Poll::Pending;
                    } else {
                        // Then it looks once more: room may have come before it was registered.
                        self.signal.wait(&mut place.spot, cx.waker());
                        registered = true;
                    }
                }
            }
        }
    }

    /// Ready when there may be more to read.
    fn poll_pull(&self, place: &mut Place, cx: &mut Context<'_>) -> Poll<()> {
        let waker = match self.signal.turn(&mut place.spot, cx.waker()) {
            Turned::Ours(waker) => waker,
            Turned::NotOurs { .. } | Turned::Landed => return Poll::Pending,
        };
        let body = {
            let mut state = lock(&self.state);
            // Unless another reader has pulled since this one looked.
            match state.window.is_at_end(place.reader) {
                true => state.body.take(),
                false => None,
            }
        };
        let Some(body) = body else {
            self.signal.renew();
            return Poll::Ready(());
        };
        let mut pulling = Pulling {
            source: self,
            body: Some(body),
        };
        match pulling.poll_frame() {
            Poll::Pending => {
                pulling.put_back();
                self.signal.park(&mut place.spot, waker);
                Poll::Pending
            }
            Poll::Ready(frame) => {
                pulling.take(frame);
                self.signal.renew();
                Poll::Ready(())
            }
        }
    }
}

impl<B> Source<B> {
    /// The body has ended, and was dropped.
    fn finish(&self, finish: Finish) {
        let complete = matches!(finish, Finish::Done(_));
        let (whole, bytes) = {
            let mut state = lock(&self.state);
            state.window.finish_with(finish);
            (state.window.is_whole(), state.window.end())
        };
        if let Some(tie) = self.tie() {
            if whole && complete {
                tie.ended(bytes);
            } else {
                tie.closed();
            }
        }
    }
}

/// What a pull gives.
type Pulled<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

/// The body, out to be polled. Dropped with it, by a panic of the body's, it ends it for all.
struct Pulling<'a, B> {
    source: &'a Source<B>,
    body: Option<Pin<Box<B>>>,
}

impl<B> Pulling<'_, B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    fn poll_frame(&mut self) -> Poll<Pulled<B>> {
        let mut cx = Context::from_waker(&self.source.waker);
        match &mut self.body {
            Some(body) => body.as_mut().poll_frame(&mut cx),
            None => Poll::Ready(None),
        }
    }

    fn put_back(&mut self) {
        lock(&self.source.state).body = self.body.take();
    }

    fn take(&mut self, frame: Pulled<B>) {
        let finish = match frame {
            None => Finish::Done(None),
            Some(Err(error)) => Finish::Failed(Error::service(error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(mut data) => {
                    let bytes = data.copy_to_bytes(data.remaining());
                    self.push(bytes);
                    if !self.body.as_ref().is_some_and(|body| body.is_end_stream()) {
                        return self.put_back();
                    }
                    Finish::Done(None)
                }
                Err(frame) => match frame.into_trailers() {
                    Ok(trailers) => Finish::Done(Some(trailers)),
                    // A frame of a kind that nobody knows.
                    Err(_) => return self.put_back(),
                },
            },
        };
        // Before anybody is told.
        self.body = None;
        self.source.finish(finish);
    }

    fn push(&self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let slides = lock(&self.source.state).window.push(bytes);
        if let (true, Some(tie)) = (slides, self.source.tie()) {
            tie.closed();
        }
    }
}

impl<B> Drop for Pulling<'_, B> {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            drop(body);
            self.source
                .finish(Finish::Failed(Error::new(ErrorKind::Panicked)));
            self.source.signal.renew();
        }
    }
}
