//! What is served at all, as clients such as `kubectl` ask for it.

use serde_json::{Value, json};

use super::store::{Kind, Store};

/// The answer to a path that is about the API itself.
pub(super) fn answer(store: &Store, path: &str) -> Option<Value> {
    let mut groups: Vec<&str> = store.kinds.iter().map(|kind| &*kind.group).collect();
    groups.retain(|group| !group.is_empty());
    groups.dedup();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    Some(match *parts {
        ["version"] => {
            json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.0", "platform": "fake" })
        }
        ["healthz" | "livez" | "readyz"] => json!("ok"),
        ["api"] => {
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
        }
        ["api", version] => resources(store, "", version),
        ["apis"] => {
            let groups = groups.into_iter().map(|group| of_group(store, group));
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>() })
        }
        ["apis", group] if groups.contains(&group) => {
            let mut group = of_group(store, group);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        ["apis", group, version] if groups.contains(&group) => resources(store, group, version),
        _ => return None,
    })
}

fn of_group(store: &Store, group: &str) -> Value {
    let kinds = store.kinds.iter().filter(|kind| kind.group == group);
    let mut versions: Vec<Value> = Vec::new();
    for kind in kinds {
        let version = json!({ "groupVersion": kind.api_version(), "version": kind.version });
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    json!({ "name": group, "preferredVersion": versions[0], "versions": versions })
}

fn resources(store: &Store, group: &str, version: &str) -> Value {
    let of = |kind: &&Kind| kind.group == group && kind.version == version;
    let mut resources = Vec::new();
    for kind in store.kinds.iter().filter(of) {
        resources.push(json!({
            "name": kind.plural, "singularName": kind.kind.to_lowercase(), "namespaced": true,
            "kind": kind.kind, "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }));
        if kind.scales {
            resources.push(json!({
                "name": format!("{}/scale", kind.plural), "singularName": "", "namespaced": true,
                "group": "autoscaling", "version": "v1", "kind": "Scale",
                "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let group_version = match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version, "resources": resources,
    })
}
