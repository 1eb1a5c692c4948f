//! Running, dying, being stopped.

use std::{os::unix::process::ExitStatusExt, process::Stdio, time::Duration};

use http::Request;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    time::Instant,
};
use tower::ServiceExt;
use tower_on_demand::{
    Backend, ErrorKind, Retired, Stopped,
    process::{Listen, Probe, Spawn},
};

use crate::{
    child::{RUN, by_shell, child, run},
    common::{
        Log, Test, exists, free_port, get, group, kill, processes, read, runs, started, until,
        within,
    },
    events::Events,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test]
async fn s33_stopping_a_wrapper_shell_ends_its_whole_group() {
    let _test = Test::begins();
    // The shell dies of SIGTERM at once, its child takes its time, or for ever.
    for (term, least) in [("", 0), ("term=600", 600), ("term=never", 1000)] {
        let log = Log::new();
        let role = format!("at={{address}} {term} log={}", log.path());
        let command = by_shell("wrapped", &role, r#""$@" & wait"#).grace(ms(1000));
        let client = started(command).await;
        get(&client, "/").await.unwrap();
        let pid = client.process().pid();
        let server = log.who("listens")[0];
        assert_ne!(pid, server);
        let began = Instant::now();
        assert_eq!(client.stop().await, Stopped::Gone);
        let took = began.elapsed();
        assert!(!exists(pid) && group(pid).is_empty() && !runs(server));
        assert!(took >= ms(least), "its grace is the group's: {took:?}");
        assert!(took < ms(1000 + 2000), "grace, kill and a second: {took:?}");
        let ended = log.who("end").len();
        assert_eq!(ended, usize::from(term == "term=600"));
    }
}

#[tokio::test]
async fn s33_a_grandchild_that_left_the_group_and_holds_the_pipes_does_not_hang_the_stop() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} log={}", log.path());
    let script = format!(
        r#"setsid sleep 60 & echo $! > {}; exec "$@""#,
        log.file("sleep")
    );
    let client = started(by_shell("wrapped", &role, &script)).await;
    let began = Instant::now();
    assert_eq!(client.stop().await, Stopped::Gone);
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    let sleep = std::fs::read_to_string(log.file("sleep")).unwrap();
    let sleep: u32 = sleep.trim().parse().unwrap();
    assert!(exists(sleep), "what has left the group is out of reach");
    kill("-KILL", sleep);
}

#[tokio::test]
async fn s34_a_child_has_its_whole_grace_and_no_more() {
    let _test = Test::begins();
    let log = Log::new();
    let role = |term: &str| format!("at={{address}} term={term} log={}", log.path());
    // It needs nearly all of it.
    let client = started(child("slow", &role("900")).grace(ms(3000))).await;
    let began = Instant::now();
    assert_eq!(client.stop().await, Stopped::Gone);
    assert!(began.elapsed() >= ms(900));
    assert_eq!(client.process().exit_status().unwrap().code(), Some(0));
    assert_eq!(log.who("end"), [client.process().pid()]);
    // It ignores SIGTERM.
    let client = started(child("deaf", &role("never")).grace(ms(700))).await;
    let began = Instant::now();
    assert_eq!(client.stop().await, Stopped::Killed);
    let took = began.elapsed();
    assert!(
        took >= ms(700) && took < ms(700) + Duration::from_secs(2),
        "{took:?}"
    );
    assert_eq!(client.process().exit_status().unwrap().signal(), Some(9));
    assert_eq!(log.who("term").len(), 2);
}

#[tokio::test]
async fn bounds_may_be_as_long_as_they_may() {
    let _test = Test::begins();
    let longest = Duration::MAX;
    let command = child("patient", "at={address}")
        .ready_within(longest)
        .probes(longest, longest)
        .grace(longest)
        .alive(Probe::connect(), longest, 1);
    let client = started(command).await;
    client.stop().await;
    assert!(!exists(client.process().pid()));
}

#[tokio::test]
async fn a_stop_that_nobody_waits_for_goes_on() {
    let _test = Test::begins();
    let client = started(child("a", "at={address} term=never").grace(ms(300))).await;
    let process = client.process().clone();
    drop(client.stop());
    until("it is gone", || process.is_gone()).await;
    assert!(!exists(process.pid()));
    let again = client.stop().await;
    assert_eq!(again, Stopped::Killed, "and may be asked again");
}

#[tokio::test]
async fn dropping_the_client_stops_the_child() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} term=50 log={}", log.path());
    let client = started(child("a", &role)).await;
    let process = client.process().clone();
    let lease = client.lease();
    drop(client);
    process.gone().await;
    assert!(!exists(process.pid()));
    assert_eq!(log.who("end").len(), 1, "gracefully");
    let request = Request::get("/").body(String::new()).unwrap();
    let refused = lease.oneshot(request).await;
    assert!(refused.is_err());
}

