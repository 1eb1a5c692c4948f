//! `/_events`: what happens, told to whoever follows.

use std::{sync::Arc, time::Duration};

use axum::response::{IntoResponse, sse::Sse};
use bytes::Bytes;
use futures_util::{future::join_all, stream};
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Map, Value, json};
use tokio::{
    net::TcpStream,
    sync::{Notify, mpsc},
    time::{Instant, timeout},
};

use crate::{
    feed::{Feed, Kind},
    reader::{AHEAD, HEARTBEAT, SLOW, follow},
    support::{Host, LONG, demo},
};

/// Who follows a host.
struct Follower {
    body: hyper::body::Incoming,
    text: String,
}

impl Follower {
    /// From the event with this name on.
    async fn of(host: &Host, last: Option<&str>) -> Self {
        let mut request = Request::get(host.url("/_events"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let answer = host.send(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Self {
            body: answer.into_body(),
            text: String::new(),
        }
    }

    /// The next event, and its name; `None` once nothing follows.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = event.lines();
                    lines
                        .find_map(|line| line.strip_prefix(name))
                        .map(str::to_owned)
                };
                let (data, id) = (field("data: "), field("id: "));
                self.text = rest.to_owned();
                if let Some(data) = data {
                    return Some((id.unwrap(), serde_json::from_str(&data).unwrap()));
                }
                continue;
            }
            let frame = timeout(LONG, self.body.frame()).await.expect("a frame")?;
            let data = frame.unwrap().into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    /// The next event called `event`, and its name. Of uses only what is asked for is seen.
    async fn until(&mut self, event: &str, backend: &str) -> (String, Value) {
        loop {
            let (name, told) = self.next().await.expect("something follows");
            if told["event"] == event && told["backend"] == backend {
                return (name, told);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_is_told_as_it_happens_and_again_to_whoever_comes_late() {
    let host = Host::start(&demo(1, &["films", "maps"], ""));
    let mut live = Follower::of(&host, None).await;
    host.ok("/films/").await;
    let (starting, _) = live.until("starting", "films").await;
    let (ready, told) = live.until("ready", "films").await;
    assert!(told["took_ms"].is_u64() && told["at_ms"].as_u64() > Some(1_700_000_000_000));
    host.ok("/maps/").await;
    let (_, evicted) = live.until("evicted", "films").await;
    assert_eq!(
        (&evicted["reason"], &evicted["room_for"]),
        (&json!("room"), &json!("maps"))
    );
    live.until("ready", "maps").await;

    // From where one left off, without what one had.
    let mut again = Follower::of(&host, Some(&starting)).await;
    assert_eq!(again.next().await.unwrap().0, ready);
    again.until("ready", "maps").await;
    // Who comes for the first time is told what is kept, and so is who followed an earlier run of the host.
    for last in [None, Some("1-5")] {
        let mut late = Follower::of(&host, last).await;
        assert_eq!(late.next().await.unwrap().0, starting);
    }

    // Use is told as well, though calls are not.
    let request = Request::get(host.url("/maps/stream")).body(Full::<Bytes>::default());
    let streamed = host.send(request.unwrap()).await.unwrap();
    let (_, busy) = live.until("busy", "maps").await;
    assert_eq!(busy["in_flight"], 1);
    streamed.into_body().collect().await.unwrap();
    live.until("idle", "maps").await;

    // A host that stops tells that, and lets its followers go.
    let following = tokio::spawn(async move {
        live.until("stopped", "maps").await;
        while let Some((_, told)) = live.next().await {
            assert_ne!(told["event"], "starting");
        }
    });
    let output = tokio::task::spawn_blocking(|| host.stop()).await.unwrap();
    assert!(output.ends_with("stopped: nothing is left\n"), "{output}");
    following.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reader_who_takes_nothing_is_let_go_and_one_who_waits_hears_that_the_host_is_there() {
    let feed = Feed::new();
    let cut = Arc::new(Notify::new());
    let follows = || {
        let (events, read) = mpsc::channel(AHEAD);
        let reader = tokio::spawn(follow(feed.clone(), 0, events, cut.clone()));
        (reader, read)
    };

    // Nothing happens: a heartbeat now and then.
    let (reader, mut read) = follows();
    let _greeting = read.recv().await.expect("a greeting");
    let began = Instant::now();
    let heartbeat = read.recv().await.expect("a heartbeat");
    assert_eq!(began.elapsed(), HEARTBEAT);
    let only = Sse::new(stream::iter([Ok::<_, std::io::Error>(heartbeat)]));
    let text = only.into_response().into_body().collect().await.unwrap();
    assert_eq!(text.to_bytes(), ": \n\n");
    drop(read);
    reader.await.expect("gone with its connection");

    // Much happens, and nobody reads.
    let (reader, read) = follows();
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..2 * AHEAD {
        feed.tell(Kind::Transition, "starting", Map::new());
    }
    let began = Instant::now();
    cut.notified().await;
    reader.await.expect("let go");
    assert_eq!(began.elapsed(), SLOW);
    assert_eq!(read.len(), AHEAD, "no more than that was kept for it");

    // Who has missed what is not kept is told so.
    for _ in 0..10_000 {
        feed.tell(Kind::Transition, "starting", Map::new());
    }
    let (_reader, mut read) = follows();
    let _greeting = read.recv().await.expect("a greeting");
    let gap = read.recv().await.expect("an event");
    let only = Sse::new(stream::iter([Ok::<_, std::io::Error>(gap)]));
    let text = only.into_response().into_body().collect().await.unwrap();
    assert_eq!(text.to_bytes(), "data: {\"event\":\"gap\"}\n\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_of_a_reader_who_takes_nothing_is_closed() {
    // Each says much when it fails.
    let names: Vec<_> = (0..60).map(|n| format!("noisy-{n}")).collect();
    let script =
        "yes it says this line again and again, and that is much in the end | head -n 64; exit 1";
    let noisy = names.iter().map(|name| {
        format!(
            "[backend.{name}]\ncommand = [\"sh\", \"-c\", \"{script}\", \"sh\", \"{{port}}\"]\n"
        )
    });
    let host = Host::start(&demo(60, &[], &noisy.collect::<String>()));
    let stream = TcpStream::connect(host.address()).await.unwrap();
    let (mut requests, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::get(host.url("/_events")).body(()).unwrap();
    let (answer, _) = requests.send_request(request, true).unwrap();
    // Not read, so that the server may not send more than the first 64 KiB of it.
    let body = answer.await.unwrap().into_body();

    let paths: Vec<_> = names.iter().map(|name| format!("/{name}/")).collect();
    let calls = paths.iter().map(|path| host.get(path));
    join_all(calls).await;
    assert!(!connection.is_finished());
    let ended = timeout(LONG, connection).await;
    let _ = ended.expect("the host has closed it").unwrap();
    drop(body);
    // Who reads is told all the same.
    let mut reads = Follower::of(&host, None).await;
    reads.until("start failed", "noisy-59").await;
    host.stop();
}
