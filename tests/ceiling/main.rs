//! `Ceiling`: who gets room, who has to go for it, and who waits.
#![cfg(feature = "full")]

mod common;
mod exits;
mod order;
mod over;
mod pools;
mod refusals;
mod scale;
mod storm;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod victims;
mod weights;
mod yielding;