#[test]
fn the_end_of_the_runtime_kills_the_children() {
    let _test = Test::begins();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let command = by_shell("wrapped", "at={address} term=never", r#""$@" & wait"#);
    let client = runtime.block_on(started(command));
    let process = client.process().clone();
    assert_eq!(group(process.pid()).len(), 2);
    drop(runtime);
    let began = std::time::Duration::from_secs(10);
    let waiting = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    waiting.block_on(within(began, "the group is dead", || {
        group(process.pid()).is_empty()
    }));
    assert!(process.is_gone());
    drop(client);
}

#[tokio::test]
async fn s36_after_a_restart_at_the_same_place_the_first_call_is_the_new_ones() {
    let _test = Test::begins();
    let log = Log::new();
    let port = free_port();
    for listen in [Listen::port(port), Listen::unix_at(log.file("socket"))] {
        let mut old = None;
        for _ in 0..5 {
            let client = started(child("a", "at={address}").listen(listen.clone())).await;
            let pid = client.process().pid().to_string();
            for _ in 0..3 {
                assert_eq!(
                    get(&client, "/").await.unwrap(),
                    (http::StatusCode::OK, pid.clone())
                );
            }
            // Killed or stopped, with a connection open.
            match old {
                None => kill("-KILL", client.process().pid()),
                Some(_) => drop(client.stop().await),
            }
            client.process().gone().await;
            assert!(get(&client, "/").await.is_err());
            old = Some(client);
        }
    }
}

#[tokio::test]
async fn s35_the_children_of_a_host_that_is_killed_die_with_it() {
    let _test = Test::begins();
    let log = Log::new();
    let mut host = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "life::hosts", "--nocapture", "--quiet"])
        .env("ON_DEMAND_HOST", log.path())
        .env(RUN, run())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let lines = BufReader::new(host.stdout.take().unwrap());
    let mut lines = lines.lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line == "hosting" {
            break;
        }
    }
    let children = log.who("listens");
    assert_eq!(children.len(), 3);
    assert!(children.iter().all(|pid| exists(*pid)));
    host.kill().await.unwrap();
    within(ms(1000), "the children are gone", || {
        children.iter().all(|pid| !runs(*pid))
    })
    .await;
}

/// The host of the test above: children that ignore SIGTERM, one of them with a child of its own, one
/// with a socket it inherited. In between somebody kills the guard.
#[test]
fn hosts() {
    let Ok(log) = std::env::var("ON_DEMAND_HOST") else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let role = format!("at={{address}} term=never log={log}");
        let handed = format!("at=handed term=never log={log}");
        let _clients = [
            started(child("a", &role)).await,
            started(by_shell("b", &role, r#""$@" & wait"#)).await,
            {
                let me = std::process::id();
                let guard = |pid: u32| {
                    let cmdline = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
                    cmdline.is_ok_and(|line| line.contains("tower-on-demand-guard"))
                };
                let guards = || processes(|pid, parent, _, _| parent == me && guard(pid));
                let killed = guards();
                assert_eq!(killed.len(), 1, "one for all");
                kill("-KILL", killed[0]);
                until("there is another", || {
                    guards().len() == 1 && guards() != killed
                })
                .await;
                started(child("c", &handed).listen(Listen::free_port().handed())).await
            },
        ];
        println!("hosting");
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn s35_a_host_killed_in_the_middle_of_its_starts_leaves_no_child() {
    let _test = Test::begins();
    for n in 0..20_u64 {
        let mark = format!("{}-{n}", std::process::id());
        let mut host = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "life::hosts_that_start",
                "--nocapture",
                "--quiet",
            ])
            .env("ON_DEMAND_STARTS", &mark)
            .env(RUN, run())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let of_host = || {
            let mark = format!("ON_DEMAND_STARTS={mark}\0");
            processes(|pid, _, _, state| {
                let environ = std::fs::read_to_string(format!("/proc/{pid}/environ"));
                state != 'Z' && environ.is_ok_and(|environ| environ.contains(&mark))
            })
        };
        until("it starts children", || of_host().len() > 2).await;
        tokio::time::sleep(Duration::from_micros(n * 700)).await;
        host.kill().await.unwrap();
        within(ms(1000), "the children are gone", || of_host().is_empty()).await;
    }
}

/// The host of the test above.
#[test]
fn hosts_that_start() {
    if std::env::var_os("ON_DEMAND_STARTS").is_none() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        loop {
            let start = || started(child("a", "at={address}"));
            let _clients = tokio::join!(start(), start(), start());
        }
    });
}

