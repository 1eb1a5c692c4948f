//! `IdleEvict`: what counts as use, and when what is unused is retired.
#![cfg(feature = "full")]

mod age;
mod bodies;
mod common;
mod reconnect;
#[path = "../support/streams.rs"]
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
