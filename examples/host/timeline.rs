//! What happens, line by line, for people.

use std::time::Instant;

use tokio::sync::watch;

use crate::feed::{Feed, Told};

/// A clock that says what happens.
#[derive(Clone)]
pub(crate) struct Timeline {
    began: Instant,
    feed: Feed,
    /// The last event that was said.
    said: watch::Sender<u64>,
}

impl Timeline {
    pub(crate) fn new(feed: Feed) -> Self {
        Self {
            began: Instant::now(),
            feed,
            said: watch::Sender::new(0),
        }
    }

    /// Resolves when all that has happened until now is said.
    pub(crate) async fn caught_up(&self) {
        let last = self.feed.last();
        let mut said = self.said.subscribe();
        let _ = said.wait_for(|said| *said >= last).await;
    }

    /// One line about `who`.
    pub(crate) fn say(&self, who: &str, what: &str) {
        let at = self.began.elapsed().as_secs_f64();
        println!("{at:6.2} s  {who:<8} {what}");
    }

    /// Says what happens until nothing follows.
    pub(crate) async fn follow(self) {
        let mut news = self.feed.news();
        let mut last = 0;
        loop {
            let over = news.borrow_and_update().is_none();
            let events = self.feed.after(last, usize::MAX).events;
            for told in &events {
                if let (Some(who), Some(what)) = (told.text("backend"), sentence(told)) {
                    self.say(who, &what);
                }
                last = told.id;
            }
            self.said.send_replace(last);
            if events.is_empty() && (over || news.changed().await.is_err()) {
                return;
            }
        }
    }
}

/// What has happened to the backend; `None` for what is not worth a line.
fn sentence(told: &Told) -> Option<String> {
    let field = |name| told.text(name).unwrap_or("somebody");
    let error = || field("error");
    Some(match told.event.as_str() {
        "starting" => "is wanted".to_owned(),
        "waiting for room" => "needs room".to_owned(),
        "ready" => "runs".to_owned(),
        "start failed" => format!("did not start: {}", error()),
        "start refused" => format!("was not started: {}", error()),
        "died" => format!("died: {}", error()),
        "evicted" => match told.text("reason") {
            Some("idle") => "is stopped: nobody has used it".to_owned(),
            Some("room") => format!(
                "is stopped: it was the coldest, and {} needs its room",
                field("room_for")
            ),
            Some("yield") => format!("is stopped: {} has waited for its room", field("room_for")),
            _ => "is stopped: there are too many".to_owned(),
        },
        "ordered" => format!("is given an order: {}", field("order")),
        "reloaded" => "runs anew".to_owned(),
        "stop failed" => format!("does not stop: {}", error()),
        _ => return None,
    })
}
