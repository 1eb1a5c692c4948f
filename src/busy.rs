//! `Busy`: one use of an instance; `Begin` and `Hold`: how long a call keeps it.

use std::{
    fmt,
    task::{Context, Poll},
};

use crate::{
    error::Error,
    sync::Arc,
    usage::{Claim, Usage},
    wakers::Key,
};

/// What a hold does with a request on its way to the backend.
///
/// `IdleEvict::pair` asks for a hold, and there is no right default: a value is done when it is
/// returned, a streamed body long after. [`UntilResponse`] is the one for values,
/// `http::UntilBodyEnd` the one for HTTP. Write your own for responses that are neither:
///
/// ```
/// use tower_on_demand::{Begin, Busy, Hold};
///
/// /// Responses are sessions, in use until they are dropped.
/// #[derive(Clone)]
/// struct UntilDropped;
///
/// struct Session<S> {
///     session: S,
///     _busy: Busy,
/// }
///
/// impl<Req> Begin<Req> for UntilDropped {
///     type Request = Req;
///     type Hold = Self;
///
///     fn begin(&self, request: Req, _busy: &mut Busy) -> (Req, Self) {
///         (request, Self)
///     }
/// }
///
/// impl<S> Hold<S> for UntilDropped {
///     type Response = Session<S>;
///
///     fn hold(&self, session: S, busy: Busy) -> Session<S> {
///         Session { session, _busy: busy }
///     }
/// }
/// # let _ = |session: Session<()>| session.session;
/// ```
pub trait Begin<Req>: Clone + Send + Sync + 'static {
    /// The request, with what it holds.
    type Request;
    /// What holds the response to this very request: a [`Hold`].
    type Hold;

    /// Looks at `request` before the backend gets it, and may give it a
    /// [share](Busy::share) of `busy`.
    fn begin(&self, request: Req, busy: &mut Busy) -> (Self::Request, Self::Hold);
}

/// How long a response keeps its backend in use.
pub trait Hold<Res> {
    /// The response, with what it holds.
    type Response;

    /// Gives `busy` to `response`, or drops it.
    fn hold(&self, response: Res, busy: Busy) -> Self::Response;
}

/// In use until the response is returned: for responses that are values.
#[derive(Debug, Clone, Copy, Default)]
pub struct UntilResponse;

impl<Req> Begin<Req> for UntilResponse {
    type Request = Req;
    type Hold = Self;

    fn begin(&self, request: Req, _busy: &mut Busy) -> (Req, Self) {
        (request, Self)
    }
}

impl<Res> Hold<Res> for UntilResponse {
    type Response = Res;

    fn hold(&self, response: Res, busy: Busy) -> Res {
        drop(busy);
        response
    }
}

/// One use of an instance: as long as it lives the instance is busy, and no policy stops it.
#[must_use = "the use ends when it is dropped"]
pub struct Busy(Held);

enum Held {
    /// Somebody else counts, or nobody does.
    Nothing,
    Own(Claim),
    /// With the registration of this handle: each hears of the end by itself.
    Shared(Arc<Claim>, Key),
}

impl Busy {
    #[inline]
    pub(crate) fn new(claim: Option<Claim>) -> Self {
        Self(match claim {
            Some(claim) => Held::Own(claim),
            None => Held::Nothing,
        })
    }

    /// No use: somebody else counts, or nobody does.
    pub(crate) const fn nothing() -> Self {
        Self(Held::Nothing)
    }

    /// Claims the instance for a use that its last one may have left; `None` if it is closed or
    /// yielding.
    pub(crate) fn claim(usage: &Arc<Usage>, moves_recency: bool) -> Option<Self> {
        let mut claim = usage.claim().ok()?;
        if !moves_recency {
            claim.keep_recency();
        }
        Some(Self::new(Some(claim)))
    }

