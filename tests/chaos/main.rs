//! Chaos: a host with twenty real children under a ceiling of five, many callers, and a hand that kills, freezes
//! and slows the children at random; some of them refuse to die, spew output or leak grandchildren.
//!
//! Three kinds of processes, all of them this test binary: the test itself, which has the hand and watches
//! `/proc`; the host, with the layers and the callers; and the host's children. The test holds against each
//! other what the callers were told, what the children saw, and what `/proc` shows.
//!
//! `cargo test --all-features --test chaos` takes 10 seconds after its warm-up; `CHAOS_SECONDS=60` a minute.
//! `CHAOS_SEED=n` gives the same backends, callers and hand again, though not the same machine.
#![cfg(all(feature = "full", target_os = "linux"))]

/// Counts what is allocated and not freed: what the resident size is too coarse to show.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

mod child;
mod hand;
mod host;
mod judge;
mod proc;
mod rng;
mod watch;

use std::{
    alloc::System,
    io::Write,
    time::{Duration, UNIX_EPOCH},
};

use hand::Hand;
use judge::{Facts, Reading};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use watch::Watch;

/// How many backends there are.
const BACKENDS: usize = 20;
/// How many may live.
const LIMIT: usize = 5;
/// After so many seconds, more or less, all comes to rest, and is measured.
const SLICE: u64 = 10;
/// What the host may have more after the warm-up: resident bytes, and bytes that are allocated.
const GROWTH: (i64, i64) = (1 << 20, 64 << 10);

/// Microseconds of the clock that all processes share.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000 + u64::try_from(now.tv_nsec).unwrap() / 1_000
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Says it whether or not the test's output is captured.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[test]
fn c1_l5_of_twenty_children_under_chaos_at_most_five_live_and_only_calls_in_flight_at_a_kill_fail()
{
    if host::is_host() || child::is_child() {
        return;
    }
    let seed = number("CHAOS_SEED").unwrap_or_else(|| {
        let entropy = UNIX_EPOCH.elapsed().unwrap().subsec_nanos();
        u64::from(entropy) % 1_000_000
    });
    let length = Duration::from_secs(number("CHAOS_SECONDS").unwrap_or(10));
    tell(&format!("chaos: CHAOS_SEED={seed}, {length:?}"));

    let dir = tempfile::tempdir().unwrap();
    let mut host = host::Process::start(seed, dir.path());
    let watch = Watch::start(host.pid());
    let mut hand = Hand::new(seed, dir.path().join("log"));

    let warm_up = (length / 2).clamp(Duration::from_secs(8), Duration::from_secs(15));
    host.order("go");
    hand.play(&watch, warm_up);
    let mut readings = vec![at_rest(&mut host, &watch, &mut hand)];
    let slices = (length.as_secs() / SLICE).max(1);
    for _ in 0..slices {
        host.order("go");
        hand.play(&watch, length / slices as u32);
        readings.push(at_rest(&mut host, &watch, &mut hand));
    }

    host.order("end");
    let status = host.ended();
    let seen = watch.end();
    let facts = Facts {
        readings,
        calls: host.lines(),
        done: hand.done(),
        seen,
        log: std::fs::read_to_string(dir.path().join("log")).unwrap_or_default(),
        left: proc::marked(&host.mark()),
    };
    let verdict = judge::judge(&facts);
    tell(&verdict.facts);
    assert!(status.success(), "the host ended with {status}");
    assert!(
        verdict.wrong.is_empty(),
        "CHAOS_SEED={seed}: {} wrong:\n{}",
        verdict.wrong.len(),
        verdict.wrong.join("\n")
    );
}

/// The host with all its callers at rest and all its backends stopped: what it has.
fn at_rest(host: &mut host::Process, watch: &Watch, hand: &mut Hand) -> Reading {
    hand.lets_go();
    host.order("rest");
    // One that is frozen for ever is found out by its probes; until then its callers wait.
    host.await_answer("rested");
    watch.until("no child is left", |scan| scan.children.is_empty());
    Reading::take(host)
}
