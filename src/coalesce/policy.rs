//! `Policy`: which outcomes are for all who wait, and which for the caller that led alone.

/// Decides what is shared. Made by [`CoalesceLayer::share_if`](super::CoalesceLayer::share_if) and
/// [`CoalesceLayer::alone`](super::CoalesceLayer::alone).
pub trait Policy<Res, Err>: sealed::Sealed {
    /// Whether it ever says no: then each caller keeps its request, to go alone.
    #[doc(hidden)]
    const ASKS: bool;

    #[doc(hidden)]
    fn shares(&self, response: &Res) -> bool;

    #[doc(hidden)]
    fn shares_error(&self, error: &Err) -> bool;
}

/// Every outcome is shared: the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShareAll;

/// Shares the responses that a predicate is for.
#[derive(Debug, Clone, Copy)]
pub struct ShareIf<P, F> {
    pub(super) rest: P,
    pub(super) predicate: F,
}

/// Does not share the errors that a predicate is for.
#[derive(Debug, Clone, Copy)]
pub struct Alone<P, F> {
    pub(super) rest: P,
    pub(super) predicate: F,
}

pub(crate) mod sealed {
    #[allow(unreachable_pub)]
    pub trait Sealed {}
    impl Sealed for super::ShareAll {}
    impl<P, F> Sealed for super::ShareIf<P, F> {}
    impl<P, F> Sealed for super::Alone<P, F> {}
}

impl<Res, Err> Policy<Res, Err> for ShareAll {
    const ASKS: bool = false;

    fn shares(&self, _response: &Res) -> bool {
        true
    }

    fn shares_error(&self, _error: &Err) -> bool {
        true
    }
}

impl<P, F, Res, Err> Policy<Res, Err> for ShareIf<P, F>
where
    P: Policy<Res, Err>,
    F: Fn(&Res) -> bool,
{
    const ASKS: bool = true;

    fn shares(&self, response: &Res) -> bool {
        self.rest.shares(response) && (self.predicate)(response)
    }

    fn shares_error(&self, error: &Err) -> bool {
        self.rest.shares_error(error)
    }
}

impl<P, F, Res, Err> Policy<Res, Err> for Alone<P, F>
where
    P: Policy<Res, Err>,
    F: Fn(&Err) -> bool,
{
    const ASKS: bool = true;

    fn shares(&self, response: &Res) -> bool {
        self.rest.shares(response)
    }

    fn shares_error(&self, error: &Err) -> bool {
        self.rest.shares_error(error) && !(self.predicate)(error)
    }
}
