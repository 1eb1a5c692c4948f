//! One request, on its way to a backend and back.

use std::{net::SocketAddr, sync::Arc};

use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::Notify;
use tower::ServiceExt;
use tower_on_demand::Error;

use crate::{
    headers,
    host::{Body, Host, boxed},
    pages,
    tunnel::Tunnel,
    upload::{Silent, Upload},
};

/// Errors are for the `StatusLayer` above; `cut` ends the connection.
pub(crate) async fn call(
    host: Arc<Host>,
    peer: SocketAddr,
    cut: Arc<Notify>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let (name, path) = match headers::split(request.uri()) {
        Some((name, _)) if name.starts_with('_') => {
            return Ok(pages::answer(&host, &request, &cut).await);
        }
        Some((name, path)) if !name.is_empty() => (name, path),
        _ => return Ok(index(&host)),
    };
    let backend = host.backend(&name)?;

    headers::to_backend(&mut request, &name, path, peer);
    // The client wants to switch protocols.
    let upgrade = request.headers().contains_key(header::UPGRADE);
    let tunnel = upgrade.then(|| Tunnel::from_client(&mut request));
    let pause = host.upload_pause();
    let request = request.map(|body| Upload::new(body, pause));

    let mut response = match backend.oneshot(request).await {
        Ok(response) => response,
        Err(error) => {
            if let Some(silent) = Silent::cause_of(&error) {
                let text = format!("{silent}\n");
                return Ok(text_response(StatusCode::REQUEST_TIMEOUT, text));
            }
            tracing::debug!(backend = name, "{error:#}");
            return Err(error.of(name));
        }
    };
    if let Some(tunnel) = tunnel {
        tunnel.join(&mut response);
    }
    headers::to_client(&mut response, &name);
    Ok(response)
}

/// Who runs.
fn index(host: &Host) -> Response<Body> {
    let mut text = String::new();
    for status in host.group().status() {
        let line = format!(
            "{:<12} {:<10} {} starts, {} evictions, {} calls in flight\n",
            status.name,
            format!("{:?}", status.state),
            status.starts,
            status.evictions,
            status.in_flight.unwrap_or(0),
        );
        text.push_str(&line);
    }
    text.push_str("\n/_ shows what runs, what waits, and why something was stopped\n");
    text_response(StatusCode::OK, text)
}

fn text_response(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(boxed(Full::from(text)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-store"),
    );
    response
}
