//! `LazyStart`: a backend that is started by its first call.
//!
//! The layer turns a maker (`MakeService`) into a plain service. The first call starts the backend, and
//! all who call meanwhile wait for that one start; a backend that died or was evicted is started
//! again by the next call. See [`LazyStartLayer`] for the options and [`Handle`] for orders from outside.

mod before;
mod future;
mod handle;
mod layer;
mod lend;
mod service;

pub use self::{
    future::ResponseFuture,
    handle::{AnyTarget, Handle, Order, Until},
    layer::LazyStartLayer,
    lend::{Lending, Lent},
    service::LazyStart,
};
pub use crate::lifecycle::status::{StartTimes, State, Status};
