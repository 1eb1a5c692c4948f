//! What an owner says of its backend.

use std::{sync::Arc, time::Duration};

use crate::{error::Error, usage::Eviction};

/// Where a backend stands in its one linear lifecycle.
///
/// ```text
///              ┌────────────── the next call ──────────────┐
///              ▼                                           │
/// Stopped → Starting → Running → Stopping → Stopped        │
///              └─ failed ─────────────────→ BackingOff ────┘
/// ```
///
/// `Unloaded` and `ShutDown` are `Stopped`, held there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It holds nothing. The next call starts it.
    Stopped,
    /// A start is under way: waiting for room, or being made.
    Starting,
    /// It serves calls.
    Running,
    /// It takes no calls, and is draining or stopping.
    Stopping,
    /// Its last starts failed. Calls fail at once until the window is over; the next one then is a trial.
    BackingOff,
    /// It stays down until it is loaded.
    Unloaded,
    /// It stays down for ever.
    ShutDown,
}

/// One reading of a backend, for people and for metrics. Numbers count since the layer was built.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Status {
    /// The backend's name.
    pub name: Arc<str>,
    /// Where it stands.
    pub state: State,
    /// The number of the current or last instance; 0 before the first start.
    pub generation: u64,
    /// For how long it has been in this state.
    pub since: Duration,
    /// Calls in flight, where they are counted.
    pub in_flight: Option<u32>,
    /// How long ago the last use ended (before the first: it became ready), where that is stamped.
    pub last_use: Option<Duration>,
    /// Callers that wait for a start.
    pub waiting: usize,
    /// Starts that succeeded.
    pub starts: u64,
    /// Those of them that followed a crash without waiting for a call.
    pub restarts: u64,
    /// Reloads that succeeded.
    pub reloads: u64,
    /// Instances retired by a policy: idle, for room, over the limit.
    pub evictions: u64,
    /// Why the last of them was.
    pub last_eviction: Option<Eviction>,
    /// Instances that died.
    pub crashes: u64,
    /// Why the last start failed or the last instance died.
    pub last_error: Option<Error>,
}

impl Status {
    /// Of a backend that does not exist yet.
    pub(crate) fn of_none(name: Arc<str>) -> Self {
        Self {
            name,
            state: State::Stopped,
            generation: 0,
            since: Duration::ZERO,
            in_flight: None,
            last_use: None,
            waiting: 0,
            starts: 0,
            restarts: 0,
            reloads: 0,
            evictions: 0,
            last_eviction: None,
            crashes: 0,
            last_error: None,
        }
    }
}
