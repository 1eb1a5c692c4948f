//! Whatever comes in from outside: configurations, the words for where a child listens and when it is ready, what
//! children print, and requests as bytes on a socket.
//!
//! Random, from a seed that is printed: `SEED=…` is another one, `CASES=…` another number of cases.
#![cfg(all(feature = "full", unix))]
#![allow(missing_docs, unreachable_pub, clippy::disallowed_methods)]

#[allow(dead_code, reason = "it is the host example's")]
#[path = "../../examples/host/config.rs"]
mod config;
mod edge;
#[allow(dead_code, reason = "it is the host example's")]
#[path = "../../examples/host/headers.rs"]
mod headers;
mod http;
#[allow(dead_code, reason = "it is the library's")]
#[path = "../../src/process/output.rs"]
mod output;
mod parsers;
#[allow(dead_code, unused_imports, reason = "it is the library's")]
#[path = "../../src/sync.rs"]
mod sync;
mod text;

use std::{env, fmt::Debug};

use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngSeed, TestRunner},
};

/// Checks `property`, which says whether its input was accepted: some must be, and some not.
fn holds<S>(cases: u32, strategy: S, property: impl Fn(S::Value) -> bool)
where
    S: Strategy<Value: Debug>,
{
    let number = |name: &str| env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let seed = number("SEED").unwrap_or(1);
    let cases = number("CASES").map_or(cases, |it| it as u32);
    let mut runner = TestRunner::new(Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    });
    let accepted = std::cell::Cell::new(0);
    let result = runner.run(&strategy, |input| {
        accepted.set(accepted.get() + u32::from(property(input)));
        Ok(())
    });
    let accepted = accepted.get();
    println!("SEED={seed} CASES={cases}: {accepted} accepted");
    if let Err(error) = result {
        panic!("SEED={seed} CASES={cases}: {error}");
    }
    assert!(
        0 < accepted && accepted < cases,
        "of {cases} inputs {accepted} were accepted: they are all of one kind"
    );
}
