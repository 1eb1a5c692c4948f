//! What a proxy owes to both sides: nothing of one connection leaks into the other.

use std::net::SocketAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, Version,
    header::{self, CONNECTION, EXPECT, HOST, LOCATION, TE, UPGRADE},
    uri::PathAndQuery,
};

/// They are about one connection (RFC 9110, 7.6.1); and `Expect`, which is answered here.
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
];

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

/// The protocol that the client wants to switch to.
pub(crate) fn upgrade<B>(request: &Request<B>) -> Option<HeaderValue> {
    let mut tokens = tokens(request.headers(), &CONNECTION);
    let wanted = tokens.any(|token| token.eq_ignore_ascii_case("upgrade"));
    let upgrade = request.headers().get(UPGRADE)?;
    (wanted && request.version() == Version::HTTP_11).then(|| upgrade.clone())
}

/// The request as `backend` gets it.
pub(crate) fn to_backend<B>(
    request: &mut Request<B>,
    backend: &str,
    path: PathAndQuery,
    peer: SocketAddr,
    upgrade: Option<&HeaderValue>,
) {
    let host = match request.uri().authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => request.headers().get(HOST).cloned(),
    };
    *request.uri_mut() = Uri::from(path);
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
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
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    let protocol = headers.get(UPGRADE).cloned().filter(|_| switched);
    remove_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    // A path of the backend's is a path below its name here.
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let path = location.filter(|at| at.starts_with('/') && !at.starts_with("//"));
    let path = path.and_then(|path| HeaderValue::from_str(&format!("/{backend}{path}")).ok());
    if let Some(path) = path {
        headers.insert(LOCATION, path);
    }
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| token.parse().ok())
        .collect();
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove(TE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}
