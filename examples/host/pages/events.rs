//! `/_events`: what happens, as server-sent events.

use std::{convert::Infallible, sync::Arc};

use axum::response::{IntoResponse, sse::Sse};
use futures_util::stream;
use http::{Request, Response, StatusCode};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::{
    reader::{AHEAD, follow},
    text,
};
use crate::host::{Body, Host, boxed};

/// How many may follow at once.
const READERS: usize = 64;

/// Places for those who follow.
pub(crate) struct Readers(Arc<Semaphore>);

impl Readers {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(READERS)))
    }
}

/// What is kept of the past, from `Last-Event-ID` on, and then what happens.
pub(super) fn answer<B>(host: &Host, request: &Request<B>, cut: &Arc<Notify>) -> Response<Body> {
    let Ok(place) = host.pages().readers.0.clone().try_acquire_owned() else {
        let why = format!("{READERS} follow already");
        return text(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    let feed = host.feed().clone();
    let last = request.headers().get("last-event-id");
    let last = last.and_then(|name| name.to_str().ok());
    let last = last.map_or(0, |name| feed.id(name));
    let (events, read) = mpsc::channel(AHEAD);
    let cut = cut.clone();
    tokio::spawn(async move {
        follow(feed, last, events, cut).await;
        drop(place);
    });
    let events = stream::unfold(read, |mut read| async move {
        let event = read.recv().await?;
        Some((Ok::<_, Infallible>(event), read))
    });
    Sse::new(events).into_response().map(boxed)
}
