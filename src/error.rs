//! `Error`: the one error of this crate, and its kinds.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

/// A boxed error, as tower's: what makers and services of any kind turn their errors into.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What went wrong, with which backend, and what to do about it.
///
/// Cheap to clone, so that everybody who waited for one start, or joined one call, gets the very
/// same error. Match on [`kind`](Self::kind); [`source`](StdError::source) is what the backend or
/// its maker said, unchanged.
///
/// ```
/// use tower_on_demand::{Error, ErrorKind};
///
/// fn worth_a_retry(error: &Error) -> bool {
///     match error.kind() {
///         ErrorKind::NoRoom(_) | ErrorKind::BackingOff { .. } => error.retry_after().is_some(),
///         _ => false,
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    backend: Option<Arc<str>>,
    retry_after: Option<Duration>,
    /// What was seen of the backend: its last lines of output, say.
    detail: Option<Arc<str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What kind of [`Error`] it is.
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
    /// Starts failed lately; the next trial is due in [`Error::retry_after`]. The cause is the last failure.
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
    /// The backend's own error, unchanged in [`source`](StdError::source).
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

impl Error {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                backend: None,
                retry_after: None,
                detail: None,
                source: None,
            }),
        }
    }

    /// The error of the service behind a layer. An error of this crate stays what it is.
    pub fn service(error: impl Into<BoxError>) -> Self {
        Self::wrap(ErrorKind::Service, error.into())
    }

    /// For makers: the backend was not ready `after` so long ([`StartTimeout`](ErrorKind::StartTimeout)).
    pub fn not_ready_within(after: Duration) -> Self {
        Self::new(ErrorKind::StartTimeout {
            clock: Clock::ReadyWithin,
            after,
        })
    }

    /// The error of a maker. An error of this crate stays what it is.
    pub fn start_failed(error: impl Into<BoxError>) -> Self {
        Self::wrap(ErrorKind::StartFailed, error.into())
    }

    fn wrap(kind: ErrorKind, error: BoxError) -> Self {
        match error.downcast::<Error>() {
            Ok(error) => *error,
            Err(error) => Self::new(kind).because(error),
        }
    }

    /// Names the backend, if none is named yet.
    #[must_use]
    pub fn of(self, backend: impl Into<Arc<str>>) -> Self {
        if self.inner.backend.is_some() {
            return self;
        }
        self.with(|inner| inner.backend = Some(backend.into()))
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(self, source: impl Into<BoxError>) -> Self {
        let source = source.into();
        self.with(|inner| inner.source = Some(source.into()))
    }

    /// Adds after what time it is worth trying again.
    #[must_use]
    pub fn after(self, retry_after: Duration) -> Self {
        self.with(|inner| inner.retry_after = Some(retry_after))
    }

    /// Adds what was seen of the backend, its last lines of output for one.
    #[must_use]
    pub fn seen(self, detail: impl Into<Arc<str>>) -> Self {
        self.with(|inner| inner.detail = Some(detail.into()))
    }

    /// Adds what went wrong before, without repeating what this error says itself.
    pub(crate) fn because_of(self, before: &Self) -> Self {
        let detail = before.inner.detail.clone();
        let before = before.clone().with(|inner| {
            inner.backend = None;
            inner.retry_after = None;
            inner.detail = None;
        });
        self.because(before).with(|inner| inner.detail = detail)
    }

    /// What it says with its causes, without what it has a field for.
    #[cfg(feature = "serde")]
    pub(crate) fn text(&self) -> String {
        let bare = self.clone().with(|inner| {
            inner.backend = None;
            inner.retry_after = None;
            inner.detail = None;
        });
        format!("{bare:#}")
    }

    fn with(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// What kind of error it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.inner.kind
    }

    /// The backend it is about, where one is known.
    pub fn backend(&self) -> Option<&str> {
        self.inner.backend.as_deref()
    }

    /// After what time it is worth trying again; `None` where waiting does not help or nobody knows.
    pub fn retry_after(&self) -> Option<Duration> {
        self.inner.retry_after
    }

    /// What was seen of the backend, its last lines of output for one.
    pub fn detail(&self) -> Option<&str> {
        self.inner.detail.as_deref()
    }

    /// A refusal: nothing was tried, so it says nothing about the backend's health.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self.inner.kind,
            ErrorKind::NoRoom(_)
                | ErrorKind::NeverFits { .. }
                | ErrorKind::BackingOff { .. }
                | ErrorKind::TooManyWaiting { .. }
                | ErrorKind::TooManyKeys { .. }
                | ErrorKind::ShutDown
                | ErrorKind::Unloaded
                | ErrorKind::Unknown
                | ErrorKind::NotRunning
        )
    }
}

/// What happened, to which backend, with the numbers. `{:#}` adds the causes, in a row.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.inner;
        if let Some(backend) = &inner.backend {
            write!(f, "backend {backend:?}: ")?;
        }
        fmt::Display::fmt(&inner.kind, f)?;
        if f.alternate() {
            let mut source = self.source();
            while let Some(cause) = source {
                write!(f, ": {cause}")?;
                source = cause.source();
            }
        }
        if let Some(after) = inner.retry_after {
            write!(f, "; try again in {after:.1?}")?;
        }
        if let Some(detail) = &inner.detail {
            write!(f, "\n{detail}")?;
        }
        Ok(())
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
                write!(f, "{clock}: not ready after {after:?}")
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

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.inner.kind);
        if let Some(backend) = &self.inner.backend {
            out.field("backend", backend);
        }
        if let Some(after) = &self.inner.retry_after {
            out.field("retry_after", after);
        }
        if let Some(detail) = &self.inner.detail {
            out.field("detail", detail);
        }
        if let Some(source) = &self.inner.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_says_of_every_kind_what_to_do() {
        let source = include_str!("error.rs");
        let kinds = source.split("pub enum ErrorKind {").nth(1).unwrap();
        let kinds = kinds.split("\n}").next().unwrap().lines();
        // Variants stand at the first level of indentation.
        let names = kinds.filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let name = line.split(|c: char| !c.is_alphanumeric()).next()?;
            name.starts_with(char::is_uppercase).then_some(name)
        });
        let table = include_str!("guide/failures.md");
        let mut count = 0;
        for name in names {
            let row = format!("\n| [`{name}`](crate::ErrorKind::{name}) |");
            assert!(table.contains(&row), "the guide has no row for {name}");
            count += 1;
        }
        assert_eq!(table.matches("\n| [`").count(), count);
    }
}
