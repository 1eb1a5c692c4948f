//! Processes under the layers.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, StatusCode};
use http_body_util::Empty;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_on_demand::{
    BoxError, CeilingLayer, Error, ErrorKind, Handle, IdleEvict, LazyStartLayer, Runtime, State,
    http::UntilBodyEnd,
    process::{Command, Listen, Probe, Spawn},
};

use crate::{
    child::child,
    common::{Log, Test, exists, free_port, kill, read, until},
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

type Answer = Pin<Box<dyn Future<Output = Result<(StatusCode, String), Error>> + Send>>;

/// One backend in a host.
#[derive(Clone)]
struct Stack {
    service: BoxCloneSyncService<String, (StatusCode, String), Error>,
    handle: Handle<Command>,
}

impl Stack {
    /// `GET path`.
    fn get(&self, path: &str) -> Answer {
        Box::pin(self.service.clone().oneshot(path.to_owned()))
    }

    async fn pid(&self) -> u32 {
        self.get("/").await.unwrap().1.parse().unwrap()
    }
}

/// What all backends of a host share.
struct Host {
    runtime: Runtime,
    ceiling: CeilingLayer,
    idle: Option<Duration>,
}

impl Host {
    fn new(limit: u64, idle: Option<Duration>) -> Self {
        let runtime = Runtime::tokio();
        Self {
            ceiling: CeilingLayer::new(runtime.clone(), limit),
            runtime,
            idle,
        }
    }

    fn lazy(&self, command: Command) -> LazyStartLayer<Command> {
        LazyStartLayer::new(self.runtime.clone(), command).backoff(ms(300), ms(300))
    }

    fn stack(&self, layer: LazyStartLayer<Command>) -> Stack {
        let (layer, handle) = layer.pair();
        let (evictable, idle_evict) = IdleEvict::pair(self.runtime.clone(), UntilBodyEnd);
        self.runtime.spawn(idle_evict.run());
        let service = ServiceBuilder::new()
            .layer(layer)
            .layer(evictable.idle_after(self.idle))
            .layer(self.ceiling.clone())
            .service(Spawn::http());
        let service = service
            .map_request(|path: String| {
                Request::get(path)
                    .body(Empty::<bytes::Bytes>::new())
                    .unwrap()
            })
            .and_then(read);
        Stack {
            service: BoxCloneSyncService::new(service),
            handle,
        }
    }

    fn backend(&self, command: Command) -> Stack {
        self.stack(self.lazy(command))
    }
}

#[tokio::test]
async fn s01_s5_e8_a_call_during_the_stop_of_an_idle_child_gets_a_fresh_one() {
    let _test = Test::begins();
    let log = Log::new();
    let sole = format!("at={{address}} term=600 sole={} log={0}", log.path());
    let a = Host::new(8, Some(ms(200))).backend(child("a", &sole));
    let old = a.pid().await;
    until("it is being stopped", || log.who("term") == [old]).await;
    let new = a.pid().await;
    assert_ne!(new, old);
    assert_eq!(a.pid().await, new);
    let seen: Vec<_> = log
        .lines()
        .into_iter()
        .map(|line| (line.0, line.1))
        .collect();
    let at = |what: &str, pid| seen.iter().position(|line| *line == (what.to_owned(), pid));
    assert!(
        at("end", old).unwrap() < at("start", new).unwrap(),
        "{seen:?}"
    );
    assert!(log.who("two").is_empty(), "never two of one backend");
    assert_eq!((log.who("term").len(), log.who("start").len()), (1, 2));
    let status = a.handle.status();
    assert_eq!((status.evictions, status.crashes, status.starts), (1, 0, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn s02_a_child_that_answers_after_it_was_told_to_stop_is_never_called_then() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} term=1000 log={}", log.path());
    let a = Host::new(8, Some(ms(100))).backend(child("a", &role));
    for _ in 0..3 {
        let old = a.pid().await;
        until("it is being stopped", || log.who("term").contains(&old)).await;
        assert!(exists(old), "it answers on");
        let calls = (0..20).map(|_| a.get("/"));
        for answer in futures_util::future::join_all(calls).await {
            assert_ne!(answer.unwrap().1, old.to_string());
        }
        let lines = log.lines().into_iter().filter(|line| line.1 == old);
        let after: Vec<_> = lines.skip_while(|line| line.0 != "term").collect();
        assert!(after.iter().all(|line| line.0 != "/"), "{after:?}");
    }
}

#[tokio::test]
async fn s06_a_stop_that_does_not_end_is_given_up_and_room_returns_when_the_pid_is_reaped() {
    let _test = Test::begins();
    let log = Log::new();
    let host = Host::new(1, None);
    let deaf = format!("at={{address}} term=never log={}", log.path());
    let a = host
        .lazy(child("a", &deaf).grace(ms(1500)))
        .stop_timeout(ms(200));
    let a = host.stack(a);
    let b = host.backend(child("b", "at={address}"));
    let old = a.pid().await;
    let began = Instant::now();
    let _ = a.handle.stop().await;
    assert!(began.elapsed() < ms(1400), "given up");
    let reported = a
        .handle
        .status()
        .last_error
        .map(|error| format!("{error:#}"));
    assert!(reported.is_some(), "and reported");
    assert!(exists(old));
    assert_eq!(b.get("/").await.unwrap().0, 200);
    assert!(
        began.elapsed() >= ms(1500),
        "room came with the end of the grace"
    );
    assert!(!exists(old), "of a process that is reaped");
}

#[tokio::test]
async fn s20_s4_a_child_killed_right_after_its_spawn_fails_all_who_wait_and_nobody_later() {
    let _test = Test::begins();
    let log = Log::new();
    let first = log.file("first");
    // The first one never listens.
    let role = format!(
        "at={{address}} first={first} first_hangs=yes log={}",
        log.path()
    );
    let a = Host::new(1, None).backend(child("a", &role));
    let calls: Vec<_> = (0..100).map(|_| tokio::spawn(a.get("/"))).collect();
    until("it runs", || std::path::Path::new(&first).exists()).await;
    kill("-KILL", log.who("start")[0]);
    let began = Instant::now();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::StartFailed);
        assert!(format!("{error:#}").contains("SIGKILL"), "{error:#}");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "when it dies");
    let within = a.get("/").await.unwrap_err();
    assert!(
        matches!(within.kind(), ErrorKind::BackingOff { .. }),
        "{within:?}"
    );
    tokio::time::sleep(within.retry_after().unwrap()).await;
    assert_eq!(a.get("/").await.unwrap().0, 200);
    assert_eq!(log.who("start").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn s32_s1_a_herd_of_cold_calls_is_one_child_and_no_more_probes_than_one_call_is() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} after=300 ready=300 log={}", log.path());
    let command = child("a", &role).ready(Probe::http("/healthz"));
    let host = Host::new(1, None);
    let layer = host.lazy(command.probes(ms(100), ms(1000)));
    let a = host.stack(layer.max_callers(2000));
    let calls = (0..1000).map(|_| a.get("/"));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.unwrap().0, 200);
    }
    assert_eq!(log.who("start").len(), 1);
    let probes = log.who("/healthz").len();
    assert!((1..10).contains(&probes), "{probes}");
}

