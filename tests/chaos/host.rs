//! The host: the layers, and those who call. What happens to them they say on standard output.

use std::{
    fmt::{self, Write as _},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::sync::watch;
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_on_demand::{
    CeilingLayer, Error, ErrorKind, Group, IdleEvict, LazyStartLayer, Runtime,
    http::UntilBodyEnd,
    process::{Probe, Spawn},
};

use crate::{
    BACKENDS, HEAP, LIMIT,
    child::{self, GRACE, Nature},
    ms, now, number,
    rng::Rng,
};

/// Whoever has it is the host.
pub(crate) const SEED: &str = "CHAOS_HOST_SEED";
const DIR: &str = "CHAOS_HOST_DIR";
/// Marks all processes of a run.
const RUN: &str = "CHAOS_RUN";
const CALLERS: u64 = 80;
/// What callers send some of.
static BODY: [u8; 50_000] = [b'y'; 50_000];
/// A call that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);
/// glibc's; others do not know it.
const ALLOCATOR: [(&str, &str); 4] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "4096"),
    ("MALLOC_TRIM_THRESHOLD_", "16384"),
    ("MALLOC_TOP_PAD_", "0"),
];
/// What the host says begins with it; the test harness has its own to say.
const SAYS: &str = "@ ";

pub(crate) fn is_host() -> bool {
    std::env::var_os(SEED).is_some()
}

fn say(what: &str) {
    println!("{SAYS}{what}");
}

// ===== as the test has it =====

/// The host as a process. Killed with all its children when this is dropped.
pub(crate) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    said: Arc<(Mutex<Vec<String>>, Condvar)>,
    reader: Option<JoinHandle<()>>,
    mark: String,
}

impl Process {
    pub(crate) fn start(seed: u64, dir: &Path) -> Self {
        let mark = format!("{}-{}", std::process::id(), now());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "host::runs", "--nocapture"])
            .env(SEED, seed.to_string())
            .env(DIR, dir)
            .env(RUN, &mark)
            // One heap, and what is freed goes back to the system as far as it can: else what is resident is what
            // the allocator kept of the highest peak, in each of the heaps that its threads happened to get.
            .envs(ALLOCATOR)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = Arc::<(Mutex<Vec<String>>, Condvar)>::default();
        let says = said.clone();
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(SAYS) {
                    says.0.lock().unwrap().push(line.to_owned());
                    says.1.notify_all();
                }
            }
        });
        Self {
            orders: child.stdin.take(),
            child,
            said,
            reader: Some(reader),
            mark,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn mark(&self) -> (&'static str, String) {
        (RUN, self.mark.clone())
    }

    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }

    /// Waits until it says a line that begins so.
    pub(crate) fn await_answer(&self, begin: &str) -> String {
        let is_it = |line: &String| line.starts_with(begin);
        let missing = |said: &mut Vec<String>| !said.iter().any(is_it);
        let said = self.said.0.lock().unwrap();
        let waited = self.said.1.wait_timeout_while(said, 3 * HANGS, missing);
        let (mut said, late) = waited.unwrap();
        assert!(!late.timed_out(), "the host never says {begin:?}");
        let at = said.iter().position(is_it).unwrap();
        said.remove(at)
    }

    /// Bytes that it has allocated, and in how many blocks.
    pub(crate) fn heap(&mut self) -> (i64, i64) {
        self.order("heap");
        let heap = self.await_answer("heap ");
        let mut numbers = heap.split(' ').skip(1).map(|word| word.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        status
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.said.0.lock().unwrap().clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ===== the host itself =====

#[test]
fn runs() {
    if !is_host() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run());
}

/// Answers with the whole body.
type Service = BoxCloneSyncService<Request<Full<Bytes>>, Bytes, Error>;

struct Host {
    backends: Vec<(String, Service)>,
    going: watch::Sender<bool>,
    busy: AtomicUsize,
    ids: AtomicU64,
    left: AtomicU64,
    failed: AtomicU64,
}

async fn run() {
    let seed = number(SEED).unwrap();
    let dir = std::env::var(DIR).unwrap();
    let runtime = Runtime::tokio();
    let group = Group::new();
    let ceiling = CeilingLayer::new(runtime.clone(), LIMIT as u64);
    let ceiling = ceiling
        .wait(3 * HANGS)
        .yield_after(ms(200))
        .min_residency(ms(100));
    let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilBodyEnd);
    runtime.spawn(idle_evict.run());
    let mut handles = Vec::new();
    let mut backends = Vec::new();
    for index in 0..BACKENDS {
        let name = format!("b{index}");
        let command = child::command(&name, Nature::of(index), Path::new(&dir))
            .ready_within(Duration::from_secs(8))
            .probes(ms(50), Duration::from_secs(1))
            .alive(Probe::http("/healthz"), ms(200), 3)
            .grace(GRACE);
        // Who is killed during a start is started again by the next call.
        let layer = LazyStartLayer::new(runtime.clone(), command)
            .backoff(Duration::ZERO, Duration::ZERO)
            .join(&group);
        let (layer, handle) = layer.pair();
        let service = ServiceBuilder::new()
            .layer(layer)
            .layer(evictable.clone().idle_after(ms(500)))
            .layer(ceiling.clone())
            .service(Spawn::http());
        let service = service.map_request(|request: Request<Full<Bytes>>| request);
        let service = service.and_then(whole);
        backends.push((name, BoxCloneSyncService::new(service)));
        handles.push(handle);
    }
    drop(evictable);
    let host = Arc::new(Host {
        backends,
        going: watch::Sender::new(false),
        busy: AtomicUsize::new(0),
        ids: AtomicU64::new(0),
        left: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| tokio::spawn(host.clone().call_on(Rng::new(seed, n + 1))))
        .collect();
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        match &*order {
            "go" => {
                host.going.send_replace(true);
            }
            "rest" => {
                host.going.send_replace(false);
                while host.busy.load(Ordering::SeqCst) > 0 {
                    tokio::time::sleep(ms(5)).await;
                }
                for handle in &handles {
                    let _ = handle.stop().await;
                }
                say("rested");
            }
            "heap" => {
                let heap = HEAP.stats();
                let bytes = heap.bytes_allocated as i64 - heap.bytes_deallocated as i64;
                // Each status keeps the last error, with the last lines of its child.
                let errors = group.status().into_iter().filter_map(|it| it.last_error);
                let kept = errors.filter_map(|error| Some(error.detail()?.len() as i64));
                let bytes = bytes - kept.sum::<i64>();
                let blocks = heap.allocations as i64 - heap.deallocations as i64;
                say(&format!("heap {bytes} {blocks}"));
            }
            _ => break,
        }
    }
    for caller in callers {
        caller.abort();
        let _ = caller.await;
    }
    let status = group.status();
    let sum = |of: fn(&tower_on_demand::Status) -> u64| status.iter().map(of).sum::<u64>();
    say(&format!(
        "numbers calls={} left={} failed={} starts={} evictions={} crashes={}",
        host.ids.load(Ordering::Relaxed),
        host.left.load(Ordering::Relaxed),
        host.failed.load(Ordering::Relaxed),
        sum(|it| it.starts),
        sum(|it| it.evictions),
        sum(|it| it.crashes),
    ));
    group.stopped(Duration::from_secs(10)).await;
    let held = ceiling.occupancy();
    say(&format!("held used={} waiting={}", held.used, held.waiting));
}

