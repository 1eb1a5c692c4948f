//! What the fake API server has stored, and what happened to it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    answer::SILENCE,
    selector::{Selector, Term},
};

/// A kind of object that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) kind: String,
    pub(super) scales: bool,
}

impl Kind {
    pub(super) fn api_version(&self) -> String {
        match &*self.group {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// Kinds are named by their place in the list.
pub(super) type KindId = usize;

pub(super) const PODS: KindId = 0;
pub(super) const DEPLOYMENTS: KindId = 1;
pub(super) const STATEFUL_SETS: KindId = 2;
pub(super) const SLICES: KindId = 3;
pub(super) const LEASES: KindId = 4;

fn kinds() -> Vec<Kind> {
    let kinds = [
        ("", "pods", "Pod", false),
        ("apps", "deployments", "Deployment", true),
        ("apps", "statefulsets", "StatefulSet", true),
        ("discovery.k8s.io", "endpointslices", "EndpointSlice", false),
        ("coordination.k8s.io", "leases", "Lease", false),
    ];
    let kinds = kinds.map(|(group, plural, kind, scales)| Kind {
        group: group.to_owned(),
        version: "v1".to_owned(),
        plural: plural.to_owned(),
        kind: kind.to_owned(),
        scales,
    });
    kinds.into()
}

/// Kind, namespace, name.
pub(super) type Key = (KindId, Arc<str>, Arc<str>);

/// One thing that happened.
#[derive(Debug, Clone)]
struct Change {
    version: u64,
    before: Option<Arc<Value>>,
    after: Option<Arc<Value>>,
}

/// Somebody who watches.
struct Watcher {
    who: Arc<str>,
    kind: KindId,
    namespace: Option<Arc<str>>,
    selector: Selector,
    lines: mpsc::UnboundedSender<Bytes>,
}

/// Where watchers are looked for.
type Place = (KindId, Option<Arc<str>>, Term);

pub(super) struct Store {
    pub(super) kinds: Vec<Kind>,
    pub(super) version: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    by_label: HashMap<(KindId, Arc<str>, String), BTreeSet<Arc<str>>>,
    history: Vec<VecDeque<Change>>,
    /// Changes up to this version are forgotten.
    pub(super) forgotten: u64,
    keeps: usize,
    watchers: HashMap<u64, Watcher>,
    /// Those that hear nothing any more, and do not know it.
    silent: Vec<Watcher>,
    places: HashMap<Place, BTreeSet<u64>>,
    next: u64,
}

/// A watch could not begin: what it asks for is forgotten.
pub(super) struct Forgotten;

impl Store {
    pub(super) fn new() -> Self {
        let kinds = kinds();
        Self {
            history: kinds.iter().map(|_| VecDeque::new()).collect(),
            kinds,
            version: 1,
            objects: BTreeMap::new(),
            by_label: HashMap::new(),
            forgotten: 0,
            keeps: 10_000,
            watchers: HashMap::new(),
            silent: Vec::new(),
            places: HashMap::new(),
            next: 0,
        }
    }

    pub(super) fn add_kind(&mut self, kind: Kind) -> KindId {
        if let Some(known) = self.kinds.iter().position(|known| *known == kind) {
            return known;
        }
        self.kinds.push(kind);
        self.history.push(VecDeque::new());
        self.kinds.len() - 1
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects of a kind that are selected, in order.
    pub(super) fn list(
        &self,
        kind: KindId,
        namespace: Option<&Arc<str>>,
        selector: &Selector,
    ) -> Vec<Arc<Value>> {
        let found: Vec<_> = match (selector.term(), namespace) {
            (Term::Name(name), Some(namespace)) => {
                let key = (kind, namespace.clone(), name.as_str().into());
                self.objects.get(&key).into_iter().collect()
            }
            (Term::Label(label), Some(namespace)) => {
                let names = self.by_label.get(&(kind, namespace.clone(), label));
                let keys = names.into_iter().flatten();
                let keys = keys.map(|name| (kind, namespace.clone(), name.clone()));
                keys.filter_map(|key| self.objects.get(&key)).collect()
            }
            _ => {
                let from = (kind, namespace.cloned().unwrap_or_default(), Arc::from(""));
                let all = self.objects.range(from..);
                let all = all.take_while(|((of, within, _), _)| {
                    *of == kind && namespace.is_none_or(|namespace| within == namespace)
                });
                all.map(|(_, object)| object).collect()
            }
        };
        let found = found.into_iter().filter(|object| selector.matches(object));
        found.cloned().collect()
    }

    /// Stores `object`, or deletes what is there; its version then. What did not change has no new one.
    pub(super) fn put(&mut self, key: &Key, object: Option<Value>) -> Option<Arc<Value>> {
        let before = self.objects.get(key).cloned();
        if let (Some(before), Some(object)) = (&before, &object)
            && **before == *object
        {
            return Some(before.clone());
        }
        self.version += 1;
        let version = self.version;
        let dress = |mut object: Value| {
            let kind = &self.kinds[key.0];
            object["apiVersion"] = kind.api_version().into();
            object["kind"] = kind.kind.as_str().into();
            let metadata = &mut object["metadata"];
            metadata["name"] = (*key.2).into();
            metadata["namespace"] = (*key.1).into();
            metadata["resourceVersion"] = version.to_string().into();
            if metadata["uid"].is_null() {
                metadata["uid"] = format!("00000000-0000-4000-8000-{version:012}").into();
                metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            Arc::new(object)
        };
        let after = object.map(dress);
        self.index(key, before.as_deref(), false);
        match &after {
            Some(object) => drop(self.objects.insert(key.clone(), object.clone())),
            None => drop(self.objects.remove(key)),
        }
        self.index(key, after.as_deref(), true);
        let change = Change {
            version,
            before: before.clone(),
            after: after.clone(),
        };
        self.tell(key, &change);
        let history = &mut self.history[key.0];
        history.push_back(change);
        while history.len() > self.keeps {
            let oldest = history.pop_front().expect("it is not empty");
            self.forgotten = self.forgotten.max(oldest.version);
        }
        after
    }

    fn index(&mut self, key: &Key, object: Option<&Value>, insert: bool) {
        for label in labels(object) {
            let place = (key.0, key.1.clone(), label);
            let names = self.by_label.entry(place.clone()).or_default();
            match insert {
                true => drop(names.insert(key.2.clone())),
                false => drop(names.remove(&key.2)),
            }
            if names.is_empty() {
                self.by_label.remove(&place);
            }
        }
    }

    fn tell(&mut self, key: &Key, change: &Change) {
        let mut terms = vec![Term::All, Term::Name(key.2.to_string())];
        let both = labels(change.before.as_deref()).chain(labels(change.after.as_deref()));
        terms.extend(both.map(Term::Label));
        let mut told = BTreeSet::new();
        for term in terms {
            for namespace in [Some(key.1.clone()), None] {
                let place = (key.0, namespace, term.clone());
                told.extend(self.places.get(&place).into_iter().flatten());
            }
        }
        let gone: Vec<u64> = told
            .into_iter()
            .filter(|id| !self.send(*id, change))
            .collect();
        for id in gone {
            drop(self.unwatch(id));
        }
    }

    /// False if nobody listens any more.
    fn send(&self, id: u64, change: &Change) -> bool {
        let watcher = &self.watchers[&id];
        match line(&watcher.selector, change) {
            Some(line) => watcher.lines.send(line).is_ok(),
            None => !watcher.lines.is_closed(),
        }
    }

    // ===== Watches =====

    /// Watches what happens after `since`; after now, if it is `None`.
    pub(super) fn watch(
        &mut self,
        who: &Arc<str>,
        kind: KindId,
        namespace: Option<Arc<str>>,
        selector: Selector,
        since: Option<u64>,
    ) -> Result<mpsc::UnboundedReceiver<Bytes>, Forgotten> {
        let since = since.unwrap_or(self.version);
        if since < self.forgotten {
            return Err(Forgotten);
        }
        let (lines, receiver) = mpsc::unbounded_channel();
        let history = &self.history[kind];
        let first = history.partition_point(|change| change.version <= since);
        for change in history.range(first..) {
            let object = change.after.as_ref().or(change.before.as_ref());
            let within = object.and_then(|object| object["metadata"]["namespace"].as_str());
            let here = namespace
                .as_deref()
                .is_none_or(|namespace| within == Some(namespace));
            if let Some(line) = here.then(|| line(&selector, change)).flatten() {
                let _ = lines.send(line);
            }
        }
        let id = self.next;
        self.next += 1;
        let place = (kind, namespace.clone(), selector.term());
        self.places.entry(place).or_default().insert(id);
        let watcher = Watcher {
            who: who.clone(),
            kind,
            namespace,
            selector,
            lines,
        };
        self.watchers.insert(id, watcher);
        Ok(receiver)
    }

    fn unwatch(&mut self, id: u64) -> Option<Watcher> {
        let watcher = self.watchers.remove(&id)?;
        let namespace = watcher.namespace.clone();
        let place = (watcher.kind, namespace, watcher.selector.term());
        if let Some(ids) = self.places.get_mut(&place) {
            ids.remove(&id);
            if ids.is_empty() {
                self.places.remove(&place);
            }
        }
        Some(watcher)
    }

    /// How many watches are open.
    pub(super) fn watching(&mut self) -> usize {
        let watchers = self.watchers.iter();
        let gone = watchers.filter(|(_, watcher)| watcher.lines.is_closed());
        let gone: Vec<u64> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            drop(self.unwatch(id));
        }
        self.silent.retain(|watcher| !watcher.lines.is_closed());
        self.watchers.len() + self.silent.len()
    }

    /// Ends every watch.
    pub(super) fn end_watches(&mut self) {
        self.watchers.clear();
        self.silent.clear();
        self.places.clear();
    }

    /// The watches of one client hear nothing any more, and do not end.
    pub(super) fn silence(&mut self, who: &str) {
        let all = self.watchers.iter();
        let its: Vec<u64> = all
            .filter(|(_, w)| *w.who == *who)
            .map(|(id, _)| *id)
            .collect();
        for id in its {
            if let Some(watcher) = self.unwatch(id) {
                let _ = watcher.lines.send(SILENCE);
                self.silent.push(watcher);
            }
        }
    }

    /// Ends the watches of one client that hear nothing any more.
    pub(super) fn end_silent(&mut self, who: &str) {
        self.silent.retain(|watcher| *watcher.who != *who);
    }

    /// Forgets what happened so far.
    pub(super) fn forget(&mut self) {
        self.version += 1;
        self.forgotten = self.version;
        self.history.iter_mut().for_each(VecDeque::clear);
    }
}

fn labels(object: Option<&Value>) -> impl Iterator<Item = String> {
    let labels = object.and_then(|object| object["metadata"]["labels"].as_object());
    let labels = labels.into_iter().flatten();
    labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
}

/// What a watcher is told of a change.
fn line(selector: &Selector, change: &Change) -> Option<Bytes> {
    let was = change
        .before
        .as_ref()
        .filter(|object| selector.matches(object));
    let is = change
        .after
        .as_ref()
        .filter(|object| selector.matches(object));
    let (what, object) = match (was, is) {
        (None, None) => return None,
        (None, Some(is)) => ("ADDED", is.clone()),
        (Some(_), Some(is)) => ("MODIFIED", is.clone()),
        (Some(was), None) => {
            // As it was, with the version at which it went.
            let mut last = (**was).clone();
            last["metadata"]["resourceVersion"] = change.version.to_string().into();
            ("DELETED", Arc::new(last))
        }
    };
    Some(event(what, &object))
}

/// A line of a watch.
pub(super) fn event(what: &str, object: &Value) -> Bytes {
    let mut line = json!({ "type": what, "object": object }).to_string();
    line.push('\n');
    line.into()
}
