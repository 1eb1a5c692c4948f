//! The host as a process: started, asked, watched, stopped.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::example::{example, marked, program, run_example};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);

/// A command that runs the host, and what marks it.
pub fn host(args: &[&str]) -> (Command, String) {
    example("host", args)
}

/// Runs the host to its end.
pub fn run(args: &[&str]) -> (ExitStatus, String, String) {
    run_example("host", args)
}

/// A configuration file with `text`.
pub fn file(text: &str) -> tempfile::TempPath {
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    fs::write(file.path(), text).unwrap();
    file.into_temp_path()
}

/// `real.toml`, on a port that is free.
pub fn real() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/host/real.toml");
    let text = fs::read_to_string(path).unwrap();
    let own = text.replace("127.0.0.1:8080\"\n", "127.0.0.1:0\"\n");
    assert_ne!(text, own);
    own
}

/// A host of the demo's backends with these names, and whatever `more` says.
pub fn demo(limit: u32, names: &[&str], more: &str) -> String {
    let program = program("host");
    let mut text = format!("listen = \"127.0.0.1:0\"\nlimit = {limit}\nwait = \"60s\"\n");
    for name in names {
        text.push_str(&format!(
            "[backend.{name}]\ncommand = [{program:?}, \"--backend\", \"{name}\", \"{{socket}}\"]\n\
             listen = \"unix\"\nready_within = \"60s\"\n"
        ));
    }
    text + more
}

/// A running host. Dropped, it is killed.
pub struct Host {
    child: Child,
    mark: String,
    address: SocketAddr,
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>,
    output: Arc<std::sync::Mutex<String>>,
}

impl Host {
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    pub fn start_with(config: &str, args: &[&str]) -> Self {
        let file = file(config);
        let config = ["--config", file.to_str().unwrap()];
        let (mut command, mark) = host(&[&config, args].concat());
        let mut child = command.spawn().unwrap();
        let output = Arc::default();
        let (told, address) = mpsc::channel();
        collect(child.stdout.take().unwrap(), &output, Some(told));
        collect(child.stderr.take().unwrap(), &output, None);
        let address = address.recv_timeout(LONG);
        let address = address.unwrap_or_else(|_| panic!("{}", output.lock().unwrap()));
        Self {
            child,
            mark,
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
            output,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<hyper::body::Incoming>, String> {
        self.client.request(request).await.map_err(chain)
    }

    /// The whole answer, or why there is none.
    pub async fn get(&self, path: &str) -> Result<Response<String>, String> {
        let request = Request::get(self.url(path)).body(Full::default()).unwrap();
        let (parts, body) = self.send(request).await?.into_parts();
        let bytes = body.collect().await.map_err(chain)?.to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Response::from_parts(parts, text))
    }

    /// Calls whose answers are read to the end, whatever they are; for tasks.
    pub fn calls(&self, path: &str) -> impl Fn() -> BoxFuture<'static, ()> + Send + use<> {
        let (client, url) = (self.client.clone(), self.url(path));
        move || {
            let request = Request::get(&url).body(Full::default()).unwrap();
            let answer = client.request(request);
            async {
                if let Ok(answer) = answer.await {
                    let _ = answer.into_body().collect().await;
                }
            }
            .boxed()
        }
    }

    /// The body of an answer that must be a good one.
    pub async fn ok(&self, path: &str) -> String {
        let answer = self.get(path).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}: {}", answer.body());
        answer.into_body()
    }

    /// What `/_status` says.
    pub async fn status(&self) -> Value {
        serde_json::from_str(&self.ok("/_status").await).unwrap()
    }

    /// Waits until `/_status` is as it shall be.
    pub async fn status_when(&self, what: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let status = self.status().await;
            if what(&status) {
                return status;
            }
            assert!(began.elapsed() < LONG, "{status:#}\n{}", self.output());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What the index says of `backend`.
    pub async fn line(&self, backend: &str) -> String {
        let index = self.ok("/").await;
        let mut lines = index.lines();
        let line = lines.find(|line| line.split(' ').next() == Some(backend));
        line.unwrap_or_else(|| panic!("{backend} is not in\n{index}"))
            .to_owned()
    }

    /// Waits until the index says `what` of `backend`.
    pub async fn until(&self, backend: &str, what: &str) {
        let began = Instant::now();
        loop {
            let line = self.line(backend).await;
            if line.contains(what) {
                return;
            }
            assert!(began.elapsed() < LONG, "{line}\n{}", self.output());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Its children whose command line contains one of `parts`, and when that was read.
    fn children(&self, parts: &[&str]) -> Vec<(u32, Instant)> {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| {
            if parent(pid)? != self.pid() {
                return None;
            }
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
            let ours = parts.iter().any(|part| command.contains(part));
            ours.then(|| (pid, Instant::now()))
        })
        .collect()
    }

    /// How many such children were alive at the same time, for certain, until `done`.
    pub fn most_alive(&self, parts: &[&str], done: &AtomicBool) -> usize {
        let mut seen: BTreeMap<u32, (Instant, Instant)> = BTreeMap::new();
        while !done.load(Ordering::Relaxed) {
            for (pid, at) in self.children(parts) {
                seen.entry(pid).or_insert((at, at)).1 = at;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let alive_at = |at: Instant| {
            seen.values()
                .filter(|(first, last)| *first <= at && at <= *last)
                .count()
        };
        seen.values()
            .map(|(first, _)| alive_at(*first))
            .max()
            .unwrap_or(0)
    }

    /// Tells it to stop; it must do so in good order, and leave no process.
    pub fn stop(mut self) -> String {
        kill(
            Pid::from_raw(self.pid().try_into().unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if began.elapsed() > LONG => panic!("it does not stop: {}", self.output()),
                None => thread::sleep(Duration::from_millis(10)),
            }
        };
        assert!(status.success(), "{status}: {}", self.output());
        assert_eq!(marked(&self.mark), BTreeSet::new(), "processes are left");
        self.output()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Keeps what a host prints, and tells its address.
fn collect(
    from: impl Read + Send + 'static,
    into: &Arc<std::sync::Mutex<String>>,
    told: Option<mpsc::Sender<SocketAddr>>,
) {
    let into = into.clone();
    thread::spawn(move || {
        for line in BufReader::new(from).lines() {
            let Ok(line) = line else { return };
            let address = line
                .split_once("on http://")
                .and_then(|(_, rest)| rest.split_once('/')?.0.parse().ok());
            into.lock().unwrap().push_str(&format!("{line}\n"));
            if let (Some(told), Some(address)) = (&told, address) {
                let _ = told.send(address);
            }
        }
    });
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything, and ends with the last `)`.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Kills a process at once.
pub fn kill_now(pid: u32) {
    kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
}
