//! Responses that last: their bodies are read long after the call has landed, and can be joined as long.

use tower_service::Service;

use super::{
    common::{Common, Here},
    flight::{Keep, Name},
    parting::{Departure, Who},
};
use crate::{
    identity::Identity,
    sync::{Arc, Weak},
};

/// What a response that lasts tells the table that it can be joined in.
pub(crate) trait Tie: Send + Sync {
    /// One of those who used it is done with it.
    fn left(&self);

    /// Nobody can join it any more.
    fn closed(&self);

    /// It is complete, and holds so many bytes.
    fn ended(&self, bytes: u64);
}

/// How a response lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    /// It cannot be given to several.
    Sole,
    /// It is complete.
    No,
    Yes,
}

/// How to treat responses that last.
pub(crate) struct Lasting<R> {
    /// Ties it to a flight, if it lasts.
    pub(crate) tie: fn(&R, &dyn Fn() -> Arc<dyn Tie>) -> Lasts,
    /// Another one, used from its beginning.
    pub(crate) copy: fn(&R) -> R,
    /// Counts this one as used from its beginning; false if it is too late for that.
    pub(crate) enlist: fn(&mut R) -> bool,
}

impl<R> Clone for Lasting<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Lasting<R> {}

/// Makes the tie of one flight.
pub(super) type Knot<S, I, Req, P, D> = fn(&Here<S, I, Req, P, D>, Name) -> Arc<dyn Tie>;

/// Both.
pub(super) struct Tying<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    pub(super) lasting: Lasting<S::Response>,
    pub(super) knot: Knot<S, I, Req, P, D>,
}

impl<S, I, Req, P, D> Clone for Tying<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, I, Req, P, D> Copy for Tying<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
}

/// A flight in its table, which the response in the table must not keep.
struct Tied<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    common: Weak<Common<S, I, Req, P, D>>,
    flight: Name,
}

pub(super) fn knot<S, I, Req, P, D>(common: &Here<S, I, Req, P, D>, flight: Name) -> Arc<dyn Tie>
where
    S: Service<Req> + Send + 'static,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: 'static,
    I: Identity<Req> + Send + Sync + 'static,
    I::Key: Send + Sync + 'static,
    Req: Send + 'static,
    P: Send + Sync + 'static,
    D: Send + Sync + 'static,
{
    let common = Arc::downgrade(common.kept());
    Arc::new(Tied { common, flight })
}

impl<S, I, Req, P, D> Tie for Tied<S, I, Req, P, D>
where
    S: Service<Req> + Send,
    S::Future: Send,
    S::Response: Send,
    I: Identity<Req> + Send + Sync,
    I::Key: Send + Sync,
    Req: Send,
    P: Send + Sync,
    D: Send + Sync,
{
    fn left(&self) {
        if let Some(common) = self.common.upgrade() {
            let who = Who::Seat { led: false };
            common.space.leave(self.flight, who, Departure::Moved);
        }
    }

    fn closed(&self) {
        if let Some(common) = self.common.upgrade() {
            common.space.keep_on(self.flight, None);
        }
    }

    fn ended(&self, bytes: u64) {
        if let Some(common) = self.common.upgrade() {
            let until = match common.keep(self.flight, bytes) {
                Some(Keep::Until(until)) => Some(until),
                Some(Keep::InUse) | None => None,
            };
            common.space.keep_on(self.flight, until);
        }
    }
}
