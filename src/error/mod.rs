//! `Error`: the one error of this crate, and its kinds.

mod kind;

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

pub use kind::{Clock, ErrorKind, NoRoom};

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
