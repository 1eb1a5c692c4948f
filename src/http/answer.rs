//! What an error is as an HTTP response.

use std::{error::Error as StdError, fmt, time::Duration};

use http::{HeaderValue, Response, StatusCode, header};
use tower::{load_shed::error::Overloaded, timeout::error::Elapsed};

use crate::{Error, ErrorKind};

/// The status that tells a client of `error`.
///
/// | status | errors |
/// |---|---|
/// | 404 | [`Unknown`](ErrorKind::Unknown) |
/// | 429 | [`TooManyWaiting`](ErrorKind::TooManyWaiting), tower's `Overloaded` |
/// | 502 | [`StartFailed`](ErrorKind::StartFailed), [`Stopped`](ErrorKind::Stopped), [`Died`](ErrorKind::Died), [`Panicked`](ErrorKind::Panicked), and all that nothing else is known of |
/// | 503 | [`NoRoom`](ErrorKind::NoRoom), [`NeverFits`](ErrorKind::NeverFits), [`BackingOff`](ErrorKind::BackingOff), [`Unloaded`](ErrorKind::Unloaded), [`NotRunning`](ErrorKind::NotRunning), [`ShutDown`](ErrorKind::ShutDown), [`Evicted`](ErrorKind::Evicted), [`TooManyKeys`](ErrorKind::TooManyKeys) |
/// | 504 | [`StartTimeout`](ErrorKind::StartTimeout), tower's `Elapsed` |
///
/// The first one in the chain of sources that says something decides: a
/// [`Service`](ErrorKind::Service) error is what its cause is.
///
/// ```
/// use http::StatusCode;
/// use tower_on_demand::{Error, ErrorKind, http::status};
///
/// let error = Error::new(ErrorKind::Unloaded).of("probe");
/// assert_eq!(status(&error), StatusCode::SERVICE_UNAVAILABLE);
/// ```
pub fn status(error: &(dyn StdError + 'static)) -> StatusCode {
    judge(error).0
}

/// After what time a client may try again, where `error` or a cause of it says so.
pub fn retry_after(error: &(dyn StdError + 'static)) -> Option<Duration> {
    judge(error).1
}

/// The response that tells a client of `error`, as [`StatusLayer`](super::StatusLayer) gives it.
///
/// With [`status`], `Cache-Control: no-store`, and a `Retry-After` of whole seconds, rounded up, where
/// a time is known. The body is the error and its causes, as `{:#}` writes them.
pub fn response<B: From<String>>(error: &(dyn StdError + 'static)) -> Response<B> {
    Answer::to(error, false).response(B::from)
}

fn judge(error: &(dyn StdError + 'static)) -> (StatusCode, Option<Duration>) {
    let mut retry_after = None;
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<Error>() {
            retry_after = retry_after.or(error.retry_after());
            if let Some(status) = of_kind(error.kind()) {
                return (status, retry_after);
            }
        } else if error.is::<Overloaded>() {
            return (StatusCode::TOO_MANY_REQUESTS, retry_after);
        } else if error.is::<Elapsed>() {
            return (StatusCode::GATEWAY_TIMEOUT, retry_after);
        }
        next = error.source();
    }
    (StatusCode::BAD_GATEWAY, retry_after)
}

/// `None`: its cause says more.
fn of_kind(kind: &ErrorKind) -> Option<StatusCode> {
    Some(match kind {
        ErrorKind::Unknown => StatusCode::NOT_FOUND,
        ErrorKind::TooManyWaiting { .. } => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::StartTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::NoRoom(_)
        | ErrorKind::NeverFits { .. }
        | ErrorKind::BackingOff { .. }
        | ErrorKind::Unloaded
        | ErrorKind::NotRunning
        | ErrorKind::ShutDown
        | ErrorKind::Evicted
        | ErrorKind::TooManyKeys { .. } => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::StartFailed
        | ErrorKind::Stopped
        | ErrorKind::Died
        | ErrorKind::Panicked
        | ErrorKind::Reentrant
        | ErrorKind::Lagged => StatusCode::BAD_GATEWAY,
        ErrorKind::Service => return None,
    })
}

/// The parts of a response to an error.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    retry_after: Option<Duration>,
    text: String,
}

impl Answer {
    pub(super) fn to(error: &(dyn StdError + 'static), terse: bool) -> Self {
        let (status, retry_after) = judge(error);
        let text = if terse {
            format!("{status}\n")
        } else {
            format!("{}\n", Chain(error))
        };
        Self {
            status,
            retry_after,
            text,
        }
    }

    pub(super) fn response<B>(self, body: impl FnOnce(String) -> B) -> Response<B> {
        let mut response = Response::new(body(self.text));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, whole_seconds(after));
        }
        response
    }
}

/// For `Retry-After`: rounded up, and never at once.
pub(super) fn whole_seconds(after: Duration) -> HeaderValue {
    let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
    HeaderValue::from(seconds.max(1))
}

/// An error and its causes, in a row. Ours does that by itself.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error = self.0;
        loop {
            if error.is::<Error>() {
                return write!(f, "{error:#}");
            }
            write!(f, "{error}")?;
            match error.source() {
                Some(source) => error = source,
                None => return Ok(()),
            }
            f.write_str(": ")?;
        }
    }
}
