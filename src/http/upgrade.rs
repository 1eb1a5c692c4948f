//! `InUse`: the use of a backend by an upgraded connection.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use crate::busy::Busy;

/// Keeps a backend in use for an upgraded connection: a WebSocket, a `CONNECT` tunnel.
///
/// It stands in the extensions of the answers that switch protocols (101, and 2xx to `CONNECT`) and
/// nowhere else. Take it out, or clone it, and let it live as long as the connection: the use ends
/// when the last clone is dropped. Left where it is, it ends with the response.
///
/// ```no_run
/// use tower_on_demand::http::InUse;
/// # use http::Response;
/// # async fn copy() {}
///
/// # async fn tunnel<B>(mut response: Response<B>) {
/// if let Some(mut in_use) = response.extensions_mut().remove::<InUse>() {
///     tokio::spawn(async move {
///         tokio::select! {
///             () = copy() => {}          // between the two upgraded connections
///             () = in_use.cut() => {}    // the backend is being stopped, and its drain is over
///         }
///     });
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the use ends when its last clone is dropped"]
pub struct InUse(Busy);

impl InUse {
    /// `shared` is one handle of a use that is [shared](Busy::share).
    pub(super) fn new(shared: Busy) -> Self {
        Self(shared)
    }

    /// Ready when the connection is to end now, since the drain of a deliberate stop is over.
    pub fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_cut(cx)
    }

    /// Waits until the connection is to end, since the drain of a deliberate stop is over. Most
    /// connections end before.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn cut(&mut self) {
        poll_fn(|cx| self.poll_cut(cx)).await;
    }
}

impl Clone for InUse {
    fn clone(&self) -> Self {
        Self(self.0.again())
    }
}
