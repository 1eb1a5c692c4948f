//! What a request asks for, and its answer from the store.

use std::sync::Arc;

use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use super::{
    answer::{Answer, bad_request, conflict, not_found, ok, refused, whole},
    selector::Selector,
    store::{Key, KindId, Store},
};

/// A request for objects.
pub(super) struct Asked {
    pub(super) kind: KindId,
    pub(super) namespace: Option<Arc<str>>,
    pub(super) name: Option<Arc<str>>,
    pub(super) subresource: Option<String>,
    pub(super) query: Query,
}

/// The parameters of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Query {
    labels: String,
    fields: String,
    pub(super) watch: bool,
    pub(super) bookmarks: bool,
    pub(super) since: String,
    pub(super) timeout: Option<u64>,
    dry_run: bool,
}

impl Query {
    fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (key, value) in form(query) {
            match &*key {
                "labelSelector" => parsed.labels = value,
                "fieldSelector" => parsed.fields = value,
                "watch" => parsed.watch = matches!(&*value, "true" | "1"),
                "allowWatchBookmarks" => parsed.bookmarks = matches!(&*value, "true" | "1"),
                "resourceVersion" => parsed.since = value,
                "timeoutSeconds" => parsed.timeout = value.parse().ok(),
                "dryRun" => parsed.dry_run = true,
                _ => {}
            }
        }
        parsed
    }

    pub(super) fn selector(&self) -> Result<Selector, String> {
        Selector::parse(&self.labels, &self.fields)
            .map_err(|part| format!("this fake does not know the selector {part:?}"))
    }
}

/// Pairs of a query string.
fn form(query: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decoded(key), decoded(value)))
}

fn decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits =
                    [bytes.next(), bytes.next()].map(|digit| digit.unwrap_or(b'0') as char);
                let digit = |at: usize| digits[at].to_digit(16).unwrap_or(0) as u8;
                digit(0) * 16 + digit(1)
            }
            byte => byte,
        });
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl Asked {
    /// `None` if no object is asked for.
    pub(super) fn parse(store: &Store, path: &str, query: &str) -> Option<Self> {
        let mut parts = path.trim_matches('/').split('/');
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let version = parts.next()?;
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = None;
        if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            namespace = Some(Arc::from(decoded(rest[1])));
            rest.drain(..2);
        }
        let mut rest = rest.into_iter();
        let plural = rest.next()?;
        let kind = store.kinds.iter().position(|kind| {
            kind.group == group && kind.version == version && kind.plural == plural
        })?;
        Some(Self {
            kind,
            namespace,
            name: rest.next().map(|name| Arc::from(decoded(name))),
            subresource: rest.next().map(str::to_owned),
            query: Query::parse(query),
        })
    }

    pub(super) fn key(&self) -> Option<Key> {
        Some((self.kind, self.namespace.clone()?, self.name.clone()?))
    }

    /// Everything but watches.
    pub(super) fn answer(
        &self,
        store: &mut Store,
        method: &Method,
        kind: &str,
        body: &[u8],
    ) -> Answer {
        let plural = store.kinds[self.kind].plural.clone();
        let body = match body {
            b"" => Ok(Value::Null),
            body => serde_json::from_slice(body),
        };
        let Ok(body) = body else {
            return refused(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UnsupportedMediaType",
                "this fake speaks JSON only",
            );
        };
        let Some(key) = self.key() else {
            return match *method {
                Method::GET => self.list(store),
                Method::POST => self.create(store, body),
                _ => refused(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "MethodNotAllowed",
                    "this fake does not do that to a collection",
                ),
            };
        };
        let name = key.2.to_string();
        let Some(now) = store.get(&key).cloned() else {
            return not_found(&plural, &name);
        };
        let scale = match self.subresource.as_deref() {
            None => false,
            Some("scale") if store.kinds[self.kind].scales => true,
            Some(_) => return not_found(&plural, &name),
        };
        let shown = |object: &Value| match scale {
            true => scale_of(object),
            false => object.clone(),
        };
        let before = shown(&now);
        let wanted = match *method {
            Method::GET => return ok(&before),
            Method::PATCH if kind.contains("merge-patch+json") => {
                let mut patched = before.clone();
                merge(&mut patched, &body);
                patched
            }
            Method::PUT => body,
            Method::DELETE if !scale => {
                let precondition = |field: &str| {
                    let wanted = &body["preconditions"][field];
                    wanted.is_null() || *wanted == now["metadata"][field]
                };
                if !precondition("resourceVersion") || !precondition("uid") {
                    return conflict(&plural, &name);
                }
                store.put(&key, None);
                return ok(&json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }));
            }
            _ => {
                return refused(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    "UnsupportedMediaType",
                    "this fake knows merge patches only",
                );
            }
        };
        let version = &wanted["metadata"]["resourceVersion"];
        if !version.is_null() && *version != before["metadata"]["resourceVersion"] {
            return conflict(&plural, &name);
        }
        let mut wanted = match scale {
            true => {
                let mut object = (*now).clone();
                object["spec"]["replicas"] = wanted["spec"]["replicas"].clone();
                object
            }
            false => wanted,
        };
        if wanted["spec"] != now["spec"] && store.kinds[self.kind].scales {
            let generation = now["metadata"]["generation"].as_i64().unwrap_or(0);
            wanted["metadata"]["generation"] = (generation + 1).into();
        }
        if self.query.dry_run {
            return ok(&shown(&wanted));
        }
        match store.put(&key, Some(wanted)) {
            Some(object) => ok(&shown(&object)),
            None => not_found(&plural, &name),
        }
    }

    fn list(&self, store: &Store) -> Answer {
        let selector = match self.query.selector() {
            Ok(selector) => selector,
            Err(unknown) => return bad_request(&unknown),
        };
        let kind = &store.kinds[self.kind];
        let items = store.list(self.kind, self.namespace.as_ref(), &selector);
        let items: Vec<&Value> = items.iter().map(|item| &**item).collect();
        ok(&json!({
            "kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(),
            "metadata": { "resourceVersion": store.version.to_string() },
            "items": items,
        }))
    }

    fn create(&self, store: &mut Store, body: Value) -> Answer {
        let plural = store.kinds[self.kind].plural.clone();
        let (Some(namespace), Some(name)) = (&self.namespace, body["metadata"]["name"].as_str())
        else {
            return bad_request("it has no name, or no namespace");
        };
        let key = (self.kind, namespace.clone(), Arc::from(name));
        if store.get(&key).is_some() {
            let message = format!("{plural} {name:?} already exists");
            return refused(StatusCode::CONFLICT, "AlreadyExists", &message);
        }
        match store.put(&key, Some(body)) {
            Some(object) => whole(StatusCode::CREATED, &object),
            None => bad_request("nothing was created"),
        }
    }
}

/// The media type of a body.
pub(super) fn media_type<B>(request: &http::Request<B>) -> String {
    let value = request.headers().get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// The scale subresource of an object.
fn scale_of(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let labels = labels.into_iter().flatten();
    let selector =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": { "replicas": object["spec"]["replicas"] },
        "status": {
            "replicas": object["status"]["replicas"].as_i64().unwrap_or(0),
            "selector": selector.collect::<Vec<_>>().join(","),
        },
    })
}

/// A JSON merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().expect("it is one now");
    for (key, value) in patch {
        match value {
            Value::Null => drop(target.remove(key)),
            value => merge(target.entry(key.clone()).or_insert(Value::Null), value),
        }
    }
}
