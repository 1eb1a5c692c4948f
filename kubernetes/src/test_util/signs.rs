//! What kubelets and the scheduler write into the status of a pod.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    plan::Trouble,
    store::{Key, PODS, Store},
};

pub(super) fn pod_key(key: &Key, name: &Arc<str>) -> Key {
    (PODS, key.1.clone(), name.clone())
}

pub(super) fn change(store: &mut Store, key: &Key, change: impl FnOnce(&mut Value)) {
    if let Some(object) = store.get(key) {
        let mut object = (**object).clone();
        change(&mut object);
        store.put(key, Some(object));
    }
}

pub(super) fn condition(
    store: &mut Store,
    key: &Key,
    pod: &Arc<str>,
    of: &str,
    is: &str,
    mut more: Value,
) {
    more["type"] = of.into();
    more["status"] = is.into();
    change(store, &pod_key(key, pod), |object| {
        if let Some(conditions) = object["status"]["conditions"].as_array_mut() {
            conditions.retain(|condition| condition["type"] != *of);
            conditions.push(more);
        }
    });
}

/// The signs of trouble that kubelets give.
pub(super) fn shows(store: &mut Store, key: &Key, pod: &Arc<str>, trouble: Trouble, sign: u8) {
    let state = match (trouble, sign) {
        (Trouble::ImagePull, 1) => json!({ "waiting": {
            "reason": "ErrImagePull", "message": "registry.invalid/main:1: no such host",
        } }),
        (Trouble::ImagePull, _) => json!({ "waiting": {
            "reason": "ImagePullBackOff", "message": "Back-off pulling image \"registry.invalid/main:1\"",
        } }),
        (Trouble::Config, _) => json!({ "waiting": {
            "reason": "CreateContainerConfigError", "message": "secret \"keys\" not found",
        } }),
        (_, 1) => json!({ "terminated": { "exitCode": 1, "reason": "Error" } }),
        _ => json!({ "waiting": {
            "reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container",
        } }),
    };
    let last = match trouble {
        Trouble::CrashLoop => json!({ "terminated": { "exitCode": 1, "reason": "Error" } }),
        _ => json!({}),
    };
    change(store, &pod_key(key, pod), |object| {
        object["status"]["containerStatuses"] = json!([{
            "name": "main", "image": "registry.invalid/main:1", "imageID": "", "ready": false,
            "restartCount": if trouble == Trouble::CrashLoop { sign } else { 0 },
            "state": state, "lastState": last,
        }]);
    });
}
