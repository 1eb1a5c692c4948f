//! Before clients that nobody here wrote: curl, wrk, and python's grpcio. A client that is not installed is
//! skipped, and the test's output says so.

use std::{
    env,
    future::pending,
    io::{self, Write},
    net::SocketAddr,
    process::{Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use tokio::{net::TcpListener, process::Command, sync::Semaphore};
use tower::{ServiceBuilder, service_fn};
use tower_on_demand::{
    CeilingLayer, DropToStop, Group, IdleEvict, KeyedLayer, Runtime, grpc, http, http::UntilBodyEnd,
};

use crate::grpc_server::{Greeting, until};

/// Whether `program` can be run with `args`; says so, past the test's own capture, if it cannot.
async fn installed(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let ended = command.status().await;
    // wrk fails even when it is asked for its version.
    let there = ended.is_ok_and(|status| status.success() || program == "wrk");
    if !there {
        let said = format!(
            "\nSKIPPED: {program} {} does not run here\n",
            args.join(" ")
        );
        io::stderr().write_all(said.as_bytes()).unwrap();
    }
    there
}

async fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true);
    let ended = tokio::time::timeout(Duration::from_secs(60), command.output());
    ended.await.expect("it ends").unwrap()
}

async fn curl(args: &[&str]) -> String {
    let output = run("curl", &[&["-sS", "--max-time", "30"], args].concat()).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the backends see.
#[derive(Debug)]
struct Seen {
    started: AtomicUsize,
    alive: AtomicUsize,
    peak: AtomicUsize,
    calls: AtomicUsize,
    gate: Semaphore,
}

struct Life(Arc<Seen>);

impl Life {
    fn begins(seen: &Arc<Seen>) -> Arc<Self> {
        seen.started.fetch_add(1, Ordering::SeqCst);
        let alive = seen.alive.fetch_add(1, Ordering::SeqCst) + 1;
        seen.peak.fetch_max(alive, Ordering::SeqCst);
        Arc::new(Self(seen.clone()))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A host on a port: backends by the first part of the path, or by `x-tenant`.
struct Host {
    address: SocketAddr,
    seen: Arc<Seen>,
    group: Group,
    ceiling: CeilingLayer,
}

const NAMES: [&str; 4] = ["a", "b", "c", "slow"];

/// The name's own backend, if there is one of that name.
fn known(name: &String) -> Result<String, String> {
    let known = NAMES.contains(&&**name);
    known
        .then(|| name.clone())
        .ok_or_else(|| format!("who is {name}?"))
}

impl Host {
    fn new(limit: u64) -> Self {
        Self {
            address: ([127, 0, 0, 1], 0).into(),
            seen: Arc::new(Seen {
                started: AtomicUsize::new(0),
                alive: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
                calls: AtomicUsize::new(0),
                gate: Semaphore::new(0),
            }),
            group: Group::new(),
            ceiling: CeilingLayer::new(Runtime::tokio(), limit),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn serve(&mut self, router: Router) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
    }

    async fn http(&mut self) {
        let runtime = Runtime::tokio();
        let (evictable, _) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
        let (seen, group) = (self.seen.clone(), self.group.clone());
        let name = |request: &Request| Some(request.uri().path().split('/').nth(1)?.to_owned());
        let stack = ServiceBuilder::new()
            .layer(http::StatusLayer::new())
            .layer(KeyedLayer::new(runtime, name, known).each(move |one| one.join(&group)))
            .layer(evictable)
            .layer(self.ceiling.clone())
            .service(service_fn(move |_: String| {
                let backend = DropToStop::new(pages(&seen));
                async { Ok::<_, io::Error>(backend) }
            }));
        self.serve(Router::new().fallback_service(stack)).await;
    }

    async fn grpc(&mut self) {
        let runtime = Runtime::tokio();
        let (evictable, _) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
        let group = self.group.clone();
        let tenant = |request: &Request| {
            let tenant = request.headers().get("x-tenant")?;
            Some(tenant.to_str().ok()?.to_owned())
        };
        let stack = ServiceBuilder::new()
            .layer(grpc::StatusLayer::new())
            .layer(KeyedLayer::new(runtime, tenant, known).each(move |one| one.join(&group)))
            .layer(evictable)
            .layer(self.ceiling.clone())
            .service(service_fn(|name: String| async move {
                if name == "slow" {
                    pending::<()>().await;
                }
                Ok::<_, io::Error>(DropToStop::new(Greeting::default().server()))
            }));
        self.serve(Router::new().fallback_service(stack)).await;
    }
}

/// One instance of a backend.
fn pages(seen: &Arc<Seen>) -> Router {
    let life = Life::begins(seen);
    let hello = move || {
        life.0.calls.fetch_add(1, Ordering::SeqCst);
        async { "hello\n" }
    };
    let seen = seen.clone();
    let stream = move || async move {
        let chunks = stream::iter(["one\n", "two\n"]).then(move |chunk| {
            let seen = seen.clone();
            async move {
                if chunk == "two\n" {
                    seen.gate.acquire().await.unwrap().forget();
                }
                Ok::<_, io::Error>(chunk)
            }
        });
        Body::from_stream(chunks)
    };
    let upload = async |body: Bytes| format!("{} bytes\n", body.len());
    Router::new()
        .route("/{name}/hello", get(hello))
        .route("/{name}/stream", get(stream))
        .route("/{name}/upload", post(upload).put(upload))
        .layer(axum::extract::DefaultBodyLimit::disable())
}

#[tokio::test]
async fn curl_is_served_by_http_1_and_2_with_heads_uploads_and_errors() {
    if !installed("curl", &["--version"]).await {
        return;
    }
    let mut host = Host::new(1);
    host.http().await;

    assert_eq!(curl(&[&host.url("/a/hello")]).await, "hello\n");
    assert_eq!(
        curl(&["--http2-prior-knowledge", &host.url("/b/hello")]).await,
        "hello\n"
    );
    let head = curl(&["--head", &host.url("/a/hello")]).await;
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");

    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(3_000_000).unwrap();
    let file = file.path().to_str().unwrap();
    for how in [
        &["-T"][..],
        &["-H", "transfer-encoding: chunked", "-T"],
        &["--http2-prior-knowledge", "-T"],
    ] {
        let sent = curl(&[how, &[file, &*host.url("/c/upload")]].concat()).await;
        assert_eq!(sent, "3000000 bytes\n", "{how:?}");
    }
    let status = "%{http_code} %header{cache-control}";
    let answer = curl(&["-o", "/dev/null", "-w", status, &host.url("/nobody/hello")]).await;
    assert_eq!(answer, "404 no-store");
    assert_eq!(host.seen.peak.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn curl_is_told_503_and_when_to_come_back_while_a_stream_is_whole() {
    if !installed("curl", &["--version"]).await {
        return;
    }
    let mut host = Host::new(1);
    host.ceiling = host.ceiling.wait(Duration::from_millis(50));
    host.http().await;
    // Both have lived: when to come back is guessed from that.
    curl(&[&host.url("/b/hello")]).await;
    curl(&[&host.url("/a/hello")]).await;

    let url = host.url("/a/stream");
    let streaming = tokio::spawn(async move { curl(&["-N", &url]).await });
    let a = host.group.handle("a").unwrap();
    until("it streams", || a.status().in_flight == Some(1)).await;
    let status = "%{http_code} %header{retry-after}";
    let refused = curl(&["-o", "/dev/null", "-w", status, &host.url("/b/hello")]).await;
    let (code, seconds) = refused.split_once(' ').unwrap();
    assert_eq!(code, "503");
    assert!(seconds.parse::<u64>().unwrap() >= 1, "{refused}");

    host.seen.gate.add_permits(1);
    assert_eq!(streaming.await.unwrap(), "one\ntwo\n");
    assert_eq!(curl(&[&host.url("/b/hello")]).await, "hello\n");
    assert_eq!(host.seen.peak.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrk_sees_no_error_while_three_backends_take_turns_under_a_ceiling_of_two() {
    if !installed("wrk", &["--version"]).await {
        return;
    }
    let mut host = Host::new(2);
    host.ceiling = host.ceiling.yield_after(Duration::from_millis(50));
    host.http().await;
    let urls = ["/a/hello", "/b/hello", "/c/hello"].map(|path| host.url(path));
    let loads = urls
        .iter()
        .map(async |url| run("wrk", &["-t1", "-c4", "-d2s", url]).await);
    let mut requests = 0;
    for output in futures_util::future::join_all(loads).await {
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{report}");
        assert!(!report.contains("Non-2xx"), "{report}");
        assert!(!report.contains("Socket errors"), "{report}");
        let line = report
            .lines()
            .find(|line| line.contains(" requests in "))
            .unwrap();
        let served: usize = line.split_whitespace().next().unwrap().parse().unwrap();
        assert!(served > 0, "{report}");
        requests += served;
    }
    let seen = &host.seen;
    assert_eq!(seen.peak.load(Ordering::SeqCst), 2);
    assert!(seen.calls.load(Ordering::SeqCst) >= requests);
    // They did take turns.
    assert!(seen.started.load(Ordering::SeqCst) > 3);
}

/// One line of what `client.py` says.
#[derive(Debug, Deserialize, PartialEq)]
struct Said {
    step: String,
    got: Option<serde_json::Value>,
    code: Option<String>,
    details: Option<String>,
    retry_info: Option<bool>,
}

#[tokio::test]
async fn grpcio_makes_every_kind_of_call_and_is_told_why_one_fails() {
    let python = env::var("GRPCIO_PYTHON").unwrap_or_else(|_| "python3".into());
    if !installed(&python, &["-c", "import grpc; grpc.insecure_channel"]).await {
        return;
    }
    let mut host = Host::new(1);
    host.ceiling = host.ceiling.wait(Duration::from_millis(200));
    host.grpc().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ecosystem/client.py");
    let output = run(&python, &[script, &host.address.to_string()]).await;
    let (out, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{errors}");
    let mut said = out
        .lines()
        .map(|line| serde_json::from_str::<Said>(line).unwrap());
    let mut next = |step: &str| {
        let said = said.next().expect(step);
        assert_eq!(said.step, step, "{said:?}");
        said
    };
    let mut got = |step: &str, wanted: serde_json::Value| {
        let said = next(step);
        assert_eq!(said.got, Some(wanted), "{said:?}");
    };
    got("hello b", "hello Bob".into());
    got("hello a", "hello Ada".into());
    got("spell a", "a".into());
    let full = next("full");
    assert_eq!(full.code.as_deref(), Some("UNAVAILABLE"), "{full:?}");
    assert_eq!(full.retry_info, Some(true), "{full:?}");
    assert!(
        full.details.as_ref().unwrap().contains("no room: 1 of 1"),
        "{full:?}"
    );
    let mut got = |step: &str, wanted: serde_json::Value| {
        let said = next(step);
        assert_eq!(said.got, Some(wanted), "{said:?}");
    };
    got("hello b again", "hello Bob".into());
    got("meet", "hello Ada, Bob".into());
    got("chat", vec!["hello Ada", "hello Bob", "hello Cyd"].into());
    for (step, code) in [
        ("own error", "INVALID_ARGUMENT"),
        ("unknown", "NOT_FOUND"),
        ("slow", "DEADLINE_EXCEEDED"),
    ] {
        let said = next(step);
        assert_eq!(said.code.as_deref(), Some(code), "{said:?}");
    }

    // The one who did not wait has given its place back.
    let slow = host.group.handle("slow").unwrap();
    until("nobody waits", || slow.status().waiting == 0).await;
}
