//! The child, in all its natures.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustix::fs::{FlockOperation, flock};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use crate::{LIMIT, ms, now, proc};

/// The name of the backend; whoever has it is a child.
pub(crate) const NAME: &str = "CHAOS_NAME";
const NATURE: &str = "CHAOS_NATURE";
const DIR: &str = "CHAOS_DIR";
const AT: &str = "CHAOS_AT";

/// What is peculiar to a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nature {
    Plain,
    /// Slow to start, to answer and to end.
    Slow,
    /// Ignores SIGTERM.
    Deaf,
    /// Prints megabytes.
    Spews,
    /// Starts processes and forgets them.
    Leaks,
    /// All of it.
    Wild,
}

impl Nature {
    /// Those of twenty backends.
    pub(crate) fn of(index: usize) -> Self {
        match index % 20 {
            0..=4 => Self::Plain,
            5..=8 => Self::Slow,
            9..=12 => Self::Deaf,
            13..=15 => Self::Spews,
            16..=18 => Self::Leaks,
            _ => Self::Wild,
        }
    }

    fn is(self, what: Self) -> bool {
        self == what || self == Self::Wild
    }
}

pub(crate) fn is_child() -> bool {
    std::env::var_os(NAME).is_some()
}

/// The backend that a process is a child of.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    proc::variable(pid, NAME)
}

/// A backend of this nature, which leaves its witness in `dir`.
pub(crate) fn command(name: &str, nature: Nature, dir: &Path) -> tower_on_demand::process::Command {
    let test = std::env::current_exe().unwrap();
    tower_on_demand::process::Command::new(name.to_owned(), test)
        .args(["--exact", "child::serves", "--nocapture", "--quiet"])
        .env_remove(crate::host::SEED)
        .env(NAME, name)
        .env(NATURE, format!("{nature:?}"))
        .env(DIR, dir)
        .env(AT, "{address}")
}

#[test]
fn serves() {
    if !is_child() {
        return;
    }
    let variable = |name| std::env::var(name).unwrap();
    let all = (0..20).map(Nature::of);
    let mut natures = all.filter(|nature| format!("{nature:?}") == variable(NATURE));
    let child = Arc::new(Child {
        name: variable(NAME),
        nature: natures.next().unwrap(),
        dir: variable(DIR).into(),
        calls: Mutex::default(),
        slow: AtomicU64::new(0),
        leaked: AtomicU64::new(0),
    });
    // The system gives them back when the process ends, however it does.
    let _witness = child.is_one_of_few();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let code = runtime.block_on(child.live(&variable(AT)));
    std::process::exit(code);
}

struct Child {
    name: String,
    nature: Nature,
    dir: PathBuf,
    /// The numbers of those in flight.
    calls: Mutex<BTreeSet<u64>>,
    /// How many milliseconds each call takes more.
    slow: AtomicU64,
    leaked: AtomicU64,
}

