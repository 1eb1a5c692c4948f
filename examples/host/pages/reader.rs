//! One who follows the feed: told all of it in order, and let go if he does not keep up.

use std::{sync::Arc, time::Duration};

use axum::response::sse::Event;
use tokio::{
    sync::{Notify, mpsc},
    time::{sleep, timeout},
};

use crate::feed::Feed;

/// How many events are on their way to one reader, beyond what the kernel takes.
pub(crate) const AHEAD: usize = 64;
/// How long he may take no event.
pub(crate) const SLOW: Duration = Duration::from_secs(10);
/// So often something is sent at least.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(10);
/// When he comes back if he has lost the connection.
const AGAIN: Duration = Duration::from_secs(1);

/// He has left, or was too slow.
struct Lost;

/// Tells what comes after the event `last`, until the reader has left or nothing follows.
///
/// `cut` is told when he is too slow: a body that nobody reads is not asked for more, so that only the end of its
/// connection lets go of it.
pub(crate) async fn follow(
    feed: Feed,
    mut last: u64,
    events: mpsc::Sender<Event>,
    cut: Arc<Notify>,
) {
    let send = async |event| match timeout(SLOW, events.send(event)).await {
        Ok(sent) => sent.map_err(|_| Lost),
        Err(_) => {
            cut.notify_one();
            Err(Lost)
        }
    };
    let mut news = feed.news();
    let mut sent = send(Event::default().retry(AGAIN).comment("what happens")).await;
    while sent.is_ok() {
        let over = news.borrow_and_update().is_none();
        let passage = feed.after(last, AHEAD);
        if passage.gap {
            sent = send(Event::default().data(r#"{"event":"gap"}"#)).await;
        }
        for told in &passage.events {
            last = told.id;
            if let (Ok(()), Ok(event)) = (&sent, Event::default().json_data(&**told)) {
                sent = send(event.id(feed.name(last))).await;
            }
        }
        if sent.is_err() || !passage.events.is_empty() {
            continue;
        }
        if over {
            return;
        }
        tokio::select! {
            _ = news.changed() => {}
            () = events.closed() => return,
            () = sleep(HEARTBEAT) => sent = send(Event::default().comment("")).await,
        }
    }
}
