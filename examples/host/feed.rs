//! What happens to the backends, live, as JSON: what the layers tell by `tracing`, and whatever else is told to the
//! feed.
//!
//! ```json
//! {"id":7,"at_ms":1764579600123,"event":"evicted","level":"info","backend":"films","generation":2,"reason":"room",…}
//! ```
//!
//! `id` counts from 1, `at_ms` is the time of day since 1970; the layers' events and their further fields are those of
//! `docs/observability.md`. The last ones are kept for whoever comes late.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// The target of the layers' events. (What children print has one of its own.)
const TARGET: &str = "tower_on_demand";

/// How many transitions are kept.
const TRANSITIONS: usize = 1024;
/// How many beginnings and ends of use: there are more of them, and they push no transition out.
const USES: usize = 4096;
/// Longer texts are cut, in bytes.
const TEXT: usize = 4096;

/// A `tracing` layer, and what has happened lately. Clones are the same feed.
#[derive(Clone)]
pub(crate) struct Feed {
    inner: Arc<Inner>,
}

struct Inner {
    /// Tells the events of one run of the host from those of another.
    run: u64,
    kept: Mutex<Kept>,
    /// The last event; `None` once nothing follows.
    last: watch::Sender<Option<u64>>,
}

#[derive(Default)]
struct Kept {
    last: u64,
    transitions: VecDeque<Arc<Told>>,
    uses: VecDeque<Arc<Told>>,
    /// The last transition that is not kept any more.
    forgotten: u64,
}

/// One event.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    pub(crate) id: u64,
    pub(crate) at_ms: u64,
    pub(crate) event: String,
    #[serde(flatten)]
    pub(crate) fields: Map<String, Value>,
}

impl Told {
    /// A field that is a text.
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field)?.as_str()
    }
}

/// Which of the two kinds an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Transition,
    Use,
}

/// Some events in a row.
pub(crate) struct Passage {
    pub(crate) events: Vec<Arc<Told>>,
    /// Some before them are not kept any more.
    pub(crate) gap: bool,
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}

impl Feed {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Inner {
                run: now(),
                kept: Mutex::default(),
                last: watch::Sender::new(Some(0)),
            }),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        let kept = self.inner.kept.lock();
        kept.unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells that this happens now.
    pub(crate) fn tell(&self, kind: Kind, event: &str, mut fields: Map<String, Value>) {
        for value in fields.values_mut() {
            clip(value);
        }
        let mut kept = self.kept();
        kept.last += 1;
        let id = kept.last;
        let told = Arc::new(Told {
            id,
            at_ms: now(),
            event: event.to_owned(),
            fields,
        });
        let (of_kind, most) = match kind {
            Kind::Transition => (&mut kept.transitions, TRANSITIONS),
            Kind::Use => (&mut kept.uses, USES),
        };
        of_kind.push_back(told);
        let oldest = (of_kind.len() > most).then(|| of_kind.pop_front());
        if let Some(oldest) = oldest.flatten().filter(|_| kind == Kind::Transition) {
            kept.forgotten = oldest.id;
        }
        drop(kept);
        // Whoever told later may be here first.
        self.inner.last.send_if_modified(|last| match last {
            Some(last) if *last < id => {
                *last = id;
                true
            }
            _ => false,
        });
    }

    /// What was told after the event `id`, `most` of it.
    pub(crate) fn after(&self, id: u64, most: usize) -> Passage {
        let kept = self.kept();
        let mut events: Vec<_> = [&kept.transitions, &kept.uses]
            .into_iter()
            .flat_map(|of_kind| {
                let from = of_kind.partition_point(|told| told.id <= id);
                of_kind.range(from..).take(most).cloned()
            })
            .collect();
        events.sort_by_key(|told| told.id);
        events.truncate(most);
        Passage {
            events,
            gap: id < kept.forgotten,
        }
    }

    /// The last event.
    pub(crate) fn last(&self) -> u64 {
        self.kept().last
    }

    /// The last transitions, the oldest first.
    pub(crate) fn transitions(&self) -> Vec<Arc<Told>> {
        self.kept().transitions.iter().cloned().collect()
    }

    /// The name of the event `id`, in another run of the host as well.
    pub(crate) fn name(&self, id: u64) -> String {
        format!("{}-{id}", self.inner.run)
    }

    /// The event with this name, or 0: all that is kept is after it.
    pub(crate) fn id(&self, name: &str) -> u64 {
        let id = name.split_once('-').and_then(|(run, id)| {
            let ours = run.parse() == Ok(self.inner.run);
            ours.then(|| id.parse().ok()).flatten()
        });
        id.unwrap_or(0)
    }

    pub(crate) fn run(&self) -> u64 {
        self.inner.run
    }

    pub(crate) fn news(&self) -> watch::Receiver<Option<u64>> {
        self.inner.last.subscribe()
    }

    /// Nothing follows: who reads is let go once they have read all.
    pub(crate) fn close(&self) {
        self.inner.last.send_replace(None);
    }
}

impl<S: Subscriber> Layer<S> for Feed {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target() != TARGET {
            return;
        }
        let mut read = Read::default();
        let level = metadata.level().as_str().to_lowercase();
        read.fields.insert("level".to_owned(), level.into());
        event.record(&mut read);
        self.tell(Kind::Transition, &read.message, read.fields);
    }
}

/// What is read of a `tracing` event.
#[derive(Default)]
struct Read {
    message: String,
    fields: Map<String, Value>,
}

impl Read {
    fn field(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Read {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.message = value,
            _ => self.field(field, value),
        }
    }
}

fn clip(value: &mut Value) {
    let Value::String(text) = value else { return };
    if text.len() > TEXT {
        let end = (0..=TEXT).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
}
