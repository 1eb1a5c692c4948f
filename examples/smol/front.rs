//! hyper on smol: a server for any service, and calls over connections of their own.

use std::convert::Infallible;

use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, client, server};
use hyper_util::service::TowerToHyperService;
use smol::net::{SocketAddr, TcpListener, TcpStream};
use smol_hyper::rt::{FuturesIo, SmolTimer};

use crate::Error;

/// Serves HTTP/1.1 on `listener` until it is dropped, each connection by a clone of `service`.
pub(crate) async fn serve<S, B>(listener: TcpListener, service: S)
where
    S: tower::Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Error>,
{
    while let Ok((stream, _)) = listener.accept().await {
        let service = TowerToHyperService::new(service.clone());
        let connection = server::conn::http1::Builder::new()
            .timer(SmolTimer::new())
            .serve_connection(FuturesIo::new(stream), service);
        smol::spawn(async move {
            let _ = connection.await;
        })
        .detach();
    }
}

/// Sends `request` over a connection of its own.
pub(crate) async fn send<B>(
    to: SocketAddr,
    request: Request<B>,
) -> Result<Response<Incoming>, Error>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Error>,
{
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) = client::conn::http1::handshake(FuturesIo::new(stream)).await?;
    smol::spawn(async move {
        let _ = connection.await;
    })
    .detach();
    Ok(sender.send_request(request).await?)
}
