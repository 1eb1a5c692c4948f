//! Upgraded connections: WebSockets, for one.

use http::{Request, Response, StatusCode};
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, on},
};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tower_on_demand::http::InUse;

/// The client's side of a connection that may be upgraded.
pub(crate) struct Tunnel(OnUpgrade);

impl Tunnel {
    pub(crate) fn from_client(request: &mut Request<Incoming>) -> Self {
        Self(on(request))
    }

    /// Joins it to the backend's side, if that has agreed.
    pub(crate) fn join<B>(self, response: &mut Response<B>) {
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        // The backend is in use for as long as the connection lasts, wherever that goes.
        let in_use = response.extensions_mut().remove::<InUse>();
        let backend = on(response);
        tokio::spawn(async move {
            let copied = copy(self.0, backend, in_use).await;
            if let Err(error) = copied {
                tracing::debug!(%error, "upgraded connection");
            }
        });
    }
}

async fn copy(
    client: OnUpgrade,
    backend: OnUpgrade,
    in_use: Option<InUse>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (client, backend) = tokio::try_join!(client, backend)?;
    let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
    let stopped = async {
        match in_use {
            Some(mut in_use) => in_use.cut().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        copied = copy_bidirectional(&mut client, &mut backend) => drop(copied?),
        () = stopped => {}
    }
    Ok(())
}
