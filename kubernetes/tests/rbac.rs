//! The rights in `rbac/` are those that are used: none is missing, and none too many.

mod support;

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::Role;
use serde_json::Value;
use support::{World, films, ms, secs};
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_on_demand::Backend as _;
use tower_on_demand_kubernetes::{
    Workload,
    test_util::{Call, Plan},
};

/// Group, resource, verb.
type Right = (String, String, String);

fn granted(yaml: &str) -> BTreeSet<Right> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let roles = documents
        .into_iter()
        .filter(|document| document["kind"] == "Role");
    let mut granted = BTreeSet::new();
    for role in roles {
        let role: Role = serde_json::from_value(role).unwrap();
        for rule in role.rules.unwrap() {
            for group in rule.api_groups.unwrap() {
                for resource in rule.resources.clone().unwrap() {
                    let verbs = rule.verbs.iter();
                    granted
                        .extend(verbs.map(|verb| (group.clone(), resource.clone(), verb.clone())));
                }
            }
        }
    }
    granted
}

/// The right that a call takes, as the API server sees it.
fn right(call: &Call) -> Right {
    let mut path = call.path.trim_matches('/').split('/');
    let group = match path.next() {
        Some("apis") => path.next().unwrap(),
        _ => "",
    };
    let path: Vec<&str> = path.skip(1).collect();
    let ["namespaces", _, resource, rest @ ..] = &*path else {
        panic!("{} is not in a namespace", call.path);
    };
    let verb = match (&*call.method, rest.is_empty()) {
        ("GET", true) if call.is_watch() => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", _) => "create",
        ("PATCH", _) => "patch",
        ("DELETE", false) => "delete",
        (method, _) => panic!("{method} is not known"),
    };
    let resource = match rest {
        [_, subresource] => format!("{resource}/{subresource}"),
        _ => (*resource).to_owned(),
    };
    (group.to_owned(), resource, verb.to_owned())
}

#[tokio::test(start_paused = true)]
async fn the_rights_in_the_manifests_are_those_that_are_used() {
    let world = World::new();
    world.films();
    world
        .cluster
        .stateful_set("media", "store", Plan::default());
    for workload in [films(), Workload::stateful_set("media", "store")] {
        let scaled = world.scale("alone").oneshot(workload).await.unwrap();
        scaled.stop().await;
    }
    let alone: BTreeSet<_> = world.cluster.calls().iter().map(right).collect();
    assert_eq!(alone, granted(include_str!("../rbac/front.yaml")));

    // Two hosts that wait for each other, and one of which dies.
    let a = world.shared("a", films(), secs(60));
    let b = world.shared("b", films(), secs(600));
    world.cluster.latency("a", ms(50));
    a.call(ms(10)).await.unwrap();
    let stopping = a.group.clone();
    let stopping = tokio::spawn(async move { stopping.stopped(secs(60)).await });
    sleep(ms(120)).await;
    b.call(ms(10)).await.unwrap();
    stopping.await.unwrap();
    b.falls_silent();
    world.cluster.cut_off("b", true);
    sleep(secs(600)).await;
    assert_eq!(world.cluster.replicas("media", "films"), 0);
    let shared: BTreeSet<_> = world.cluster.calls().iter().map(right).collect();
    let both = &alone | &granted(include_str!("../rbac/shared.yaml"));
    assert_eq!(shared, both);
}
