//! What went wrong: the kinds of an error, in words and numbers.

use std::{fmt, sync::Arc, time::Duration};

/// What kind of [`Error`](super::Error) it is.
///
/// With the feature `serde` it is [its word](Self::as_str).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No room under the ceiling before the wait was over. Nothing in flight was touched.
    NoRoom(NoRoom),
    /// The backend weighs more than the ceiling's whole limit.
    #[non_exhaustive]
    NeverFits {
        /// What the backend weighs.
        weight: u64,
        /// The limit.
        limit: u64,
    },
    /// The backend was tried, and could not be started.
    StartFailed,
    /// A start took longer than it may.
    #[non_exhaustive]
    StartTimeout {
        /// Which of the three clocks ran out.
        clock: Clock,
        /// What it was set to.
        after: Duration,
    },
    /// Starts failed lately; the next trial is due in [`Error::retry_after`](super::Error::retry_after). The cause is the last failure.
    #[non_exhaustive]
    BackingOff {
        /// How many starts failed in a row, or how many crashes have spent the restart budget.
        failures: u32,
    },
    /// The backend was unloaded and stays down until it is loaded.
    Unloaded,
    /// There is no backend of that name.
    Unknown,
    /// The backend does not run, and this call is not one that starts it.
    NotRunning,
    /// The backend, its group or the executor was shut down.
    ShutDown,
    /// The backend was stopped, and this call was still in flight when its drain was over.
    Stopped,
    /// The instance was retired before the call was handed over.
    Evicted,
    /// The instance died before the call was handed over.
    Died,
    /// User code panicked: the maker of a backend, or the call this one had joined.
    Panicked,
    /// A call was made from within its own flight and would wait for itself.
    Reentrant,
    /// A reader of a shared body fell too far behind.
    Lagged,
    /// As many wait as may wait.
    #[non_exhaustive]
    TooManyWaiting {
        /// How many may.
        limit: usize,
    },
    /// As many keys exist as may exist.
    #[non_exhaustive]
    TooManyKeys {
        /// How many may.
        limit: usize,
    },
    /// The backend's own error, unchanged in [`source`](std::error::Error::source).
    Service,
}

/// The three clocks of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clock {
    /// The backend was spawned and did not become ready: `Command::ready_within`.
    ReadyWithin,
    /// The start as a whole, waiting for room included: `LazyStartLayer::start_timeout`.
    StartTimeout,
}

/// The numbers of a ceiling at the moment it had no room.
///
/// A maker whose room is not a ceiling's, a cluster's for one, says so by the default, which has no
/// numbers; the cause tells the rest.
///
/// ```
/// use tower_on_demand::{Error, ErrorKind, NoRoom};
///
/// let error = Error::new(ErrorKind::NoRoom(NoRoom::default())).because("no node has 2 cpus free");
/// assert!(error.is_refusal());
/// assert_eq!(format!("{error:#}"), "no room: no node has 2 cpus free");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NoRoom {
    /// The limit, in units of weight.
    pub limit: u64,
    /// What is taken of it: starting, running, draining and stopping.
    pub used: u64,
    /// What the refused start weighs.
    pub weight: u64,
    /// Instances that hold room.
    pub running: usize,
    /// Those of them that were busy.
    pub busy: usize,
    /// Those of them whose uses nobody counts, so that room is never made of them: there is no
    /// `IdleEvict` above their `Ceiling`.
    pub uncounted: usize,
    /// Starts that were waiting for room, the refused one included.
    pub waiting: usize,
    /// How long the refused one had waited.
    pub waited: Duration,
    /// The names of those that have held room for longest: a few, not all.
    pub holders: Vec<Arc<str>>,
    /// The start would have replaced an instance whose own room is all that is missing.
    pub own: bool,
}

