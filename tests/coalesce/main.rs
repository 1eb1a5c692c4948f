//! Callers with the same identity share one call in flight.
#![cfg(all(feature = "coalesce", feature = "test-util"))]

mod inner;
mod leaving;
mod outcomes;
mod panics;
mod types;
mod wakes;
