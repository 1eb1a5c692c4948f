//! The child: this very test binary, started again with a role, so that a fresh clone needs nothing
//! else.
//!
//! It runs as the test `child::serves`. Without the variable that names its role that test does
//! nothing and passes.

use std::{
    collections::HashMap,
    convert::Infallible,
    fs::OpenOptions,
    io::Write,
    os::{linux::net::SocketAddrExt, unix::net::SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Frame, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};
use tower_on_demand::process::Command;

const ROLE: &str = "ON_DEMAND_CHILD";
/// Names the run of the tests that a process belongs to.
pub(crate) const RUN: &str = "ON_DEMAND_RUN";

/// A child that plays `role`: `key=value` words, see [`Role`].
pub(crate) fn child(name: &str, role: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    of_this_run(Command::new(name.to_owned(), test))
        .args(["--exact", "child::serves", "--nocapture", "--quiet"])
        .env(ROLE, role)
}

/// The same, run by a shell: `"$@"` in `script` is the child.
pub(crate) fn by_shell(name: &str, role: &str, script: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    of_this_run(Command::new(name.to_owned(), "sh"))
        .args(["-c", script, "sh"])
        .arg(test)
        .args(["--exact", "child::serves", "--nocapture", "--quiet"])
        .env(ROLE, role)
}

/// Marks what belongs to this run.
pub(crate) fn of_this_run(command: Command) -> Command {
    command.env(RUN, run())
}

/// This run, which children of children share.
pub(crate) fn run() -> String {
    std::env::var(RUN).unwrap_or_else(|_| std::process::id().to_string())
}

/// - `at=ADDRESS`: listens there; `at=handed`, `at=handed-unix`: on the socket it inherited
/// - `after=MS`: only then
/// - `say=TEXT`: prints that
/// - `exit=CODE`: ends with it, after `after`, instead of listening
/// - `first=PATH`: if there is no such file, makes one with the address in it and then listens only
///   when that is taken (`first_hangs=yes`: never)
/// - `ready=MS`: until so long after its start `/healthz` is 503
/// - `term=MS`: goes on serving for so long after SIGTERM; `term=never`: for ever
/// - `heavy=MB`: has so much memory, which takes time to be freed when it is killed
/// - `sole=NAME`: logs `two` if another that has the same name lives
/// - `log=PATH`: writes there what it sees
#[derive(Debug, Default)]
struct Role {
    words: HashMap<String, String>,
}

impl Role {
    fn get(&self, key: &str) -> Option<&str> {
        self.words.get(key).map(String::as_str)
    }

    fn ms(&self, key: &str) -> Option<Duration> {
        Some(Duration::from_millis(self.get(key)?.parse().ok()?))
    }

    fn log(&self, what: &str) {
        if let Some(path) = self.get("log") {
            let mut log = OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .unwrap();
            // One write each, so that lines of several children do not mix.
            #[allow(clippy::disallowed_methods)]
            let now = UNIX_EPOCH.elapsed().unwrap().as_millis();
            log.write_all(format!("{what} {} {now}\n", std::process::id()).as_bytes())
                .unwrap();
        }
    }
}

#[test]
fn serves() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words = role.split_whitespace().filter_map(|word| {
        let (key, value) = word.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    });
    let role = Arc::new(Role {
        words: words.collect(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let code = runtime.block_on(play(role));
    std::process::exit(code);
}

async fn play(role: Arc<Role>) -> i32 {
    role.log("start");
    let name = role.get("sole").map(|name| {
        let name = SocketAddr::from_abstract_name(name).unwrap();
        // The system takes it back when the process ends, however it does.
        std::os::unix::net::UnixListener::bind_addr(&name)
    });
    if let Some(Err(_)) = name {
        role.log("two");
    }
    if let Some(text) = role.get("say") {
        println!("{text}");
        eprintln!("{text} to stderr");
    }
    if let Some(megabytes) = role.get("heavy") {
        let bytes: usize = megabytes.parse().unwrap();
        std::mem::forget(vec![1_u8; bytes << 20]);
        role.log("heavy");
    }
    let began = Instant::now();
    if let Some(time) = role.ms("after") {
        sleep(time).await;
    }
    if let Some(code) = role.get("exit") {
        println!("last words");
        return code.parse().unwrap();
    }
    if let Some(term) = role.get("term") {
        let mut terms = signal(SignalKind::terminate()).unwrap();
        let (role, term) = (role.clone(), term.parse().map(Duration::from_millis).ok());
        tokio::spawn(async move {
            terms.recv().await;
            role.log("term");
            if let Some(time) = term {
                sleep(time).await;
                role.log("end");
                std::process::exit(0);
            }
        });
    }
    if let (Some(first), Some(at)) = (role.get("first"), role.get("at")) {
        if OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(first)
            .is_ok()
        {
            std::fs::write(first, at).unwrap();
            // In vain: the port is ours, as far as the host knows.
            while role.get("first_hangs").is_some() || TcpListener::bind(at).await.is_ok() {
                sleep(Duration::from_millis(5)).await;
            }
        }
    }
    match role.get("at") {
        None => std::future::pending().await,
        Some("handed") => {
            let listener = listenfd::ListenFd::from_env().take_tcp_listener(0);
            let listener = listener.unwrap().expect("a socket was handed over");
            listener.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            serve(role.clone(), began, || async {
                listener.accept().await.unwrap().0
            })
            .await
        }
        Some("handed-unix") => {
            let listener = listenfd::ListenFd::from_env().take_unix_listener(0);
            let listener = listener.unwrap().expect("a socket was handed over");
            listener.set_nonblocking(true).unwrap();
            let listener = UnixListener::from_std(listener).unwrap();
            serve(role.clone(), began, || async {
                listener.accept().await.unwrap().0
            })
            .await
        }
        Some(path) if path.starts_with('/') => {
            let listener = UnixListener::bind(path).unwrap();
            serve(role.clone(), began, || async {
                listener.accept().await.unwrap().0
            })
            .await
        }
        Some(address) => {
            let listener = match TcpListener::bind(address).await {
                Ok(listener) => listener,
                Err(error) => {
                    eprintln!("cannot listen on {address}: {error}");
                    return 98;
                }
            };
            serve(role.clone(), began, || async {
                listener.accept().await.unwrap().0
            })
            .await
        }
    }
}

async fn serve<S, A, F>(role: Arc<Role>, began: Instant, accept: A) -> i32
where
    A: Fn() -> F,
    F: Future<Output = S>,
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    println!("listening");
    role.log("listens");
    let sick = Arc::new(AtomicBool::new(false));
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = accept().await;
        let (role, sick) = (role.clone(), sick.clone());
        let n = connections.fetch_add(1, Ordering::Relaxed);
        let service = service_fn(move |request: Request<Incoming>| {
            let (role, sick) = (role.clone(), sick.clone());
            async move { Ok::<_, Infallible>(answer(request, &role, began, &sick, n).await) }
        });
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            let _ = server
                .serve_connection_with_upgrades(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    role: &Role,
    began: Instant,
    sick: &AtomicBool,
    connection: usize,
) -> Response<BoxBody<Bytes, Infallible>> {
    let path = request.uri().path().to_owned();
    role.log(&path);
    if path == "/upgrade" {
        let mut request = request;
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let io = TokioIo::new(upgrade.await.unwrap());
            let (mut read, mut write) = tokio::io::split(io);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "echo");
        return response.body(BodyExt::boxed(Full::default())).unwrap();
    }
    let words: Vec<&str> = path.split('/').skip(1).collect();
    let ms = |word: &str| Duration::from_millis(word.parse().unwrap());
    let mut status = StatusCode::OK;
    let text = match *words {
        ["healthz"] => {
            let up = began.elapsed();
            if up < role.ms("ready").unwrap_or_default() {
                status = StatusCode::SERVICE_UNAVAILABLE;
            }
            if sick.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            String::new()
        }
        ["sick"] => {
            sick.store(true, Ordering::Relaxed);
            String::new()
        }
        ["http-1.0"] => {
            let response = Response::builder().version(http::Version::HTTP_10);
            return response.body(BodyExt::boxed(Full::default())).unwrap();
        }
        ["status", code] => {
            status = code.parse().unwrap();
            String::new()
        }
        ["exit", code] => std::process::exit(code.parse().unwrap()),
        ["hang"] => std::future::pending().await,
        ["sleep", time] => {
            sleep(ms(time)).await;
            String::new()
        }
        ["connection"] => connection.to_string(),
        ["host"] => {
            let host = request.headers().get("host");
            let host = host.map(|host| host.to_str().unwrap().to_owned());
            let version = request.version();
            let authority = request.uri().authority();
            format!("{version:?} {host:?} {authority:?}")
        }
        ["env", name] => std::env::var(name).unwrap_or_default(),
        ["echo"] => {
            let body = request.into_body().collect().await.unwrap();
            String::from_utf8(body.to_bytes().to_vec()).unwrap()
        }
        ["stream", chunks, time] => {
            let time = ms(time);
            let chunks: usize = chunks.parse().unwrap();
            let stream = futures_util::stream::unfold(0, move |n| async move {
                if n == chunks {
                    return None;
                }
                sleep(time).await;
                Some((Ok(Frame::data(Bytes::from_static(b"chunk"))), n + 1))
            });
            return Response::new(BodyExt::boxed(StreamBody::new(stream)));
        }
        _ => std::process::id().to_string(),
    };
    let mut response = Response::new(BodyExt::boxed(Full::from(text)));
    *response.status_mut() = status;
    response
}
