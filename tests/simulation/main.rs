//! A deterministic simulation of random fleets, and what it has found.
//!
//! Each seed draws a fleet (how many backends, in which stacks, under which options), and then random
//! callers, operators and accidents on virtual time. The fake backends count themselves, and after
//! every step what they saw is held against the invariants; at the end everything must drain to zero.
//!
//! `cargo test --release --all-features --test simulation` runs 2,000 seeds (a debug build 200); `SEEDS=n` more or fewer,
//! from `FIRST=m` on. A seed that fails tells its story; `SEED=n` runs that one and tells it too.
#![cfg(feature = "full")]

mod acts;
mod check;
mod end;
mod fake;
mod fleet;
mod life;
mod news;
mod options;
mod orders;
mod plan;
mod regressions;
mod rng;
mod sim;
mod start;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::{
    collections::BTreeMap,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use sim::Outcome;

/// What must have happened at least once in so many seeds.
const ENOUGH: u64 = 2_000;
/// See [`ENOUGH`].
const EVENTS: &[&str] = &[
    "a key was forgotten",
    "a lease broke",
    "a pooled instance was evicted",
    "a pooled instance was used",
    "a reload failed",
    "a start was left",
    "a state was awaited",
    "a stop that never ended was given up",
    "a sweeper ended when it was told to",
    "abandoned",
    "an order's future was dropped",
    "answered",
    "blocked by its own room",
    "cut",
    "death during a reload",
    "evicted for age",
    "evicted for room",
    "evicted to get back under the limit",
    "evicted when it had yielded",
    "executor gone",
    "left the line",
    "lent",
    "limit set below what is used",
    "no room",
    "over-admission",
    "panic in a call's poll",
    "panic in a start's poll",
    "panic in call",
    "panic in lease()",
    "panic in make",
    "panic in retired()",
    "panic in stop()",
    "panic in the drop of a backend",
    "panic in the drop of a call",
    "panic in the drop of a lease",
    "panic in the drop of a start",
    "refused: backing off",
    "refused: never fits",
    "refused: no room",
    "refused: not running",
    "refused: shut down",
    "refused: too many keys",
    "refused: too many wait",
    "refused: unloaded",
    "reloaded",
    "reloaded in place",
    "restarted",
    "restarted with a reload in hand",
    "retired for idleness",
    "started ahead",
    "told of a failed start",
    "told of a panic",
    "told of a start that took too long",
    "waited while its backend yielded, in vain",
    "went on to another instance",
];

/// A debug build is some ten times slower.
const SEEDS: u64 = if cfg!(debug_assertions) { 200 } else { 2_000 };

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// A run whose own panic is a failure like any other.
fn run(seed: u64, story: bool) -> Outcome {
    RUNNING.store(seed, Ordering::Relaxed);
    catch_unwind(AssertUnwindSafe(|| sim::run(seed, story))).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Outcome {
            violations: vec![format!("panicked: {}", message.unwrap_or_default())],
            counts: BTreeMap::new(),
            story: Vec::new(),
            polls: 0,
            most: (0, 0),
        }
    })
}

/// The seed that is run, for the one who watches over it.
static RUNNING: AtomicU64 = AtomicU64::new(u64::MAX);
/// After so long it is taken to run for ever.
const TOO_LONG: Duration = Duration::from_secs(120);

/// Ends the process when a seed runs for ever: nothing else could.
fn watch() {
    std::thread::spawn(|| {
        let mut seen = u64::MAX;
        loop {
            std::thread::sleep(TOO_LONG);
            let now = RUNNING.load(Ordering::Relaxed);
            if now != u64::MAX && now == seen {
                println!(
                    "seed {now} runs for ever: SEED={now} cargo test --all-features --test simulation"
                );
                std::process::abort();
            }
            seen = now;
        }
    });
}

/// Says it whether or not the test's output is captured.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Tells a seed's story.
fn tell(seed: u64, found: &[String]) {
    let Outcome {
        story, violations, ..
    } = run(seed, true);
    for (at, line) in &story {
        println!("{:>14.6} {line}", at.as_secs_f64());
    }
    println!("\nseed {seed} fails:");
    for violation in if violations.is_empty() {
        found
    } else {
        &violations
    } {
        println!("  {violation}");
    }
    if violations.is_empty() {
        println!("  (it did not when it was run again: something is not deterministic)");
    }
    println!("again: SEED={seed} cargo test --all-features --test simulation\n");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "it tells how long it took")]
fn random_fleets_keep_every_invariant_and_drain_to_zero() {
    // The panics of fake user code are part of the story.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() != Some("simulation") {
            hook(info);
        }
    }));
    watch();
    let runner = std::thread::Builder::new().name("simulation".to_owned());
    let failed = runner.spawn(seeds).expect("a thread").join();
    assert_eq!(
        failed.expect("it does not panic"),
        [0; 0],
        "seeds that fail"
    );
}

/// Those that fail.
#[allow(clippy::disallowed_methods, reason = "it tells how long it took")]
fn seeds() -> Vec<u64> {
    if let Some(seed) = number("SEED") {
        let outcome = run(seed, false);
        tell(seed, &outcome.violations);
        return (!outcome.violations.is_empty())
            .then_some(seed)
            .into_iter()
            .collect();
    }
    let (first, seeds) = (
        number("FIRST").unwrap_or(0),
        number("SEEDS").unwrap_or(SEEDS),
    );
    let begun = Instant::now();
    let mut counts: BTreeMap<&'static str, u64> = EVENTS.iter().map(|name| (*name, 0)).collect();
    let (mut failed, mut polls, mut most) = (Vec::new(), 0, (0, 0));
    let (mut polled, mut woken) = (0, 0);
    for seed in first..first + seeds {
        let outcome = run(seed, false);
        polls += outcome.polls;
        most = most.max((outcome.polls, seed));
        polled = polled.max(outcome.most.0);
        woken = woken.max(outcome.most.1);
        for (name, count) in outcome.counts {
            *counts.entry(name).or_default() += count;
        }
        if !outcome.violations.is_empty() {
            println!("seed {seed}: {}", outcome.violations[0]);
            failed.push(seed);
            if failed.len() == 1 {
                tell(seed, &outcome.violations);
            }
            if failed.len() == 20 {
                break;
            }
        }
    }
    let took = begun.elapsed();
    let rate = seeds as f64 / took.as_secs_f64();
    say(&format!(
        "{seeds} seeds in {took:.1?}: {rate:.1} seeds per second, {polls} polls of tasks, at most {} (seed {})",
        most.0, most.1
    ));
    say(&format!(
        "at most {polled} polls of a call beyond its own, {woken} wakes of a start in line"
    ));
    for (name, count) in &counts {
        say(&format!("{count:>10} {name}"));
    }
    if seeds >= ENOUGH && failed.is_empty() {
        let never: Vec<_> = EVENTS.iter().filter(|name| counts[**name] == 0).collect();
        assert!(never.is_empty(), "never happened: {never:?}");
    }
    failed
}
