//! The guide: from the problem to a stack of your own, and to its tests.
//!
//! There is nothing here but text, and each example in it runs as a test. It is built with the feature `full`.
//!
//! # The problem
//!
//! A host can reach many backends, and few of them are in use: forty plug-ins, a worker for each of a thousand
//! tenants, six models of which the machine holds two. To run all of them costs what all of them cost. To start
//! them by hand where they are called goes well until two callers come at once, until one start fails while
//! twenty wait for it, until the machine is full, or until a clean-up stops the one that was just being called.
//!
//! So a backend is started by its first call, once for all who wait; a ceiling bounds how many live, from before
//! they exist until nothing is left of them; and what nobody uses is stopped. Between a call and a stop decides one
//! atomic word, so that no policy ever cuts a call.
//!
//! # The picture
//!
//! ```text
//!    a request                                a start
//!        │
//!   Coalesce     same identity, one call
//!        │
//!   LazyStart ──────── nothing runs ──────┐
//!        │                                │
//!        │ it runs                    IdleEvict     counts use, retires what is idle
//!        │                                │
//!        │                             Ceiling      room: taken, made, or waited for
//!        │                                │
//!   the instance ◄────────────────── the maker      spawns, connects, opens
//! ```
//!
//! A *maker* is a `Service<Target>` that answers with a [`Backend`](crate::Backend): one *instance*. A *target* is what is
//! to be started, and has a name. A *lease* is what a call gets of an instance, and claims it.
//!
//! # A first stack in ten lines
//!
//! ```
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_on_demand::{DropToStop, LazyStartLayer, Runtime};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_on_demand::Error> {
//! let worker = ServiceBuilder::new()
//!     .layer(LazyStartLayer::new(Runtime::tokio(), "doubler"))
//!     .service(service_fn(|name: &'static str| async move {
//!         println!("starting {name}"); // once, however many call
//!         let serve = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(2 * n) });
//!         Ok::<_, std::io::Error>(DropToStop::new(serve))
//!     }));
//! assert_eq!(worker.clone().oneshot(21).await?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! That is a lazy start and nothing else: it is stopped when the last clone of `worker` is dropped. The
//! [crate's documentation](crate) has the same with a ceiling, an idle bound and an orderly end;
//! [`process`](crate::process) has it with a child process, [`grpc`](crate::grpc) with a channel.
//!
//! # The chapters
//!
//! | | |
//! |---|---|
//! | [`order`] | each layer's page, in which order they stand, and why |
//! | [`bounds`] | ceiling, wait, idle bound, time to ready, drain: how to pick each |
//! | [`life`] | the states of a backend, and what moves it from one to the next |
//! | [`in_use`] | what counts as use |
//! | [`failures`] | what the caller gets, when, and what to do |
//! | [`setup`] | which features and which runtime |
//! | [`testing`] | your own stack on a virtual clock |
//! | [`migrating`] | from tower's `Buffer` and `reconnect`, hyper-util's `Singleton`, other coalescing and bulkheads |
//!
//! Whole programs for common tasks are in `docs/cookbook.md` of the repository.

#[doc = include_str!("bounds.md")]
pub mod bounds {}
#[doc = include_str!("failures.md")]
pub mod failures {}
#[doc = include_str!("in_use.md")]
pub mod in_use {}
#[doc = include_str!("life.md")]
pub mod life {}
#[doc = include_str!("migrating.md")]
pub mod migrating {}
#[doc = include_str!("order.md")]
pub mod order {}
#[doc = include_str!("setup.md")]
pub mod setup {}
#[doc = include_str!("testing.md")]
pub mod testing {}
