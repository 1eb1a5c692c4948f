//! What is said of one instance.

use std::{sync::Arc, time::Duration};

use crate::usage::Usage;

/// One reading of an instance whose uses are counted: see
/// [`IdleEvictLayer::status`](super::IdleEvictLayer::status).
///
/// With the feature `serde` its fields go by their names, durations as seconds with `_seconds` added, and
/// what there is not is `null`.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Instance {
    /// The backend, where its starter named it.
    pub name: Option<Arc<str>>,
    /// Calls in flight.
    pub in_flight: u32,
    /// How long nobody has used it; `None` while somebody does.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "idle_seconds",
            serialize_with = "crate::serialize::seconds_if_any"
        )
    )]
    pub idle: Option<Duration>,
    /// After how long unused it is retired; `None` is never for age.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "idle_after_seconds",
            serialize_with = "crate::serialize::seconds_if_any"
        )
    )]
    pub idle_after: Option<Duration>,
    /// No policy stops it.
    pub pinned: bool,
    /// It was retired or told to stop, and is not gone yet.
    pub stopping: bool,
}

impl Instance {
    pub(super) fn of(name: Option<Arc<str>>, usage: &Usage, idle_after: Option<Duration>) -> Self {
        let look = usage.look();
        let idle = Duration::from_nanos(usage.now().saturating_sub(usage.ended()));
        Self {
            name,
            in_flight: look.count(),
            idle: (look.count() == 0).then_some(idle),
            idle_after,
            pinned: look.is_pinned(),
            stopping: look.is_closed(),
        }
    }
}
