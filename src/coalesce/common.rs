//! `Common`: what all services of one identity space share.

use std::{
    fmt,
    hash::BuildHasher,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use tower_service::Service;

use super::{
    flight::{Home, Lost, Name, Outcome},
    linger::Linger,
    polling::Mark,
    shards::{Entered, Space},
    share::Share,
    task::Task,
    work::Work,
};
use crate::{
    Error, ErrorKind, Runtime,
    identity::Identity,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The size up to which a table keeps a few boxes, in bytes.
const WORTH_KEEPING: usize = 1024;

/// How long a joiner waits before it leads a call of its own.
#[derive(Debug, Clone)]
pub(super) struct MaxWait {
    pub(super) runtime: Runtime,
    pub(super) after: Duration,
}

/// One identity space: the flights, and how they are flown.
///
/// What it knows of the service's types beyond `Service` itself it knows by plain functions, made in
/// `Layer::layer`, where the bounds stand. (A bound on an `impl Service` that a type of borrowed or
/// boxed errors meets for one lifetime only is not met by a future that is spawned.)
pub(super) struct Common<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    pub(super) space: Space<Arc<Self>>,
    pub(super) hasher: DefaultHashBuilder,
    pub(super) identity: I,
    pub(super) policy: P,
    pub(super) driver: D,
    pub(super) rules: Rules<S, I, Req, P, D>,
    pub(super) linger: Option<Linger>,
    pub(super) max_wait: Option<MaxWait>,
    /// Somebody has a handle.
    pub(super) observed: bool,
    /// Calls that passed by, counted if somebody may ask.
    pub(super) passed: AtomicU64,
}

/// A handle on it, which is what keeps the table alive.
pub(super) type Here<S, I, Req, P, D> = Arc<Common<S, I, Req, P, D>>;

/// Hands a flight to the runtime.
pub(super) type Launch<S, I, Req, P, D> = fn(&D, Task<S, I, Req, P, D>);

pub(super) struct Rules<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    pub(super) convert: fn(S::Error) -> Error,
    /// Nobody is asked whether an outcome is shared.
    pub(super) shares_all: bool,
    pub(super) shares: fn(&P, &S::Response) -> bool,
    pub(super) shares_error: fn(&P, &S::Error) -> bool,
    /// `None`: callers drive.
    pub(super) launch: Option<Launch<S, I, Req, P, D>>,
    /// A joiner may have to go alone.
    pub(super) keeps_requests: bool,
}

/// The outcome of a flight.
pub(super) enum Verdict<R> {
    Told(Result<R, Error>),
    /// It is not for those who joined: they go alone.
    Alone,
}

impl<R: Share> Verdict<R> {
    /// For one more caller.
    pub(super) fn copy(&self) -> Self {
        match self {
            Verdict::Told(Ok(response)) => Verdict::Told(Ok(response.share())),
            Verdict::Told(Err(error)) => Verdict::Told(Err(error.clone())),
            Verdict::Alone => Verdict::Alone,
        }
    }
}

impl<S, I, Req, P, D> Home for Arc<Common<S, I, Req, P, D>>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    type Key = I::Key;
    type Work = Work<S, Req>;
    type Value = Verdict<S::Response>;

    #[inline]
    fn space(&self) -> &Space<Self> {
        &self.space
    }

    const REUSE: bool = size_of::<Work<S, Req>>() <= WORTH_KEEPING;

    #[inline]
    fn fly(
        &self,
        flight: Name,
        mut work: Pin<&mut Work<S, Req>>,
        cx: &mut Context<'_>,
    ) -> Poll<Outcome<Self::Value>> {
        // A part of the call are its drop, which must not wait for it either, and what is asked of its
        // response.
        let _polling = self.mark(flight).polling();
        let Poll::Ready(result) = work.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        work.set(Work::Empty);
        Poll::Ready(self.judge(flight, result))
    }

    fn is_flying_here(&self, flight: Name) -> bool {
        self.mark(flight).is_polled_here()
    }

    fn lost(&self, how: Lost) -> Self::Value {
        Verdict::Told(Err(Error::new(match how {
            Lost::Panicked => ErrorKind::Panicked,
            Lost::ShutDown => ErrorKind::ShutDown,
        })))
    }

    fn apart(&self) -> Self::Value {
        Verdict::Alone
    }
}

impl<S, I, Req, P, D> Common<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// Tells a flight from all others of the process.
    #[inline]
    pub(super) fn mark(&self, flight: Name) -> Mark {
        Mark {
            table: std::ptr::from_ref(self).addr(),
            flight: flight.id,
        }
    }

    #[inline]
    pub(super) fn passed_by(&self) {
        if self.observed {
            self.passed.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: &I::Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Joins the flight of `key`, or leads one. What of `seed` is left was not needed.
    #[inline]
    pub(super) fn enter(
        self: &Arc<Self>,
        hash: u64,
        key: I::Key,
        seed: &mut Option<(S, Req)>,
    ) -> Entered<Arc<Self>> {
        let now = self.linger.as_ref().map(Linger::now);
        let tasks = self.rules.launch.is_some();
        self.space.enter(self, hash, key, now, |spare| {
            if tasks { None } else { boxed(spare, seed) }
        })
    }

    /// For whom an outcome is, and how long.
    #[inline]
    pub(super) fn judge(
        &self,
        flight: Name,
        result: Result<S::Response, S::Error>,
    ) -> Outcome<Verdict<S::Response>> {
        let (value, private) = match result {
            Ok(response) => {
                let shared = self.rules.shares_all || (self.rules.shares)(&self.policy, &response);
                (Verdict::Told(Ok(response)), !shared)
            }
            Err(error) => {
                let shared =
                    self.rules.shares_all || (self.rules.shares_error)(&self.policy, &error);
                (Verdict::Told(Err((self.rules.convert)(error))), !shared)
            }
        };
        let keep = match (&self.linger, &value) {
            (Some(linger), Verdict::Told(Ok(_))) if !private => {
                linger.keep(flight, |old| self.space.expire(old))
            }
            _ => None,
        };
        Outcome {
            value,
            private,
            keep,
        }
    }
}

/// The work of a flight, boxed: it is polled by whoever comes.
#[inline]
pub(super) fn boxed<S, Req>(
    spare: Option<Pin<Box<Work<S, Req>>>>,
    seed: &mut Option<(S, Req)>,
) -> Option<Pin<Box<Work<S, Req>>>>
where
    S: Service<Req>,
{
    let (service, request) = seed.take()?;
    let work = Work::Seed { service, request };
    Some(match spare {
        Some(mut spare) => {
            spare.set(work);
            spare
        }
        None => Box::pin(work),
    })
}

impl<S, I, Req, P, D> fmt::Debug for Common<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common")
            .field("standing", &self.space.standing())
            .finish_non_exhaustive()
    }
}
