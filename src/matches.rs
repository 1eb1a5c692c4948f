//! `Matches`: which requests an option is about.

/// Tells the requests that an option is about from all others.
///
/// Any `Fn(&Req) -> bool` does; [`Nothing`] is the default, and matches none.
///
/// ```
/// use tower_on_demand::{Matches, Nothing};
///
/// let probes = |path: &&str| path.starts_with("/health");
/// assert!(probes.matches(&"/health/live"));
/// assert!(!Nothing.matches(&"/health/live"));
/// ```
pub trait Matches<Req>: Clone + Send + Sync + 'static {
    /// Whether the option is about this request.
    fn matches(&self, request: &Req) -> bool;
}

/// Matches no request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Nothing;

impl<Req> Matches<Req> for Nothing {
    fn matches(&self, _request: &Req) -> bool {
        false
    }
}

impl<F, Req> Matches<Req> for F
where
    F: Fn(&Req) -> bool + Clone + Send + Sync + 'static,
{
    fn matches(&self, request: &Req) -> bool {
        self(request)
    }
}
