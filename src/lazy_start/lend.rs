//! `lend()`: a lease for callers that make no service calls.

use std::{
    fmt,
    future::{Future, poll_fn},
    mem,
    ops::{Deref, DerefMut},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    busy::Busy,
    error::Error,
    lifecycle::{
        entrance::{Entrance, Joined, Waiting},
        instance::Handed,
    },
    target::Urgency,
    usage::{Refused, Usage},
    wakers::Key,
};

/// A lease to keep: the backend is in use, and stays, until it is dropped.
///
/// No policy stops what is lent. An order does ([`Handle::stop`](super::Handle::stop), a reload, a group
/// that is stopped), once the drain timeout is over, and does not ask the borrower;
/// [`cut`](Self::cut) tells it then.
///
/// For backends that are not services, a connection pool or a session; see [`Backend`](crate::Backend) for
/// one that is closed in order:
///
/// ```
/// # use tower::{Layer, service_fn};
/// # use tower_on_demand::{DropToStop, LazyStartLayer, Runtime};
/// # #[cfg(feature = "tokio")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_on_demand::Error> {
/// #[derive(Clone)]
/// struct Pool;
/// impl Pool {
///     fn query(&self) -> u32 { 42 }
/// }
///
/// let maker = service_fn(|_: &'static str| async { Ok::<_, std::io::Error>(DropToStop::new(Pool)) });
/// let pool = LazyStartLayer::new(Runtime::tokio(), "pool").layer(maker);
///
/// let lent = pool.lend().await?; // opens it, if nobody has yet
/// assert_eq!(lent.query(), 42);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
pub struct Lent<L> {
    lease: L,
    /// Ends after the lease is dropped.
    busy: Busy,
}

impl<L> Lent<L> {
    /// Ready when the lease is to be given back now: the backend is being stopped by order, and its drain is
    /// over.
    pub fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.busy.poll_cut(cx)
    }

    /// Waits until the lease is to be given back, as [`poll_cut`](Self::poll_cut) says. Most are before.
    ///
    /// ```
    /// # use tower_on_demand::lazy_start::Lent;
    /// # async fn listen(_: &str) {}
    /// # async fn follow(mut session: Lent<String>) {
    /// let name = session.clone();
    /// tokio::select! {
    ///     () = listen(&name) => {}     // for as long as it takes
    ///     () = session.cut() => {}     // the host is on its way out
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn cut(&mut self) {
        poll_fn(|cx| self.poll_cut(cx)).await;
    }
}

impl<L> Deref for Lent<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.lease
    }
}

impl<L> DerefMut for Lent<L> {
    fn deref_mut(&mut self) -> &mut L {
        &mut self.lease
    }
}

impl<L: fmt::Debug> fmt::Debug for Lent<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.lease).finish()
    }
}

/// Resolves to a lease: see [`LazyStart::lend`](super::LazyStart::lend).
#[must_use = "futures do nothing unless polled"]
pub struct Lending<L> {
    entrance: Arc<dyn Entrance<L>>,
    state: State<L>,
}

enum State<L> {
    /// Any instance but this one.
    Asking(Option<u64>),
    Waiting(Waiting<L>),
    /// A lease, to be claimed.
    Claiming(Option<Handed<L>>, Arc<Usage>),
    /// A place among those who wait while the instance yields. It holds nothing of the instance, which
    /// yields when nobody uses it any more.
    Yielding(Place, u64),
    Lent(L, Busy),
    Done,
}

struct Place {
    usage: Arc<Usage>,
    key: Key,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.usage.forget_claim(&mut self.key);
    }
}

impl<L> Lending<L> {
    pub(crate) fn new(entrance: Arc<dyn Entrance<L>>) -> Self {
        Self {
            entrance,
            state: State::Asking(None),
        }
    }
}

impl<L> State<L> {
    fn claiming(entrance: &Arc<dyn Entrance<L>>, handed: Handed<L>) -> Self {
        match entrance.counted(handed.generation) {
            Some(Some(usage)) => State::Claiming(Some(handed), usage),
            Some(None) => State::Lent(handed.lease, handed.share.into()),
            // It is not the running one any more.
            None => State::Asking(Some(handed.generation)),
        }
    }
}

/// Nothing in it is pinned.
impl<L> Unpin for Lending<L> {}

impl<L> Future for Lending<L> {
    type Output = Result<Lent<L>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            this.state = match &mut this.state {
                State::Asking(not) => match this.entrance.clone().join(*not, Urgency::Demand)? {
                    Joined::Wait(waiting) => State::Waiting(waiting),
                    Joined::Lease(handed) => State::claiming(&this.entrance, handed),
                },
                State::Waiting(waiting) => {
                    let handed = ready!(Pin::new(waiting).poll(cx))?;
                    State::claiming(&this.entrance, handed)
                }
                State::Claiming(handed, usage) => {
                    let handed = handed.take().expect("it is there until it is claimed");
                    match usage.claim() {
                        Ok(claim) => State::Lent(handed.lease, Busy::new(Some(claim))),
                        Err(Refused::Yielding) => {
                            let place = Place {
                                usage: usage.clone(),
                                key: None,
                            };
                            State::Yielding(place, handed.generation)
                        }
                        // Retired before it was ours: the next one, which somebody starts.
                        Err(Refused::Closed) => State::Asking(Some(handed.generation)),
                    }
                }
                State::Yielding(place, generation) => {
                    let Place { usage, key } = place;
                    match ready!(usage.poll_claim(key, cx.waker())) {
                        // It serves on. The claim was only to see that.
                        Ok(_) => State::Asking(None),
                        Err(_) => State::Asking(Some(*generation)),
                    }
                }
                State::Lent(..) => match mem::replace(&mut this.state, State::Done) {
                    State::Lent(lease, busy) => {
                        return Poll::Ready(Ok(Lent { lease, busy }));
                    }
                    _ => unreachable!("it was lent"),
                },
                State::Done => panic!("polled after it was done"),
            };
        }
    }
}

impl<L> fmt::Debug for Lending<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").finish_non_exhaustive()
    }
}
