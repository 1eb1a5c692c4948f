//! `/_`, `/_status` and `/_metrics`, as programs read them.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Host, demo};

fn backend<'a>(status: &'a Value, name: &str) -> &'a Value {
    let backends = status["backends"].as_array().unwrap();
    let found = backends.iter().find(|backend| backend["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {status:#}"))
}

/// A child that says something, and ends.
const TROUBLE: &str = r#"
[backend.mail]
command = ["sh", "-c", "echo opening the spool; echo the spool is locked >&2; exit 3", "mail", "{port}"]
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_tells_who_runs_who_holds_the_room_who_waits_and_what_went_wrong() {
    let host = Host::start(&demo(2, &["films", "maps", "music"], TROUBLE));
    // To look is to start nothing.
    let status = host.status().await;
    assert_eq!(status["backends"].as_array().unwrap().len(), 4);
    for one in status["backends"].as_array().unwrap() {
        assert_eq!(
            (&one["state"], &one["starts"]),
            (&json!("stopped"), &json!(0))
        );
    }
    assert_eq!(
        status["ceiling"],
        json!({"limit": 2, "used": 0, "holders": [], "waiting": []})
    );

    assert_eq!(host.get("/mail/").await.unwrap().status(), 502);
    let status = host.status().await;
    assert_eq!(backend(&status, "mail")["failing"], true);
    let error = &backend(&status, "mail")["last_error"];
    assert_eq!(error["kind"], "start_failed");
    assert!(
        error["text"].as_str().unwrap().contains("exit status: 3"),
        "{error}"
    );
    let said = error["detail"].as_str().unwrap();
    assert!(said.contains("opening the spool") && said.contains("the spool is locked"));

    // A full house, and somebody who waits. Looking at it is not held up by that.
    let asked = join_all(["films", "maps", "music"].map(|name| {
        let host = &host;
        async move {
            if name == "music" {
                host.status_when(|status| {
                    let calls = |name| backend(status, name)["in_flight"].as_u64();
                    calls("films") == Some(1) && calls("maps") == Some(1)
                })
                .await;
            }
            host.ok(&format!("/{name}/stream")).await;
        }
    }));
    let looked = async {
        let status = host
            .status_when(|status| status["ceiling"]["waiting"][0]["name"] == "music")
            .await;
        let room = &status["ceiling"];
        assert_eq!(room["used"], 2);
        let holders = room["holders"].as_array().unwrap();
        let names = holders
            .iter()
            .map(|holder| holder["name"].as_str().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        assert_eq!(names, ["films", "maps"]);
        assert!(holders.iter().all(|holder| holder["phase"] == "busy"));
        let music = backend(&status, "music");
        assert_eq!(
            (&music["state"], &music["waiting"]),
            (&json!("starting"), &json!(1))
        );
        assert_eq!(music["queued"]["place"], 1);

        let films = backend(&status, "films");
        let process = &films["processes"][0];
        let pid = process["pid"].as_u64().unwrap();
        assert!(std::fs::exists(format!("/proc/{pid}")).unwrap());
        assert_eq!(process["processes"], 1);
        for what in ["rss_bytes", "threads", "fds"] {
            assert!(process[what].as_u64() > Some(0), "{what} of {process}");
        }
        assert!(process["cpu_seconds"].is_f64());
        let lines = process["last_lines"].as_array().unwrap();
        assert!(lines[0].as_str().unwrap().starts_with("films listens on"));
    };
    tokio::join!(asked, looked);

    // One of the two made room for the third.
    let status = host.status().await;
    let evicted = ["films", "maps"].map(|name| backend(&status, name));
    let evicted = evicted.iter().find(|one| one["evictions"] == 1).unwrap();
    assert_eq!(
        (&evicted["last_eviction"], &evicted["evicted_for"]),
        (&json!("room"), &json!("music"))
    );
    assert_eq!(evicted["last_end"]["event"], "evicted");
    assert_eq!(evicted["failing"], false);
    assert!(backend(&status, "music")["cold_starts_seconds"][0].as_f64() > Some(0.0));

    // Calls that are one.
    join_all((0..5).map(|_| host.ok("/music/report"))).await;
    let status = host.status().await;
    let shared = &backend(&status, "music")["coalescing"];
    assert!(shared["joined"].as_u64() > Some(0), "{shared}");
    host.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_what_prometheus_reads_and_agree_with_what_happened() {
    let host = Host::start(&demo(1, &["films", "maps"], TROUBLE));
    for path in ["/films/", "/maps/", "/films/"] {
        host.ok(path).await;
    }
    assert_eq!(host.get("/mail/").await.unwrap().status(), 502);
    let answer = host.get("/_metrics").await.unwrap();
    let kind = answer.headers()["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let mut samples = BTreeMap::new();
    for line in answer.body().lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            assert!(
                comment.starts_with("HELP ") || comment.starts_with("TYPE "),
                "{line}"
            );
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let name = sample.split('{').next().unwrap();
        let plain = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(name.chars().all(plain), "{line}");
        assert!(
            samples.insert(sample.to_owned(), value).is_none(),
            "{line} is there twice"
        );
    }
    let sample = |name: &str| {
        let value = samples.get(name).copied();
        value.unwrap_or_else(|| panic!("{name} is not in\n{}", answer.body()))
    };
    assert_eq!(sample("on_demand_starts_total{backend=\"films\"}"), 2.0);
    assert_eq!(
        sample("on_demand_start_seconds_count{backend=\"films\"}"),
        2.0
    );
    assert_eq!(
        sample("on_demand_start_failures_total{backend=\"mail\",kind=\"start_failed\"}"),
        1.0
    );
    assert_eq!(
        sample("on_demand_evictions_total{backend=\"films\",reason=\"room\"}"),
        2.0
    );
    assert_eq!(sample("on_demand_room_limit{ceiling=\"main\"}"), 1.0);
    assert_eq!(
        sample("on_demand_coalesce_calls_total{space=\"films\",role=\"led\"}"),
        2.0
    );
    assert_eq!(sample("host_children_processes{backend=\"films\"}"), 0.0);
    host.ok("/films/").await;
    host.stop();
}

#[tokio::test]
async fn the_page_is_whole_in_itself_and_lets_nothing_else_in() {
    let host = Host::start(&demo(1, &["films"], ""));
    let page = host.get("/_").await.unwrap();
    assert_eq!(page.status(), 200);
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    let (_, rest) = policy.split_once("script-src 'nonce-").unwrap();
    let nonce = rest.split('\'').next().unwrap();
    assert!(
        nonce.len() >= 22 && policy.starts_with("default-src 'none'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    let html = page.body();
    for tag in ["<script", "<style"] {
        for (at, _) in html.match_indices(tag) {
            let whole = format!("{tag} nonce=\"{nonce}\">");
            assert!(html[at..].starts_with(&whole), "{}", &html[at..at + 60]);
        }
    }
    for foreign in [
        " src=",
        " style=",
        "@import",
        "url(",
        "https://",
        "innerHTML",
        " onclick",
    ] {
        assert!(!html.contains(foreign), "{foreign}");
    }
    let namespace = "http://www.w3.org/2000/svg";
    assert_eq!(
        html.matches("http://").count(),
        html.matches(namespace).count()
    );
    // No two answers can be mixed.
    let other = host.get("/_").await.unwrap();
    assert!(
        !other.headers()["content-security-policy"]
            .to_str()
            .unwrap()
            .contains(nonce)
    );

    for (path, status) in [("/_/", 200), ("/_nothing", 404), ("/_orders", 404)] {
        assert_eq!(host.get(path).await.unwrap().status(), status, "{path}");
    }
    assert_eq!(host.status().await["backends"][0]["starts"], 0);
    host.stop();
}
