//! Requests as bytes on a socket, against the whole stack behind a real server: whatever comes, the answer is a
//! status or the end of the connection, and nothing of it is left behind. The backend's own count is the witness.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime as Tokio,
    sync::watch,
    time::timeout,
};
use tower::{BoxError, ServiceBuilder, service_fn};
use tower_on_demand::{
    CeilingLayer, CoalesceLayer, DropToStop, Group, IdleEvict, LazyStartLayer, Runtime,
    http::{ShareBodyLayer, StatusLayer, UntilBothEnd},
};

use crate::holds;

/// Beyond this something hangs.
const BOUND: Duration = Duration::from_secs(20);
/// How long the server waits for a head.
const HEAD: Duration = Duration::from_millis(50);

/// What the backend saw: calls that it has in hand, and those that it has answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Saw {
    in_hand: usize,
    answered: usize,
    /// Instances.
    alive: usize,
}

type Witness = Arc<watch::Sender<Saw>>;

/// Counts itself in one of the numbers.
struct Counted(Witness, fn(&mut Saw) -> &mut usize);

impl Counted {
    fn new(saw: &Witness, which: fn(&mut Saw) -> &mut usize) -> Self {
        saw.send_modify(|saw| *which(saw) += 1);
        Self(saw.clone(), which)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|saw| *(self.1)(saw) -= 1);
    }
}

/// An answer in three frames. The call is in hand as long as there is any of it.
struct Answer {
    left: usize,
    _call: Counted,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.left = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"frame\n")))))
    }
}

/// The whole stack, and a server in front of it.
struct Edge {
    tokio: Tokio,
    address: SocketAddr,
    saw: Witness,
    group: Group,
}

impl Edge {
    fn new() -> Self {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let saw: Witness = Arc::default();
        let group = Group::new();
        let address = tokio.block_on(serve(saw.clone(), group.clone()));
        Self {
            tokio,
            address,
            saw,
            group,
        }
    }

    /// What comes back for `bytes`, until the connection ends. `whole`: the client sends no more, and says so.
    fn ask(&self, bytes: &[u8], whole: bool) -> Vec<u8> {
        let talk = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            // It may be answered, and closed, before all is sent.
            let sent = stream.write_all(bytes).await;
            if sent.is_ok() && whole {
                let _ = stream.shutdown().await;
            }
            let mut answer = Vec::new();
            let mut part = [0; 4096];
            // A reset is an end as well.
            while let Ok(n @ 1..) = stream.read(&mut part).await {
                answer.extend_from_slice(&part[..n]);
            }
            answer
        };
        let answer = self.tokio.block_on(async { timeout(BOUND, talk).await });
        answer.expect("it is answered or closed")
    }

    /// Sends `bytes`, and is gone.
    fn send_and_leave(&self, bytes: &[u8]) {
        self.tokio.block_on(async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let _ = stream.write_all(bytes).await;
        });
    }

    fn wait_for(&self, what: impl FnMut(&Saw) -> bool) -> Saw {
        let mut seen = self.saw.subscribe();
        let reached = async {
            timeout(BOUND, seen.wait_for(what))
                .await
                .map(|saw| *saw.unwrap())
        };
        let reached = self.tokio.block_on(reached);
        reached.unwrap_or_else(|_| panic!("the backend is left with {:?}", self.saw.borrow()))
    }

    /// Nothing of a request is left: not with the backend, nor in the count of its uses.
    fn nothing_left(&self) {
        self.wait_for(|saw| saw.in_hand == 0);
        let counted = async {
            // What ends a use comes right after the drop that the backend saw.
            while self
                .group
                .status()
                .iter()
                .any(|it| it.in_flight.unwrap_or(0) > 0)
            {
                tokio::task::yield_now().await;
            }
        };
        let counted = self.tokio.block_on(async { timeout(BOUND, counted).await });
        counted.unwrap_or_else(|_| panic!("{:?}", self.group.status()));
    }

    /// Everything is as it should be, to the end.
    fn over(self) {
        let answer = self.ask(
            b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
            true,
        );
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", show(&answer));
        self.nothing_left();
        assert_eq!(self.saw.borrow().alive, 1, "one instance has served all");
        self.tokio.block_on(self.group.stopped(BOUND));
        self.wait_for(|saw| saw.alive == 0);
    }
}

