//! `Identity`: what a request is about.

use std::hash::Hash;

/// Tells what a request is about: its key, or that it has none.
///
/// `Keyed` finds the backend of a request by it, and `Coalesce` which calls in flight are the same call.
/// What decides is `Eq`; the hash only finds. It is asked once per call, before any lock is taken, and
/// must give the same key for the same request.
///
/// Any `Fn(&Req) -> Option<K>` is one; `K` owns what it says, and does not borrow from the request:
///
/// ```
/// use tower_on_demand::Identity;
///
/// struct Lookup { name: String, fresh: bool }
///
/// let by_name = |lookup: &Lookup| (!lookup.fresh).then(|| lookup.name.clone());
/// let cached = Lookup { name: "a".into(), fresh: false };
/// assert_eq!(by_name.identity(&cached).as_deref(), Some("a"));
/// ```
pub trait Identity<Req> {
    /// The key.
    type Key: Eq + Hash;

    /// The key of this request.
    fn identity(&self, request: &Req) -> Option<Self::Key>;
}

impl<F, Req, K> Identity<Req> for F
where
    F: Fn(&Req) -> Option<K>,
    K: Eq + Hash,
{
    type Key = K;

    fn identity(&self, request: &Req) -> Option<K> {
        self(request)
    }
}
