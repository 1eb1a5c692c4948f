//! `Calling` and `ChildBody`: one call to a running child.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::client::legacy::ResponseFuture;

use super::child::Process;
use crate::error::{Error, ErrorKind};

/// How long an error waits for the end of its child to be seen.
const KNOWN: Duration = Duration::from_millis(100);

/// The response future of [`Http`](super::Http). Dropping it ends the call: with HTTP/1.1 its connection is
/// closed, with HTTP/2 its stream is reset.
#[must_use = "futures do nothing unless polled"]
pub struct Calling {
    state: Sent,
    process: Process,
}

impl Calling {
    pub(super) fn new(sent: Result<ResponseFuture, Error>, process: Process) -> Self {
        let state = match sent {
            Ok(sent) => Sent::InFlight(sent),
            Err(error) => Sent::Refused(Some(error)),
        };
        Self { state, process }
    }
}

enum Sent {
    Refused(Option<Error>),
    InFlight(ResponseFuture),
    Failing(Failing),
}

/// An error that is told once it is known whether the child has ended.
///
/// Connections of a process that was killed break before its end is seen. Who is told of the one
/// and calls again shall not meet the other.
struct Failing {
    known: Pin<Box<dyn Future<Output = ()> + Send>>,
    error: Option<Error>,
}

impl Failing {
    fn new(process: &Process, error: Error) -> Self {
        let ended = process.ended();
        Self {
            known: Box::pin(async {
                let _ = tokio::time::timeout(KNOWN, ended).await;
            }),
            error: Some(error.of(process.name())),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        ready!(self.known.as_mut().poll(cx));
        Poll::Ready(self.error.take().expect("polled after it was done"))
    }
}

impl Future for Calling {
    type Output = Result<Response<ChildBody>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { state, process } = &mut *self;
        loop {
            match state {
                Sent::InFlight(sent) => match ready!(Pin::new(sent).poll(cx)) {
                    Ok(mut response) => {
                        if response.version() < Version::HTTP_11 {
                            *response.version_mut() = Version::HTTP_11;
                        }
                        let body = |incoming| ChildBody {
                            incoming,
                            process: process.clone(),
                            failing: None,
                        };
                        return Poll::Ready(Ok(response.map(body)));
                    }
                    Err(error) => {
                        let error = if error.is_connect() {
                            Error::new(ErrorKind::Died).because(error)
                        } else {
                            Error::service(error)
                        };
                        *state = Sent::Failing(Failing::new(process, error));
                    }
                },
                Sent::Failing(failing) => return failing.poll(cx).map(Err),
                Sent::Refused(error) => {
                    let error = error.take().expect("polled after it was done");
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl fmt::Debug for Calling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calling")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// The body of a child's response: hyper's, with errors that name the backend.
pub struct ChildBody {
    incoming: Incoming,
    process: Process,
    failing: Option<Failing>,
}

impl Body for ChildBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Self {
            incoming,
            process,
            failing,
        } = &mut *self;
        let failing = match failing {
            Some(failing) => failing,
            None => match ready!(Pin::new(incoming).poll_frame(cx)) {
                Some(Ok(frame)) => return Poll::Ready(Some(Ok(frame))),
                None => return Poll::Ready(None),
                Some(Err(error)) => failing.insert(Failing::new(process, Error::service(error))),
            },
        };
        failing.poll(cx).map(|error| Some(Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl fmt::Debug for ChildBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildBody")
            .field("incoming", &self.incoming)
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}