impl Child {
    fn log(&self, what: &str) {
        let path = self.dir.join("log");
        let mut log = OpenOptions::new().append(true).create(true).open(path);
        // One write each, so that lines of several children do not mix.
        let line = format!("{what} {} {} {}\n", self.name, std::process::id(), now());
        log.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Takes one of as many places as may live, and the one of its backend: locks that it has until its end.
    /// It says so if there is none. (A child is frozen only after this.)
    fn is_one_of_few(&self) -> Vec<File> {
        let lock = |name: &str| {
            let path = self.dir.join(name);
            let mut file = OpenOptions::new();
            let file = file.create(true).truncate(false).write(true).open(path);
            let file = file.unwrap();
            let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
            locked.is_ok().then_some(file)
        };
        let place = (0..LIMIT).find_map(|n| lock(&format!("place-{n}")));
        if place.is_none() {
            self.log("too-many");
        }
        let own = lock(&format!("only-{}", self.name));
        if own.is_none() {
            self.log("two");
        }
        self.log("here");
        place.into_iter().chain(own).collect()
    }

    async fn live(self: Arc<Self>, at: &str) -> i32 {
        if self.nature.is(Nature::Leaks) {
            self.leak("sleep 3600");
            self.leak("trap '' TERM HUP; sleep 3600; sleep 3600");
            self.leak("sleep 3600 & exit");
        }
        if self.nature.is(Nature::Spews) {
            std::thread::spawn(|| spew(1 << 20));
        }
        if self.nature.is(Nature::Slow) {
            self.slow.store(30, Ordering::Relaxed);
            sleep(ms(200)).await;
        }
        tokio::spawn(self.clone().hear());
        let listener = match TcpListener::bind(at).await {
            Ok(listener) => listener,
            Err(error) => {
                eprintln!("cannot listen on {at}: {error}");
                return 98;
            }
        };
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                return 99;
            };
            let child = self.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let child = child.clone();
                async move { Ok::<_, Infallible>(child.answer(request).await) }
            });
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    /// What signals make of it.
    async fn hear(self: Arc<Self>) {
        let mut term = signal(SignalKind::terminate()).unwrap();
        let mut slower = signal(SignalKind::user_defined1()).unwrap();
        let mut spews = signal(SignalKind::user_defined2()).unwrap();
        loop {
            tokio::select! {
                _ = slower.recv() => self.slow.store(200, Ordering::Relaxed),
                _ = spews.recv() => {
                    std::thread::spawn(|| spew(2 << 20));
                }
                _ = term.recv() => {
                    let calls = self.calls.lock().unwrap().clone();
                    let calls: Vec<_> = calls.iter().map(u64::to_string).collect();
                    self.log(&format!("term:{}", calls.join(",")));
                    if self.nature.is(Nature::Deaf) {
                        continue;
                    }
                    if self.nature.is(Nature::Spews) {
                        std::thread::spawn(|| spew(u64::MAX));
                    }
                    if self.nature.is(Nature::Slow) {
                        sleep(ms(150)).await;
                    }
                    std::process::exit(0);
                }
            }
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<BoxBody<Bytes, Infallible>> {
        let path = request.uri().path().to_owned();
        if path == "/healthz" {
            return Response::new(Full::default().boxed());
        }
        let id = request.headers().get("call").unwrap();
        let call = Call::begins(&self, id.to_str().unwrap().parse().unwrap());
        let slow = self.slow.load(Ordering::Relaxed);
        if slow > 0 {
            sleep(ms(slow)).await;
        }
        if self.nature.is(Nature::Spews) {
            for line in ["x".repeat(250), "x".repeat(3_000)] {
                println!("{path} {line}");
            }
        }
        if self.nature.is(Nature::Leaks) && self.leaked.load(Ordering::Relaxed) < 8 {
            self.leak("sleep 3600");
        }
        let words: Vec<&str> = path.split('/').skip(1).collect();
        let number = |word: &str| word.parse::<u64>().unwrap();
        let text = match *words {
            ["work", time] => {
                sleep(ms(number(time))).await;
                self.name.clone()
            }
            ["echo"] => {
                let body = request.into_body().collect().await;
                // Its caller may be gone.
                let body = body.map(|body| body.to_bytes()).unwrap_or_default();
                format!("{} {}", self.name, body.len())
            }
            ["stream", chunks, time] => {
                let (chunks, time) = (number(chunks), number(time));
                let stream = futures_util::stream::unfold((0, call), move |(n, call)| async move {
                    if n == chunks {
                        return None;
                    }
                    sleep(ms(time)).await;
                    let chunk = Bytes::from_static(&[b'x'; 1000]);
                    Some((Ok(Frame::data(chunk)), (n + 1, call)))
                });
                return Response::new(BodyExt::boxed(StreamBody::new(stream)));
            }
            _ => self.name.clone(),
        };
        drop(call);
        Response::new(Full::from(text).boxed())
    }

    /// Starts something that nobody waits for, with this process's standard output.
    #[allow(clippy::zombie_processes, reason = "that is the point")]
    fn leak(&self, script: &str) {
        let mut sh = Command::new("sh");
        let started = sh.args(["-c", script]).stdin(Stdio::null()).spawn();
        if started.is_ok() {
            self.leaked.fetch_add(1, Ordering::Relaxed);
            self.log("leaked");
        }
    }
}

/// A call in flight.
struct Call {
    child: Arc<Child>,
    id: u64,
}

impl Call {
    fn begins(child: &Arc<Child>, id: u64) -> Self {
        child.calls.lock().unwrap().insert(id);
        Self {
            child: child.clone(),
            id,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.child.calls.lock().unwrap().remove(&self.id);
    }
}

/// Prints so many bytes to each, in lines of all lengths.
fn spew(bytes: u64) {
    let line = "0123456789abcdef".repeat(1_000);
    let mut printed = 0;
    for n in 0_u64.. {
        let length = match n % 200 {
            0 => 16_000,
            n => [10, 100, 300][(n % 3) as usize],
        };
        let line = &line[..length];
        // Nobody may read it any more.
        if writeln!(std::io::stdout(), "{line}").is_err()
            || writeln!(std::io::stderr(), "{line}").is_err()
        {
            return;
        }
        printed += length as u64;
        if printed >= bytes {
            return;
        }
    }
}

/// What a child logged.
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) at: u64,
}

/// The lines of a log, but for one that is not whole yet.
pub(crate) fn lines(log: &str) -> impl Iterator<Item = Line> + '_ {
    log.split_inclusive('\n').filter_map(|line| {
        let mut words = line.strip_suffix('\n')?.split(' ');
        Some(Line {
            what: words.next()?.to_owned(),
            name: words.next()?.to_owned(),
            pid: words.next()?.parse().ok()?,
            at: words.next()?.parse().ok()?,
        })
    })
}

/// How often each was logged.
pub(crate) fn counts(log: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines(log) {
        let what = line.what.split(':').next().unwrap_or_default().to_owned();
        *counts.entry(what).or_default() += 1;
    }
    counts
}

/// How long a child has from SIGTERM to SIGKILL.
pub(crate) const GRACE: Duration = ms(400);
