//! `Common`: what all services of one identity space share.

use std::{fmt, hash::BuildHasher, task::Context, time::Duration};

use hashbrown::DefaultHashBuilder;
use tower_service::Service;

use super::{
    flight::{Driving, Home, Landing, Lost},
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

    fn space(&self) -> &Space<Self> {
        &self.space
    }

    fn lost(&self, how: Lost) -> Self::Value {
        Verdict::Told(Err(Error::new(match how {
            Lost::Panicked => ErrorKind::Panicked,
            Lost::ShutDown => ErrorKind::ShutDown,
        })))
    }
}

impl<S, I, Req, P, D> Common<S, I, Req, P, D>
where
    S: Service<Req>,
    I: Identity<Req>,
{
    /// Names a flight among all of the process.
    pub(super) fn mark(&self, flight: u64) -> Mark {
        Mark {
            table: std::ptr::from_ref(self).addr(),
            flight,
        }
    }

    pub(super) fn passed_by(&self) {
        self.passed.fetch_add(1, Ordering::Relaxed);
    }

    /// Joins the flight of `key`, or leads one. What of `seed` is left was not needed.
    pub(super) fn enter(
        self: &Arc<Self>,
        hash: u64,
        key: I::Key,
        seed: &mut Option<(S, Req)>,
    ) -> Entered<Arc<Self>> {
        let now = self.linger.as_ref().map(Linger::now);
        let tasks = self.rules.launch.is_some();
        self.space.enter(
            self,
            hash,
            key,
            now,
            || {
                if tasks { None } else { boxed(seed) }
            },
        )
    }

    pub(super) fn hash(&self, key: &I::Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Lands a flight with what its work gave.
    pub(super) fn land(
        &self,
        mut driving: Driving<'_, Arc<Self>>,
        flight: u64,
        hash: u64,
        result: Result<S::Response, S::Error>,
    ) -> Landing<Arc<Self>> {
        {
            // Its `Drop` is a part of the call, and must not wait for it either.
            let _polling = self.mark(flight).polling();
            driving.drop_work();
        }
        let (value, private) = match result {
            Ok(response) if (self.rules.shares)(&self.policy, &response) => {
                (Verdict::Told(Ok(response)), None)
            }
            Ok(response) => (Verdict::Alone, Some(Verdict::Told(Ok(response)))),
            Err(error) => {
                let shared = (self.rules.shares_error)(&self.policy, &error);
                let told = Verdict::Told(Err((self.rules.convert)(error)));
                if shared {
                    (told, None)
                } else {
                    (Verdict::Alone, Some(told))
                }
            }
        };
        let keep = match (&self.linger, &value) {
            (Some(linger), Verdict::Told(Ok(_))) => {
                linger.keep(hash, flight, |hash, flight| self.space.expire(hash, flight))
            }
            _ => None,
        };
        driving.land(value, private, keep)
    }

    /// Polls the work of a flight that is driven.
    pub(super) fn poll_work(
        &self,
        driving: &mut Driving<'_, Arc<Self>>,
        flight: u64,
        cx: &mut Context<'_>,
    ) -> std::task::Poll<Result<S::Response, S::Error>> {
        let _polling = self.mark(flight).polling();
        driving.work().poll(cx)
    }
}

/// The work of a flight, boxed: it is polled by whoever comes.
pub(super) fn boxed<S, Req>(seed: &mut Option<(S, Req)>) -> Option<std::pin::Pin<Box<Work<S, Req>>>>
where
    S: Service<Req>,
{
    let (service, request) = seed.take()?;
    Some(Box::pin(Work::Seed { service, request }))
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
