//! What is about one connection, and stays there.

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version,
    header::{CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE},
};

const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Takes out of a request what is about the client's own connection, for proxies: RFC 9110, 7.6.1.
///
/// That is what `Connection` names, and `Connection`, `Keep-Alive`, `Proxy-Connection`, `Proxy-Authenticate`,
/// `Proxy-Authorization`, `Transfer-Encoding`, `Upgrade` and `TE`. What remains is an upgrade that is asked for over
/// HTTP/1.1, a WebSocket's, and `TE: trailers`, which gRPC wants. So after it the request has an `Upgrade` header just if it
/// asks for one.
///
/// A client can name any header in `Connection`: what a proxy says itself, `Forwarded` or a user's name, it
/// sets after this.
///
/// ```
/// use http::{Request, Response};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_on_demand::http::{strip_request, strip_response};
///
/// # futures_util::future::FutureExt::now_or_never(async {
/// let proxy = ServiceBuilder::new()
///     .map_request(|mut request: Request<String>| {
///         strip_request(&mut request);
///         request
///     })
///     .map_response(|mut response: Response<String>| {
///         strip_response(&mut response);
///         response
///     })
///     .service_fn(|request: Request<String>| async move {
///         assert!(!request.headers().contains_key("keep-alive"));
///         Response::builder().header("connection", "close").body(String::new())
///     });
///
/// let request = Request::get("/").header("keep-alive", "timeout=5").body(String::new()).unwrap();
/// let response = proxy.oneshot(request).await.unwrap();
/// assert!(response.headers().is_empty());
/// # }).unwrap();
/// ```
pub fn strip_request<B>(request: &mut Request<B>) {
    let asked = request.version() == Version::HTTP_11
        && tokens(request.headers(), &CONNECTION).any(|it| it.eq_ignore_ascii_case("upgrade"));
    strip(request.headers_mut(), asked);
}

/// Takes out of a response what is about the backend's own connection: as [`strip_request`].
///
/// What remains is the `Upgrade` of an answer that switches protocols (101).
pub fn strip_response<B>(response: &mut Response<B>) {
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    strip(response.headers_mut(), switched);
}

fn strip(headers: &mut HeaderMap, upgrades: bool) {
    let protocol = headers.get(UPGRADE).cloned().filter(|_| upgrades);
    let trailers = tokens(headers, &TE).any(|token| token.eq_ignore_ascii_case("trailers"));
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| token.parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove(TE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, headers: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(()).unwrap();
        strip_request(&mut request);
        told(request.headers())
    }

    fn response(status: u16, headers: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let mut response = response.body(()).unwrap();
        strip_response(&mut response);
        told(response.headers())
    }

    fn told(headers: &HeaderMap) -> Vec<String> {
        let lines = headers.iter();
        let mut lines: Vec<_> = lines
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_is_about_the_connection_does_not_pass_and_all_else_does() {
        let headers = [
            ("accept", "*/*"),
            ("connection", "close, X-Mine"),
            ("connection", "x-other"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic abc"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip"),
            ("x-mine", "1"),
            ("x-other", "2"),
            ("x-theirs", "3"),
        ];
        let kept = ["accept: */*", "x-theirs: 3"];
        assert_eq!(request(Version::HTTP_11, &headers), kept);
        assert_eq!(response(200, &headers), kept);
    }

    #[test]
    fn an_upgrade_passes_where_it_is_asked_for_and_where_it_is_granted() {
        let asks = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
        ];
        let kept = ["connection: upgrade", "upgrade: websocket"];
        assert_eq!(request(Version::HTTP_11, &asks), kept);
        assert_eq!(response(101, &asks), kept);
        // Not over HTTP/2, not by the one header alone, and not where it is only advertised.
        assert!(request(Version::HTTP_2, &asks).is_empty());
        assert!(request(Version::HTTP_11, &asks[1..]).is_empty());
        assert!(response(200, &asks).is_empty());
    }

    #[test]
    fn of_te_only_trailers_pass() {
        let headers = [("te", "gzip, Trailers"), ("connection", "te")];
        assert_eq!(request(Version::HTTP_2, &headers), ["te: trailers"]);
    }
}
