//! What the layers tell of their backends, live: a `tracing` layer that makes JSON of their events.
//!
//! ```json
//! {"id":7,"at_ms":1764579600123,"level":"info","event":"evicted","backend":"films","generation":2,"reason":"room",…}
//! ```
//!
//! `id` counts from 1, `at_ms` is the time of day since 1970; the events and their further fields are those of
//! `docs/observability.md`.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value};
use tokio::sync::broadcast;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// The target of the layers' events. (What children print has one of its own.)
const TARGET: &str = "tower_on_demand";
/// How many events whoever comes late is told, and how far whoever is slow may fall behind.
const KEPT: usize = 512;

/// One event, as JSON in one line.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) id: u64,
    pub(crate) json: String,
}

/// The layer, and who is told. Clones are the same feed.
#[derive(Clone)]
pub(crate) struct Feed {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    last: u64,
    kept: VecDeque<Arc<Told>>,
    live: broadcast::Sender<Arc<Told>>,
}

impl Feed {
    pub(crate) fn new() -> Self {
        let (live, _) = broadcast::channel(KEPT);
        Self {
            inner: Arc::new(Mutex::new(Inner {
                last: 0,
                kept: VecDeque::new(),
                live,
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was told after the event `id` (0: all that is kept), and what is from now on. None is
    /// missed between the two. A receiver that falls behind gets `Lagged`: follow again from the last
    /// it had.
    pub(crate) fn follow(&self, id: u64) -> (Vec<Arc<Told>>, broadcast::Receiver<Arc<Told>>) {
        let inner = self.lock();
        let kept = inner.kept.iter().filter(|told| told.id > id);
        (kept.cloned().collect(), inner.live.subscribe())
    }

    fn tell(&self, mut event: Map<String, Value>) {
        let mut inner = self.lock();
        inner.last += 1;
        event.insert("id".to_owned(), inner.last.into());
        let told = Arc::new(Told {
            id: inner.last,
            json: Value::Object(event).to_string(),
        });
        if inner.kept.len() == KEPT {
            inner.kept.pop_front();
        }
        inner.kept.push_back(told.clone());
        // An error means that nobody listens.
        let _ = inner.live.send(told);
    }
}

impl<S: Subscriber> Layer<S> for Feed {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        if metadata.target() != TARGET {
            return;
        }
        let mut fields = Fields(Map::new());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_millis() as u64);
        let level = metadata.level().as_str().to_lowercase();
        fields.insert("at_ms", now);
        fields.insert("level", level);
        event.record(&mut fields);
        self.tell(fields.0);
    }
}

struct Fields(Map<String, Value>);

impl Fields {
    fn insert(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let name = match field.name() {
            "message" => "event",
            name => name,
        };
        self.insert(name, format!("{value:?}"));
    }
}