impl ErrorKind {
    /// The kind in one word, for logs and labels.
    pub const fn as_str(&self) -> &'static str {
        match self {
            ErrorKind::NoRoom(_) => "no_room",
            ErrorKind::NeverFits { .. } => "never_fits",
            ErrorKind::StartFailed => "start_failed",
            ErrorKind::StartTimeout { .. } => "start_timeout",
            ErrorKind::BackingOff { .. } => "backing_off",
            ErrorKind::Unloaded => "unloaded",
            ErrorKind::Unknown => "unknown",
            ErrorKind::NotRunning => "not_running",
            ErrorKind::ShutDown => "shut_down",
            ErrorKind::Stopped => "stopped",
            ErrorKind::Evicted => "evicted",
            ErrorKind::Died => "died",
            ErrorKind::Panicked => "panicked",
            ErrorKind::Reentrant => "reentrant",
            ErrorKind::Lagged => "lagged",
            ErrorKind::TooManyWaiting { .. } => "too_many_waiting",
            ErrorKind::TooManyKeys { .. } => "too_many_keys",
            ErrorKind::Service => "service",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::NoRoom(room) => fmt::Display::fmt(room, f),
            ErrorKind::NeverFits { weight, limit } => write!(
                f,
                "weighs {weight}, which never fits under the ceiling's limit of {limit}; raise the limit or lower the weight"
            ),
            ErrorKind::StartFailed => f.write_str("could not be started"),
            ErrorKind::StartTimeout { clock, after } => {
                write!(
                    f,
                    "not ready within {after:?}; if that is too short, raise `{clock}`"
                )
            }
            ErrorKind::BackingOff { failures } => {
                f.write_str("not tried: it has failed ")?;
                match failures {
                    1 => f.write_str("lately"),
                    _ => write!(f, "{failures} times lately"),
                }
            }
            ErrorKind::Unloaded => f.write_str("unloaded; load it to serve calls again"),
            ErrorKind::Unknown => f.write_str("there is no such backend"),
            ErrorKind::NotRunning => {
                f.write_str("not running, and this call is not one that starts it")
            }
            ErrorKind::ShutDown => f.write_str("shut down"),
            ErrorKind::Stopped => {
                f.write_str("stopped while the call was in flight: its drain was over")
            }
            ErrorKind::Evicted => {
                f.write_str("the instance was retired before the call was handed over")
            }
            ErrorKind::Died => f.write_str("the instance died"),
            ErrorKind::Panicked => f.write_str("panicked"),
            ErrorKind::Reentrant => f.write_str(
                "the call was made from within its own flight and would wait for itself",
            ),
            ErrorKind::Lagged => f.write_str("this reader fell behind the others of a shared body"),
            ErrorKind::TooManyWaiting { limit } => {
                write!(f, "as many wait already as may wait: {limit}")
            }
            ErrorKind::TooManyKeys { limit } => {
                write!(f, "as many keys exist already as may exist: {limit}")
            }
            ErrorKind::Service => f.write_str("the call failed"),
        }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("no room");
        }
        write!(
            f,
            "no room: {} of {} in use by {} running, {} of them busy; {} waiting, this one for {:.1?}",
            self.used, self.limit, self.running, self.busy, self.waiting, self.waited
        )?;
        if self.uncounted > 0 {
            write!(
                f,
                "; {} of them cannot make room, since nobody counts their uses: put IdleEvict above Ceiling",
                self.uncounted
            )?;
        }
        for (n, name) in self.holders.iter().enumerate() {
            let before = if n == 0 { "; held by" } else { "," };
            write!(f, "{before} {name:?}")?;
        }
        if self.running > self.holders.len() && !self.holders.is_empty() {
            f.write_str(" and others")?;
        }
        f.write_str(if self.own {
            "; only the instance to be replaced stands in the way: use reload_in_place"
        } else {
            "; raise the limit, or let starts `wait` for longer"
        })
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clock::ReadyWithin => "ready_within",
            Clock::StartTimeout => "start_timeout",
        })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_says_of_every_kind_what_to_do() {
        let source = include_str!("kind.rs");
        let kinds = source.split("pub enum ErrorKind {").nth(1).unwrap();
        let kinds = kinds.split("\n}").next().unwrap().lines();
        // Variants stand at the first level of indentation.
        let names = kinds.filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let name = line.split(|c: char| !c.is_alphanumeric()).next()?;
            name.starts_with(char::is_uppercase).then_some(name)
        });
        let table = include_str!("../guide/failures.md");
        let mut count = 0;
        for name in names {
            let row = format!("\n| [`{name}`](crate::ErrorKind::{name}) |");
            assert!(table.contains(&row), "the guide has no row for {name}");
            count += 1;
        }
        assert_eq!(table.matches("\n| [`").count(), count);
    }
}
