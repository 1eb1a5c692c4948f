//! What is told of a backend's life: `tracing` events at its transitions, never per call.
//!
//! The table of names and fields is in `docs/observability.md`; a test holds the two together. Without
//! the feature `tracing` all of this is nothing. Nothing here is called under a lock.

#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use std::time::Duration;

use crate::{error::Error, lifecycle::status::StartTimes, usage::Eviction};

/// The target of every event here.
#[cfg(feature = "tracing")]
const TARGET: &str = "tower_on_demand";

#[cfg(feature = "tracing")]
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A call, an order or a crash asked for an instance.
pub(crate) fn starting(backend: &str, generation: u64) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, parent: None, backend, generation, "starting");
}

/// It serves calls.
pub(crate) fn ready(backend: &str, generation: u64, times: StartTimes) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None,
        backend,
        generation,
        took_ms = millis(times.took),
        waited_ms = millis(times.waited),
        "ready"
    );
}

/// It was tried and could not be started; the next trial is due after `retry_after`.
pub(crate) fn start_failed(backend: &str, error: &Error, retry_after: Option<Duration>) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: TARGET, parent: None,
        backend,
        error = format_args!("{error:#}"),
        retry_after_ms = retry_after.map(millis),
        "start failed"
    );
}

/// It was not tried: there was no room, for one.
pub(crate) fn start_refused(backend: &str, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(target: TARGET, parent: None, backend, error = format_args!("{error:#}"), "start refused");
}

/// A policy closed it, `idle` after its last use, for a start of `room_for` if it needed the room.
pub(crate) fn evicted(
    backend: &str,
    generation: u64,
    reason: Eviction,
    idle: Option<Duration>,
    room_for: Option<&str>,
) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None,
        backend,
        generation,
        reason = reason.as_str(),
        idle_ms = idle.map(millis),
        room_for,
        "evicted"
    );
}

/// It ended by itself, or was given up for dead.
pub(crate) fn died(backend: &str, generation: u64, error: &Error, lived: Duration) {
    #[cfg(feature = "tracing")]
    tracing::error!(
        target: TARGET, parent: None,
        backend,
        generation,
        error = format_args!("{error:#}"),
        lived_ms = millis(lived),
        "died"
    );
}

/// It was told to stop.
pub(crate) fn stopping(backend: &str, generation: u64) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, parent: None, backend, generation, "stopping");
}

/// Nothing of it is left, `took` after it was unpublished.
pub(crate) fn stopped(backend: &str, generation: u64, took: Duration) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, parent: None, backend, generation, took_ms = millis(took), "stopped");
}

/// It had not stopped when its time was up, and was given up.
pub(crate) fn stop_failed(backend: &str, generation: u64, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::error!(
        target: TARGET, parent: None,
        backend,
        generation,
        error = format_args!("{error:#}"),
        "stop failed"
    );
}

/// A new instance took over from the old one.
pub(crate) fn reloaded(backend: &str, generation: u64) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, parent: None, backend, generation, "reloaded");
}
