//! What gRPC status tells a client of an error.

use std::{error::Error as StdError, time::Duration};

use hyper_util::client::legacy;
use tonic::{Code, Status, TimeoutExpired, transport};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{load_shed::error::Overloaded, timeout::error::Elapsed};

use crate::{
    error::{Error, ErrorKind},
    http::Chain,
};

/// The longest message, in bytes: it travels in a header, up to three times as long there, and a client
/// that gets more than it accepts of headers sees nothing at all.
const MESSAGE: usize = 1024;

/// The status that tells a client of `error`, with `RetryInfo` where a time is known.
///
/// | code | errors |
/// |---|---|
/// | `UNAVAILABLE` | [`NoRoom`](ErrorKind::NoRoom), [`BackingOff`](ErrorKind::BackingOff), [`StartFailed`](ErrorKind::StartFailed), [`NotRunning`](ErrorKind::NotRunning), [`Unloaded`](ErrorKind::Unloaded), [`ShutDown`](ErrorKind::ShutDown), [`Stopped`](ErrorKind::Stopped), [`Evicted`](ErrorKind::Evicted), [`Died`](ErrorKind::Died), and lost connections |
/// | `RESOURCE_EXHAUSTED` | [`TooManyWaiting`](ErrorKind::TooManyWaiting), [`TooManyKeys`](ErrorKind::TooManyKeys), tower's `Overloaded` |
/// | `DEADLINE_EXCEEDED` | [`StartTimeout`](ErrorKind::StartTimeout), tower's `Elapsed`, tonic's `TimeoutExpired` |
/// | `FAILED_PRECONDITION` | [`NeverFits`](ErrorKind::NeverFits): trying again does not help |
/// | `NOT_FOUND` | [`Unknown`](ErrorKind::Unknown) |
/// | `ABORTED` | [`Lagged`](ErrorKind::Lagged) |
/// | `INTERNAL` | [`Panicked`](ErrorKind::Panicked), [`Reentrant`](ErrorKind::Reentrant) |
/// | `UNKNOWN` | all that nothing else is known of |
///
/// The first one in the chain of sources that says something decides. A [`tonic::Status`] there is the answer as it is;
/// a stream that was reset has the code that gRPC's specification gives its reason. The message is the
/// error and its causes, as `{:#}` writes them, cut after 1 KiB.
///
/// ```
/// use std::time::Duration;
/// use tonic::Code;
/// use tonic_types::StatusExt;
/// use tower_on_demand::{Error, ErrorKind, NoRoom, grpc};
///
/// let full = ErrorKind::NoRoom(NoRoom::default());
/// let error = Error::new(full).of("films").after(Duration::from_secs(2));
/// let status = grpc::status(&error);
/// assert_eq!(status.code(), Code::Unavailable);
/// let retry = status.get_details_retry_info().unwrap();
/// assert_eq!(retry.retry_delay, Some(Duration::from_secs(2)));
/// ```
pub fn status(error: &(dyn StdError + 'static)) -> Status {
    told(error, false)
}

/// With `terse`, the message is what the code means and nothing else.
pub(super) fn told(error: &(dyn StdError + 'static), terse: bool) -> Status {
    let (code, retry_after) = match judge(error) {
        Judged::Given(status) => return status.clone(),
        Judged::Code(code, retry_after) => (code, retry_after),
    };
    let message = if terse {
        code.description().to_owned()
    } else {
        cut(Chain(error).to_string())
    };
    match retry_after {
        None => Status::new(code, message),
        Some(after) => {
            let details = ErrorDetails::with_retry_info(Some(after));
            Status::with_error_details(code, message, details)
        }
    }
}

fn cut(mut message: String) -> String {
    if message.len() > MESSAGE {
        let mut end = MESSAGE;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

enum Judged<'a> {
    /// By somebody who knows.
    Given(&'a Status),
    Code(Code, Option<Duration>),
}

fn judge<'a>(error: &'a (dyn StdError + 'static)) -> Judged<'a> {
    let mut retry_after = None;
    // What it is if none of its causes says more.
    let mut otherwise = Code::Unknown;
    let mut next = Some(error);
    while let Some(error) = next {
        let mut code = None;
        if let Some(error) = error.downcast_ref::<Error>() {
            retry_after = retry_after.or(error.retry_after());
            code = of_kind(error.kind());
        } else if let Some(status) = error.downcast_ref::<Status>() {
            return Judged::Given(status);
        } else if let Some(error) = error.downcast_ref::<h2::Error>() {
            code = Some(of_stream(error));
        } else if error.is::<Overloaded>() {
            code = Some(Code::ResourceExhausted);
        } else if error.is::<Elapsed>() || error.is::<TimeoutExpired>() {
            code = Some(Code::DeadlineExceeded);
        } else if is_transport(error) {
            otherwise = Code::Unavailable;
        }
        if let Some(code) = code {
            return Judged::Code(code, retry_after);
        }
        next = error.source();
    }
    Judged::Code(otherwise, retry_after)
}

/// `None`: its cause says more.
fn of_kind(kind: &ErrorKind) -> Option<Code> {
    Some(match kind {
        ErrorKind::NoRoom(_)
        | ErrorKind::BackingOff { .. }
        | ErrorKind::StartFailed
        | ErrorKind::NotRunning
        | ErrorKind::Unloaded
        | ErrorKind::ShutDown
        | ErrorKind::Stopped
        | ErrorKind::Evicted
        | ErrorKind::Died => Code::Unavailable,
        ErrorKind::TooManyWaiting { .. } | ErrorKind::TooManyKeys { .. } => Code::ResourceExhausted,
        ErrorKind::StartTimeout { .. } => Code::DeadlineExceeded,
        ErrorKind::NeverFits { .. } => Code::FailedPrecondition,
        ErrorKind::Unknown => Code::NotFound,
        ErrorKind::Lagged => Code::Aborted,
        ErrorKind::Panicked | ErrorKind::Reentrant => Code::Internal,
        ErrorKind::Service => return None,
    })
}

/// A connection that failed, or was lost.
fn is_transport(error: &(dyn StdError + 'static)) -> bool {
    error.is::<transport::Error>() || error.is::<legacy::Error>() || error.is::<hyper::Error>()
}

/// The codes of "PROTOCOL-HTTP2", "Errors".
fn of_stream(error: &h2::Error) -> Code {
    if error.is_io() || error.is_go_away() {
        return Code::Unavailable;
    }
    match error.reason() {
        Some(h2::Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(h2::Reason::CANCEL) => Code::Cancelled,
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(h2::Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(h2::Reason::STREAM_CLOSED | h2::Reason::HTTP_1_1_REQUIRED) | None => Code::Unknown,
        Some(_) => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::{Code, Status};
    use tonic_types::StatusExt;

    use super::{MESSAGE, status, told};
    use crate::{Error, ErrorKind, NoRoom};

    fn code(kind: ErrorKind) -> Code {
        status(&Error::new(kind)).code()
    }

    #[test]
    fn each_kind_has_its_code() {
        let after = Duration::from_secs(1);
        let clock = crate::Clock::StartTimeout;
        for (kind, expected) in [
            (ErrorKind::NoRoom(NoRoom::default()), Code::Unavailable),
            (ErrorKind::BackingOff { failures: 3 }, Code::Unavailable),
            (ErrorKind::StartFailed, Code::Unavailable),
            (ErrorKind::Stopped, Code::Unavailable),
            (
                ErrorKind::TooManyWaiting { limit: 1 },
                Code::ResourceExhausted,
            ),
            (ErrorKind::TooManyKeys { limit: 1 }, Code::ResourceExhausted),
            (
                ErrorKind::StartTimeout { clock, after },
                Code::DeadlineExceeded,
            ),
            (
                ErrorKind::NeverFits {
                    weight: 2,
                    limit: 1,
                },
                Code::FailedPrecondition,
            ),
            (ErrorKind::Unknown, Code::NotFound),
            (ErrorKind::Panicked, Code::Internal),
            (ErrorKind::Service, Code::Unknown),
        ] {
            assert_eq!(code(kind.clone()), expected, "{kind:?}");
        }
    }

    #[test]
    fn the_cause_of_a_call_that_failed_decides() {
        let own = Status::with_details(Code::AlreadyExists, "twice", "details".into());
        let given = status(&Error::service(own));
        assert_eq!(
            (given.code(), given.message()),
            (Code::AlreadyExists, "twice")
        );
        assert_eq!(given.details(), b"details");

        let reset = |reason: h2::Reason| status(&Error::service(h2::Error::from(reason))).code();
        assert_eq!(reset(h2::Reason::REFUSED_STREAM), Code::Unavailable);
        assert_eq!(reset(h2::Reason::CANCEL), Code::Cancelled);
        assert_eq!(reset(h2::Reason::PROTOCOL_ERROR), Code::Internal);
        assert_eq!(reset(h2::Reason::STREAM_CLOSED), Code::Unknown);
    }

    #[test]
    fn the_time_goes_along_as_retry_info() {
        let after = Duration::from_millis(1500);
        let told = status(&Error::new(ErrorKind::NoRoom(NoRoom::default())).after(after));
        let retry = told.get_details_retry_info().unwrap();
        assert_eq!(retry.retry_delay, Some(after));
        let told = status(&Error::new(ErrorKind::Unloaded));
        assert!(told.get_details_retry_info().is_none());
        assert!(told.details().is_empty());
    }

    #[test]
    fn a_long_message_is_cut_between_two_characters() {
        let output = "é".repeat(MESSAGE);
        let told = status(&Error::new(ErrorKind::StartFailed).of("x").seen(output));
        assert!(
            told.message()
                .starts_with("backend \"x\": could not be started\né")
        );
        assert!(told.message().ends_with("é…"));
        assert!(told.message().len() <= MESSAGE + '…'.len_utf8());
    }

    #[test]
    fn a_terse_one_says_nothing_of_what_is_inside() {
        let error = Error::new(ErrorKind::StartFailed)
            .of("secret")
            .seen("secret");
        assert!(!told(&error, true).message().contains("secret"));
        assert!(told(&error, false).message().contains("secret"));
    }
}
