//! The places where interleavings are decided, run by loom through all of them.
//!
//! `RUSTFLAGS='--cfg on_demand_loom' cargo test --release --test loom`; without that
//! flag there is nothing in here, and with it nothing in the library: the modules under test are compiled
//! into this file, over loom's locks and atomics.
#![cfg(on_demand_loom)]
#![allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    dead_code,
    unused_imports
)]

#[path = "../src/backend.rs"]
mod backend;
#[path = "../src/busy.rs"]
mod busy;
#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/error/mod.rs"]
mod error;
#[path = "../src/events.rs"]
mod events;
#[path = "loom/host.rs"]
mod host;
#[path = "../src/idle_evict/mod.rs"]
mod idle_evict;
#[path = "../src/lease.rs"]
mod lease;
#[path = "../src/lifecycle/mod.rs"]
mod lifecycle;
#[path = "loom/lifecycle.rs"]
mod lifecycle_model;
#[path = "../src/matches.rs"]
mod matches;
#[path = "../src/notices.rs"]
mod notices;
#[path = "../src/runtime.rs"]
mod runtime;
#[path = "../src/seldom.rs"]
mod seldom;
#[path = "loom/sweep.rs"]
mod sweep_model;
#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/target.rs"]
mod target;
#[path = "../src/usage.rs"]
mod usage;
#[path = "../src/wakers.rs"]
mod wakers;

pub(crate) use backend::Backend;
pub(crate) use busy::UntilResponse;
pub(crate) use error::{BoxError, Error, ErrorKind};
pub(crate) use idle_evict::IdleEvict;
pub(crate) use runtime::Runtime;

mod ceiling {
    #[path = "../../src/ceiling/holders.rs"]
    mod holders;
    #[path = "../loom/room.rs"]
    mod model;
    #[path = "../../src/ceiling/queue.rs"]
    mod queue;
    #[path = "../../src/ceiling/room.rs"]
    mod room;
    #[path = "../../src/ceiling/state.rs"]
    mod state;
    #[path = "../../src/ceiling/status.rs"]
    mod status;
    #[path = "../../src/ceiling/victims.rs"]
    mod victims;
}
mod coalesce {
    #[path = "../../src/coalesce/caller.rs"]
    mod caller;
    #[path = "../../src/coalesce/driving.rs"]
    mod driving;
    #[path = "../../src/coalesce/flight.rs"]
    mod flight;
    #[path = "../loom/coalesce.rs"]
    mod model;
    #[path = "../../src/coalesce/orders.rs"]
    mod orders;
    #[path = "../../src/coalesce/parting.rs"]
    mod parting;
    #[path = "../../src/coalesce/seat.rs"]
    mod seat;
    #[path = "../../src/coalesce/shards.rs"]
    mod shards;
    #[path = "../../src/coalesce/signal.rs"]
    mod signal;
    #[path = "../../src/coalesce/table.rs"]
    mod table;
}
#[path = "loom/usage.rs"]
mod usage_model;

/// Helpers of the models.
mod with {
    use std::{future::poll_fn, task::Context, task::Poll};

    pub(crate) use std::sync::Arc;

    /// A clock that stands still.
    pub(crate) struct Still;

    impl crate::clock::Recency for Still {
        fn now(&self) -> u64 {
            0
        }
    }

    /// Runs a model through its interleavings: those with at most two preemptions, or as many as
    /// `LOOM_MAX_PREEMPTIONS` says. Without a bound some would take days.
    pub(crate) fn model(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound.get_or_insert(2);
        builder.check(model);
    }

    /// Runs a poll function to its end; a lost wake-up is a deadlock that loom reports.
    pub(crate) fn until<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        loom::future::block_on(poll_fn(poll))
    }
}
