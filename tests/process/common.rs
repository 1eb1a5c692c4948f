//! What the tests share.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use tower::ServiceExt;
use tower_on_demand::{
    Backend, Error,
    process::{Client, Command, Spawn},
};

/// How long a fact may take to come about on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A test that runs; the one that looks for processes left behind waits for it.
#[derive(Debug)]
pub(crate) struct Test;

impl Test {
    pub(crate) fn begins() -> Self {
        RUNNING.fetch_add(1, Ordering::SeqCst);
        Self
    }

    pub(crate) fn running() -> usize {
        RUNNING.load(Ordering::SeqCst)
    }
}

impl Drop for Test {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) async fn start(command: Command) -> Result<Client, Error> {
    Spawn::http().oneshot(command).await
}

pub(crate) async fn started(command: Command) -> Client {
    match start(command).await {
        Ok(client) => client,
        Err(error) => panic!("{error:#}"),
    }
}

/// `GET path`, and the answer with its whole body.
pub(crate) async fn get(client: &Client, path: &str) -> Result<(StatusCode, String), Error> {
    let request = Request::get(path)
        .body(Empty::<bytes::Bytes>::new())
        .unwrap();
    let response = client.lease().oneshot(request).await?;
    read(response).await
}

pub(crate) async fn read<B>(response: Response<B>) -> Result<(StatusCode, String), Error>
where
    B: http_body::Body,
    B::Error: Into<tower_on_demand::BoxError>,
{
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(Error::service)?.to_bytes();
    Ok((head.status, String::from_utf8(body.to_vec()).unwrap()))
}

pub(crate) fn exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

pub(crate) fn kill(signal: &str, pid: u32) {
    let mut kill = std::process::Command::new("kill");
    let killed = kill.args([signal, &pid.to_string()]).status().unwrap();
    assert!(killed.success());
}

/// Whether it runs. One that has ended and whose parent is gone is init's to reap.
pub(crate) fn runs(pid: u32) -> bool {
    !processes(|id, _, _, state| id == pid && state != 'Z').is_empty()
}

/// The processes that `wanted` (pid, parent, group, state) is true of.
pub(crate) fn processes(wanted: impl Fn(u32, u32, u32, char) -> bool) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name may contain anything.
        let Some((_, rest)) = stat.rsplit_once(") ") else {
            return false;
        };
        let mut rest = rest.split(' ');
        let state = rest.next().and_then(|state| state.chars().next()).unwrap();
        let mut number = || rest.next().unwrap().parse().unwrap_or(0);
        wanted(*pid, number(), number(), state)
    })
    .collect()
}

/// Those of a group that run.
pub(crate) fn group(id: u32) -> Vec<u32> {
    processes(|_, _, group, state| group == id && state != 'Z')
}

/// Waits until `fact` holds.
pub(crate) async fn until(what: &str, fact: impl FnMut() -> bool) {
    within(SOON, what, fact).await;
}

pub(crate) async fn within(bound: Duration, what: &str, mut fact: impl FnMut() -> bool) {
    let seen = tokio::time::timeout(bound, async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(seen.await.is_ok(), "not within {bound:?}: {what}");
}

/// A file that children write to; removed with this.
#[derive(Debug)]
pub(crate) struct Log(tempfile::TempDir);

impl Log {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> String {
        self.file("log")
    }

    /// Another file beside it.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// What was written: what, by which pid, at how many milliseconds.
    pub(crate) fn lines(&self) -> Vec<(String, u32, u64)> {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let what = words.next()?.to_owned();
            Some((
                what,
                words.next()?.parse().ok()?,
                words.next()?.parse().ok()?,
            ))
        };
        text.lines().filter_map(line).collect()
    }

    /// Who wrote `what`.
    pub(crate) fn who(&self, what: &str) -> Vec<u32> {
        let lines = self.lines().into_iter();
        lines
            .filter(|line| line.0 == what)
            .map(|line| line.1)
            .collect()
    }
}

/// A port that nobody has, below those that the system gives by itself. It is not bound to see: a child
/// that is just being started would hold a copy of that socket.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed) + std::process::id() as usize * 10;
    u16::try_from(20_000 + n % 10_000).unwrap()
}
