//! The probe example as its users run it: a process with subprocesses, over real HTTP.
#![cfg(all(feature = "full", target_os = "linux"))]
#![allow(missing_docs, unreachable_pub, clippy::disallowed_methods)]

#[path = "support/example.rs"]
mod example;
#[path = "../examples/probe/line.rs"]
mod line;

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::fs::{CWD, Mode, mkfifoat};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStdout},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower_on_demand::test_util;

use crate::{
    example::{example, marked, run_example},
    line::Line,
};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Stands in for `ffprobe`: notes what it is asked about, and does what the file's name says.
const FFPROBE: &str = r#"#!/bin/sh
for file in "$@"; do :; done
name=${file##*/}
cd "${0%/*}" || exit
echo "$name" >> log
case $name in
    held*) : < gate; echo "{\"name\": \"$name\"}" ;;
    endless) sleep 1000 ;;
    bad) echo "$name is no sound" >&2; exit 3 ;;
    large) head -c 2000000 /dev/zero ;;
    *) echo "{\"name\": \"$name\"}" ;;
esac
"#;

/// A running example over a stand-in.
struct Probe {
    dir: tempfile::TempDir,
    mark: String,
    child: Child,
    out: BufReader<ChildStdout>,
    url: String,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Probe {
    async fn start(files: &[&str], args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("files");
        fs::create_dir(&root).unwrap();
        for file in files {
            fs::write(root.join(file), file).unwrap();
        }
        let program = dir.path().join("ffprobe");
        fs::write(&program, FFPROBE).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        fs::write(dir.path().join("log"), "").unwrap();
        mkfifoat(CWD, dir.path().join("gate"), Mode::RUSR | Mode::WUSR).unwrap();

        let (mut command, mark) = example("probe", &["--listen", "127.0.0.1:0"]);
        command.args(args).arg("--root").arg(&root);
        command.env("PATH", first_in_path(dir.path()));
        command.stderr(Stdio::inherit());
        let mut command = tokio::process::Command::from(command);
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut welcome = String::new();
        out.read_line(&mut welcome).await.unwrap();
        let url = welcome.split_once("http://").unwrap().1;
        let url = url.split_once('/').unwrap().0;
        Self {
            url: format!("http://{url}"),
            client: Client::builder(TokioExecutor::new()).build_http(),
            dir,
            mark,
            child,
            out,
        }
    }

    /// Asks, beside the test.
    fn ask(&self, path: &str) -> JoinHandle<Response<String>> {
        let client = self.client.clone();
        let uri = format!("{}{path}", self.url).parse().unwrap();
        tokio::spawn(async move {
            let (parts, body) = client.get(uri).await.unwrap().into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            Response::from_parts(parts, String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    async fn get(&self, path: &str) -> Response<String> {
        timeout(LONG, self.ask(path)).await.unwrap().unwrap()
    }

    /// Resolves when it counts `what`.
    async fn counts(&self, what: &str) {
        let began = Instant::now();
        loop {
            let counts = self.get("/").await.into_body();
            if counts.contains(what) {
                return;
            }
            assert!(began.elapsed() < LONG, "{counts}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// What the subprocesses were asked about.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("log")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Lets the subprocesses go on that stand at the gate, until it is dropped.
    fn open(&self) -> File {
        let gate = self.dir.path().join("gate");
        File::options().read(true).write(true).open(gate).unwrap()
    }

    /// The subprocesses, with what they have started.
    fn subprocesses(&self) -> BTreeSet<u32> {
        let mut marked = marked(&self.mark);
        marked.remove(&self.child.id().unwrap());
        marked
    }

    /// Tells it to stop; it must do so in good order, and leave no process.
    async fn stop(mut self) {
        let pid = self.child.id().unwrap().try_into().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let status = timeout(LONG, self.child.wait()).await.unwrap().unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).await.unwrap();
        assert!(status.success(), "{status}: {rest}");
        assert!(rest.ends_with("stopped\n"), "{rest}");
        until(|| marked(&self.mark).is_empty()).await;
    }
}

fn first_in_path(dir: &Path) -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let rest = env::split_paths(&path);
    env::join_paths([dir.to_owned()].into_iter().chain(rest)).unwrap()
}

async fn until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "it never came to this");
        sleep(Duration::from_millis(5)).await;
    }
}

fn process(response: &Response<String>) -> &str {
    assert_eq!(response.status(), 200, "{}", response.body());
    response.headers()["x-process"].to_str().unwrap()
}

#[test]
fn the_demo_ends_with_what_it_promises() {
    let (status, out, err) = run_example("probe", &["--demo"]);
    assert!(status.success(), "{out}\n{err}");
    assert_eq!(
        out.lines().last(),
        Some("probe: 50 callers, 5 files, 2 rounds, 10 subprocesses, failed 0")
    );
}

#[tokio::test]
async fn a_refusal_is_a_429_that_says_when_to_come_back_and_who_joins_is_not_refused() {
    let files = ["held", "second", "third"];
    let probe = Probe::start(&files, &["--places", "1"]).await;
    let held = probe.ask("/probe/held?for=web");
    until(|| probe.log() == ["held"]).await;
    let joined = probe.ask("/probe/./held?for=radio");
    probe.counts("running: 1, for 2 who wait").await;

    for (file, after) in [("second", 1), ("third", 2), ("second", 1), ("third", 2)] {
        let refused = probe.get(&format!("/probe/{file}")).await;
        assert_eq!(refused.status(), 429, "{}", refused.body());
        assert_eq!(refused.headers()["cache-control"], "no-store");
        let told: u64 = refused.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        // Less, if the machine was slow since the first time.
        assert!((1..=after).contains(&told), "{file}: {told}");
    }
    assert_eq!(probe.log(), ["held"]);

    let _open = probe.open();
    let (held, joined) = (held.await.unwrap(), joined.await.unwrap());
    assert_eq!(process(&held), process(&joined));
    assert_eq!(held.body(), "{\"name\": \"held\"}\n");
    assert_eq!(held.headers()["content-type"], "application/json");
    // The place is free, and the refusals have left nothing behind.
    process(&probe.get("/probe/second").await);
    process(&probe.get("/probe/third").await);
    assert_eq!(probe.log(), ["held", "second", "third"]);
    probe.stop().await;
}

#[tokio::test]
async fn f4_a_place_is_taken_for_as_long_as_a_subprocess_lives_and_not_while_its_answer_lingers() {
    let files = ["endless", "one", "two"];
    let probe = Probe::start(&files, &["--places", "1", "--within", "3"]).await;
    let late = probe.get("/probe/endless").await;
    assert_eq!(late.status(), 504, "{}", late.body());
    // The subprocess's own bound, not that of its callers.
    assert!(late.body().contains("ended"), "{}", late.body());
    // With what it had started.
    until(|| probe.subprocesses().is_empty()).await;
    process(&probe.get("/probe/one").await);
    // The first answer still lingers, and has no place.
    process(&probe.get("/probe/two").await);
    probe.stop().await;
}

#[tokio::test]
async fn f7_a_failure_is_told_and_not_kept() {
    let probe = Probe::start(&["bad", "large"], &[]).await;
    for _ in 0..2 {
        let failed = probe.get("/probe/bad").await;
        assert_eq!(failed.status(), 502, "{}", failed.body());
        assert!(failed.body().contains("bad is no sound"));
    }
    assert_eq!(probe.log(), ["bad", "bad"]);
    let large = probe.get("/probe/large").await;
    assert_eq!(large.status(), 502, "{}", large.body());
    for outside in [
        "../ffprobe",
        "%2e%2e/ffprobe",
        "%2fetc/hosts",
        "nothing",
        ".",
    ] {
        let unknown = probe.get(&format!("/probe/{outside}")).await;
        assert_eq!(unknown.status(), 404, "{outside}: {}", unknown.body());
    }
    assert_eq!(probe.log().len(), 3);
    probe.stop().await;
}

#[tokio::test]
async fn a_probe_goes_on_when_all_have_left_until_the_service_ends() {
    let probe = Probe::start(&["held"], &["--places", "1"]).await;
    let asked = probe.ask("/probe/held");
    until(|| probe.log() == ["held"]).await;
    asked.abort();
    probe.counts("running: 1, for 0 who wait").await;
    probe.counts("left: 1").await;
    assert_eq!(probe.subprocesses().len(), 1);
    // Whoever comes now joins it.
    let joined = probe.ask("/probe/held");
    let open = probe.open();
    process(&joined.await.unwrap());
    assert_eq!(probe.log(), ["held"]);
    drop(open);

    // Its answer lingers for a second, and then there is a new one, which nobody waits for either.
    let asked = loop {
        let asked = probe.ask("/probe/held");
        until(|| asked.is_finished() || probe.log().len() == 2).await;
        if !asked.is_finished() {
            break asked;
        }
    };
    asked.abort();
    probe.counts("left: 2").await;
    assert_eq!(probe.subprocesses().len(), 1);
    probe.stop().await;
}

#[test]
fn who_is_refused_is_told_average_hold_times_depth_plus_one_through_capacity() {
    let (runtime, clock) = test_util::runtime(1);
    let line = Line::new(runtime, 4);
    let seconds = Duration::from_secs;
    let refuse = |file: &str| line.refuse(Path::new(file));

    let hold = line.hold(Path::new("a"));
    clock.advance(seconds(8));
    drop(hold);
    assert_eq!(line.average(), Some(seconds(8)));
    // 8 s × (0 + 1) / 4, 8 s × (1 + 1) / 4, and so on.
    assert_eq!(["b", "c", "d"].map(refuse), [2, 4, 6].map(seconds));
    // Asking again too early changes nothing.
    clock.advance(seconds(1));
    assert_eq!(["d", "b", "c"].map(refuse), [5, 1, 3].map(seconds));
    // The moment of `b` has come; `d` has found a place earlier.
    clock.advance(seconds(1));
    drop(line.hold(Path::new("d")));
    let average = line.average().unwrap();
    assert_eq!(average, Duration::from_millis(6400));
    assert_eq!(refuse("e"), average * 2 / 4);
    assert_eq!(line.refused(), 7);
}
