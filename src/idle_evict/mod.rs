//! `IdleEvict`: instances that nobody uses are stopped.
//!
//! See [`IdleEvict::pair`] and [`IdleEvictLayer`].

mod future;
mod layer;
mod registry;
mod service;
mod status;
mod sweep;

pub use self::{
    future::ResponseFuture,
    layer::IdleEvictLayer,
    service::{Evictable, MakeEvictable},
    status::Instance,
    sweep::{IdleEvict, Retiree, Sweep, Swept},
};
