//! Child processes as backends, seen with real processes.
#![cfg(all(feature = "process", target_os = "linux"))]

#[path = "process/child.rs"]
mod child;
#[path = "process/common.rs"]
mod common;
#[path = "process/left.rs"]
mod left;
#[path = "process/start.rs"]
mod start;