/// The lines of standard input.
fn orders() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (tell, orders) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    orders
}

impl Host {
    async fn call_on(self: Arc<Self>, mut rng: Rng) {
        let mut going = self.going.subscribe();
        loop {
            self.busy.fetch_add(1, Ordering::SeqCst);
            while *going.borrow_and_update() {
                self.call(&mut rng).await;
                tokio::time::sleep(ms(rng.below(20))).await;
            }
            self.busy.fetch_sub(1, Ordering::SeqCst);
            if going.wait_for(|going| *going).await.is_err() {
                return;
            }
        }
    }

    async fn call(&self, rng: &mut Rng) {
        // A few are asked for more than the others.
        let index = match rng.percent(60) {
            true => rng.below(3) * 7,
            false => rng.below(BACKENDS as u64),
        };
        let (name, service) = &self.backends[index as usize];
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut expected = name.len();
        let request = Request::builder().header("call", id);
        let request = match rng.below(10) {
            0..=3 => request.uri("/"),
            4 | 5 => request.uri(format!("/work/{}", rng.range(1, 60))),
            6 | 7 => {
                let chunks = rng.range(1, 20);
                expected = 1000 * chunks as usize;
                request.uri(format!("/stream/{chunks}/{}", rng.below(6)))
            }
            _ => request.uri("/echo").method("POST"),
        };
        let body = match request.method_ref() {
            Some(method) if method == "POST" => {
                let length = rng.range(1, 50_000) as usize;
                expected += 1 + length.to_string().len();
                Bytes::from_static(&BODY[..length])
            }
            _ => Bytes::new(),
        };
        let request = request.body(Full::new(body)).unwrap();
        let patience = match rng.percent(10) {
            true => ms(rng.below(40)),
            false => HANGS,
        };
        let service = service.clone();
        let called = now();
        let mut answer = Box::pin(service.oneshot(request));
        match tokio::time::timeout(patience, &mut answer).await {
            Ok(Ok(whole)) => {
                let streamed = whole.first() == Some(&b'x');
                if whole.len() != expected || !(streamed || whole.starts_with(name.as_bytes())) {
                    say(&format!("wrong {id} {name}: {} bytes", whole.len()));
                }
            }
            Ok(Err(error)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let (of, kind) = (error.backend().unwrap_or("-"), kind(&error));
                let (to, mut text) = (now(), Short(String::new()));
                let _ = write!(text, "{error:#}");
                let text = text.0.replace('\n', " ");
                say(&format!(
                    "error {id} {name} {of} {kind} {called} {to} {text}"
                ));
            }
            Err(_) if patience == HANGS => say(&format!("hangs {id} {name} {called}")),
            Err(_) => {
                self.left.fetch_add(1, Ordering::Relaxed);
                say(&format!("left {id}"));
            }
        }
    }
}

async fn whole<B>(response: Response<B>) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error = Error>,
{
    Ok(response.into_body().collect().await?.to_bytes())
}

/// The begin of what is written; the last lines that a child printed may be long.
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0
            .extend(text.chars().take(300 - self.0.len().min(300)));
        if self.0.len() < 300 {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// The kind in one word.
fn kind(error: &Error) -> String {
    let kind = match error.kind() {
        ErrorKind::StartTimeout { .. } => "StartTimeout".to_owned(),
        ErrorKind::NoRoom(_) => "NoRoom".to_owned(),
        other => format!("{other:?}"),
    };
    kind.replace(' ', "")
}
