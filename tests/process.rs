//! Child processes as backends, seen with real processes.
#![cfg(all(feature = "process", target_os = "linux"))]

#[path = "process/child.rs"]
mod child;
#[path = "process/common.rs"]
mod common;
#[path = "process/events.rs"]
mod events;
#[path = "process/life.rs"]
mod life;
#[cfg(feature = "full")]
#[path = "process/stack.rs"]
mod stack;
#[path = "process/start.rs"]
mod start;
#[path = "process/zz.rs"]
mod zz;
