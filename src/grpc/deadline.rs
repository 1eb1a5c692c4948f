//! A call's own deadline.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::HeaderMap;
use hyper::rt::Sleep;
use tonic::Status;

use crate::Runtime;

/// Deadlines further off than this are none: timers need not know of centuries.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// When a call is over, by the `grpc-timeout` it came with.
pub(super) struct Deadline {
    after: Duration,
    sleep: Pin<Box<dyn Sleep>>,
}

impl Deadline {
    /// Counted from now. `None` if there is none, or what there is makes no sense.
    pub(super) fn of(headers: &HeaderMap, runtime: &Runtime) -> Option<Self> {
        let after = parse(headers.get("grpc-timeout")?.to_str().ok()?)?;
        (after <= FOREVER).then(|| Self {
            after,
            sleep: runtime.sleep(after),
        })
    }

    /// The status to end with, once it has passed.
    pub(super) fn poll(deadline: &mut Option<Self>, cx: &mut Context<'_>) -> Poll<Status> {
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        ready!(deadline.sleep.as_mut().poll(cx));
        let told = format!("the call's deadline of {:?} has passed", deadline.after);
        Poll::Ready(Status::deadline_exceeded(told))
    }
}

/// At most eight digits, and a unit.
fn parse(text: &str) -> Option<Duration> {
    let unit = text.len().checked_sub(1)?;
    let (digits, unit) = (text.get(..unit)?, text.get(unit..)?);
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let n = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(n * 60 * 60),
        "M" => Duration::from_secs(n * 60),
        "S" => Duration::from_secs(n),
        "m" => Duration::from_millis(n),
        "u" => Duration::from_micros(n),
        "n" => Duration::from_nanos(n),
        _ => return None,
    })
}

impl fmt::Debug for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deadline").field(&self.after).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(parse("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("99999999u"), Some(Duration::from_micros(99_999_999)));
        assert_eq!(
            parse("99999999H").map(|d| d.as_secs() / 3600),
            Some(99_999_999)
        );
        for wrong in ["", "S", "3", "3s", "-3S", "+3S", "999999999S", "3é", "é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn whatever_a_call_came_with_is_a_timeout_as_grpc_writes_it_or_none() {
        use proptest::{
            prelude::*,
            test_runner::{Config, RngSeed, TestRunner},
        };
        println!("seed 1");
        let mut runner = TestRunner::new(Config {
            cases: 4000,
            rng_seed: RngSeed::Fixed(1),
            failure_persistence: None,
            ..Config::default()
        });
        let text = prop_oneof!["[0-9]{0,10}[HMSmunx]?", "\\PC{0,10}"];
        let checked = runner.run(&text, |text| {
            let digits = text.trim_end_matches(['H', 'M', 'S', 'm', 'u', 'n']);
            let right = digits.len() + 1 == text.len()
                && (1..=8).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_digit());
            prop_assert_eq!(parse(&text).is_some(), right);
            Ok(())
        });
        checked.unwrap_or_else(|error| panic!("{error}"));
    }
}
