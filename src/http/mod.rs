//! HTTP: what keeps a backend in use, and errors as responses.
//!
//! [`UntilBodyEnd`] is the hold for HTTP backends: a backend is in use until the response *body* is
//! done, not until its head is there. [`UntilBothEnd`] counts the request's body too. [`InUse`] is
//! the same for upgraded connections. [`StatusLayer`] turns errors into responses, for servers that
//! want services without errors; [`status`] and [`response`] are its two halves for handlers of your own.
//!
//! With the feature `client`, hyper-util's legacy `Client` is a [`Backend`](crate::Backend): each lease is a clone.

mod body;
#[cfg(feature = "client")]
mod client;
mod silence;
mod status;
mod upgrade;

#[cfg(all(test, feature = "test-util"))]
mod tests;

#[cfg(feature = "grpc")]
pub(crate) use self::status::Chain;
pub use self::{
    body::{BodyHold, InUseBody, UnlessSilent, UntilBodyEnd, UntilBothEnd},
    status::{Status, StatusBody, StatusFuture, StatusLayer, response, retry_after, status},
    upgrade::InUse,
};
