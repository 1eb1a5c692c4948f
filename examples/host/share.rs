//! Identical calls in flight are made once: which those are, and which answers all may have.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{
    HeaderName, Method, Request, Response,
    header::{
        ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST,
        IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, ORIGIN, RANGE,
        SET_COOKIE, UPGRADE, VARY,
    },
};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use tower_on_demand::Error;

use crate::host::{Body, boxed};

/// Longer answers are streamed, each to the one who asked.
const SMALL: u64 = 64 * 1024;

/// What makes two requests the same call, besides their URI.
const VARIANTS: [HeaderName; 5] = [HOST, ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, ORIGIN];

/// What makes a request its caller's own.
const OWN: [HeaderName; 9] = [
    AUTHORIZATION,
    COOKIE,
    RANGE,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    UPGRADE,
];

/// What two requests must have in common to be one call.
pub(crate) type Key = (String, [Option<Vec<u8>>; 5]);

/// `None` for requests that are their caller's own.
pub(crate) fn identity<B: http_body::Body>(request: &Request<B>) -> Option<Key> {
    let headers = request.headers();
    let own = OWN.iter().any(|name| headers.contains_key(name));
    if request.method() != Method::GET || own || !request.body().is_end_stream() {
        return None;
    }
    let variant = |name| headers.get(name).map(|value| value.as_bytes().to_vec());
    Some((request.uri().to_string(), VARIANTS.map(variant)))
}

/// A body that several callers may have, if it is small.
#[derive(Clone)]
pub(crate) enum Shared {
    Whole(Bytes),
    /// For the first who takes it.
    Own(Arc<Mutex<Option<Body>>>),
}

/// Reads a small body to its end.
pub(crate) async fn collected(response: Response<Body>) -> Result<Response<Shared>, Error> {
    let (parts, body) = response.into_parts();
    let body = match body.size_hint().exact() {
        Some(size) if size <= SMALL => {
            Shared::Whole(body.collect().await.map_err(Error::service)?.to_bytes())
        }
        _ => Shared::Own(Arc::new(Mutex::new(Some(body)))),
    };
    Ok(Response::from_parts(parts, body))
}

/// Whether all who asked the same may have this answer.
pub(crate) fn is_for_all(response: &Response<Shared>) -> bool {
    let control = response.headers().get(CACHE_CONTROL);
    let control = control.and_then(|value| value.to_str().ok()).unwrap_or("");
    let private = control.contains("private") || control.contains("no-store");
    let own = response.headers().contains_key(SET_COOKIE) || response.headers().contains_key(VARY);
    matches!(response.body(), Shared::Whole(_)) && !private && !own
}

impl Shared {
    pub(crate) fn into_body(self) -> Body {
        match self {
            Shared::Whole(bytes) => boxed(Full::new(bytes)),
            Shared::Own(body) => {
                let body = body.lock().unwrap_or_else(PoisonError::into_inner).take();
                body.unwrap_or_default()
            }
        }
    }
}
