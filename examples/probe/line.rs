//! Refusals: who finds all places taken is told when it is worth coming back.
//!
//! tower's own `ConcurrencyLimit` counts the places, and `LoadShed` above it refuses instead of letting anybody
//! wait. What neither knows is for how long a place is usually taken.

use std::{
    collections::HashMap,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tower::{Layer, Service, load_shed::error::Overloaded};
use tower_on_demand::{BoxError, Error, Runtime};

/// For how long a place is thought to be taken, until the first one was given back.
const GUESS: Duration = Duration::from_secs(1);

/// How much of the average the newest measurement is.
const NEWEST: f64 = 0.2;

/// A line that nobody stands in: those who were refused, and when each was told to come back.
///
/// Nobody waits here, so the next refusal would be told the same moment as this one, and all would come back
/// together to be refused once more. So each file is given a moment of its own, one behind the other:
/// average hold × (depth + 1) / places.
///
/// As a layer it stands above `LoadShed`, and gives refusals their moment.
#[derive(Clone)]
pub(crate) struct Line(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    places: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// For how long places were taken.
    average: Option<Duration>,
    /// Files that were refused, and when they are worth being asked about again.
    told: HashMap<PathBuf, Instant>,
    refused: u64,
}

impl Line {
    pub(crate) fn new(runtime: Runtime, places: usize) -> Self {
        Self(Arc::new(Inner {
            runtime,
            places: u32::try_from(places).unwrap_or(u32::MAX).max(1),
            state: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place is taken for `file`, until what this returns is dropped.
    pub(crate) fn hold(&self, file: &Path) -> Hold {
        self.state().told.remove(file);
        Hold {
            line: self.clone(),
            since: self.0.runtime.now(),
        }
    }

    /// After what time it is worth asking about `file` again.
    pub(crate) fn refuse(&self, file: &Path) -> Duration {
        let now = self.0.runtime.now();
        let mut state = self.state();
        state.refused += 1;
        // Whose moment has come stands in nobody's way.
        state.told.retain(|_, at| *at > now);
        if let Some(at) = state.told.get(file) {
            // Asking early neither costs a place in line, nor wins one.
            return *at - now;
        }
        let depth = u32::try_from(state.told.len()).unwrap_or(u32::MAX);
        let hold = state.average.unwrap_or(GUESS);
        let after = hold.saturating_mul(depth.saturating_add(1)) / self.0.places;
        state.told.insert(file.to_owned(), now + after);
        after
    }

    /// How many were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.state().refused
    }

    /// For how long a place is taken, on average.
    pub(crate) fn average(&self) -> Option<Duration> {
        self.state().average
    }
}

/// A place that is taken.
pub(crate) struct Hold {
    line: Line,
    since: Instant,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let now = self.line.0.runtime.now();
        let held = now.saturating_duration_since(self.since);
        let mut state = self.line.state();
        state.average = Some(match state.average {
            Some(average) => average.mul_f64(1.0 - NEWEST) + held.mul_f64(NEWEST),
            None => held,
        });
    }
}

impl<S> Layer<S> for Line {
    type Service = Refuse<S>;

    fn layer(&self, inner: S) -> Refuse<S> {
        Refuse {
            inner,
            line: self.clone(),
        }
    }
}

/// Gives refusals their moment.
#[derive(Clone)]
pub(crate) struct Refuse<S> {
    inner: S,
    line: Line,
}

impl<S> Service<PathBuf> for Refuse<S>
where
    S: Service<PathBuf, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::service)
    }

    fn call(&mut self, file: PathBuf) -> Self::Future {
        let line = self.line.clone();
        let called = self.inner.call(file.clone());
        Box::pin(async move {
            called.await.map_err(|error| {
                let refused = error.is::<Overloaded>();
                let error = Error::service(error);
                if refused {
                    error.after(line.refuse(&file))
                } else {
                    error
                }
            })
        })
    }
}
