//! What a proxy owes to both sides: nothing of one connection leaks into the other.

use std::net::SocketAddr;

use http::{
    HeaderName, HeaderValue, Request, Response, Uri, Version,
    header::{self, EXPECT, HOST, LOCATION},
    uri::PathAndQuery,
};
use tower_on_demand::http::{strip_request, strip_response};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

/// `/films/2?x` is `films` and `/2?x`.
pub(crate) fn split(uri: &Uri) -> Option<(String, PathAndQuery)> {
    let path = uri.path().strip_prefix('/')?;
    let (name, rest) = path.split_once('/').unwrap_or((path, ""));
    let query = uri.query().map(|query| format!("?{query}"));
    let rest = format!("/{rest}{}", query.unwrap_or_default());
    Some((name.to_owned(), rest.parse().ok()?))
}

/// The request as `backend` gets it.
pub(crate) fn to_backend<B>(
    request: &mut Request<B>,
    backend: &str,
    path: PathAndQuery,
    peer: SocketAddr,
) {
    let host = match request.uri().authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => request.headers().get(HOST).cloned(),
    };
    *request.uri_mut() = Uri::from(path);
    strip_request(request);
    let headers = request.headers_mut();
    // It is answered here.
    headers.remove(EXPECT);
    // What a client says of these is not believed.
    let prefix = HeaderValue::from_str(&format!("/{backend}")).ok();
    let said = [
        (
            FORWARDED_FOR,
            HeaderValue::from_str(&peer.ip().to_string()).ok(),
        ),
        (FORWARDED_PROTO, Some(HeaderValue::from_static("http"))),
        (FORWARDED_HOST, host.clone()),
        (FORWARDED_PREFIX, prefix),
        (HOST, host),
    ];
    headers.remove(header::FORWARDED);
    for (name, value) in said {
        match value {
            Some(value) => drop(headers.insert(name, value)),
            None => drop(headers.remove(name)),
        }
    }
}

/// The response of `backend` as the client gets it.
pub(crate) fn to_client<B>(response: &mut Response<B>, backend: &str) {
    *response.version_mut() = Version::HTTP_11;
    strip_response(response);
    let headers = response.headers_mut();
    // A path of the backend's is a path below its name here.
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let path = location.filter(|at| at.starts_with('/') && !at.starts_with("//"));
    let path = path.and_then(|path| HeaderValue::from_str(&format!("/{backend}{path}")).ok());
    if let Some(path) = path {
        headers.insert(LOCATION, path);
    }
}
