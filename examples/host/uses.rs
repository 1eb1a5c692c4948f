//! When backends are used: what their status shows between two glances.

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tower_on_demand::{Group, State, Status};

use crate::feed::{Feed, Kind};

/// How often the uses are looked at. Calls are not told of one by one, so a glance is all there is.
const GLANCE: Duration = Duration::from_millis(200);
/// How often, at most, short uses of one backend are told of: in glances.
const OFTEN: u32 = 5;

/// What the last glance saw of one backend's uses.
#[derive(Default)]
struct Uses {
    generation: u64,
    busy: bool,
    last_use: Option<Duration>,
    /// A short use is still to be told of.
    used: bool,
    /// Glances since something was told.
    quiet: u32,
}

/// Tells the feed when backends become busy and idle, for as long as it is polled.
pub(crate) async fn follow(group: Group, feed: Feed) {
    let mut seen: HashMap<Arc<str>, Uses> = HashMap::new();
    let mut glance = interval(GLANCE);
    glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        glance.tick().await;
        for status in group.status() {
            let uses = seen.entry(status.name.clone()).or_default();
            if let Some(what) = uses.changed(&status) {
                let fields = json!({
                    "backend": &*status.name,
                    "generation": status.generation,
                    "in_flight": status.in_flight.unwrap_or(0),
                });
                if let Value::Object(fields) = fields {
                    feed.tell(Kind::Use, what, fields);
                }
            }
        }
    }
}

impl Uses {
    /// `used`: it was busy between this glance and the last, and is not now.
    fn changed(&mut self, status: &Status) -> Option<&'static str> {
        let busy = status.in_flight.is_some_and(|calls| calls > 0);
        // When no use ended since, it is longer ago than at the last glance, or as long as the instance runs.
        let unused = match self.last_use {
            Some(last) if self.generation == status.generation => last,
            _ => status.since.saturating_sub(Duration::from_millis(1)),
        };
        let ended =
            status.state == State::Running && status.last_use.is_some_and(|now| now < unused);
        self.used |= ended && !busy && !self.busy;
        self.quiet = self.quiet.saturating_add(1);
        let another = self.generation != status.generation;
        (self.generation, self.last_use) = (status.generation, status.last_use);
        let what = match (self.busy, busy) {
            (false, true) => "busy",
            // A new instance has taken over.
            (true, true) if another => "busy",
            (true, false) => "idle",
            _ if self.used && self.quiet >= OFTEN => "used",
            _ => return None,
        };
        (self.busy, self.used, self.quiet) = (busy, false, 0);
        Some(what)
    }
}
