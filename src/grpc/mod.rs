//! gRPC, by tonic: channels and children as backends of generated clients, and errors as status.
//!
//! [`Connect`] is the maker: it connects to what tonic's `Endpoint` describes, and tonic's `Channel` is the
//! [`Backend`]. Children that serve gRPC are started by `process::Spawn::h2c()`, and [`health`] asks them whether
//! they are ready. [`StatusLayer`] turns errors into status. The whole is a transport for any generated client,
//! and [`Stack`] is its type, for your structs:
//!
//! ```
//! # #[cfg(feature = "full")]
//! # mod example {
//! # use tonic_health::pb::health_client::HealthClient as GreeterClient;
//! use std::time::Duration;
//! use tonic::transport::Endpoint;
//! use tower::ServiceBuilder;
//! use tower_on_demand::{CeilingLayer, IdleEvict, LazyStartLayer, Runtime, grpc, http::UntilBodyEnd};
//!
//! struct App {
//!     greeter: GreeterClient<grpc::Stack>,
//! }
//!
//! # pub fn app() -> App {
//! let runtime = Runtime::tokio();
//! let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
//! let ceiling = CeilingLayer::new(runtime.clone(), 8);
//!
//! let greeter = ServiceBuilder::new()
//!     .layer(grpc::StatusLayer::new().deadlines(runtime.clone()))
//!     .layer(LazyStartLayer::new(runtime.clone(), Endpoint::from_static("http://[::1]:50051")))
//!     .layer(evictable.idle_after(Duration::from_secs(900)))
//!     .layer(ceiling)
//!     .service(grpc::Connect::new());
//! runtime.spawn(idle_evict.run());
//!
//! let app = App { greeter: GreeterClient::new(greeter) };
//! # app
//! # }
//! # }
//! ```
//!
//! # What is use
//!
//! [`UntilBodyEnd`] keeps a backend in use until the trailers, an error or the drop of the
//! response: for unary calls, for server streams, and for streams in both directions, which end with the trailers
//! whatever the client may still want to send.
//!
//! # In front of a server
//!
//! A stack also serves calls that come over the network, as the fallback of an axum router, say. A channel takes
//! `tonic::body::Body`, so requests need a `map_request(|request| request.map(tonic::body::Body::new))` above it; children
//! take any.

mod code;
mod connect;
mod deadline;
#[cfg(all(feature = "process", unix))]
mod health;
mod status;

#[cfg(all(feature = "process", unix))]
#[cfg_attr(docsrs, doc(cfg(all(feature = "process", unix))))]
pub use self::health::health;
pub use self::{
    code::status,
    connect::{Connect, Connecting},
    status::{Status, StatusBody, StatusFuture, StatusLayer},
};
use crate::{backend::Backend, http::UntilBodyEnd, lazy_start::LazyStart, lease::Leased};

/// A stack for gRPC, as a type that can be named: [`StatusLayer`], `LazyStartLayer` and `IdleEvictLayer` with
/// [`UntilBodyEnd`], with or without a `CeilingLayer`, over [`Connect`].
///
/// `T` is the target's type, `B` the backend's: `grpc::Stack<process::Command, process::Client>` is the stack
/// over `process::Spawn::h2c()`.
///
/// [`Status::get_ref`] gives the [`LazyStart`] in it, with its handle and status.
pub type Stack<T = tonic::transport::Endpoint, B = tonic::transport::Channel> =
    Status<LazyStart<T, Leased<<B as Backend>::Lease, UntilBodyEnd>>>;
