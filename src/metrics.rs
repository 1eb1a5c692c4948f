//! Counters, gauges and histograms, by the [facade](https://docs.rs/metrics) of that name.
//!
//! What happens is counted where it happens, at transitions of a backend's life and never per call, with any
//! recorder that the host has installed: there is nothing to set up here. What stands is read: call
//! [`record_ceiling`] and [`record_coalesce`] before each scrape, or every few seconds. The table of names,
//! kinds and labels is in `docs/observability.md`; [`describe`] gives it to the recorder.
//!
//! ```
//! # #[cfg(all(feature = "tokio", feature = "ceiling"))] {
//! use tower_on_demand::{CeilingLayer, Runtime, metrics};
//!
//! // … install a recorder, then once:
//! metrics::describe();
//!
//! let ceiling = CeilingLayer::new(Runtime::tokio(), 8);
//! // Whenever the numbers are asked for:
//! metrics::record_ceiling("main", &ceiling.occupancy());
//! # }
//! ```

use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub(crate) const STARTS: &str = "on_demand_starts_total";
pub(crate) const START: &str = "on_demand_start_seconds";
pub(crate) const START_FAILURES: &str = "on_demand_start_failures_total";
pub(crate) const START_REFUSALS: &str = "on_demand_start_refusals_total";
pub(crate) const STARTS_DROPPED: &str = "on_demand_starts_dropped_total";
pub(crate) const CALLERS_REFUSED: &str = "on_demand_callers_refused_total";
pub(crate) const ROOM_WAIT: &str = "on_demand_room_wait_seconds";
pub(crate) const EVICTIONS: &str = "on_demand_evictions_total";
pub(crate) const CRASHES: &str = "on_demand_crashes_total";
pub(crate) const STOPS: &str = "on_demand_stops_total";
pub(crate) const STOP: &str = "on_demand_stop_seconds";
pub(crate) const RELOADS: &str = "on_demand_reloads_total";
pub(crate) const STARTING: &str = "on_demand_starting";
pub(crate) const ALIVE: &str = "on_demand_alive";
const ROOM_LIMIT: &str = "on_demand_room_limit";
const ROOM_USED: &str = "on_demand_room_used";
const ROOM_WAITING: &str = "on_demand_room_waiting";
const CALLS: &str = "on_demand_coalesce_calls_total";
const LEFT_EARLY: &str = "on_demand_coalesce_left_early_total";
const FLIGHTS: &str = "on_demand_coalesce_in_flight";
const FLIGHTS_WAITING: &str = "on_demand_coalesce_waiting";

/// Tells the installed recorder what each name means, and its unit.
///
/// Once, after the recorder was installed; again is harmless.
pub fn describe() {
    for (name, what) in [
        (STARTS, "Starts that succeeded"),
        (START_FAILURES, "Starts that were tried and failed, by kind"),
        (START_REFUSALS, "Starts that were not tried, by kind"),
        (
            STARTS_DROPPED,
            "Starts that were given up before their end, by reason",
        ),
        (
            CALLERS_REFUSED,
            "Callers that were refused before they waited, by kind",
        ),
        (EVICTIONS, "Instances retired by a policy, by reason"),
        (CRASHES, "Instances that ended by themselves"),
        (STOPS, "Instances that were stopped, by way"),
        (RELOADS, "New instances that took over from old ones"),
        (CALLS, "Calls, by whether they led, joined or passed by"),
        (LEFT_EARLY, "Callers that left before their outcome"),
    ] {
        describe_counter!(name, Unit::Count, what);
    }
    for (name, what) in [
        (
            START,
            "From the beginning of a start until the instance was ready",
        ),
        (ROOM_WAIT, "How long a start waited for room, by outcome"),
        (STOP, "How long a stop took, after the drain"),
    ] {
        describe_histogram!(name, Unit::Seconds, what);
    }
    for (name, what) in [
        (STARTING, "Starts under way"),
        (ALIVE, "Instances that exist"),
        (ROOM_LIMIT, "The limit of a ceiling, in units"),
        (ROOM_USED, "What is taken of it, in units"),
        (ROOM_WAITING, "Starts that wait for room"),
        (FLIGHTS, "Inner calls in flight"),
        (FLIGHTS_WAITING, "Callers that wait for them"),
    ] {
        describe_gauge!(name, Unit::Count, what);
    }
}

/// Sets the gauges of a ceiling, which the label `ceiling` calls `name`.
///
/// An unbounded one has an infinite limit.
#[cfg(feature = "ceiling")]
#[cfg_attr(docsrs, doc(cfg(feature = "ceiling")))]
pub fn record_ceiling(name: &str, occupancy: &crate::ceiling::Occupancy) {
    let set =
        |gauge_name, value| ::metrics::gauge!(gauge_name, "ceiling" => name.to_owned()).set(value);
    let limit = match occupancy.limit {
        u64::MAX => f64::INFINITY,
        limit => limit as f64,
    };
    set(ROOM_LIMIT, limit);
    set(ROOM_USED, occupancy.used as f64);
    set(ROOM_WAITING, occupancy.waiting as f64);
}

/// Sets the counters and gauges of an identity space, which the label `space` calls `name`.
///
/// Calls are counted by the space itself; this hands its counts on, so that no call pays for it.
#[cfg(feature = "coalesce")]
#[cfg_attr(docsrs, doc(cfg(feature = "coalesce")))]
pub fn record_coalesce(name: &str, statistics: &crate::coalesce::Statistics) {
    for (role, calls) in [
        ("led", statistics.led),
        ("joined", statistics.joined),
        ("passed_by", statistics.passed_by),
    ] {
        ::metrics::counter!(CALLS, "space" => name.to_owned(), "role" => role).absolute(calls);
    }
    ::metrics::counter!(LEFT_EARLY, "space" => name.to_owned()).absolute(statistics.left_early);
    ::metrics::gauge!(FLIGHTS, "space" => name.to_owned()).set(statistics.in_flight as f64);
    ::metrics::gauge!(FLIGHTS_WAITING, "space" => name.to_owned()).set(statistics.waiting as f64);
}
