//! A deterministic simulation of random fleets, and what it has found.
#![cfg(feature = "full")]

mod regressions;
#[path = "../support/mod.rs"]
mod support;
