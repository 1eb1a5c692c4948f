//! `/_orders/<backend>/<what>`: what people tell a backend to do, from the page.
//!
//! Only with `--admin`, only by POST, and only from a page of this same origin. Whoever serves below this origin
//! can give orders too: every backend. And a name can be made to lead here by somebody else's DNS, so the host must
//! be called by its address, or `localhost`.

use std::{net::IpAddr, sync::Arc};

use http::{HeaderMap, Request, Response, StatusCode, Uri, header, uri::Authority};
use serde_json::{Value, json};
use tower_on_demand::{Error, ErrorKind, Handle, http::status};

use super::{json, text};
use crate::{
    feed::Kind,
    host::{Body, Host},
};

pub(super) async fn answer<B>(
    host: &Arc<Host>,
    request: &Request<B>,
    order: &str,
) -> Response<Body> {
    if !host.pages().admin {
        let why = "this host takes no orders: it was started without --admin";
        return text(StatusCode::FORBIDDEN, why.into());
    }
    if let Err(why) = is_from_here(request.uri(), request.headers()) {
        return text(StatusCode::FORBIDDEN, why.into());
    }
    let Some((name, what)) = order.split_once('/') else {
        return text(StatusCode::NOT_FOUND, "which order?".into());
    };
    let Some(handle) = host.group().handle(name) else {
        let error = Error::new(ErrorKind::Unknown).of(name);
        return told(what, Err(error));
    };
    let Some(given) = Order::from(what) else {
        let why = "orders are start, stop, reload, unload and load";
        return text(StatusCode::NOT_FOUND, why.into());
    };
    if let Value::Object(fields) = json!({ "backend": name, "order": what }) {
        host.feed().tell(Kind::Transition, "ordered", fields);
    }
    // It is carried out whether or not the one who gave it stays.
    told(what, given.carry_out(&handle).await)
}

enum Order {
    Start,
    Stop,
    Reload,
    Unload,
    Load,
}

impl Order {
    fn from(what: &str) -> Option<Self> {
        Some(match what {
            "start" => Self::Start,
            "stop" => Self::Stop,
            "reload" => Self::Reload,
            "unload" => Self::Unload,
            "load" => Self::Load,
            _ => return None,
        })
    }

    async fn carry_out(self, handle: &Handle) -> Result<(), Error> {
        match self {
            // People who press a button want what a call would get: room is made, and waited for.
            Self::Start => handle.start_evicting().await,
            Self::Stop => handle.stop().await,
            Self::Reload => match handle.reload(None).await {
                Err(error) if matches!(error.kind(), ErrorKind::NoRoom(room) if room.own) => {
                    handle.reload_in_place(None).await
                }
                reloaded => reloaded,
            },
            Self::Unload => handle.unload().await,
            Self::Load => {
                handle.load();
                Ok(())
            }
        }
    }
}

fn told(order: &str, done: Result<(), Error>) -> Response<Body> {
    match done {
        Ok(()) => json(StatusCode::OK, &json!({ "order": order, "done": true })),
        Err(error) => json(
            status(&error),
            &json!({ "order": order, "done": false, "error": format!("{error:#}") }),
        ),
    }
}

/// Whether a page of this very origin sent it.
fn is_from_here(uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
    let header = |name| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let called = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => header(header::HOST).unwrap_or(""),
    };
    if !is_address(called) {
        return Err("orders are taken only where the host is called by its address, or localhost");
    }
    match header(header::HeaderName::from_static("sec-fetch-site")) {
        None | Some("same-origin") => {}
        Some(_) => {
            return Err(
                "orders are taken only from the host's own page: Sec-Fetch-Site is another",
            );
        }
    }
    let origin = header(header::ORIGIN).ok_or("orders need an Origin")?;
    let here = origin
        .strip_prefix("http://")
        .or(origin.strip_prefix("https://"));
    if here.is_some_and(|here| here.eq_ignore_ascii_case(called)) {
        Ok(())
    } else {
        Err("orders are taken only from the host's own page: Origin is another")
    }
}

fn is_address(called: &str) -> bool {
    called.parse::<Authority>().is_ok_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
    })
}