#[tokio::test]
async fn e8_e9_an_evicted_child_is_gone_and_not_a_crash_and_the_next_call_is_served() {
    let _test = Test::begins();
    let host = Host::new(1, None);
    let (a, b) = (
        host.backend(child("a", "at={address}")),
        host.backend(child("b", "at={address}")),
    );
    let mut last = a.pid().await;
    for n in 1..5 {
        let next = if n % 2 == 0 { &a } else { &b };
        let pid = next.pid().await;
        assert!(!exists(last), "it is gone before another has its room");
        last = pid;
    }
    for backend in [a, b] {
        let status = backend.handle.status();
        assert_eq!(
            (status.evictions, status.crashes, status.restarts),
            (2, 0, 0)
        );
    }
}

#[tokio::test]
async fn a_child_that_dies_or_hangs_is_replaced_by_the_next_call() {
    let _test = Test::begins();
    let command = child("a", "at={address}")
        .probes(ms(20), ms(100))
        .grace(ms(100))
        .alive(Probe::http("/healthz"), ms(50), 2);
    let a = Host::new(1, None).backend(command);
    let first = a.pid().await;
    kill("-KILL", first);
    a.handle.until(State::Stopped).await;
    let second = a.pid().await;
    assert_ne!(first, second);
    assert_eq!(a.handle.status().crashes, 1);
    let told = a.handle.status().last_error.unwrap();
    assert!(format!("{told:#}").contains("SIGKILL"), "{told:#}");
    // Wedged.
    a.get("/sick").await.unwrap();
    until("it is retired, stopped and gone", || !exists(second)).await;
    let third = a.pid().await;
    assert_ne!(second, third);
}

