//! One owner per backend, with one linear lifecycle.
//!
//! ```text
//! wait for admission and make → publish → until retired, died or told to stop
//!     → unpublish → drain → stop → drop
//! ```
//!
//! The story is an async function on the executor ([`owner`]): it alone starts, publishes and stops.
//! Everybody else *asks*, by what they write on the backend's [`desk`]: callers take a ticket, handles leave
//! orders. The desk is the one lock of a backend; nothing of the user's runs under it.
//!
//! Callers of a running instance do not come to the desk. They borrow it from the published slot
//! ([`Core::borrow`](core::Core::borrow)). They know a backend by its lease alone ([`entrance`]).

pub(crate) mod attend;
pub(crate) mod backoff;
pub(crate) mod calling;
pub(crate) mod control;
pub(crate) mod core;
pub(crate) mod desk;
pub(crate) mod ending;
pub(crate) mod entrance;
pub(crate) mod instance;
pub(crate) mod lobby;
pub(crate) mod maker;
pub(crate) mod owner;
mod reload;
mod starting;
pub(crate) mod status;
mod stopping;

pub(crate) use self::core::Door;