async fn serve(saw: Witness, group: Group) -> SocketAddr {
    let runtime = Runtime::tokio();
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBothEnd);
    runtime.spawn(idle_evict.run());
    let maker = service_fn(move |_: &'static str| {
        let saw = saw.clone();
        let alive = Arc::new(Counted::new(&saw, |saw| &mut saw.alive));
        let serve = service_fn(move |request: http::Request<_>| {
            let (saw, alive) = (saw.clone(), alive.clone());
            async move {
                let call = Counted::new(&saw, |saw| &mut saw.in_hand);
                read(request.into_body()).await?;
                saw.send_modify(|saw| saw.answered += 1);
                drop(alive);
                Ok::<_, io::Error>(http::Response::new(Answer {
                    left: 3,
                    _call: call,
                }))
            }
        });
        std::future::ready(Ok::<_, Infallible>(DropToStop::new(serve)))
    });
    let service = ServiceBuilder::new()
        .layer(StatusLayer::new())
        .layer(CoalesceLayer::http().shared_bodies())
        .layer(ShareBodyLayer::new(runtime.clone(), 4096))
        .layer(LazyStartLayer::new(runtime.clone(), "backend").join(&group))
        .layer(evictable.idle_after(Duration::from_secs(3600)))
        .layer(CeilingLayer::new(runtime, 1))
        .service(maker);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut server = auto::Builder::new(TokioExecutor::new());
        server
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD);
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let connection = server
                .serve_connection(TokioIo::new(stream), service)
                .into_owned();
            tokio::spawn(async move { drop(connection.await) });
        }
    });
    address
}

/// Reads a body to its end.
async fn read<B>(body: B) -> Result<(), io::Error>
where
    B: Body<Error: Into<BoxError>>,
{
    let mut body = std::pin::pin!(body);
    while let Some(frame) = body.frame().await {
        frame.map_err(io::Error::other)?;
    }
    Ok(())
}

fn show(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(300)]).into_owned()
}

/// The statuses in an answer, and whether it is whole.
fn statuses(answer: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(answer);
    let heads = text.split("HTTP/1.").skip(1);
    heads
        .map(|head| {
            let status = head
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok());
            status.unwrap_or_else(|| panic!("no status: {}", show(answer)))
        })
        .collect()
}

/// A request as bytes, nearly right.
#[derive(Debug, Clone)]
struct Wire {
    bytes: Vec<u8>,
    /// The client leaves without having read anything.
    leaves: bool,
}

fn wire() -> impl Strategy<Value = Wire> {
    let method = prop_oneof![
        4 => Just("GET"),
        4 => Just("POST"),
        1 => select(vec!["HEAD", "CONNECT", "OPTIONS", "get", "", "G\0T", "PRI"]),
    ];
    let target = prop_oneof![
        6 => Just("/a".to_owned()),
        1 => "[!-~]{0,8}",
        1 => (1..80_000_usize).prop_map(|n| format!("/{}", "x".repeat(n))),
        1 => select(vec!["*", "http://x/", "//", "/%zz", "/ü", "/a b"]).prop_map(str::to_owned),
    ];
    let version = prop_oneof![
        8 => Just("HTTP/1.1"),
        1 => select(vec!["HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/9", "", "http/1.1"]),
    ];
    let header = prop_oneof![
        4 => select(vec![
            "connection: close", "connection: keep-alive", "expect: 100-continue", "upgrade: websocket",
            "cookie: a=b", "accept: */*", "content-length: 0", "te: trailers", "range: bytes=0-",
        ])
        .prop_map(|it| it.as_bytes().to_vec()),
        2 => select(vec![
            "content-length: -1", "content-length: 5, 5", "content-length: 99999999999999999999",
            "transfer-encoding: gzip", "transfer-encoding: chunked, chunked", ": x", "no colon", " folded: x",
            "x: \u{1}", "host: y",
        ])
        .prop_map(|it| it.as_bytes().to_vec()),
        1 => (1..100_000_usize).prop_map(|n| format!("x: {}", "y".repeat(n)).into_bytes()),
        1 => vec(any::<u8>(), 0..20),
    ];
    let headers = prop_oneof![
        3 => vec(header.clone(), 0..3),
        1 => Just(vec![b"x: y".to_vec(); 150]),
    ];
    let body = prop_oneof![
        3 => Just("\r\n".to_owned()),
        3 => (0..9000_usize).prop_map(|n| format!("content-length: {n}\r\n\r\n{}", "b".repeat(n))),
        // Half of it.
        2 => (1..9000_usize).prop_map(|n| format!("content-length: {n}\r\n\r\n{}", "b".repeat(n / 2))),
        2 => vec(0..500_usize, 0..3).prop_map(|sizes| {
            let chunk = |n: &usize| format!("{n:x}\r\n{}\r\n", "c".repeat(*n));
            let chunks: String = sizes.iter().filter(|n| **n > 0).map(chunk).collect();
            format!("transfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
        }),
        2 => select(vec!["zz\r\n", "5\r\nab", "fffffffffffffffff\r\n", "-1\r\n\r\n", "1\r\nabc\r\n", "0\r\nx: y\r\n"])
            .prop_map(|chunk| format!("transfer-encoding: chunked\r\n\r\n{chunk}")),
    ];
    let request = (method, target, version, headers, body).prop_map(
        |(method, target, version, headers, body)| {
            let mut bytes = format!("{method} {target} {version}\r\nhost: x\r\n").into_bytes();
            for header in headers {
                bytes.extend(header);
                bytes.extend(b"\r\n");
            }
            bytes.extend(body.as_bytes());
            bytes
        },
    );
    // Some are cut off, some have a byte that is another, some are two, some are nothing of the kind.
    let requests = prop_oneof![
        6 => request.clone(),
        2 => (request.clone(), any::<prop::sample::Index>()).prop_map(|(mut bytes, at)| {
            bytes.truncate(at.index(bytes.len()));
            bytes
        }),
        2 => (request.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes
        }),
        1 => (request.clone(), request).prop_map(|(one, two)| [one, two].concat()),
        1 => vec(any::<u8>(), 0..200),
    ];
    (requests, prop::bool::weighted(0.2)).prop_map(|(bytes, leaves)| Wire { bytes, leaves })
}