#[tokio::test]
async fn c1_l5_a_start_that_was_given_up_has_its_room_until_its_child_is_gone() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} sole={0} log={0}", log.path());
    let host = Host::new(1, None);
    let a = host.lazy(child("a", &format!("{role} heavy=300 after=60000")));
    let a = host.stack(a.cancel_when_abandoned());
    let b = host.backend(child("b", &role));
    for n in 1..4 {
        let call = tokio::spawn(a.get("/"));
        until("it is heavy", || log.who("heavy").len() == n).await;
        call.abort();
        assert_eq!(b.get("/").await.unwrap().0, 200);
        assert!(!exists(log.who("heavy")[n - 1]));
    }
    assert!(log.who("two").is_empty(), "{:?}", log.lines());
}

#[tokio::test]
async fn c1_starts_given_up_at_any_moment_leave_room_and_port_to_the_next() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} after=30 sole={0} log={0}", log.path());
    let host = Host::new(1, None);
    let port = free_port();
    // The same port for all: it would be seen as taken by what is left of the last.
    let backends = ["a", "b", "c"].map(|name| {
        let command = child(name, &role).listen(Listen::port(port));
        host.stack(host.lazy(command).cancel_when_abandoned())
    });
    for n in 0..30 {
        let bound = Duration::from_millis(n as u64 * 3);
        let call = tokio::time::timeout(bound, backends[n % 3].get("/"));
        if let Ok(answer) = call.await {
            answer.unwrap();
        }
    }
    assert_eq!(backends[0].get("/").await.unwrap().0, 200);
    assert!(log.who("start").len() > 5);
    assert!(log.who("two").is_empty(), "{:?}", log.lines());
}

#[tokio::test]
async fn a_child_handed_from_start_to_start_at_one_place_is_waited_for() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} term=300 log={}", log.path());
    let listen = Listen::unix_at(log.file("socket"));
    let command = child("a", &role).listen(listen);
    for _ in 0..3 {
        // Nobody awaits its end.
        drop(crate::common::started(command.clone()).await);
    }
    let client = crate::common::started(command).await;
    assert_eq!(log.who("end").len(), 3);
    assert_eq!(crate::common::get(&client, "/").await.unwrap().0, 200);
    tower_on_demand::Backend::stop(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_killed_child_only_the_calls_in_flight_fail() {
    let _test = Test::begins();
    const CALLERS: usize = 8;
    let a = Host::new(1, None).backend(child("a", "at={address}"));
    let failed = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut pid = a.pid().await;
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (a, failed, stop) = (a.clone(), failed.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    if a.get("/sleep/2").await.is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    for n in 1..=10 {
        tokio::time::sleep(ms(20)).await;
        let before = failed.load(Ordering::Relaxed);
        kill("-KILL", pid);
        until("it is replaced", || {
            a.handle.status().starts == n + 1 && a.handle.status().state == State::Running
        })
        .await;
        pid = a.pid().await;
        let failed = failed.load(Ordering::Relaxed) - before;
        assert!(
            failed <= CALLERS,
            "{failed} calls failed, of {CALLERS} at a time"
        );
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(a.handle.status().crashes, 10);
}

/// A future that a task awaits is looked at with its lifetimes erased; a bound may fail by that.
#[tokio::test]
async fn a_call_with_a_body_of_any_kind_can_be_spawned() {
    let _test = Test::begins();
    let host = Host::new(1, None);
    let (evictable, _idle_evict) = IdleEvict::pair(host.runtime.clone(), UntilBodyEnd);
    let stack = ServiceBuilder::new()
        .layer(host.lazy(child("a", "at={address}")))
        .layer(evictable)
        .layer(host.ceiling.clone())
        .service(Spawn::http());
    macro_rules! spawn {
        ($body:expr) => {{
            let (stack, body) = (stack.clone(), $body);
            let echo = tokio::spawn(async move {
                let request = Request::post("/echo").body(body).unwrap();
                read(stack.oneshot(request).await?).await
            });
            assert_eq!(echo.await.unwrap().unwrap().1, "body");
        }};
    }
    spawn!(String::from("body"));
    spawn!(http_body_util::Full::<bytes::Bytes>::from("body"));
    spawn!(axum::body::Body::from("body"));
    spawn!(http_body_util::BodyExt::boxed(String::from("body")));
    // A body whose type mentions `BoxError` needs a type around it that does not.
    let boxed = http_body_util::BodyExt::map_err(String::from("body"), BoxError::from);
    spawn!(axum::body::Body::new(http_body_util::BodyExt::boxed(boxed)));
}
