//! What is counted.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tower_on_demand_kubernetes::test_util;

/// Counts what the API server was asked, and how calls went.
#[derive(Clone)]
pub(super) struct Numbers(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    since: Option<Instant>,
    /// By what is asked: how often.
    asked: BTreeMap<&'static str, u64>,
    /// In each second.
    seconds: BTreeMap<u64, u64>,
    refused: u64,
    calls: u64,
    failed: u64,
    /// Calls that reached a pod.
    reached: u64,
    /// Waits of calls that found nothing running, in milliseconds.
    cold: Vec<u64>,
}

impl Numbers {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was before does not count.
    pub(super) fn begin(&self) {
        *self.lock() = Inner {
            since: Some(Instant::now()),
            ..Inner::default()
        };
    }

    pub(super) fn asked(&self, call: &test_util::Call) {
        let mut inner = self.lock();
        let Some(since) = inner.since else {
            return;
        };
        let lease = call.path.contains("/leases");
        let what = match (&*call.method, lease) {
            ("GET", _) if call.is_watch() => "watches begun",
            ("PATCH" | "POST" | "DELETE", true) if call.path.contains("/host.") => {
                "hosts' Leases renewed"
            }
            (_, true) => "claims read and changed",
            ("PATCH", _) => "scales patched",
            _ if call.path.ends_with("/scale") => "scales read",
            _ => "lists",
        };
        *inner.asked.entry(what).or_default() += 1;
        *inner.seconds.entry(since.elapsed().as_secs()).or_default() += 1;
        inner.refused += u64::from(call.status == 429);
    }

    pub(super) fn reached(&self) {
        self.lock().reached += 1;
    }

    pub(super) fn called(&self, took: Duration, answer: Duration, failed: bool) {
        let mut inner = self.lock();
        inner.calls += 1;
        inner.failed += u64::from(failed);
        let waited = took.saturating_sub(answer);
        if waited > Duration::from_millis(500) {
            inner.cold.push(waited.as_millis() as u64);
        }
    }

    pub(super) fn print(&self, name: &str, lasted: Duration) {
        let mut inner = self.lock();
        let seconds = lasted.as_secs_f64();
        let total: u64 = inner.asked.values().sum();
        let peak = inner.seconds.values().max().copied().unwrap_or(0);
        println!("\n## {name}\n");
        println!("| | |\n|---|---|");
        println!(
            "| API calls per second, mean | {:.1} |",
            total as f64 / seconds
        );
        for (what, count) in &inner.asked {
            println!("| … {what} | {:.1} |", *count as f64 / seconds);
        }
        println!("| API calls per second, busiest second | {peak} |");
        println!("| API calls refused with 429 | {} |", inner.refused);
        println!("| calls, failed | {}, {} |", inner.calls, inner.failed);
        println!("| calls that reached a pod | {} |", inner.reached);
        inner.cold.sort_unstable();
        let cold = &inner.cold;
        let at = |share: f64| {
            let at = (cold.len() as f64 * share) as usize;
            cold.get(at.min(cold.len().saturating_sub(1)))
                .map_or(0.0, |ms| *ms as f64 / 1e3)
        };
        println!("| calls that waited for a start | {} |", cold.len());
        println!(
            "| they waited, median / 99 % / longest | {:.1} s / {:.1} s / {:.1} s |",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
