//! Callers with the same identity share one call in flight.
#![cfg(all(feature = "coalesce", feature = "test-util"))]

mod bounds;
mod cost;
mod inner;
mod leaving;
mod order;
mod outcomes;
mod panics;
mod reentry;
#[path = "../support/rng.rs"]
mod rng;
mod stress;
mod tasks;
mod types;
mod wakes;
