//! hyper-util's `Client` as a backend.

use hyper_util::client::legacy::Client;

use crate::backend::Backend;

/// hyper-util's pooling client: what it holds, its connections, is what is started and stopped.
///
/// Each lease is a clone. When the last clone is dropped, and the last body read, its connections are
/// closed. It counts no uses itself: an `IdleEvict` above it does, with the hold it is given
/// ([`UntilBodyEnd`](crate::http::UntilBodyEnd) here), and otherwise `LazyStart` does, until the head of
/// the response.
///
/// ```
/// use std::convert::Infallible;
/// use http_body_util::Empty;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use tower::{ServiceBuilder, service_fn};
/// use tower_on_demand::{IdleEvict, LazyStartLayer, Runtime, http::UntilBodyEnd};
///
/// let runtime = Runtime::tokio();
/// let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
/// let upstream = ServiceBuilder::new()
///     .layer(LazyStartLayer::new(runtime, "upstream"))
///     .layer(evictable)
///     .service(service_fn(|_: &'static str| async {
///         let client = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
///         Ok::<_, Infallible>(client)
///     }));
/// # let _ = (upstream, idle_evict);
/// ```
impl<C, B> Backend for Client<C, B>
where
    C: Clone + Send + Sync + 'static,
    B: Send + 'static,
{
    type Lease = Self;

    fn lease(&self) -> Self {
        self.clone()
    }
}
