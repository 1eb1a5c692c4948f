//! Backends that exist only while somebody needs them, as tower layers for any async runtime.
#![forbid(unsafe_code)]
// Under loom only the modules it runs are built, by tests/loom.rs.
#![cfg(not(on_demand_loom))]
// The core serves whichever layers are built; with all of them, all of it is used.
#![cfg_attr(not(feature = "full"), allow(dead_code))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod busy;
#[cfg(feature = "ceiling")]
#[cfg_attr(docsrs, doc(cfg(feature = "ceiling")))]
pub mod ceiling;
#[cfg(feature = "coalesce")]
#[cfg_attr(docsrs, doc(cfg(feature = "coalesce")))]
pub mod coalesce;
#[cfg(feature = "process")]
mod counted;
mod error;
#[cfg(feature = "lazy-start")]
mod group;
#[cfg(any(feature = "coalesce", feature = "lazy-start"))]
mod identity;
#[cfg(feature = "idle-evict")]
#[cfg_attr(docsrs, doc(cfg(feature = "idle-evict")))]
pub mod idle_evict;
#[cfg(feature = "lazy-start")]
pub mod keep;
#[cfg(feature = "lazy-start")]
pub mod keyed;
#[cfg(feature = "lazy-start")]
pub mod lazy_start;
mod lease;
#[cfg(feature = "lazy-start")]
mod lifecycle;
mod matches;
mod runtime;
mod sync;
mod target;
mod usage;
#[cfg(feature = "util")]
mod util;
mod wakers;

#[cfg(feature = "grpc")]
#[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
pub mod grpc;
#[cfg(feature = "http")]
#[cfg_attr(docsrs, doc(cfg(feature = "http")))]
pub mod http;
#[cfg(all(feature = "process", unix))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "process", unix))))]
pub mod process;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub mod test_util;

#[cfg(feature = "ceiling")]
#[cfg_attr(docsrs, doc(cfg(feature = "ceiling")))]
pub use crate::ceiling::{Ceiling, CeilingLayer, Occupied};
#[cfg(feature = "coalesce")]
#[cfg_attr(docsrs, doc(cfg(feature = "coalesce")))]
pub use crate::coalesce::{Coalesce, CoalesceHandle, CoalesceLayer};
#[cfg(feature = "idle-evict")]
#[cfg_attr(docsrs, doc(cfg(feature = "idle-evict")))]
pub use crate::idle_evict::{Evictable, IdleEvict, IdleEvictLayer, MakeEvictable, Sweep, Swept};

#[cfg(any(feature = "coalesce", feature = "lazy-start"))]
pub use crate::identity::Identity;
#[cfg(feature = "util")]
#[cfg_attr(docsrs, doc(cfg(feature = "util")))]
pub use crate::util::ServiceBuilderExt;
pub use crate::{
    backend::{Backend, DropToStop, MapService, Retired, Stopped},
    busy::{Begin, Busy, Hold, UntilResponse},
    error::{BoxError, Clock, Error, ErrorKind, NoRoom},
    lease::{Leased, LeasedFuture},
    matches::{Matches, Nothing},
    runtime::{BoxFuture, Runtime},
    target::{Named, Target},
    usage::Eviction,
};
#[cfg(feature = "lazy-start")]
#[cfg_attr(docsrs, doc(cfg(feature = "lazy-start")))]
pub use crate::{
    group::Group,
    keep::KeepLayer,
    keyed::{Keyed, KeyedLayer},
    lazy_start::{Handle, LazyStart, LazyStartLayer, State, Status},
};

/// The examples of the README are tests.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../README.md")]
mod readme {}
