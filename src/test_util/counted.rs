//! How often a future was polled and woken.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// A future that counts its polls and the wakes of the wakers it was polled with.
///
/// ```
/// use std::{future::poll_fn, task::Poll};
/// use tower_on_demand::test_util::Counted;
///
/// let mut polled = false;
/// let mut twice = Counted::new(poll_fn(move |cx| {
///     if std::mem::replace(&mut polled, true) {
///         return Poll::Ready("done");
///     }
///     cx.waker().wake_by_ref();
///     Poll::Pending
/// }));
/// let counts = twice.counts();
/// assert!(twice.poll_once().is_pending());
/// assert_eq!(twice.poll_once(), Poll::Ready("done"));
/// assert_eq!((counts.polls(), counts.wakes()), (2, 1));
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Counted<F> {
    future: Pin<Box<F>>,
    counts: Counts,
    /// The last waker it was polled with, and the one that counts in front of it.
    waker: Option<(Waker, Waker)>,
}

/// The counts of a [`Counted`], to be read while it is elsewhere.
#[derive(Clone, Default)]
pub struct Counts {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    polls: AtomicU64,
    wakes: AtomicU64,
}

struct CountingWaker {
    counts: Counts,
    next: Waker,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.counts.inner.wakes.fetch_add(1, Ordering::AcqRel);
        self.next.wake_by_ref();
    }
}

impl Counts {
    /// How often it was polled.
    pub fn polls(&self) -> u64 {
        self.inner.polls.load(Ordering::Acquire)
    }

    /// How often it was woken.
    pub fn wakes(&self) -> u64 {
        self.inner.wakes.load(Ordering::Acquire)
    }
}

impl<F: Future> Counted<F> {
    /// Counts `future`.
    pub fn new(future: F) -> Self {
        Self {
            future: Box::pin(future),
            counts: Counts::default(),
            waker: None,
        }
    }

    /// The counts.
    pub fn counts(&self) -> Counts {
        self.counts.clone()
    }

    /// How often it was polled.
    pub fn polls(&self) -> u64 {
        self.counts.polls()
    }

    /// How often it was woken.
    pub fn wakes(&self) -> u64 {
        self.counts.wakes()
    }

    /// Polls it once, outside any task; its wakes are counted and go nowhere.
    pub fn poll_once(&mut self) -> Poll<F::Output> {
        Pin::new(self).poll(&mut Context::from_waker(Waker::noop()))
    }
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        this.counts.inner.polls.fetch_add(1, Ordering::AcqRel);
        let known = matches!(&this.waker, Some((outer, _)) if outer.will_wake(cx.waker()));
        if !known {
            let counting = Waker::from(Arc::new(CountingWaker {
                counts: this.counts.clone(),
                next: cx.waker().clone(),
            }));
            this.waker = Some((cx.waker().clone(), counting));
        }
        match &this.waker {
            Some((_, counting)) => this
                .future
                .as_mut()
                .poll(&mut Context::from_waker(counting)),
            None => unreachable!("it was set above"),
        }
    }
}

impl<F> fmt::Debug for Counted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted")
            .field("polls", &self.counts.polls())
            .field("wakes", &self.counts.wakes())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts")
            .field("polls", &self.polls())
            .field("wakes", &self.wakes())
            .finish()
    }
}
