//! What a ceiling says of itself.

use std::time::Duration;

use crate::{sync::Arc, usage::Usage};

/// One reading of a ceiling: who holds its room, and who waits for it.
///
/// With the feature `serde` its fields go by their names, durations as seconds with `_seconds` added, and
/// what there is not is `null`.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// The limit, in units of weight. Serialized, `u64::MAX` is `null`: there is none.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::serialize::limit"))]
    pub limit: u64,
    /// What is taken of it.
    pub used: u64,
    /// Who holds room, since longest first.
    pub holders: Vec<Holding>,
    /// Who waits for it, the next to be served first.
    pub waiting: Vec<Waiting>,
}

/// One start or instance that holds room.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holding {
    /// The backend, where its starter named it.
    pub name: Option<Arc<str>>,
    /// The room, in units of weight.
    pub weight: u64,
    /// What it is at.
    pub phase: Phase,
    /// No policy stops it.
    pub pinned: bool,
    /// How long it has held the room.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "held_seconds", serialize_with = "crate::serialize::seconds")
    )]
    pub held: Duration,
    /// Calls in flight, where they are counted.
    pub in_flight: Option<u32>,
    /// How long nobody has used it, if nobody does.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "idle_seconds",
            serialize_with = "crate::serialize::seconds_if_any"
        )
    )]
    pub idle: Option<Duration>,
}

/// What one who holds room is at.
///
/// With the feature `serde` it is [its word](Self::as_str).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Admitted, and being made.
    Starting,
    /// It runs, and nobody uses it.
    Idle,
    /// It runs, and is in use.
    Busy,
    /// It runs. Nobody counts its uses: room is never made of it.
    Uncounted,
    /// It was retired or told to stop, and is not gone yet.
    Stopping,
}

/// One start that waits for room.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiting {
    /// The backend, where its starter named it.
    pub name: Option<Arc<str>>,
    /// The room it waits for, in units of weight.
    pub weight: u64,
    /// What those before it wait for, in units of weight.
    pub ahead: u64,
    /// How long it has waited.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "waited_seconds",
            serialize_with = "crate::serialize::seconds"
        )
    )]
    pub waited: Duration,
}

/// A holder, and what counts its uses.
pub(super) type Counted = (Holding, Option<Arc<Usage>>);

impl Phase {
    /// The phase in one word, for logs and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Idle => "idle",
            Phase::Busy => "busy",
            Phase::Uncounted => "uncounted",
            Phase::Stopping => "stopping",
        }
    }
}

impl Status {
    /// Looks at the uses, outside of the room's lock: whether one is busy its own word says.
    pub(super) fn new(limit: u64, used: u64, holders: Vec<Counted>, waiting: Vec<Waiting>) -> Self {
        let look = |(mut holding, usage): Counted| {
            let Some(usage) = usage else { return holding };
            let look = usage.look();
            holding.pinned = look.is_pinned();
            holding.in_flight = Some(look.count());
            if look.is_closed() {
                holding.phase = Phase::Stopping;
            } else if look.count() > 0 {
                holding.phase = Phase::Busy;
            } else {
                let idle = usage.now().saturating_sub(usage.ended());
                holding.idle = Some(Duration::from_nanos(idle));
            }
            holding
        };
        Self {
            limit,
            used,
            holders: holders.into_iter().map(look).collect(),
            waiting,
        }
    }
}
