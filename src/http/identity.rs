//! `SameRequest`: which HTTP requests are the same one.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, header,
    uri::{Authority, PathAndQuery},
};
use http_body::Body;

use crate::identity::Identity;

/// The request headers that a response may depend on without being anybody's own.
pub(super) const KEY_HEADERS: [HeaderName; 4] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::ORIGIN,
];

/// A request with one of these is about its caller, about a part, or about what its caller has.
const PERSONAL: [HeaderName; 10] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    header::RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
    header::UPGRADE,
];

/// Two `GET`s or two `HEAD`s that ask for the same thing, and say nothing of who asks.
///
/// The key is the method, the authority (of the URI, else `Host`), path and query, `Accept`,
/// `Accept-Encoding`, `Accept-Language` and `Origin`. Every other method passes by, and so does a request
/// with a body, with `Authorization`, `Proxy-Authorization`, `Cookie` or user information in its URI, with
/// `Range` or a condition (`If-…`), or with `Upgrade`.
///
/// Whatever else the response depends on must not be hidden from it: a backend that looks at other
/// headers says so in `Vary`, and [`is_shareable`](super::is_shareable) heeds that. Where one does not
/// (`X-Api-Key`, an identity that a proxy in front has put into a header of its own), use an identity of
/// your own that takes those headers into the key, or is `None` for such requests.
///
/// # What this layer sees
///
/// The key is of the request *as it comes to `Coalesce`*. If something above has taken the backend's name out of its path,
/// as axum's `Router::nest_service` does, two backends' requests look alike, and a caller of one would be given what the other
/// answered. So:
///
/// - what strips or rewrites the path stands *below* `Coalesce` (in axum: `Router::route_service`, which leaves the path as it is),
/// - or what tells the backends apart is in the key: [`CoalesceLayer::http_by`](crate::CoalesceLayer::http_by),
/// - or each backend has a `CoalesceLayer` of its own, and not a clone of one that another has: clones share their calls in flight.
///
/// ```
/// use http::Request;
/// use tower_on_demand::{Identity, http::SameRequest};
///
/// let get = |uri: &str| Request::get(uri).body(String::new()).unwrap();
/// let key = |request| SameRequest.identity(&request);
/// assert_eq!(key(get("http://a/b?c")), key(get("http://a/b?c")));
/// assert_ne!(key(get("http://a/b?c")), key(get("http://a/b?d")));
///
/// let mut mine = get("http://a/b?c");
/// mine.headers_mut().insert("cookie", "me=1".parse().unwrap());
/// assert_eq!(key(mine), None);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SameRequest;

/// The key that [`SameRequest`] gives: to forget, or to be a part of a key of your own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestKey {
    head: bool,
    authority: Option<HeaderValue>,
    path: PathAndQuery,
    headers: [Option<HeaderValue>; 4],
}

impl<B: Body> Identity<Request<B>> for SameRequest {
    type Key = RequestKey;

    fn identity(&self, request: &Request<B>) -> Option<RequestKey> {
        RequestKey::of(request)
    }
}

impl RequestKey {
    /// The key of `request`; `None` if it is nobody else's.
    pub fn of<B: Body>(request: &Request<B>) -> Option<Self> {
        let head = match *request.method() {
            Method::GET => false,
            Method::HEAD => true,
            _ => return None,
        };
        let headers = request.headers();
        if !request.body().is_end_stream()
            || announces_body(headers)
            || PERSONAL.iter().any(|name| headers.contains_key(name))
        {
            return None;
        }
        let authority = match request.uri().authority() {
            Some(authority) => Some(of_uri(authority)?),
            None => one(headers, &header::HOST)?,
        };
        Some(Self {
            head,
            authority,
            path: request.uri().path_and_query()?.clone(),
            headers: KEY_HEADERS.map(|name| joined(headers, &name)),
        })
    }
}

fn announces_body(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    headers.contains_key(header::TRANSFER_ENCODING) || lengths.any(|length| length != "0")
}

/// `None` if it names a user.
fn of_uri(authority: &Authority) -> Option<HeaderValue> {
    if authority.as_str().contains('@') {
        return None;
    }
    HeaderValue::from_str(authority.as_str()).ok()
}

/// The one value of a header that there may be but once.
fn one(headers: &HeaderMap, name: &HeaderName) -> Option<Option<HeaderValue>> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().cloned();
    values.next().is_none().then_some(value)
}

/// All values of a header, which mean the same as one with commas.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    let mut all = None;
    for value in values {
        let all = all.get_or_insert_with(|| first.as_bytes().to_vec());
        all.extend_from_slice(b", ");
        all.extend_from_slice(value.as_bytes());
    }
    let all = all.and_then(|all| HeaderValue::from_bytes(&all).ok());
    Some(all.unwrap_or_else(|| first.clone()))
}
