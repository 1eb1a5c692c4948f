//! Callers with the same identity share one call in flight: [`CoalesceLayer`].

mod caller;
mod common;
mod flight;
mod future;
mod handle;
mod layer;
mod linger;
mod policy;
mod polling;
mod service;
mod shards;
mod share;
mod signal;
mod table;
mod task;
mod work;

pub use self::{
    future::ResponseFuture,
    handle::{CoalesceHandle, Shutdown, Statistics},
    layer::CoalesceLayer,
    policy::{Alone, Policy, ShareAll, ShareIf},
    service::Coalesce,
    share::Share,
    task::{ByCallers, ByTasks, Drive, Task},
};