#[test]
fn whatever_bytes_come_are_answered_with_a_status_or_closed_and_nothing_is_left() {
    let edge = Edge::new();
    holds(1500, wire(), |wire| {
        let before = edge.saw.borrow().answered;
        if wire.leaves {
            edge.send_and_leave(&wire.bytes);
            edge.nothing_left();
            return false;
        }
        let answer = edge.ask(&wire.bytes, true);
        edge.nothing_left();
        // HTTP/2 by prior knowledge speaks in frames.
        let mut served = 0;
        if wire.bytes.starts_with(b"PRI * HTTP/2") {
            return false;
        }
        for status in statuses(&answer) {
            match status {
                200 => served += 1,
                100 | 400..=599 => {}
                _ => panic!("{status}: {}", show(&answer)),
            }
        }
        // Each 200 is a call that the backend has had all of.
        assert!(
            served <= edge.saw.borrow().answered - before,
            "{}",
            show(&answer)
        );
        served > 0
    });
    edge.over();
}

#[test]
fn headers_without_end_are_refused_and_no_backend_hears_of_them() {
    let edge = Edge::new();
    let long = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
        "y".repeat(1 << 20)
    );
    let many = format!(
        "GET / HTTP/1.1\r\nhost: x\r\n{}\r\n",
        "x: y\r\n".repeat(500)
    );
    let path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "y".repeat(70_000));
    for (request, expected) in [(long, 431), (many, 431), (path, 414)] {
        let answer = edge.ask(request.as_bytes(), false);
        assert_eq!(statuses(&answer), [expected], "{}", show(&answer));
    }
    assert_eq!(*edge.saw.borrow(), Saw::default(), "nothing was started");
    edge.over();
}

#[test]
fn a_head_that_never_ends_is_closed() {
    let edge = Edge::new();
    let answer = edge.ask(b"GET / HTTP/1.1\r\nhost: x\r\nx: ", false);
    assert!(
        statuses(&answer)
            .iter()
            .all(|status| (400..500).contains(status))
    );
    assert_eq!(*edge.saw.borrow(), Saw::default(), "nothing was started");
    edge.over();
}

#[test]
fn a_body_that_ends_half_way_is_no_call_that_goes_on() {
    let edge = Edge::new();
    for half in [
        &b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf"[..],
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n8\r\nhalf",
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        // The backend has it in hand while the client is there.
        edge.tokio.block_on(async {
            let mut stream = TcpStream::connect(edge.address).await.unwrap();
            stream.write_all(half).await.unwrap();
            let mut seen = edge.saw.subscribe();
            let in_hand = seen.wait_for(|saw| saw.in_hand == 1);
            drop(
                timeout(BOUND, in_hand)
                    .await
                    .expect("it is called")
                    .unwrap(),
            );
        });
        edge.nothing_left();
        assert_eq!(edge.saw.borrow().answered, 0);
    }
    edge.over();
}

#[test]
fn a_body_that_is_no_body_is_told_to_who_sent_it() {
    let edge = Edge::new();
    for chunk in ["zz\r\n", "4\r\nlonger", "fffffffffffffffff\r\n"] {
        let head = "POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        let answer = edge.ask(format!("{head}{chunk}").as_bytes(), false);
        let told = statuses(&answer);
        assert!(
            told.iter().all(|status| [400, 502].contains(status)),
            "{}",
            show(&answer)
        );
        edge.nothing_left();
        assert_eq!(edge.saw.borrow().answered, 0);
    }
    edge.over();
}
