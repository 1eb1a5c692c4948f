//! `Keyed`: backends known only at run time, a tenant's, a workspace's, a model's.
//!
//! One service for all of them: the request says whose backend it is for, and the key says what to
//! start. Each key has a [`LazyStart`](crate::LazyStart) of its own; the maker beneath, and with it ceiling
//! and registry, is one for all. A key is forgotten when nothing is left to remember of it, so a million
//! keys over a month leave nothing behind.

mod layer;
mod map;
mod service;

pub use self::{layer::KeyedLayer, service::Keyed};
