//! What happens, line by line, for people.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tower_on_demand::{Eviction, Group, State, Status};

/// How often the backends' states are looked at: only what is printed depends on it.
const GLANCE: Duration = Duration::from_millis(5);

/// A clock that says what happens.
#[derive(Clone)]
pub(crate) struct Timeline {
    began: Instant,
    /// How many times the backends were looked at.
    glances: watch::Sender<u64>,
}

/// What was seen last of one backend.
struct Seen {
    status: Status,
    state: State,
    /// It waits for room, which must be made for it, in this place in line.
    place: Option<u64>,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            glances: watch::Sender::new(0),
        }
    }

    /// Resolves when all that has happened until now is said.
    pub(crate) async fn caught_up(&self) {
        let mut glances = self.glances.subscribe();
        let now = *glances.borrow();
        // The one under way may have begun before.
        let _ = glances.wait_for(|glances| *glances > now + 1).await;
    }

    /// One line about `who`.
    pub(crate) fn say(&self, who: &str, what: &str) {
        let at = self.began.elapsed().as_secs_f64();
        println!("{at:6.2} s  {who:<8} {what}");
    }

    /// Says what happens to the backends of `group`, for as long as it is polled.
    pub(crate) async fn follow(self, group: Group, limit: u64) {
        let mut seen: HashMap<Arc<str>, Seen> = HashMap::new();
        let mut places = 0..;
        let mut glance = interval(GLANCE);
        glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            glance.tick().await;
            let now = group.status();
            self.starts(&now, &mut seen, limit, &mut places);
            for status in now {
                let first = seen.values().filter_map(|seen| seen.place).min();
                let first = seen
                    .iter()
                    .find(|(_, seen)| seen.place.is_some() && seen.place == first);
                let first = first.map(|(name, _)| name.clone());
                let Some(its) = seen.get_mut(&status.name) else {
                    continue;
                };
                let before = std::mem::replace(&mut its.status, status.clone());
                let for_first = self.changes(&before, &status, first.as_deref());
                if let Some(first) = first
                    .filter(|_| for_first)
                    .and_then(|name| seen.get_mut(&name))
                {
                    first.place = None;
                }
            }
            self.glances.send_modify(|glances| *glances += 1);
        }
    }

    /// Those whose start has begun since the last glance.
    fn starts(
        &self,
        now: &[Status],
        seen: &mut HashMap<Arc<str>, Seen>,
        limit: u64,
        places: &mut impl Iterator<Item = u64>,
    ) {
        let mut beginning = Vec::new();
        let mut holders = 0;
        for status in now {
            let its = seen.entry(status.name.clone()).or_insert_with(|| Seen {
                status: status.clone(),
                state: State::Stopped,
                place: None,
            });
            let before = std::mem::replace(&mut its.state, status.state);
            // Evicted since: it held room that was made for one of those who begin.
            let made_way = status.evictions > its.status.evictions
                && status.last_eviction == Some(Eviction::Room);
            match (status.state, before) {
                (State::Running | State::Stopping, _) => {
                    holders += 1;
                    its.place = None;
                }
                (State::Starting, State::Starting) => holders += u64::from(its.place.is_none()),
                (State::Starting, _) => {
                    holders += u64::from(made_way);
                    beginning.push(status);
                }
                _ => {
                    holders += u64::from(made_way);
                    its.place = None;
                }
            }
        }
        beginning.sort_by_key(|status| std::cmp::Reverse(status.since));
        for status in beginning {
            let fits = holders < limit;
            holders += u64::from(fits);
            if let Some(its) = seen.get_mut(&status.name) {
                its.place = places.next().filter(|_| !fits);
            }
            let how = if fits {
                "is wanted, and starts"
            } else {
                "is wanted, and needs room"
            };
            self.say(&status.name, how);
        }
    }

    /// What has changed of one backend. True if it was stopped for another one's sake.
    fn changes(&self, before: &Status, now: &Status, for_whom: Option<&str>) -> bool {
        let name = &*now.name;
        if now.starts > before.starts {
            self.say(name, "runs");
        }
        if now.crashes > before.crashes {
            let error = now.last_error.as_ref().map(|error| format!("{error:#}"));
            self.say(name, &format!("died: {}", error.unwrap_or_default()));
        } else if now.state == State::BackingOff && before.state != State::BackingOff {
            let error = now.last_error.as_ref().map(|error| format!("{error:#}"));
            self.say(
                name,
                &format!("did not start: {}", error.unwrap_or_default()),
            );
        }
        if now.evictions > before.evictions {
            let why = match (now.last_eviction, for_whom) {
                (Some(Eviction::Idle), _) => "is stopped: nobody has used it".to_owned(),
                (Some(Eviction::Room), Some(whom)) => {
                    format!("is stopped: it was the coldest, and {whom} needs its room")
                }
                (Some(why), _) => format!("is stopped: {why:?}"),
                (None, _) => "is stopped".to_owned(),
            };
            self.say(name, &why);
            return now.last_eviction == Some(Eviction::Room);
        }
        false
    }
}
