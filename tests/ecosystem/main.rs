//! At home in the ecosystem: under tower's own parts, under hyper and axum, as the transport of
//! generated clients, and before clients that nobody here wrote.
#![cfg(feature = "full")]

mod asserts;
mod client;
mod foreign;
#[path = "../../examples/grpc/greeter.rs"]
#[allow(clippy::all, unreachable_pub, missing_docs)]
#[rustfmt::skip]
mod greeter;
mod grpc;
#[cfg(target_os = "linux")]
mod grpc_child;
mod grpc_server;
mod servers;
#[path = "../support/mod.rs"]
mod support;
mod tower_parts;