    /// The use, leaving nothing behind.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::nothing())
    }

    #[inline]
    fn get(&self) -> Option<&Claim> {
        match &self.0 {
            Held::Nothing => None,
            Held::Own(claim) => Some(claim),
            Held::Shared(claim, _) => Some(claim),
        }
    }

    #[inline]
    pub(crate) fn usage(&self) -> Option<&Arc<Usage>> {
        self.get().map(Claim::usage)
    }

    /// `error` with the backend's name, where that is known.
    pub(crate) fn named(&self, error: Error) -> Error {
        match self.usage().and_then(|usage| usage.name()) {
            Some(name) => error.of(name.clone()),
            None => error,
        }
    }

    pub(crate) fn moves_recency(&self) -> bool {
        self.get().is_some_and(Claim::moves_recency)
    }

    /// Ready when the use is to end now, since the drain of a deliberate stop is over.
    ///
    /// Whoever holds a use for long, a streamed body for one, polls this beside its own work and
    /// ends with [`ErrorKind::Stopped`](crate::ErrorKind::Stopped).
    pub fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Held::Nothing => Poll::Pending,
            Held::Own(claim) => claim.poll_cut(cx.waker()),
            Held::Shared(claim, key) => claim.usage().poll_cut(key, cx.waker()),
        }
    }

    /// Ready when a use that has not begun yet must not begin any more.
    pub(crate) fn poll_void(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Held::Nothing => Poll::Pending,
            Held::Own(claim) => claim.poll_void(cx.waker()),
            Held::Shared(claim, key) => claim.usage().poll_void(key, cx.waker()),
        }
    }

    /// Its end is no sign that anybody wants the instance. For a use that is not shared yet.
    pub(crate) fn keep_recency(&mut self) {
        if let Held::Own(claim) = &mut self.0 {
            claim.keep_recency();
        }
    }

    /// Whether the use is to end now. Registers no waker: for those who are never pending.
    pub fn is_cut(&self) -> bool {
        self.usage().is_some_and(|usage| usage.look().is_cut())
    }

    /// Another handle of this same use, which lasts until all its handles are dropped.
    ///
    /// It still counts as one. The first share of a use allocates.
    pub fn share(&mut self) -> Self {
        self.0 = match std::mem::replace(&mut self.0, Held::Nothing) {
            Held::Own(mut claim) => {
                claim.forget_cut();
                Held::Shared(Arc::new(claim), None)
            }
            held => held,
        };
        self.again()
    }

    /// Another handle of a use that is shared already.
    pub(crate) fn again(&self) -> Self {
        Self(match &self.0 {
            Held::Shared(claim, _) => Held::Shared(claim.clone(), None),
            Held::Nothing | Held::Own(_) => Held::Nothing,
        })
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        if let Held::Shared(claim, key @ Some(_)) = &mut self.0 {
            claim.usage().forget_cut(key);
        }
    }
}

/// One use that many share from the first, and a share costs what a reference does: or nothing, where somebody
/// else counts.
pub(crate) struct Share {
    claim: Option<Arc<Claim>>,
    cut: Key,
}

impl Share {
    pub(crate) const fn nothing() -> Self {
        Self {
            claim: None,
            cut: None,
        }
    }

    /// The first share of a word that nobody else has closed.
    pub(crate) fn new(usage: &Arc<Usage>) -> Self {
        let claim = usage.claim().expect("its only user has not closed it");
        Self {
            claim: Some(Arc::new(claim)),
            cut: None,
        }
    }

    #[inline]
    pub(crate) fn again(&self) -> Self {
        Self {
            claim: self.claim.clone(),
            cut: None,
        }
    }

    #[inline]
    pub(crate) fn counts(&self) -> bool {
        self.claim.is_some()
    }

    /// How many others there are, if it counts.
    pub(crate) fn others(&self) -> Option<u32> {
        let claim = self.claim.as_ref()?;
        Some(Arc::strong_count(claim) as u32 - 1)
    }

    /// As [`Busy::poll_cut`].
    pub(crate) fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.claim {
            Some(claim) => claim.usage().poll_cut(&mut self.cut, cx.waker()),
            None => Poll::Pending,
        }
    }

    /// As [`Busy::poll_void`].
    pub(crate) fn poll_void(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.claim {
            Some(claim) => claim.usage().poll_void(&mut self.cut, cx.waker()),
            None => Poll::Pending,
        }
    }

    pub(crate) fn is_void(&self) -> bool {
        let claim = self.claim.as_ref();
        claim.is_some_and(|claim| claim.usage().look().is_void())
    }

    /// `error` with the backend's name, where that is known.
    pub(crate) fn named(&self, error: Error) -> Error {
        let claim = self.claim.as_ref();
        match claim.and_then(|claim| claim.usage().name()) {
            Some(name) => error.of(name.clone()),
            None => error,
        }
    }
}

impl From<Share> for Busy {
    fn from(mut share: Share) -> Self {
        match share.claim.take() {
            Some(claim) => Self(Held::Shared(claim, share.cut.take())),
            None => Self::nothing(),
        }
    }
}

impl Drop for Share {
    #[inline]
    fn drop(&mut self) {
        if let (Some(claim), Some(_)) = (&self.claim, self.cut) {
            claim.usage().forget_cut(&mut self.cut);
        }
    }
}

impl fmt::Debug for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Busy").field(&self.usage()).finish()
    }
}