#[tokio::test]
async fn a_death_is_noticed_when_it_happens_and_only_calls_in_flight_fail() {
    let _test = Test::begins();
    let client = started(child("mortal", "at={address} say=hello")).await;
    let retired = client.retired();
    let request = Request::get("/hang").body(String::new()).unwrap();
    let hanging = tokio::spawn(client.lease().oneshot(request));
    get(&client, "/").await.unwrap();
    kill("-KILL", client.process().pid());
    let Retired::Died(Some(error)) = retired.await else {
        panic!("it died");
    };
    assert_eq!(error.kind(), &ErrorKind::Died);
    let told = format!("{error:#}");
    assert!(told.contains("SIGKILL") && told.contains("hello"), "{told}");
    let in_flight = hanging.await.unwrap().unwrap_err();
    assert_eq!(in_flight.kind(), &ErrorKind::Service);
    assert_eq!(in_flight.backend(), Some("mortal"));
    let mut next = client.lease();
    let next = ServiceExt::<Request<String>>::ready(&mut next).await;
    let next = next.unwrap_err();
    assert_eq!(
        next.kind(),
        &ErrorKind::Died,
        "refused before it is handed over"
    );
    client.process().gone().await;
}

#[tokio::test]
async fn a_child_that_ends_leaves_none_of_its_group() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} log={}", log.path());
    let client = started(by_shell("a", &role, r#"sleep 60 & exec "$@""#)).await;
    let pid = client.process().pid();
    assert_eq!(group(pid).len(), 2);
    let _ = get(&client, "/exit/7").await.unwrap_err();
    client.process().gone().await;
    assert!(group(pid).is_empty());
    assert_eq!(client.process().exit_status().unwrap().code(), Some(7));
}

#[tokio::test]
async fn a_child_that_does_not_answer_its_probes_is_unhealthy() {
    let _test = Test::begins();
    let command = child("wedged", "at={address}")
        .probes(ms(20), ms(100))
        .alive(Probe::http("/healthz"), ms(50), 3);
    let client = started(command).await;
    let mut retired = Box::pin(client.retired());
    let well = tokio::time::timeout(ms(500), &mut retired).await;
    assert!(well.is_err(), "it is well");
    get(&client, "/sick").await.unwrap();
    let Retired::Unhealthy(Some(error)) = retired.await else {
        panic!("it is wedged");
    };
    let told = format!("{error:#}");
    assert!(
        told.contains("3 probes failed in a row") && told.contains("no answer"),
        "{told}"
    );
    assert!(exists(client.process().pid()), "to be stopped by its owner");
    client.stop().await;
}

#[tokio::test]
async fn what_a_child_uses_is_told() {
    let _test = Test::begins();
    let client = started(by_shell("a", "at={address}", r#""$@" & wait"#)).await;
    get(&client, "/").await.unwrap();
    let stats = client.process().stats().unwrap();
    assert_eq!(stats.processes, 2);
    assert!(stats.rss > 1 << 20, "{stats:?}");
    assert!(stats.threads >= 3 && stats.fds >= 6, "{stats:?}");
    let before = stats.cpu;
    until("CPU time is counted", || {
        let calls = (0..20).map(|_| get(&client, "/"));
        futures_util::FutureExt::now_or_never(futures_util::future::join_all(calls));
        client.process().stats().unwrap().cpu > before || before > Duration::ZERO
    })
    .await;
    client.stop().await;
    let gone = client.process().stats().unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn the_last_64_lines_are_kept_and_long_ones_are_cut() {
    let _test = Test::begins();
    let script = r#"i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done
        head -c 5000 /dev/zero | tr '\0' x; echo; printf 'no end'; exit 1"#;
    let command = by_shell("chatty", "", script).arg("{port}");
    let error = Spawn::http().oneshot(command).await.unwrap_err();
    let lines: Vec<&str> = error.detail().unwrap().lines().map(str::trim).collect();
    assert_eq!(lines.len(), 65, "and one that introduces them");
    assert_eq!(lines[1], "line 40");
    assert_eq!(lines[60], "line 99");
    assert_eq!(
        [lines[61].len(), lines[62].len(), lines[63].len()],
        [2048, 2048, 904]
    );
    assert_eq!(lines[64], "no end");
}

#[tokio::test]
async fn each_line_of_output_is_an_event_with_the_backends_name() {
    let _test = Test::begins();
    let events = Events::of("talker");
    let client = started(child("talker", "at={address} say=hello")).await;
    client.stop().await;
    let pid = client.process().pid().to_string();
    for (stream, line) in [("stdout", "hello"), ("stderr", "hello to stderr")] {
        let event = [
            ("backend", "talker"),
            ("pid", &pid),
            ("stream", stream),
            ("message", line),
        ];
        assert!(events.has(&event), "{events:?}");
    }
}

#[tokio::test]
async fn a_child_that_prints_without_end_neither_blocks_nor_fills_memory() {
    let _test = Test::begins();
    let client = started(by_shell("a", "at={address}", r#"yes & exec "$@""#)).await;
    for _ in 0..20 {
        get(&client, "/").await.unwrap();
    }
    assert_eq!(client.process().last_lines().len(), 64);
    let began = Instant::now();
    client.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5));
}

// ===== HTTP =====

#[tokio::test]
async fn connections_are_kept_and_are_the_instances_own() {
    let _test = Test::begins();
    for listen in [Listen::free_port(), Listen::unix()] {
        let client = started(child("a", "at={address}").listen(listen)).await;
        let first = get(&client, "/connection").await.unwrap().1;
        for _ in 0..5 {
            assert_eq!(get(&client, "/connection").await.unwrap().1, first);
        }
        client.stop().await;
    }
}

#[tokio::test]
async fn bodies_of_any_kind_are_sent_and_streamed() {
    let _test = Test::begins();
    let client = started(child("a", "at={address}")).await;
    let request = Request::post("/echo")
        .body(Full::new(&b"whole"[..]))
        .unwrap();
    let response = client.lease().oneshot(request).await.unwrap();
    assert_eq!(read(response).await.unwrap().1, "whole");
    let frames = ["in ", "parts"].map(|part| Ok::<_, std::io::Error>(Frame::data(part.as_bytes())));
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let request = Request::post("/echo").body(body).unwrap();
    let response = client.lease().oneshot(request).await.unwrap();
    assert_eq!(read(response).await.unwrap().1, "in parts");
    let boxed = BodyExt::boxed_unsync(String::from("boxed"));
    let request = Request::post("/echo").body(boxed).unwrap();
    let response = client.lease().oneshot(request).await.unwrap();
    assert_eq!(read(response).await.unwrap().1, "boxed");
    let (_, streamed) = get(&client, "/stream/5/20").await.unwrap();
    assert_eq!(streamed, "chunk".repeat(5));
    client.stop().await;
}

#[tokio::test]
async fn the_host_that_is_called_is_passed_on() {
    let _test = Test::begins();
    let client = started(child("a", "at={address}")).await;
    let seen = |request: http::request::Builder| {
        let lease = client.lease();
        async move {
            let response = lease.oneshot(request.body(String::new()).unwrap()).await;
            read(response.unwrap()).await.unwrap().1
        }
    };
    let named = seen(Request::get("http://user@example.com:81/host")).await;
    assert_eq!(named, r#"HTTP/1.1 Some("example.com:81") None"#);
    let header = seen(Request::get("/host").header("host", "example.org")).await;
    assert_eq!(header, r#"HTTP/1.1 Some("example.org") None"#);
    let by_2 = seen(Request::get("http://example.com/host").version(http::Version::HTTP_2)).await;
    assert_eq!(by_2, r#"HTTP/1.1 Some("example.com") None"#);
    assert_eq!(
        seen(Request::get("/host")).await,
        r#"HTTP/1.1 Some("localhost") None"#
    );
    client.stop().await;
}

#[tokio::test]
async fn h2c_children_are_probed_and_called_by_http_2() {
    let _test = Test::begins();
    for listen in [Listen::free_port(), Listen::unix()] {
        let command = child("a", "at={address}")
            .ready(Probe::http("/healthz"))
            .alive(Probe::http("/healthz"), ms(50), 1)
            .listen(listen);
        let client = Spawn::h2c().oneshot(command).await.unwrap();
        let request = Request::get("http://example.com/host").body(String::new());
        let response = client.lease().oneshot(request.unwrap()).await.unwrap();
        let (_, seen) = read(response).await.unwrap();
        assert_eq!(seen, r#"HTTP/2.0 None Some(example.com)"#);
        let first = get(&client, "/connection").await.unwrap().1;
        assert_eq!(get(&client, "/connection").await.unwrap().1, first);
        client.stop().await;
    }
}

#[tokio::test]
async fn an_upgraded_connection_passes_both_ways() {
    let _test = Test::begins();
    let client = started(child("a", "at={address}")).await;
    let request = Request::get("/upgrade")
        .header("connection", "upgrade")
        .header("upgrade", "echo");
    let request = request.body(String::new()).unwrap();
    let mut response = client.lease().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 101);
    let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
    let mut upgraded = hyper_util::rt::TokioIo::new(upgraded);
    for word in [b"hello", b"again"] {
        upgraded.write_all(word).await.unwrap();
        let mut echo = [0; 5];
        upgraded.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, word);
    }
    client.stop().await;
}

#[tokio::test]
async fn a_child_that_speaks_http_1_0_does_not_set_the_version_of_the_server_in_front() {
    let _test = Test::begins();
    let client = started(child("old", "at={address}")).await;
    let request = http::Request::get("/http-1.0").body(String::new()).unwrap();
    let response = client.lease().oneshot(request).await.unwrap();
    assert_eq!(response.version(), http::Version::HTTP_11);
    drop(response);
    client.stop().await;
}
