//! Heads of requests: which of them are the same, and what of them a proxy passes on.

use std::collections::BTreeSet;

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version, header};
use http_body_util::Empty;
use proptest::{collection::vec, prelude::*, sample::select};
use tower_on_demand::http::RequestKey;

use crate::{headers, holds};

type Body = Empty<bytes::Bytes>;

fn name() -> impl Strategy<Value = HeaderName> {
    let known = [
        "accept",
        "accept-encoding",
        "accept-language",
        "origin",
        "host",
        "authorization",
        "cookie",
        "range",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "if-range",
        "upgrade",
        "proxy-authorization",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "keep-alive",
        "expect",
        "forwarded",
        "x-forwarded-for",
        "x-api-key",
    ];
    let any =
        "[a-z][a-z0-9-]{0,8}".prop_map(|name| HeaderName::from_bytes(name.as_bytes()).unwrap());
    prop_oneof![4 => select(known.map(HeaderName::from_static).to_vec()), 1 => any]
}

fn header_value() -> impl Strategy<Value = HeaderValue> {
    let known = [
        "",
        "0",
        "5",
        "a",
        "close",
        "keep-alive, x-api-key",
        "upgrade",
        "trailers",
        "trailers, deflate",
        ",,",
        "websocket",
        "chunked",
        "localhost",
        "me@localhost",
        "/x",
        "//x",
        "http://x/",
    ];
    let any =
        vec(any::<u8>(), 0..6).prop_filter_map("no value", |it| HeaderValue::from_bytes(&it).ok());
    prop_oneof![3 => select(known.map(HeaderValue::from_static).to_vec()), 1 => any]
}

fn uri() -> impl Strategy<Value = Uri> {
    let known = [
        "/",
        "/a",
        "/a/",
        "/a/b?c",
        "/a?b=/c/d",
        "//",
        "//a/b",
        "*",
        "http://x/a/b",
        "http://me@x/a",
        "http://x",
        "x:80",
        "/a/%2e%2e/b",
        "/a//b",
        "/?",
    ];
    let any = "/[a-z/%?.=]{0,10}".prop_filter_map("no uri", |it| it.parse().ok());
    prop_oneof![2 => select(known.map(Uri::from_static).to_vec()), 1 => any]
}

fn request() -> impl Strategy<Value = Request<Body>> {
    let method = prop_oneof![
        6 => Just(Method::GET),
        2 => Just(Method::HEAD),
        1 => select(vec![Method::POST, Method::CONNECT, Method::OPTIONS]),
    ];
    let headers = prop_oneof![1 => Just(Vec::new()), 3 => vec((name(), header_value()), 0..4)];
    (method, uri(), headers).prop_map(|(method, uri, headers)| {
        let mut request = Request::new(Body::new());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        request
            .headers_mut()
            .extend(headers.into_iter().map(|(name, value)| (Some(name), value)));
        request
    })
}

/// All values of a header, with the commas that mean the same.
fn all(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let values: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    (!values.is_empty()).then(|| values.join(&b", "[..]))
}

#[test]
fn c17_only_what_is_nobodys_own_has_an_identity_and_what_differs_has_another() {
    holds(6000, (request(), request()), |(one, other)| {
        let [a, b] = [&one, &other].map(RequestKey::of);
        assert_eq!(a, RequestKey::of(&one), "it is the same for the same");
        if a.is_some() {
            assert!([Method::GET, Method::HEAD].contains(one.method()));
            let own = [
                "authorization",
                "proxy-authorization",
                "cookie",
                "range",
                "if-match",
                "if-none-match",
                "if-modified-since",
                "if-unmodified-since",
                "if-range",
                "upgrade",
                "transfer-encoding",
            ];
            for name in own {
                assert!(!one.headers().contains_key(name), "{name}");
            }
            let named = one.uri().authority();
            assert!(!named.is_some_and(|authority| authority.as_str().contains('@')));
            let lengths = one.headers().get_all("content-length").iter();
            assert!(lengths.into_iter().all(|length| length == "0"));
        }
        if a.is_some() && a == b {
            assert_eq!(one.method(), other.method());
            assert_eq!(one.uri().path_and_query(), other.uri().path_and_query());
            for name in ["accept", "accept-encoding", "accept-language", "origin"] {
                let name = HeaderName::from_static(name);
                assert_eq!(all(one.headers(), &name), all(other.headers(), &name));
            }
            let host = |request: &Request<Body>| match request.uri().authority() {
                Some(authority) => Some(authority.as_str().as_bytes().to_vec()),
                None => all(request.headers(), &header::HOST),
            };
            assert_eq!(host(&one), host(&other));
        }
        a.is_some()
    });
}

#[test]
fn nothing_of_one_connection_passes_the_host_into_another() {
    let peer = "192.0.2.1:9".parse().unwrap();
    holds(
        4000,
        (request(), header_value()),
        |(mut request, location)| {
            let Some((backend, path)) = headers::split(request.uri()) else {
                return false;
            };
            assert!(!backend.contains('/') && path.as_str().starts_with('/'));
            let connection = all(request.headers(), &header::CONNECTION).unwrap_or_default();
            let connection = String::from_utf8_lossy(&connection).to_ascii_lowercase();
            let named: BTreeSet<_> = connection.split(',').map(str::trim).collect();
            let asks = |value: &HeaderValue| {
                let mut tokens = value.to_str().unwrap_or_default().split(',');
                tokens.any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
            };
            let asked = request.version() == Version::HTTP_11
                && request.headers().contains_key("upgrade")
                && request.headers().get_all("connection").iter().any(asks);
            headers::to_backend(&mut request, &backend, path.clone(), peer);
            assert_eq!(request.uri().path_and_query(), Some(&path));
            assert_eq!(request.uri().authority(), None);
            let sent = request.headers();
            for name in [
                "keep-alive",
                "proxy-authorization",
                "transfer-encoding",
                "expect",
                "forwarded",
            ] {
                assert!(!sent.contains_key(name), "{name}");
            }
            assert_eq!(sent.contains_key("upgrade"), asked);
            assert_eq!(sent.contains_key("connection"), asked);
            assert!(!(named.contains("x-api-key") && sent.contains_key("x-api-key")));
            assert_eq!(
                sent.get_all("x-forwarded-for").iter().collect::<Vec<_>>(),
                ["192.0.2.1"]
            );
            assert!(sent.get_all("host").iter().count() <= 1);
            assert!(sent.get("te").is_none_or(|te| te == "trailers"));

            let mut response = Response::new(());
            *response.headers_mut() = sent.clone();
            response
                .headers_mut()
                .insert(header::LOCATION, location.clone());
            headers::to_client(&mut response, &backend);
            let answered = response.headers();
            assert!(!answered.contains_key("upgrade") && !answered.contains_key("connection"));
            let told = answered[header::LOCATION].as_bytes();
            assert!(
                told == location.as_bytes()
                    || told == [b"/", backend.as_bytes(), location.as_bytes()].concat()
            );
            true
        },
    );
}
