//! Backends that exist only while somebody needs them, as tower layers for any async runtime.
//!
//! For what costs to keep and is not always needed: a process, a connection, a pool, a worker for each
//! tenant. Its first call starts it, and all who call meanwhile wait for that one start; a ceiling bounds
//! how many live at once; what nobody uses any more is stopped. No policy ever cuts a call.
//!
//! # A stack
//!
//! What is started is a [`Backend`]; what starts it is a *maker*, a `Service<Target>` that answers with
//! one, as in tower's `MakeService`. The layers above the maker say when it is called, and when what it
//! made is stopped.
//!
//! ```
//! use std::time::Duration;
//!
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! # #[cfg(feature = "full")]
//! use tower_on_demand::{
//!     CeilingLayer, DropToStop, Group, IdleEvict, LazyStartLayer, Runtime, UntilResponse,
//! };
//!
//! # #[cfg(feature = "full")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_on_demand::Error> {
//! let runtime = Runtime::tokio();
//! let group = Group::new(); // all backends, to find them and to stop them
//! let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
//! let ceiling = CeilingLayer::new(runtime.clone(), 8); // clones share the 8
//! runtime.spawn(idle_evict.run()); // without this nothing is stopped for age
//!
//! // The maker: any cloneable service is a backend in `DropToStop`.
//! let maker = service_fn(|name: &'static str| async move {
//!     // … whatever it takes to start it …
//!     let worker = service_fn(move |n: u32| async move { Ok::<_, std::io::Error>(format!("{name}: {n}")) });
//!     Ok::<_, std::io::Error>(DropToStop::new(worker))
//! });
//!
//! let worker = ServiceBuilder::new()
//!     .layer(LazyStartLayer::new(runtime, "worker").join(&group))
//!     .layer(evictable.idle_after(Duration::from_secs(900)))
//!     .layer(ceiling)
//!     .service(maker);
//!
//! // Nothing runs yet.
//! assert_eq!(worker.oneshot(7).await?, "worker: 7");
//!
//! // Nothing is alive when this returns, and nothing can appear.
//! group.stopped(Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "full"))]
//! # fn main() {}
//! ```
//!
//! # The order of the layers
//!
//! From the caller's side down, as they stand in a `ServiceBuilder`; leave out what you do not need:
//!
//! | | takes | |
//! |---|---|---|
//! | [`http::StatusLayer`] | requests | errors become responses |
//! | [`CoalesceLayer`] | requests | identical calls are made once |
//! | [`LazyStartLayer`], [`KeyedLayer`] or [`KeepLayer`] | requests; makers' answers beneath | starts, and owns what was started |
//! | [`IdleEvictLayer`] | targets | counts use, and retires what is idle |
//! | [`CeilingLayer`] | targets | room for what lives |
//! | the maker | targets | starts one instance |
//!
//! `IdleEvict` stands above `Ceiling`, which learns from it what is idle. The other way round compiles,
//! and no room is ever made.
//!
//! # Where to look
//!
//! The [guide] begins with the problem and ends with the tests of your own stack.
//!
//! | for | see |
//! |---|---|
//! | which bound to set to what, and what counts as use | [`guide::bounds`], [`guide::in_use`] |
//! | child processes | [`process`] |
//! | HTTP: bodies as use, upgrades, errors as statuses, axum | [`http`] |
//! | gRPC | [`grpc`] |
//! | a backend that is no service: a pool, a session | [`LazyStart::lend`], [`Backend`] |
//! | backends known only at run time, by a key of the request | [`KeyedLayer`] |
//! | orders from outside: start, stop, reload, status | [`Handle`], [`Group`] |
//! | what happens meanwhile: events, metrics, snapshots | [`metrics`], [`Group::status`], [`ceiling::Status`] |
//! | what went wrong, and whether to try again | [`Error`], [`ErrorKind`], [`guide::failures`] |
//! | tests of your own stack, on a virtual clock | [`test_util`], [`guide::testing`] |
//! | what you have now | [`guide::migrating`] |
//!
//! # Features
//!
//! None is on by default. `coalesce`, `lazy-start`, `idle-evict` and `ceiling` are the layers; `http`,
//! `client` (hyper-util's), `process` and `grpc` are backends and what goes with them; `tokio` and `smol`
//! are runtimes; `tracing` and [`metrics`] tell what happens; `serde` serializes status and statistics; `util` is [`ServiceBuilderExt`], `test-util` is [`test_util`], `full` is all of them. The
//! example above needs `lazy-start`, `idle-evict`, `ceiling` and `tokio`.
#![forbid(unsafe_code)]
// Under loom only the modules it runs are built, by tests/loom.rs.
#![cfg(not(on_demand_loom))]
// The core serves whichever layers are built; with all of them, all of it is used.
#![cfg_attr(
    not(feature = "full"),
    allow(dead_code, rustdoc::broken_intra_doc_links)
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod busy;
#[cfg(feature = "ceiling")]
#[cfg_attr(docsrs, doc(cfg(feature = "ceiling")))]
pub mod ceiling;
mod clock;
#[cfg(feature = "coalesce")]
#[cfg_attr(docsrs, doc(cfg(feature = "coalesce")))]
pub mod coalesce;
#[cfg(feature = "process")]
mod counted;
mod error;
#[cfg(any(feature = "ceiling", feature = "lazy-start"))]
mod events;
#[cfg(feature = "lazy-start")]
mod group;
#[cfg(all(doc, feature = "full"))]
pub mod guide;
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
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub mod metrics;
mod notices;
mod runtime;
mod seldom;
#[cfg(feature = "serde")]
mod serialize;
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
    target::{Named, Queued, Room, Target, current_room},
    usage::Eviction,
};
#[cfg(feature = "lazy-start")]
#[cfg_attr(docsrs, doc(cfg(feature = "lazy-start")))]
pub use crate::{
    group::Group,
    keep::KeepLayer,
    keyed::{Keyed, KeyedLayer},
    lazy_start::{Handle, LazyStart, LazyStartLayer, StartTimes, State, Status},
};

/// The examples of the README are tests.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../README.md")]
mod readme {}

/// The programs of the cookbook are tests.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../docs/cookbook.md")]
mod cookbook {}
