//! A subscriber that remembers what it is told of one backend.
//!
//! It is the process's: one for a thread alone misses events that another thread without a
//! subscriber was the first to meet.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Events as their fields.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    backend: &'static str,
    seen: Arc<Mutex<Vec<Fields>>>,
}

#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, String)>);

impl Events {
    pub(crate) fn of(backend: &'static str) -> Self {
        let events = Self {
            backend,
            seen: Arc::default(),
        };
        tracing::subscriber::set_global_default(events.clone()).unwrap();
        events
    }

    pub(crate) fn has(&self, wanted: &[(&str, &str)]) -> bool {
        let has = |event: &Fields, (name, value): &(&str, &str)| {
            event
                .0
                .iter()
                .any(|field| field.0 == *name && field.1 == *value)
        };
        let events = self.seen.lock().unwrap();
        events
            .iter()
            .any(|event| wanted.iter().all(|field| has(event, field)))
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tower_on_demand::process"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.0.contains(&("backend", self.backend.to_owned())) {
            self.seen.lock().unwrap().push(fields);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
