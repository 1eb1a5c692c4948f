//! `Connect`: the maker of channels, and `Channel` as a backend.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tonic::transport::{Channel, Endpoint};
use tower_service::Service;

use crate::{
    backend::Backend,
    error::{Error, ErrorKind},
    target::{Named, Target},
};

/// Connects to gRPC servers: a `MakeService` whose target is tonic's [`Endpoint`] and whose answer is a
/// [`Channel`].
///
/// A start is one attempt to connect, within the endpoint's own
/// [`connect_timeout`](Endpoint::connect_timeout) if it has one. Once it is connected, the channel
/// reconnects by itself when the connection is lost, so it is never retired for that: what is started
/// and stopped is the channel. It has no state and is always ready.
///
/// Channels belong to tokio: unless the endpoint has an executor of its own, the future must run on a tokio runtime.
///
/// # Errors
///
/// [`StartFailed`](ErrorKind::StartFailed), with tonic's error as its source.
///
/// # Cancel safety
///
/// Dropping the future ends the attempt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Connect(());

impl Connect {
    /// The maker.
    pub const fn new() -> Self {
        Self(())
    }
}

impl Service<Endpoint> for Connect {
    type Response = Channel;
    type Error = Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, endpoint: Endpoint) -> Connecting {
        Connecting(Box::pin(async move {
            let connected = endpoint.connect().await;
            connected.map_err(|error| Error::new(ErrorKind::StartFailed).because(error))
        }))
    }
}

impl Service<Named<Endpoint>> for Connect {
    type Response = Channel;
    type Error = Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, endpoint: Named<Endpoint>) -> Connecting {
        self.call(endpoint.into_inner())
    }
}

/// A connection being made: the future of [`Connect`].
#[must_use = "futures do nothing unless polled"]
pub struct Connecting(Pin<Box<dyn Future<Output = Result<Channel, Error>> + Send>>);

impl Future for Connecting {
    type Output = Result<Channel, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}

/// The name is host and port. Endpoints on Unix sockets are all named `tonic`: give them a name by
/// [`Named`], or by `LazyStartLayer::name`.
impl Target for Endpoint {
    fn name(&self) -> &str {
        self.uri().authority().map_or("grpc", |host| host.as_str())
    }
}

/// tonic's channel. Each lease is a clone; when the last one is dropped, and the last stream has ended, its
/// connection is closed.
///
/// It counts no uses itself: an `IdleEvict` above it does, with
/// [`UntilBodyEnd`](crate::http::UntilBodyEnd) until the trailers, and otherwise `LazyStart` does, until
/// the head of the response.
impl Backend for Channel {
    type Lease = Self;

    fn lease(&self) -> Self {
        self.clone()
    }
}
