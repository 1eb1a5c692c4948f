//! Workloads of a Kubernetes cluster that run only while somebody needs them, under the layers of
//! [`tower_on_demand`].
//!
//! When one machine is too small for its backends they become workloads of a cluster, and the same stack stands
//! in front: [`Scale`] is its maker. The first call scales a workload from zero up and waits until an endpoint
//! is ready; when nobody has used it for a while it is scaled to zero again. Where pods run is the scheduler's
//! business.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_on_demand::{CeilingLayer, IdleEvict, LazyStartLayer, Runtime, http::UntilBodyEnd};
//! use tower_on_demand_kubernetes::{Scale, Workload};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let client = kube::Client::try_default().await?;
//! let runtime = Runtime::tokio();
//! let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
//! runtime.spawn(idle_evict.run());
//!
//! let films = ServiceBuilder::new()
//!     .layer(LazyStartLayer::new(runtime.clone(), Workload::deployment("media", "films")))
//!     .layer(evictable.idle_after(Duration::from_secs(900)))
//!     .layer(CeilingLayer::new(runtime, 50))
//!     .service(Scale::http(client));
//!
//! let request = http::Request::get("/").body(String::new())?;
//! let response = films.oneshot(request).await?;
//! # drop(response);
//! # Ok(())
//! # }
//! ```
//!
//! `KeyedLayer` above it fronts workloads that are known by a key of the request, a tenant's say, and
//! `Scale::http` may be another protocol's: see [`Scale::new`].
//!
//! # What is asked of the API server
//!
//! | when | calls |
//! |---|---|
//! | a start | `get` and `patch` of the scale subresource; `list` and `watch` of the EndpointSlices of the Service, of the workload and of its pods, the last until it is ready |
//! | while it runs | two watches, and nothing else: nothing is polled |
//! | a stop | `get` and `patch` of the scale subresource; `list` and `watch` of its pods, until they are gone |
//!
//! Several hosts in front of the same workloads need a few more: [`hosts`]. The least rights that do are in
//! `rbac/` of this crate. A call that fails for a reason that passes (no connection, 429, 5xx) is made again,
//! with a growing pause. What runs goes on serving while the API server is away. A watch
//! whose connection was lost without a word is noticed after 295 s, as kube has it. What is done in the background
//! is told by `tracing`, with the target `tower_on_demand::kubernetes`.
//!
//! # Who else may scale
//!
//! Anybody. What somebody scales to zero is retired, and the next call starts it again. What somebody, or a
//! HorizontalPodAutoscaler, scales further up is used as it is, and scaled to zero once nobody calls it any
//! more; unless it was scaled up since we looked last, which is taken for a wish that it stay.
//!
//! # What ends a start early
//!
//! [`Failure`] has the list: images that cannot be pulled, crash loops, missing Secrets, a quota, a rollout
//! without progress. A cluster without room is a refusal
//! ([`NoRoom`](tower_on_demand::ErrorKind::NoRoom)), as that of a ceiling.
//!
//! # Versions
//!
//! `k8s-openapi` wants its users to choose the API's version: put `k8s-openapi` with a feature `v1_xx` or
//! `latest` into your own dependencies, and `kube` with the TLS that you want. Rust 1.89, for kube; tokio.
//!
//! # Features
//!
//! `test-util`: a fake API server, to test your own stack without a cluster. Not on by default.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod endpoints;
mod failure;
pub mod hosts;
mod http;
mod instance;
mod keeper;
mod scale;
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub mod test_util;
mod watching;
mod workload;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use crate::{
    endpoints::Endpoints,
    failure::Failure,
    http::{Calling, Http},
    scale::{Scale, Scaled, Starting},
    workload::Workload,
};
