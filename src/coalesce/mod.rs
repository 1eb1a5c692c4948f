//! Callers with the same identity share one call in flight: [`CoalesceLayer`].

mod anchor;
mod caller;
mod common;
mod driving;
mod flight;
mod future;
mod handle;
mod lasting;
mod layer;
mod linger;
mod options;
mod orders;
mod parting;
mod policy;
mod polling;
mod seat;
mod service;
mod shards;
mod share;
mod signal;
mod table;
mod task;
mod work;

#[cfg(feature = "http")]
pub(crate) use self::{
    common::Passage,
    lasting::{Lasting, Lasts, Tie},
    policy::sealed::Sealed,
    signal::{Signal, Spot, Turned},
};
pub use self::{
    future::ResponseFuture,
    handle::{CoalesceHandle, Shutdown, Statistics},
    layer::CoalesceLayer,
    policy::{Alone, Policy, ShareAll, ShareIf},
    service::Coalesce,
    share::Share,
    task::{ByCallers, ByTasks, Drive, Task},
};
