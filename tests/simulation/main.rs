//! A deterministic simulation of random fleets, and what it has found.
//!
//! Each seed draws a fleet (how many backends, in which stacks, under which options), and then random
//! callers, operators and accidents on virtual time. The fake backends count themselves, and after
//! every step what they saw is held against the invariants; at the end everything must drain to zero.
//!
//! `cargo test --release --all-features --test simulation` runs 2,000 seeds (a debug build 200); `SEEDS=n` more or fewer,
//! from `FIRST=m` on; all processors take part. A seed that fails tells its story; `SEED=n` runs that one and tells it too.
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
    collections::{BTreeMap, BTreeSet},
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
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
    let _running = Running::begins(seed);
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

/// The seeds that are run, for the one who watches over them.
static RUNNING: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
/// After so long a seed is taken to run for ever.
const TOO_LONG: Duration = Duration::from_secs(120);

fn running() -> MutexGuard<'static, BTreeSet<u64>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Running(u64);

impl Running {
    fn begins(seed: u64) -> Self {
        running().insert(seed);
        Self(seed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        running().remove(&self.0);
    }
}

/// Ends the process when a seed runs for ever: nothing else could.
fn watch() {
    std::thread::spawn(|| {
        let mut seen = BTreeSet::new();
        loop {
            std::thread::sleep(TOO_LONG);
            let now = running().clone();
            if let Some(seed) = now.intersection(&seen).next() {
                println!(
                    "seed {seed} runs for ever: SEED={seed} cargo test --all-features --test simulation"
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
    if found.is_empty() && violations.is_empty() {
        println!("\nseed {seed} holds");
        return;
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
fn random_fleets_keep_every_invariant_and_drain_to_zero() {
    // The panics of fake user code are part of the story.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name() != Some("simulation") {
            hook(info);
        }
    }));
    watch();
    let failed = match number("SEED") {
        Some(seed) => {
            let outcome = named(move || run(seed, false));
            let outcome = outcome.join().expect("it does not panic");
            let failed = !outcome.violations.is_empty();
            // Told in any case.
            named(move || tell(seed, &outcome.violations))
                .join()
                .expect("it does not panic");
            failed.then_some(seed).into_iter().collect()
        }
        None => seeds(),
    };
    assert_eq!(failed, [0; 0], "seeds that fail");
}

/// A thread whose panics are part of the story.
fn named<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
    let runner = std::thread::Builder::new().name("simulation".to_owned());
    runner.spawn(work).expect("a thread")
}

/// What came of all seeds so far.
#[derive(Default)]
struct Sum {
    counts: BTreeMap<&'static str, u64>,
    failed: Vec<u64>,
    polls: u64,
    /// The most polls of one seed, and which it was.
    most: (u64, u64),
    polled: u64,
    woken: u64,
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.polls += outcome.polls;
        self.most = self.most.max((outcome.polls, seed));
        self.polled = self.polled.max(outcome.most.0);
        self.woken = self.woken.max(outcome.most.1);
        for (name, count) in outcome.counts {
            *self.counts.entry(name).or_default() += count;
        }
        if !outcome.violations.is_empty() {
            println!("seed {seed}: {}", outcome.violations[0]);
            self.failed.push(seed);
            if self.failed.len() == 1 {
                tell(seed, &outcome.violations);
            }
        }
    }
}

/// Runs them on all processors. Those that fail.
#[allow(clippy::disallowed_methods, reason = "it tells how long it took")]
fn seeds() -> Vec<u64> {
    let first = number("FIRST").unwrap_or(0);
    let seeds = number("SEEDS").unwrap_or(SEEDS);
    let begun = Instant::now();
    let sum = Arc::new(Mutex::new(Sum {
        counts: EVENTS.iter().map(|name| (*name, 0)).collect(),
        ..Sum::default()
    }));
    let next = Arc::new(AtomicU64::new(first));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let runners: Vec<_> = (0..threads)
        .map(|_| {
            let (sum, next) = (sum.clone(), next.clone());
            named(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || sum.lock().expect("no panic").failed.len() >= 20 {
                        return;
                    }
                    let outcome = run(seed, false);
                    sum.lock().expect("no panic").add(seed, outcome);
                }
            })
        })
        .collect();
    for runner in runners {
        runner.join().expect("it does not panic");
    }
    let took = begun.elapsed();
    let Sum {
        counts,
        failed,
        polls,
        most,
        polled,
        woken,
    } = &*sum.lock().expect("no panic");
    let rate = seeds as f64 / took.as_secs_f64();
    say(&format!(
        "{seeds} seeds in {took:.1?}: {rate:.1} seeds per second on {threads} threads, {polls} polls of tasks, at most \
         {} (seed {})",
        most.0, most.1
    ));
    say(&format!(
        "at most {polled} polls of a call beyond its own, {woken} wakes of a start in line"
    ));
    for (name, count) in counts {
        say(&format!("{count:>10} {name}"));
    }
    if seeds >= ENOUGH && failed.is_empty() {
        let never: Vec<_> = EVENTS.iter().filter(|name| counts[**name] == 0).collect();
        assert!(never.is_empty(), "never happened: {never:?}");
    }
    failed.clone()
}
