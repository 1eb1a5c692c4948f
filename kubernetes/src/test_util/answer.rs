//! What the fake API server answers with.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Interval, Sleep},
};

/// The body of an answer: whole, or lines of a watch.
pub struct AnswerBody(Content);

enum Content {
    Whole(Option<Bytes>),
    Watch {
        lines: mpsc::UnboundedReceiver<Bytes>,
        /// When the server ends it.
        end: Pin<Box<Sleep>>,
        bookmarks: Option<Bookmarks>,
        /// Nothing comes any more.
        silent: bool,
    },
}

/// Tells a watcher now and then how far it is.
pub(super) struct Bookmarks {
    pub(super) every: Interval,
    pub(super) line: Box<dyn Fn() -> Bytes + Send + Sync>,
}

impl AnswerBody {
    pub(super) const fn last(line: Bytes) -> Self {
        Self(Content::Whole(Some(line)))
    }

    pub(super) fn watch(
        lines: mpsc::UnboundedReceiver<Bytes>,
        lasts: Duration,
        bookmarks: Option<Bookmarks>,
    ) -> Self {
        Self(Content::Watch {
            lines,
            end: Box::pin(tokio::time::sleep(lasts)),
            bookmarks,
            silent: false,
        })
    }
}

/// In place of a line: from here on the watch is silent, and ends when nobody holds its other end.
pub(super) const SILENCE: Bytes = Bytes::new();

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let line = match &mut self.0 {
            Content::Whole(bytes) => bytes.take(),
            Content::Watch {
                lines,
                end,
                bookmarks,
                silent,
            } => {
                let mut line = lines.poll_recv(cx);
                if line == Poll::Ready(Some(SILENCE)) {
                    *silent = true;
                    line = lines.poll_recv(cx);
                }
                if let Poll::Ready(line) = line {
                    line
                } else if *silent {
                    return Poll::Pending;
                } else if end.as_mut().poll(cx).is_ready() {
                    None
                } else if let Some(Bookmarks { every, line }) = bookmarks {
                    ready!(every.poll_tick(cx));
                    Some(line())
                } else {
                    return Poll::Pending;
                }
            }
        };
        Poll::Ready(line.map(|line| Ok(Frame::data(line))))
    }
}

impl std::fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnswerBody").finish_non_exhaustive()
    }
}

pub(super) type Answer = Response<AnswerBody>;

pub(super) fn whole(status: StatusCode, value: &Value) -> Answer {
    let mut answer = Response::new(AnswerBody(Content::Whole(Some(value.to_string().into()))));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    answer
}

pub(super) fn ok(value: &Value) -> Answer {
    whole(StatusCode::OK, value)
}

/// The object that says what went wrong.
pub(super) fn status(code: StatusCode, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": {}, "code": code.as_u16(),
    })
}

pub(super) fn refused(code: StatusCode, reason: &str, message: &str) -> Answer {
    whole(code, &status(code, reason, message))
}

pub(super) fn not_found(plural: &str, name: &str) -> Answer {
    let message = format!("{plural} {name:?} not found");
    refused(StatusCode::NOT_FOUND, "NotFound", &message)
}

pub(super) fn conflict(plural: &str, name: &str) -> Answer {
    let message = format!(
        "Operation cannot be fulfilled on {plural} {name:?}: the object has been modified; please apply your changes to the latest version and try again"
    );
    refused(StatusCode::CONFLICT, "Conflict", &message)
}

pub(super) fn bad_request(message: &str) -> Answer {
    refused(StatusCode::BAD_REQUEST, "BadRequest", message)
}

/// 429, as the server's priority and fairness has it: text, and the time in a header.
pub(super) fn throttled(seconds: u64) -> Answer {
    let text = Bytes::from_static(b"Too many requests, please try again later.");
    let mut answer = Response::new(AnswerBody(Content::Whole(Some(text))));
    *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    answer
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    answer
}
