//! What the host shows of itself, below `/_`. None of it starts anything, or takes room.
//!
//! ```text
//! /_                         the page to look at
//! /_status                   all there is to know now, as JSON
//! /_events                   what happens, as server-sent events; the last ones first
//! /_metrics                  for Prometheus
//! /_orders/<backend>/<what>  POST, with --admin: start, stop, reload, unload, load
//! ```
//!
//! A backend's name cannot begin with `_` here, so none of them hides a backend.

mod events;
mod metrics;
mod orders;
mod page;
mod reader;
mod status;

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use tokio::sync::Notify;

pub(crate) use self::{events::Readers, metrics::Metrics, status::Usages};
use crate::host::{Body, Host, boxed};

/// What the pages have beside the backends.
pub(crate) struct Pages {
    /// Whether orders are taken.
    pub(crate) admin: bool,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) readers: Readers,
    pub(crate) usages: Usages,
}

impl Pages {
    pub(crate) fn new(admin: bool, metrics: Option<Metrics>) -> Self {
        Self {
            admin,
            metrics,
            readers: Readers::new(),
            usages: Usages::default(),
        }
    }
}

/// The answer to a request below `/_`. `cut` ends its connection.
pub(crate) async fn answer<B>(
    host: &Arc<Host>,
    request: &Request<B>,
    cut: &Arc<Notify>,
) -> Response<Body> {
    let path = request.uri().path();
    let mut response = if let Some(order) = path.strip_prefix("/_orders/") {
        match *request.method() {
            Method::POST => orders::answer(host, request, order).await,
            _ => refused(
                StatusCode::METHOD_NOT_ALLOWED,
                "orders are given by POST",
                "POST",
            ),
        }
    } else {
        let get = matches!(*request.method(), Method::GET | Method::HEAD);
        match path {
            "/_" | "/_/" | "/_status" | "/_events" | "/_metrics" if !get => refused(
                StatusCode::METHOD_NOT_ALLOWED,
                "this is only to be looked at",
                "GET, HEAD",
            ),
            "/_" | "/_/" => page::answer(),
            "/_status" => status::answer(host).await,
            "/_events" => events::answer(host, request, cut),
            "/_metrics" => metrics::answer(host).await,
            _ => text(
                StatusCode::NOT_FOUND,
                "what begins with /_ is the host's own; there are /_, /_status, /_events, /_metrics and /_orders".into(),
            ),
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (
            header::HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let caching = headers.entry(header::CACHE_CONTROL);
    caching.or_insert(HeaderValue::from_static("no-store"));
    response
}

fn with_type(kind: &'static str, content: String) -> Response<Body> {
    let mut response = Response::new(boxed(Full::from(content)));
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn text(status: StatusCode, mut text: String) -> Response<Body> {
    text.push('\n');
    let mut response = with_type("text/plain; charset=utf-8", text);
    *response.status_mut() = status;
    response
}

fn refused(status: StatusCode, why: &str, allow: &'static str) -> Response<Body> {
    let mut response = text(status, why.to_owned());
    let allow = HeaderValue::from_static(allow);
    response.headers_mut().insert(header::ALLOW, allow);
    response
}

fn json(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    let mut response = with_type("application/json", format!("{value}\n"));
    *response.status_mut() = status;
    response
}
