//! HTTP: what keeps a backend in use, and errors as responses.
//!
//! [`UntilBodyEnd`] is the hold for HTTP backends: a backend is in use until the response *body* is
//! done, not until its head is there. [`UntilBothEnd`] counts the request's body too. [`InUse`] is
//! the same for upgraded connections. [`StatusLayer`] turns errors into responses, for servers that
//! want services without errors; [`status`] and [`response`] are its two halves for handlers of your own.
//!
//! Headers pass as they are. A proxy for strangers takes out those that are about one connection, by
//! [`strip_request`] and [`strip_response`].
//!
//! With the feature `coalesce`, [`CoalesceLayer::http`](crate::CoalesceLayer::http) shares what is safe to share, and
//! [`ShareBodyLayer`] lets several callers read one streamed body.
//!
//! With the feature `lazy-start`, [`ProgressPageLayer`] shows browsers that wait for a start how it goes, and
//! [`OnDemandHeaderLayer`] says in the answers of cold calls what their start took.
//!
//! With the feature `client`, hyper-util's legacy `Client` is a [`Backend`](crate::Backend): each lease is a clone.
//!
//! # In axum
//!
//! A stack with [`StatusLayer`] on top is what a router takes. At the end the server finishes what it has
//! begun, then the group stops what is left:
//!
//! ```no_run
//! # #[cfg(feature = "full")]
//! # async fn run() -> std::io::Result<()> {
//! use std::time::Duration;
//!
//! use tower::ServiceBuilder;
//! use tower_on_demand::{
//!     Group, IdleEvict, LazyStartLayer, Runtime,
//!     http::{StatusLayer, UntilBodyEnd},
//!     process::{Command, Spawn},
//! };
//!
//! let runtime = Runtime::tokio();
//! let group = Group::new();
//! let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
//! runtime.spawn(idle_evict.run());
//!
//! let command = Command::new("files", "python3").args(["-m", "http.server", "{port}"]);
//! let files = ServiceBuilder::new()
//!     .layer(StatusLayer::new())
//!     .layer(LazyStartLayer::new(runtime, command).join(&group))
//!     .layer(evictable.idle_after(Duration::from_secs(900)))
//!     .service(Spawn::http());
//!
//! let app = axum::Router::new().nest_service("/files", files); // the child gets `/a` of `/files/a`
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! axum::serve(listener, app).with_graceful_shutdown(stop).await?;
//! group.stopped(Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```
//!
//! `with_graceful_shutdown` waits for the calls in flight without a bound, and the drain of `stopped` begins only then. Where clients hold
//! streams, bound both, as the cookbook's "Deploy without losing a call" does.
//!
//! With `route_service("/files/{*path}", …)` the child gets the path as it came. With a
#![cfg_attr(feature = "coalesce", doc = "[`CoalesceLayer`](crate::CoalesceLayer)")]
#![cfg_attr(not(feature = "coalesce"), doc = "`CoalesceLayer`")]
//! over several backends that is what you want, or they look alike to it.

mod answer;
mod body;
#[cfg(feature = "client")]
mod client;
#[cfg(feature = "coalesce")]
mod coalesce;
#[cfg(feature = "lazy-start")]
mod header;
mod hops;
#[cfg(feature = "coalesce")]
mod identity;
#[cfg(feature = "lazy-start")]
mod page;
#[cfg(feature = "lazy-start")]
mod progress;
#[cfg(feature = "coalesce")]
mod share_body;
mod silence;
mod status;
mod upgrade;

#[cfg(all(test, feature = "test-util"))]
mod tests;

#[cfg(feature = "grpc")]
pub(crate) use self::answer::Chain;
pub use self::{
    answer::{response, retry_after, status},
    body::{BodyHold, InUseBody, UnlessSilent, UntilBodyEnd, UntilBothEnd},
    hops::{strip_request, strip_response},
    status::{Status, StatusBody, StatusFuture, StatusLayer},
    upgrade::InUse,
};
#[cfg(feature = "coalesce")]
#[cfg_attr(docsrs, doc(cfg(feature = "coalesce")))]
pub use self::{
    coalesce::{Flight, ShareSafe, is_shareable},
    identity::{RequestKey, SameRequest},
    share_body::{ShareBody, ShareBodyFuture, ShareBodyLayer, SharedBody},
};
#[cfg(feature = "lazy-start")]
#[cfg_attr(docsrs, doc(cfg(feature = "lazy-start")))]
pub use self::{
    header::{OnDemandHeader, OnDemandHeaderFuture, OnDemandHeaderLayer},
    progress::{ProgressPage, ProgressPageFuture, ProgressPageLayer},
};
