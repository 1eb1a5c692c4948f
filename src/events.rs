//! What is told of a backend's life, at its transitions and never per call: to `tracing`, and to `metrics`.
//!
//! The tables of names are in `docs/observability.md`; tests hold them and this file together. Without
//! the features of these names all of this is nothing. Nothing here is called under a lock.

#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables)
)]

use std::{sync::Arc, time::Duration};

use crate::{error::Error, target::Queued, usage::Eviction};

/// The target of every event here.
#[cfg(feature = "tracing")]
const TARGET: &str = "tower_on_demand";

#[cfg(feature = "tracing")]
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// One more of what a counter counts.
macro_rules! count {
    ($name:ident, $backend:expr $(, $label:literal => $value:expr)?) => {
        #[cfg(feature = "metrics")]
        ::metrics::counter!(
            crate::metrics::$name, "backend" => $backend.clone() $(, $label => $value)?
        )
        .increment(1);
    };
}

/// A duration, into a histogram of seconds.
macro_rules! time {
    ($name:ident, $duration:expr, $backend:expr $(, $label:literal => $value:expr)?) => {
        #[cfg(feature = "metrics")]
        ::metrics::histogram!(
            crate::metrics::$name, "backend" => $backend.clone() $(, $label => $value)?
        )
        .record($duration);
    };
}

/// Counts one in a gauge for as long as it lives, whatever ends it.
pub(crate) struct Standing {
    #[cfg(feature = "metrics")]
    gauge: ::metrics::Gauge,
}

impl Standing {
    /// A start that is under way.
    pub(crate) fn starting(backend: &Arc<str>) -> Self {
        #[cfg(feature = "metrics")]
        return Self::up(::metrics::gauge!(crate::metrics::STARTING, "backend" => backend.clone()));
        #[cfg(not(feature = "metrics"))]
        Self {}
    }

    /// An instance, until it is gone.
    pub(crate) fn alive(backend: &Arc<str>) -> Self {
        #[cfg(feature = "metrics")]
        return Self::up(::metrics::gauge!(crate::metrics::ALIVE, "backend" => backend.clone()));
        #[cfg(not(feature = "metrics"))]
        Self {}
    }

    #[cfg(feature = "metrics")]
    fn up(gauge: ::metrics::Gauge) -> Self {
        gauge.increment(1.0);
        Self { gauge }
    }
}

#[cfg(feature = "metrics")]
impl Drop for Standing {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}

/// A call, an order or a crash asked for an instance.
pub(crate) fn starting(backend: &Arc<str>, generation: u64) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, parent: None, backend = &**backend, generation, "starting");
}

/// Its start has no room yet, and is in line for it.
pub(crate) fn waits_for_room(backend: &Arc<str>, weight: u64, queued: Queued) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None,
        backend = &**backend,
        place = queued.place,
        ahead = queued.ahead,
        weight,
        "waiting for room"
    );
}

/// Its start has waited for room, and got it or was refused.
pub(crate) fn waited_for_room(backend: &Arc<str>, waited: Duration, admitted: bool) {
    let outcome = if admitted { "admitted" } else { "refused" };
    time!(ROOM_WAIT, waited, backend, "outcome" => outcome);
}

/// A caller was refused before it waited. There may be many of these, so they are only counted.
pub(crate) fn caller_refused(backend: &Arc<str>, error: &Error) {
    count!(CALLERS_REFUSED, backend, "kind" => error.kind().as_str());
}

/// It serves calls, so long after its start began.
pub(crate) fn ready(backend: &Arc<str>, generation: u64, took: Duration, waited: Duration) {
    count!(STARTS, backend);
    time!(START, took, backend);
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None,
        backend = &**backend,
        generation,
        took_ms = millis(took),
        waited_ms = millis(waited),
        "ready"
    );
}

/// It was tried and could not be started.
pub(crate) fn start_failed(backend: &Arc<str>, error: &Error) {
    count!(START_FAILURES, backend, "kind" => error.kind().as_str());
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: TARGET, parent: None,
        backend = &**backend,
        kind = error.kind().as_str(),
        error = format_args!("{error:#}"),
        "start failed"
    );
}

/// It was not tried: there was no room, for one.
pub(crate) fn start_refused(backend: &Arc<str>, error: &Error) {
    count!(START_REFUSALS, backend, "kind" => error.kind().as_str());
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: TARGET, parent: None,
        backend = &**backend,
        kind = error.kind().as_str(),
        error = format_args!("{error:#}"),
        "start refused"
    );
}

/// The start was given up before its end: nobody waits for it any more, or it was told to stop.
pub(crate) fn start_dropped(backend: &Arc<str>, generation: u64, reason: &'static str) {
    count!(STARTS_DROPPED, backend, "reason" => reason);
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None, backend = &**backend, generation, reason, "start dropped"
    );
}

/// It is not tried again before this is over.
pub(crate) fn backing_off(backend: &Arc<str>, left: Duration) {
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None, backend = &**backend, for_ms = millis(left), "backing off"
    );
}

/// A policy closed it, `idle` after its last use, for a start of `room_for` if that needed its room.
pub(crate) fn evicted(
    backend: &Arc<str>,
    generation: u64,
    reason: Eviction,
    idle: Duration,
    room_for: Option<&str>,
) {
    count!(EVICTIONS, backend, "reason" => reason.as_str());
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None,
        backend = &**backend,
        generation,
        reason = reason.as_str(),
        idle_ms = millis(idle),
        room_for,
        "evicted"
    );
}

/// It ended by itself, or was given up for dead.
pub(crate) fn died(backend: &Arc<str>, generation: u64, error: &Error, lived: Duration) {
    count!(CRASHES, backend);
    #[cfg(feature = "tracing")]
    tracing::error!(
        target: TARGET, parent: None,
        backend = &**backend,
        generation,
        error = format_args!("{error:#}"),
        lived_ms = millis(lived),
        "died"
    );
}

/// It was told to stop.
pub(crate) fn stopping(backend: &Arc<str>, generation: u64) {
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, parent: None, backend = &**backend, generation, "stopping");
}

/// Nothing of it is left, so long after it was unpublished and drained.
pub(crate) fn stopped(backend: &Arc<str>, generation: u64, took: Duration, way: &'static str) {
    count!(STOPS, backend, "way" => way);
    time!(STOP, took, backend);
    #[cfg(feature = "tracing")]
    tracing::info!(
        target: TARGET, parent: None,
        backend = &**backend,
        generation,
        took_ms = millis(took),
        way,
        "stopped"
    );
}

/// It had not stopped when its time was up, and was given up.
pub(crate) fn stop_failed(backend: &Arc<str>, generation: u64, error: &Error) {
    count!(STOPS, backend, "way" => "failed");
    #[cfg(feature = "tracing")]
    tracing::error!(
        target: TARGET, parent: None,
        backend = &**backend,
        generation,
        error = format_args!("{error:#}"),
        "stop failed"
    );
}

/// A new instance took over from the old one.
pub(crate) fn reloaded(backend: &Arc<str>, generation: u64) {
    count!(RELOADS, backend);
    #[cfg(feature = "tracing")]
    tracing::info!(target: TARGET, parent: None, backend = &**backend, generation, "reloaded");
}

/// Its owner is gone before its time, with all it held: the executor was shut down, for one.
pub(crate) fn lost(backend: &Arc<str>, generation: u64, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: TARGET, parent: None,
        backend = &**backend,
        generation,
        error = format_args!("{error:#}"),
        "lost"
    );
}
