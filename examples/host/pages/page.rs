//! `/_`: the page, whole in one answer.

use http::{HeaderValue, Response, StatusCode, header};

use super::{text, with_type};
use crate::host::Body;

const HTML: &str = include_str!("page.html");
const PARTS: [(&str, &str); 4] = [
    ("{page.css}", include_str!("page.css")),
    ("{words.js}", include_str!("words.js")),
    ("{strip.js}", include_str!("strip.js")),
    ("{page.js}", include_str!("page.js")),
];

pub(super) fn answer() -> Response<Body> {
    let nonce = match nonce() {
        Ok(nonce) => nonce,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut html = HTML.replace("{nonce}", &nonce);
    for (place, part) in PARTS {
        html = html.replace(place, part);
    }
    let mut response = with_type("text/html; charset=utf-8", html);
    // Nothing but the two kinds of tags that carry this nonce, and requests to here.
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// What nobody can guess, for one answer.
fn nonce() -> std::io::Result<String> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:032x}", u128::from_ne_bytes(random)))
}
