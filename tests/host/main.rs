//! The host example as its users run it: a process with children, over real HTTP.
#![cfg(all(feature = "full", target_os = "linux"))]
#![allow(missing_docs, unreachable_pub, clippy::disallowed_methods)]

#[path = "../support/example.rs"]
mod example;
mod support;

/// `cargo test observability` runs them by this name.
mod observability {
    mod browser;
    mod events;
    mod orders;
    mod pages;
    mod webdriver;
}

// What the host tells its readers, without a host.
#[allow(dead_code)] // the host uses all of it
#[path = "../../examples/host/feed.rs"]
mod feed;
#[path = "../../examples/host/pages/reader.rs"]
mod reader;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Full};

use support::{Host, file, kill_now, real, run};

/// The process that wrote `answer`.
fn process(answer: &str) -> u32 {
    let (_, rest) = answer.split_once("process ").unwrap();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap();
    digits.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s10_programs_nobody_here_wrote_are_served_and_never_more_than_two_live() {
    let host = Arc::new(Host::start(&real()));
    let done = Arc::new(AtomicBool::new(false));
    let peak = {
        let (host, done) = (host.clone(), done.clone());
        // `slow` is a shell, with its server inside.
        let parts = ["python3\0", "node\0", "sleep 1;"];
        tokio::task::spawn_blocking(move || host.most_alive(&parts, &done))
    };
    let callers = (0..12).map(|caller| {
        let host = host.clone();
        tokio::spawn(async move {
            for round in 0..4 {
                match (caller + round) % 3 {
                    0 => assert!(
                        host.ok("/files/Cargo.toml")
                            .await
                            .contains("tower-on-demand")
                    ),
                    1 => assert!(host.ok("/node/x?y=1").await.contains("GET /x?y=1")),
                    _ => assert!(host.ok("/slow/").await.contains("Cargo.toml")),
                }
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    assert_eq!(peak.await.unwrap(), 2);
    Arc::into_inner(host).unwrap().stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_calls_in_flight_on_a_killed_child_fail() {
    let host = Arc::new(Host::start(&real()));
    let first = process(&host.ok("/node/").await);
    host.ok("/files/Cargo.toml").await;

    let mut streams = Vec::new();
    for _ in 0..3 {
        let request = Request::get(host.url("/node/slow")).body(Full::<Bytes>::default());
        let streamed = host.send(request.unwrap()).await.unwrap();
        assert_eq!(streamed.status(), 200);
        streams.push(tokio::spawn(streamed.into_body().collect()));
    }
    let killed = Arc::new(AtomicBool::new(false));
    let beside = Arc::new(AtomicUsize::new(0));
    let others: Vec<_> = (0..3)
        .map(|_| {
            let (host, killed, beside) = (host.clone(), killed.clone(), beside.clone());
            tokio::spawn(async move {
                let mut after = 0;
                while after < 20 {
                    host.ok("/files/Cargo.toml").await;
                    beside.fetch_add(1, Ordering::Relaxed);
                    after += usize::from(killed.load(Ordering::Relaxed));
                }
            })
        })
        .collect();
    host.until("node", "3 calls in flight").await;
    kill_now(first);
    killed.store(true, Ordering::Relaxed);
    for stream in streams {
        assert!(stream.await.unwrap().is_err(), "it cannot be whole");
    }
    for other in others {
        other.await.unwrap();
    }
    assert!(beside.load(Ordering::Relaxed) >= 60);
    // The next call has a new one.
    let second = process(&host.ok("/node/").await);
    assert_ne!(first, second);
    let output = Arc::into_inner(host).unwrap().stop();
    assert!(output.contains("node     died"), "{output}");
}

#[tokio::test]
async fn what_cannot_be_served_is_told_to_who_asked() {
    let host = Host::start(&real());
    let unknown = host.get("/nope/x").await.unwrap();
    assert_eq!(unknown.status(), 404);
    assert!(unknown.body().contains("\"nope\""), "{}", unknown.body());

    // A command that is not there, and is looked for again after the backoff.
    for _ in 0..3 {
        let failed = host.get("/missing/").await.unwrap();
        assert_eq!(failed.status(), 502, "{}", failed.body());
        assert!(failed.body().contains("command not found: no-such-program"));
        assert_eq!(failed.headers()["cache-control"], "no-store");
        let refused = host.get("/missing/").await.unwrap();
        assert_eq!(refused.status(), 503, "{}", refused.body());
        assert_eq!(refused.headers()["retry-after"], "1");
        host.until("missing", "Stopped").await;
    }
    host.stop();
}

#[test]
fn a_wrong_configuration_is_told_with_its_field_and_its_line_and_nothing_starts() {
    for (text, expected) in [
        (
            "limit = 1\n[backend.x]\ncomand = []",
            &["line 3", "backend.x.comand", "`comand`"][..],
        ),
        ("limit = 1\nlimt = 2\n[backend]", &["line 2", "`limt`"]),
        ("limit = \"two\"\n[backend]", &["line 1", "limit"]),
        ("limit = 0\n[backend]", &["line 1", "limit"]),
        ("limit = 1", &["missing field `backend`"]),
        (
            "limit = 1\n[backend.x]\ncommand = [\"true\", \"{port}\"]\nready_within = \"soon\"",
            &["line 4", "backend.x.ready_within"],
        ),
        (
            "limit = 1\n[backend.x]\ncommand = [\"true\", \"{port}\"]\npinned = 1",
            &["line 4", "backend.x.pinned"],
        ),
        (
            "limit = 1\n[backend.x]\ncommand = [\"true\", \"{port}\"]\nlisten = \"tcp\"",
            &["line 4", "backend.x.listen"],
        ),
        (
            "limit = 1\n\n[backend.x]\ncommand = [\"true\"]",
            &["line 3", "backend.x", "{port}"],
        ),
        (
            "limit = 1\n[backend.\"a/b\"]\ncommand = [\"true\"]",
            &["line 2", "a/b"],
        ),
        (
            "limit = 1\n[backend._status]\ncommand = [\"true\"]",
            &["line 2", "_status", "the host's own"],
        ),
        ("limit = 1\n[backend.x", &["line 2"]),
    ] {
        let path = file(text);
        let path = path.to_str().unwrap();
        let (status, out, err) = run(&["--config", path]);
        assert_eq!(status.code(), Some(1), "{text}");
        assert_eq!(out, "", "{text}");
        for part in expected.iter().chain([&path]) {
            assert!(err.contains(part), "{part:?} is not in\n{err}");
        }
    }
    let (status, _, err) = run(&["--config", "/no/such/file"]);
    assert_eq!(status.code(), Some(1));
    assert!(err.contains("/no/such/file"), "{err}");
}

#[test]
fn an_address_in_use_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, out, err) = run(&["--listen", &address]);
    assert_eq!((status.code(), out.as_str()), (Some(1), ""));
    assert!(
        err.contains(&address) && err.contains("another program"),
        "{err}"
    );
}

/// A backend that answers with what it was sent.
fn echo() -> String {
    let program = r#"
import sys, socketserver, http.server
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do(self):
        length = int(self.headers.get("Content-Length") or 0)
        text = self.requestline + "\n" + str(self.headers) + self.rfile.read(length).decode()
        self.send_response(200)
        self.send_header("Connection", "x-hop")
        self.send_header("X-Hop", "secret")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    do_GET = do_POST = do
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"#;
    format!(
        "listen = \"127.0.0.1:0\"\nlimit = 1\nupload_pause = \"500ms\"\n\
         [backend.echo]\ncommand = [\"python3\", \"-c\", '''{program}''', \"{{port}}\"]\n\
         ready_within = \"30s\"\n"
    )
}

#[tokio::test]
async fn nothing_of_one_connection_leaks_into_the_other() {
    let host = Host::start(&echo());
    let request = Request::post(host.url("/echo/a//b%20c?d=e"))
        .header("connection", "x-private, keep-alive")
        .header("x-private", "mine")
        .header("keep-alive", "5")
        .header("proxy-authorization", "secret")
        .header("te", "trailers, deflate")
        .header("x-forwarded-for", "6.6.6.6")
        .header("x-forwarded-host", "evil")
        .header("x-kept", "yes")
        .body(Full::from("hello"))
        .unwrap();
    let response = host.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("x-hop"), "{response:?}");
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap().to_lowercase();
    for kept in [
        "post /a//b%20c?d=e http/1.1".to_owned(),
        format!("host: {}", host.address()),
        "x-kept: yes".into(),
        "te: trailers\n".into(),
        "x-forwarded-for: 127.0.0.1\n".into(),
        format!("x-forwarded-host: {}", host.address()),
        "x-forwarded-proto: http\n".into(),
        "x-forwarded-prefix: /echo\n".into(),
        "hello".into(),
    ] {
        assert!(text.contains(&kept), "{kept:?} is not in\n{text}");
    }
    for gone in [
        "x-private",
        "keep-alive",
        "proxy-authorization",
        "evil",
        "6.6.6.6",
    ] {
        assert!(!text.contains(gone), "{gone:?} is in\n{text}");
    }
    assert!(text.contains("content-length: 5\n"), "{text}");
    // A request without a body has none on the other side either.
    let text = host.ok("/echo/").await.to_lowercase();
    assert!(
        !text.contains("transfer-encoding") && !text.contains("content-length"),
        "{text}"
    );
    host.stop();
}

#[tokio::test]
async fn a_redirect_of_the_backend_stays_below_its_name() {
    let host = Host::start(&real());
    let moved = host.get("/files/src").await.unwrap();
    assert_eq!(moved.status(), 301);
    assert_eq!(moved.headers()["location"], "/files/src/");
    host.stop();
}

#[tokio::test]
async fn s17_an_upload_that_stops_or_is_given_up_gives_its_claim_back() {
    let host = Host::start(&echo());
    host.ok("/echo/").await;
    let begin = || {
        let mut stream = TcpStream::connect(host.address()).unwrap();
        let head = "POST /echo/ HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nsome";
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    // Given up.
    let stream = begin();
    host.until("echo", "1 calls in flight").await;
    drop(stream);
    host.until("echo", "0 calls in flight").await;
    // Silent.
    let mut stream = begin();
    let mut answer = String::new();
    tokio::task::spawn_blocking(move || {
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    })
    .await
    .unwrap();
    host.until("echo", "0 calls in flight").await;
    // And it serves on.
    assert!(host.line("echo").await.contains("1 starts"));
    host.ok("/echo/").await;
    host.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_told_to_stop_finishes_what_has_begun() {
    let host = Host::start(&real());
    host.ok("/node/").await;
    let request = Request::get(host.url("/node/slow")).body(Full::<Bytes>::default());
    let streamed = host.send(request.unwrap()).await.unwrap();
    let reading = tokio::spawn(streamed.into_body().collect());
    let output = tokio::task::spawn_blocking(|| host.stop()).await.unwrap();
    let body = reading.await.unwrap().unwrap().to_bytes();
    assert!(
        body.starts_with(b"20\n") && body.ends_with(b"\n1\n"),
        "{body:?}"
    );
    assert!(output.ends_with("stopped: nothing is left\n"), "{output}");
}

#[test]
fn the_demo_shows_what_it_says() {
    let (status, out, err) = run(&["--demo"]);
    assert!(status.success(), "{out}\n{err}");
    let last = out.lines().last().unwrap();
    let numbers: Vec<u64> = last
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    let [peak, limit, started, evicted, shared, failed, left] = numbers[..] else {
        panic!("{last}");
    };
    assert_eq!(
        last,
        format!(
            "demo: alive at most {peak} of {limit}, started {started}, evicted {evicted}, \
             shared {shared}, failed {failed}, left {left}"
        )
    );
    assert_eq!((peak, limit, failed, left), (2, 2, 0, 0));
    assert_eq!(started, evicted);
    assert!(started >= 6 && shared > 0);
}
