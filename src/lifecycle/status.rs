//! What an owner says of its backend.

use std::{sync::Arc, time::Duration};

use crate::{error::Error, target::Queued, usage::Eviction};

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
///
/// With the feature `serde` it is [its word](Self::as_str).
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

impl State {
    /// The state in one word, for logs and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Stopped => "stopped",
            State::Starting => "starting",
            State::Running => "running",
            State::Stopping => "stopping",
            State::BackingOff => "backing_off",
            State::Unloaded => "unloaded",
            State::ShutDown => "shut_down",
        }
    }
}

/// What a start took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StartTimes {
    /// From its beginning until the instance was ready.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "took_seconds", serialize_with = "crate::serialize::seconds")
    )]
    pub took: Duration,
    /// That part of it for which it waited for room.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "waited_seconds",
            serialize_with = "crate::serialize::seconds"
        )
    )]
    pub waited: Duration,
}

/// One reading of a backend, for people and for metrics. Numbers count since the layer was built.
///
/// With the feature `serde` its fields go by their names, durations as seconds with `_seconds` added, and
/// what there is not is `null`.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// The backend's name.
    pub name: Arc<str>,
    /// Where it stands.
    pub state: State,
    /// The number of the current or last instance; 0 before the first start.
    pub generation: u64,
    /// For how long it has been in this state.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "since_seconds", serialize_with = "crate::serialize::seconds")
    )]
    pub since: Duration,
    /// Calls in flight, where they are counted.
    pub in_flight: Option<u32>,
    /// How long ago the last use ended (before the first: it became ready), where that is stamped.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "last_use_seconds",
            serialize_with = "crate::serialize::seconds_if_any"
        )
    )]
    pub last_use: Option<Duration>,
    /// Callers that wait for a start.
    pub waiting: usize,
    /// Where its start stands in the line for room, while it does.
    pub queued: Option<Queued>,
    /// What the last start that succeeded took.
    pub last_start: Option<StartTimes>,
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
    /// The backend whose start needed the room, if that was why.
    pub evicted_for: Option<Arc<str>>,
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
            queued: None,
            last_start: None,
            starts: 0,
            restarts: 0,
            reloads: 0,
            evictions: 0,
            last_eviction: None,
            evicted_for: None,
            crashes: 0,
            last_error: None,
        }
    }
}
