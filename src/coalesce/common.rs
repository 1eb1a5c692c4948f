//! `Common`: what all services of one identity space share.

use std::{
    fmt,
    hash::BuildHasher,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use hyper::rt::Sleep;
use tower_service::Service;

use super::{
    anchor::{Anchor, Anchors},
    flight::{Flight, Home, Keep, Lost, Name, Outcome, Whose},
    lasting::{Lasts, Tying},
    linger::Linger,
    polling::Mark,
    shards::{Entered, Padded, Space},
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
///
/// On cache lines of its own, since this is only read.
#[repr(align(128))]
pub(super) struct Common<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    pub(super) space: Space<Arc<Anchor<Self>>>,
    /// What keeps all this.
    pub(super) anchors: Anchors<Self>,
    pub(super) hasher: DefaultHashBuilder,
    pub(super) identity: I,
    pub(super) policy: P,
    pub(super) driver: D,
    pub(super) rules: Rules<S, I, Req, P, D>,
    pub(super) linger: Option<Linger>,
    pub(super) max_wait: Option<MaxWait>,
    /// Somebody has a handle.
    pub(super) observed: bool,
    /// Calls that passed by, counted if somebody may ask. Apart from what is only read.
    pub(super) passed: Padded<AtomicU64>,
}

/// A handle on it, which is what keeps the table alive.
pub(super) type Here<S, I, Req, P, D> = Arc<Anchor<Common<S, I, Req, P, D>>>;

/// Hands a flight to the runtime.
pub(super) type Launch<S, I, Req, P, D> = fn(&D, Task<S, I, Req, P, D>);

pub(super) struct Rules<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// Nobody is asked whether an outcome is shared.
    pub(super) shares_all: bool,
    pub(super) shares: fn(&P, &S::Response) -> bool,
    pub(super) shares_error: fn(&P, &S::Error) -> bool,
    /// `None`: callers drive.
    pub(super) launch: Option<Launch<S, I, Req, P, D>>,
    /// A joiner may have to go alone.
    pub(super) keeps_requests: bool,
    pub(super) manner: Manner<S::Response, S::Error>,
    /// Responses that can be joined while they are in use.
    pub(super) lasting: Option<Tying<S, I, Req, P, D>>,
    pub(super) weigh: fn(&S::Response) -> u64,
}

/// The outcome of a flight.
pub(super) enum Verdict<R> {
    Answer(R),
    Failed(Error),
    /// It is not for those who joined: they go alone.
    Alone,
}

impl<R: Share> Verdict<R> {
    /// For one more caller.
    #[inline]
    pub(super) fn copy(&self) -> Self {
        match self {
            Verdict::Answer(response) => Verdict::Answer(response.share()),
            Verdict::Failed(error) => Verdict::Failed(error.clone()),
            Verdict::Alone => Verdict::Alone,
        }
    }
}

/// What is done to the response of each caller.
pub(super) struct Manner<R, E> {
    pub(super) convert: fn(E) -> Error,
    /// Says to it by which flight it came.
    pub(super) label: Option<fn(&mut R, Passage)>,
    /// Counts it among those in use; false if it is too late for that.
    pub(super) enlist: Option<fn(&mut R) -> bool>,
}

impl<R, E> Clone for Manner<R, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R, E> Copy for Manner<R, E> {}

/// How a caller came to its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passage {
    pub(crate) flight: u64,
    pub(crate) led: bool,
}

impl<S, I, Req, P, D> Home for Here<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    type Key = I::Key;
    type Work = Work<S, Req>;
    type Value = Verdict<S::Response>;
    type Tag = Manner<S::Response, S::Error>;

    #[inline]
    fn space(&self) -> &Space<Self> {
        &self.space
    }

    const REUSE: bool = size_of::<Work<S, Req>>() <= WORTH_KEEPING;

    #[inline]
    fn tag(&self) -> Self::Tag {
        self.rules.manner
    }

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
        Verdict::Failed(Error::new(match how {
            Lost::Panicked => ErrorKind::Panicked,
            Lost::ShutDown => ErrorKind::ShutDown,
        }))
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

    /// When one who joins this flight is to lead another.
    pub(super) fn timer(&self, flight: &Flight<Arc<Anchor<Self>>>) -> Option<Pin<Box<dyn Sleep>>> {
        let wait = self.max_wait.as_ref();
        let wait = wait.filter(|_| !flight.is_replacement())?;
        Some(wait.runtime.sleep(wait.after))
    }

    #[inline]
    pub(super) fn passed_by(&self) {
        if self.observed {
            self.passed.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn hash(&self, key: &I::Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// How long what lands now lingers.
    pub(super) fn keep(&self, flight: Name, weight: u64) -> Option<Keep> {
        let linger = self.linger.as_ref()?;
        let until = linger.keep(flight, weight, |old| self.space.keep_on(old, None));
        until.map(Keep::Until)
    }
}

impl<S, I, Req, P, D> Anchor<Common<S, I, Req, P, D>>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// For another handle.
    #[inline]
    pub(super) fn here(self: &Arc<Self>) -> Arc<Self> {
        self.near(|common| &common.anchors)
    }

    /// Joins the flight of `key`, or leads one. What of `seed` is left was not needed.
    #[inline(never)]
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
        self: &Arc<Self>,
        flight: Name,
        result: Result<S::Response, S::Error>,
    ) -> Outcome<Verdict<S::Response>> {
        let rules = &self.rules;
        match result {
            Ok(response) => {
                let shared = rules.shares_all || (rules.shares)(&self.policy, &response);
                self.judge_response(flight, response, shared)
            }
            Err(error) => {
                let shared = rules.shares_all || (rules.shares_error)(&self.policy, &error);
                Outcome {
                    value: Verdict::Failed((rules.manner.convert)(error)),
                    whose: if shared { Whose::All } else { Whose::Leaders },
                    keep: None,
                }
            }
        }
    }

    #[inline]
    fn judge_response(
        self: &Arc<Self>,
        flight: Name,
        response: S::Response,
        shared: bool,
    ) -> Outcome<Verdict<S::Response>> {
        let mut whose = Whose::All;
        let mut keep = None;
        if !shared {
            whose = Whose::Leaders;
        } else if let Some(Tying { lasting, knot }) = &self.rules.lasting {
            match (lasting.tie)(&response, &|| knot(self, flight)) {
                Lasts::Sole => whose = Whose::Leaders,
                Lasts::No => keep = self.keep(flight, (self.rules.weigh)(&response)),
                Lasts::Yes => {
                    // The caller that led has no request left to go alone with.
                    let own = Verdict::Answer((lasting.copy)(&response));
                    whose = Whose::Others(Box::new(own));
                    keep = Some(Keep::InUse);
                }
            }
        } else if self.linger.is_some() {
            keep = self.keep(flight, (self.rules.weigh)(&response));
        }
        Outcome {
            value: Verdict::Answer(response),
            whose,
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
