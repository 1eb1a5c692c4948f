//! `/_status`: all there is to know now, as JSON.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use tokio::{sync::Mutex, task::spawn_blocking};
use tower_on_demand::{
    State, Status,
    process::{Process, Stats},
};

use super::json;
use crate::{
    feed::{self, Told},
    host::{Body, Host},
};

/// How old what is said of processes may be: to find it out, all processes of the machine are looked at.
const FRESH: Duration = Duration::from_secs(1);
/// How many of the last starts are told of.
const STARTS: usize = 16;
/// How many lines of what a child said last.
const LINES: usize = 8;

/// What the children use, by process id; nothing of those that are gone.
pub(crate) type Usage = Arc<HashMap<u32, Option<Stats>>>;

/// What they used when somebody asked last.
#[derive(Default)]
pub(crate) struct Usages(Mutex<Option<(Instant, Usage)>>);

impl Usages {
    pub(crate) async fn now(&self, host: &Host) -> Usage {
        let children: Vec<Process> = host.children().collect();
        let mut last = self.0.lock().await;
        if let Some((at, usage)) = &*last {
            let all = children
                .iter()
                .all(|child| usage.contains_key(&child.pid()));
            if all && at.elapsed() < FRESH {
                return usage.clone();
            }
        }
        let looked = spawn_blocking(move || {
            let children = children.iter();
            children
                .map(|child| (child.pid(), child.stats().ok()))
                .collect()
        });
        let usage: Usage = Arc::new(looked.await.unwrap_or_default());
        *last = Some((Instant::now(), usage.clone()));
        usage
    }
}

pub(super) async fn answer(host: &Host) -> Response<Body> {
    let usage = host.pages().usages.now(host).await;
    let transitions = host.feed().transitions();
    let backends = host.group().status().into_iter().filter_map(|status| {
        let mut fields = object(serde_json::to_value(&status))?;
        let served = host.served(&status.name)?;
        let ours = json!({
            "idle_after_seconds": served.idle_after.map(|after| after.as_secs_f64()),
            "pinned": served.pinned,
            "coalescing": served.coalesce.statistics(),
            "cold_starts_seconds": cold_starts(&transitions, &status.name),
            "failing": failing(&transitions, &status),
            "last_end": last_end(&transitions, &status.name),
            "processes": served.children.alive().iter().map(|child| process(child, &usage)).collect::<Vec<_>>(),
        });
        fields.append(&mut object(Ok(ours))?);
        Some(fields)
    });
    let status = json!({
        "at_ms": feed::now(),
        "run": host.feed().run(),
        "admin": host.pages().admin,
        "ceiling": host.ceiling().status(),
        "backends": backends.collect::<Vec<_>>(),
    });
    json(StatusCode::OK, &status)
}

fn object(value: serde_json::Result<Value>) -> Option<Map<String, Value>> {
    match value {
        Ok(Value::Object(fields)) => Some(fields),
        _ => None,
    }
}

fn process(child: &Process, usage: &Usage) -> Value {
    let lines = child.last_lines();
    let last = &lines[lines.len().saturating_sub(LINES)..];
    let stats = usage.get(&child.pid()).and_then(Option::as_ref);
    json!({
        "pid": child.pid(),
        "last_lines": last,
        "processes": stats.map(|stats| stats.processes),
        "cpu_seconds": stats.map(|stats| stats.cpu.as_secs_f64()),
        "rss_bytes": stats.map(|stats| stats.rss),
        "threads": stats.map(|stats| stats.threads),
        "fds": stats.map(|stats| stats.fds),
    })
}

fn of<'a>(
    transitions: &'a [Arc<Told>],
    name: &'a str,
) -> impl DoubleEndedIterator<Item = &'a Told> {
    let entries = transitions.iter().map(|told| &**told);
    entries.filter(move |told| told.text("backend") == Some(name))
}

/// Whether the last that was heard of a start or an instance is its failure.
fn failing(transitions: &[Arc<Told>], status: &Status) -> bool {
    let mut latest = of(transitions, &status.name).rev();
    let ended = latest.find_map(|told| match told.event.as_str() {
        "ready" => Some(false),
        "start failed" | "died" => Some(true),
        _ => None,
    });
    status.state != State::Running && ended.unwrap_or(status.last_error.is_some())
}

/// What the last starts took.
fn cold_starts(transitions: &[Arc<Told>], name: &str) -> Vec<f64> {
    let ready = of(transitions, name).filter(|told| told.event == "ready");
    let took = ready.filter_map(|told| Some(told.fields.get("took_ms")?.as_f64()? / 1000.0));
    let mut took: Vec<f64> = took.rev().take(STARTS).collect();
    took.reverse();
    took
}

/// How the last instance that has ended came to its end.
fn last_end<'a>(transitions: &'a [Arc<Told>], name: &'a str) -> Option<&'a Told> {
    let mut latest = of(transitions, name).rev();
    latest.find(|told| matches!(told.event.as_str(), "evicted" | "died" | "stopping"))
}
