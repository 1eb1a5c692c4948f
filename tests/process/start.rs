//! Starting, and being ready.

use std::{
    net::TcpListener,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    time::Duration,
};

use http::StatusCode;
use tokio::time::Instant;
use tower_on_demand::{
    Backend, Clock, Error, ErrorKind, Stopped, Target,
    process::{Address, Command, Listen, Probe, Ready},
};

use crate::{
    child::{child, of_this_run},
    common::{Log, Test, exists, free_port, get, start, started, until},
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn refused(command: Command) -> Error {
    match start(command).await {
        Ok(client) => panic!("{client:?} was started"),
        Err(error) => error,
    }
}

/// Everything that is said of it.
fn told(error: &Error) -> String {
    assert_eq!(error.kind(), &ErrorKind::StartFailed, "{error:#}");
    format!("{error:#}")
}

#[tokio::test]
async fn a_child_is_started_called_and_stopped_wherever_it_listens() {
    let _test = Test::begins();
    let log = Log::new();
    for (listen, role) in [
        (Listen::free_port(), "at={address}"),
        (Listen::free_port(), "at=127.0.0.1:{port}"),
        (Listen::free_port(), "at=0.0.0.0:{port}"),
        (Listen::free_port(), "at=[::]:{port}"),
        (Listen::unix(), "at={socket}"),
        (Listen::unix_at(log.file("socket")), "at={address}"),
        (Listen::free_port().handed(), "at=handed"),
        (Listen::unix().handed(), "at=handed-unix"),
    ] {
        let client = started(child("a", role).listen(listen)).await;
        let pid = client.process().pid();
        let (status, body) = get(&client, "/").await.unwrap();
        assert_eq!((status.as_u16(), body), (200, pid.to_string()));
        assert_eq!(client.stop().await, Stopped::Gone);
        assert!(!exists(pid));
        if let Address::Unix(path) = client.process().address() {
            assert!(!path.exists(), "its socket is removed");
        }
    }
}

#[tokio::test]
async fn s21_an_exit_during_the_start_is_told_at_once_with_status_and_last_lines() {
    let _test = Test::begins();
    let command = child("quits", "after=300 say=hello exit=3").arg("{port}");
    let began = Instant::now();
    let error = refused(command.ready_within(Duration::from_secs(900))).await;
    assert!(began.elapsed() >= ms(300));
    assert!(began.elapsed() < Duration::from_secs(10));
    let told = told(&error);
    assert_eq!(error.backend(), Some("quits"));
    assert!(told.contains("exit status: 3"), "{told}");
    for line in ["hello", "hello to stderr", "last words"] {
        assert!(error.detail().unwrap().contains(line), "{told}");
    }
}

#[tokio::test]
async fn what_never_gets_ready_is_a_start_timeout_at_its_bound_and_leaves_nothing() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("say=hello log={}", log.path());
    let command = child("slow", &role).arg("{port}").ready_within(ms(600));
    let began = Instant::now();
    let error = refused(command).await;
    assert!(began.elapsed() >= ms(600));
    assert!(began.elapsed() < ms(600) + Duration::from_secs(5));
    assert!(
        !exists(log.who("start")[0]),
        "killed and reaped when it is told"
    );
    let clock = Clock::ReadyWithin;
    assert!(
        matches!(error.kind(), ErrorKind::StartTimeout { clock: c, after, .. } if *c == clock && *after == ms(600)),
        "{error:#}"
    );
    assert!(error.detail().unwrap().contains("hello"));
    let told = format!("{error:#}");
    assert!(told.contains("raise `ready_within`"), "{told}");
    assert!(told.contains("the last look at 127.0.0.1:"), "{told}");
    assert!(told.contains("refused"), "{told}");
}

#[tokio::test]
async fn s23_s3_a_port_that_opens_late_is_called_only_then_and_known_within_one_interval() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} after=1200 log={}", log.path());
    let command = child("late", &role).probes(ms(500), ms(200));
    let client = started(command).await;
    #[allow(clippy::disallowed_methods)]
    let ready = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
    get(&client, "/").await.unwrap();
    let lines = log.lines();
    assert_eq!(lines[1].0, "listens");
    let late = ready.saturating_sub(lines[1].2.into());
    assert!(
        late < 500 + 500,
        "one interval, and a busy machine: {late} ms"
    );
    client.stop().await;
}

#[tokio::test]
async fn s3_ready_by_status_is_not_before_that_status() {
    let _test = Test::begins();
    for (probe, path) in [
        (Probe::http("/healthz"), "/healthz"),
        (Probe::http_status("/healthz", StatusCode::OK), "/healthz"),
    ] {
        let log = Log::new();
        let role = format!("at={{address}} ready=400 log={}", log.path());
        let client = started(child("warming", &role).ready(probe)).await;
        get(&client, "/").await.unwrap();
        let lines = log.lines();
        let asked = lines.iter().filter(|line| line.0 == path);
        let took = lines.last().unwrap().2 - lines[0].2;
        assert!(asked.count() >= 2);
        assert!(took >= 400, "{lines:?}");
        client.stop().await;
    }
    let wrong = child("wrong", "at={address}").ready(Probe::http("/status/404"));
    let error = refused(wrong.ready_within(ms(500))).await;
    assert!(format!("{error:#}").contains("404"), "{error:#}");
    let right = Probe::http_status("/status/404", StatusCode::NOT_FOUND);
    started(child("right", "at={address}").ready(right))
        .await
        .stop()
        .await;
}

#[tokio::test]
async fn ready_by_a_line_waits_for_it_and_then_for_the_port() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("say=booting after=300 at={{address}} log={}", log.path());
    // Printed at the start, before it listens.
    let client = started(child("early", &role).ready(Ready::line("booting to"))).await;
    get(&client, "/").await.unwrap();
    client.stop().await;
    // Printed when it listens.
    let client = started(child("late", &role).ready(Ready::line("listening"))).await;
    assert!(
        client
            .process()
            .last_lines()
            .contains(&"listening".to_owned())
    );
    client.stop().await;
    let never = child("never", "at={address}").ready(Ready::line("finished"));
    let error = refused(never.ready_within(ms(400))).await;
    assert!(format!("{error:#}").contains("never printed \"finished\""));
}

#[tokio::test]
async fn ready_by_a_question_of_ones_own() {
    let _test = Test::begins();
    let probe = Probe::custom("twice", {
        let asked = std::sync::atomic::AtomicU32::new(0);
        move |address: Address| {
            let n = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move {
                address.connect().await?;
                match n {
                    0 => Err(std::io::Error::other("not yet")),
                    _ => Ok(()),
                }
            }
        }
    });
    started(child("asked", "at={address}").ready(probe))
        .await
        .stop()
        .await;
}

#[tokio::test]
async fn what_cannot_be_run_says_why() {
    let _test = Test::begins();
    let log = Log::new();
    let plain = log.file("plain");
    std::fs::write(&plain, "no program").unwrap();
    let handed = || Listen::free_port().handed();
    for listen in [Listen::port(1), handed()] {
        // The port is not asked for before; the kernel would refuse it.
        let listen = if listen == Listen::port(1) {
            Listen::free_port()
        } else {
            listen
        };
        let command = |program: &str| {
            Command::new("a", program)
                .listen(listen.clone())
                .arg("{port}")
        };
        let missing = told(&refused(command("no-such-program")).await);
        assert!(
            missing.contains("command not found: no-such-program"),
            "{missing}"
        );
        let missing = told(&refused(command("/no/such/program")).await);
        assert!(
            missing.contains("command not found: /no/such/program"),
            "{missing}"
        );
        let denied = told(&refused(command(&plain)).await);
        assert!(denied.contains("permission denied"), "{denied}");
        let lost = told(&refused(command("sh").cwd("/no/such/directory")).await);
        assert!(lost.contains("/no/such/directory"), "{lost}");
    }
    std::fs::set_permissions(&plain, PermissionsExt::from_mode(0o755)).unwrap();
    let error = refused(Command::new("a", &plain).arg("{port}")).await;
    assert!(told(&error).contains("plain"), "{error:#}");
}

#[tokio::test]
async fn a_taken_port_or_socket_is_named_with_its_holder_and_nothing_is_started() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} log={}", log.path());
    let me = format!("pid {}", std::process::id());

    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = stranger.local_addr().unwrap().port();
    for listen in [Listen::port(port), Listen::port(port).handed()] {
        let told = told(&refused(child("a", &role).listen(listen)).await);
        assert!(
            told.contains(&format!("port {port} is in use by")),
            "{told}"
        );
        assert!(told.contains(&me), "{told}");
    }
    drop(stranger);

    let path = log.file("socket");
    let stranger = UnixListener::bind(&path).unwrap();
    let listen = Listen::unix_at(&path);
    let error = told(&refused(child("a", &role).listen(listen.clone())).await);
    assert!(error.contains("socket is in use by"), "{error}");
    assert!(error.contains(&me), "{error}");
    assert!(
        std::path::Path::new(&path).exists(),
        "what is another's stays"
    );
    assert!(log.lines().is_empty());

    // Nobody listens any more: it is stale, once no child of another test has a copy.
    drop(stranger);
    let stale = || UnixStream::connect(&path).is_err();
    until("nobody listens", stale).await;
    started(child("a", &role).listen(listen.clone()))
        .await
        .stop()
        .await;
    std::fs::write(&path, "").unwrap();
    let error = told(&refused(child("a", &role).listen(listen)).await);
    assert!(error.contains("is no socket"), "{error}");
    let nowhere = Listen::unix_at(log.file("no/such/socket"));
    let error = told(&refused(child("a", &role).listen(nowhere)).await);
    assert!(error.contains("does not exist"), "{error}");
}

#[tokio::test]
async fn s37_a_stranger_who_took_the_port_is_not_taken_for_the_child() {
    let _test = Test::begins();
    // The child waits for the port in vain, or finds it taken and exits.
    for hangs in ["", "first_hangs=yes"] {
        let log = Log::new();
        let first = log.file("first");
        let role = format!("at={{address}} first={first} {hangs} log={}", log.path());
        let starting = tokio::spawn(start(child("robbed", &role)));
        let address = || std::fs::read_to_string(&first).unwrap_or_default();
        until("the child knows its port", || !address().is_empty()).await;
        // Answers, even.
        let stranger = loop {
            match TcpListener::bind(address()) {
                Ok(stranger) => break stranger,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let client = starting.await.unwrap().unwrap();
        let pid = client.process().pid();
        assert_ne!(client.process().address().to_string(), address());
        assert_eq!(get(&client, "/").await.unwrap().1, pid.to_string());
        assert_eq!(log.who("start").len(), 2);
        until("the first try is gone", || !exists(log.who("start")[0])).await;
        client.stop().await;
        drop(stranger);
    }
}

#[tokio::test]
async fn a_look_at_who_listens_may_take_longer_than_a_probe_may() {
    let _test = Test::begins();
    // Each of them is looked at, and no look is done within a millisecond; a connection may be.
    let listeners = (0..700).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.collect();
    let command = child("a", "at={address}")
        .probes(ms(1), ms(1))
        .ready_within(Duration::from_secs(10));
    started(command).await.stop().await;
    drop(listeners);
}

#[tokio::test]
async fn s37_a_stranger_on_a_port_that_is_always_the_same_fails_the_start() {
    let _test = Test::begins();
    let log = Log::new();
    let first = log.file("first");
    let port = free_port();
    let role = format!("at={{address}} first={first} first_hangs=yes");
    let command = child("robbed", &role).listen(Listen::port(port));
    let starting = tokio::spawn(start(command.clone()));
    until("the child runs", || std::path::Path::new(&first).exists()).await;
    let stranger = loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(stranger) => break stranger,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let error = told(&starting.await.unwrap().unwrap_err());
    assert!(error.contains("is not of its process group"), "{error}");
    assert!(
        error.contains(&format!("pid {}", std::process::id())),
        "{error}"
    );
    // Unless one says that whoever listens is right.
    std::fs::remove_file(&first).unwrap();
    let command = of_this_run(Command::new("a", "sleep"))
        .arg("60")
        .any_listener();
    let listen = Listen::port(port);
    drop(stranger);
    let starting = tokio::spawn(start(command.listen(listen)));
    tokio::task::yield_now().await;
    let _stranger = loop {
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(stranger) => break stranger,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    starting.await.unwrap().unwrap().stop().await;
}

#[tokio::test]
async fn l5_dropping_a_start_kills_the_child_and_frees_its_socket() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("term=never log={}", log.path());
    let path = log.file("socket");
    for n in 0..5 {
        let command = child("left", &role).listen(Listen::unix_at(&path));
        let mut starting = Box::pin(start(command));
        let started = || log.who("start").len() == n + 1;
        tokio::select! {
            _ = &mut starting => panic!("it cannot be ready"),
            () = until("it runs", started) => {}
        }
        drop(starting);
        let pid = log.who("start")[n];
        until("it is gone, and reaped", || !exists(pid)).await;
    }
}

#[tokio::test]
async fn l5_a_start_dropped_at_any_moment_leaves_nothing() {
    let _test = Test::begins();
    let log = Log::new();
    let role = format!("at={{address}} log={}", log.path());
    for n in 0..40 {
        // From before the spawn to about ready.
        let bound = Duration::from_micros(n * 500);
        if let Ok(Ok(client)) = tokio::time::timeout(bound, start(child("a", &role))).await {
            drop(client);
        }
    }
    until("all are gone", || {
        log.who("start").into_iter().all(|pid| !exists(pid))
    })
    .await;
}

#[test]
fn an_invalid_command_is_an_invalid_target() {
    let good = Command::new("good", "true").arg("{port}");
    let bad = Command::new("bad", "").arg("{port}");
    assert!(Target::validate(&good).is_ok());
    let told = Target::validate(&bad).expect_err("it has no program");
    assert_eq!(told.to_string(), "the program is empty");
}

#[test]
fn invalid_commands_say_what_to_change() {
    let command = || Command::new("a", "program");
    let invalid = |command: Command| command.validate().unwrap_err().to_string();
    for (command, says) in [
        (Command::new("", "program"), "no name"),
        (Command::new("a", ""), "program is empty"),
        (command(), "put `{port}` in an argument"),
        (command().listen(Listen::unix()), "put `{socket}` in"),
        (
            command().arg("{port}").listen(Listen::unix()),
            "use `{socket}`",
        ),
        (command().arg("{socket}"), "use `{port}`"),
        (command().listen(Listen::port(0)), "no port"),
        (command().listen(Listen::unix_at("")), "is empty"),
        (
            command().listen(Listen::unix_at("x".repeat(200))),
            "more than",
        ),
        (command().arg("{port}\0"), "NUL"),
        (command().listen(Listen::unix_at("/x\0y")), "NUL"),
        (command().arg("{port}").cwd("x\0y"), "NUL"),
        (command().env("A=B", "{port}"), "no name of a variable"),
        (command().env("", "{port}"), "no name of a variable"),
        (
            command().arg("{port}").ready(Ready::line("up\nready")),
            "line break",
        ),
        (
            command().arg("{port}").ready(Ready::http("healthz")),
            "begin with `/`",
        ),
        (command().arg("{port}").ready(Ready::line("")), "empty line"),
        (
            command().arg("{port}").ready_within(Duration::ZERO),
            "must not be 0",
        ),
        (
            command()
                .listen(Listen::free_port().handed())
                .ready(Ready::connect()),
            "says nothing",
        ),
        (
            command().arg("{port}").alive(Probe::connect(), ms(0), 1),
            "may be 0",
        ),
    ] {
        let told = invalid(command);
        assert!(told.contains(says), "{told:?} does not say {says:?}");
    }
    command().arg("{port}").validate().unwrap();
    command().env("PORT", "{port}").validate().unwrap();
    command().listen(Listen::port(80)).validate().unwrap();
    command()
        .listen(Listen::unix().handed())
        .validate()
        .unwrap();
}

#[test]
fn what_a_configuration_says_is_read_and_written_alike() {
    for text in [
        "port",
        "port:8080",
        "unix",
        "unix:/run/x.sock",
        "handed:port",
        "handed:port:1",
        "handed:unix",
        "handed:unix:/x",
    ] {
        assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "tcp",
        "port:",
        "port:0",
        "port:99999",
        "handed",
        "unix:",
        "PORT",
    ] {
        assert!(text.parse::<Listen>().is_err(), "{text:?}");
    }
    for text in ["connect", "http:/", "http:/a?b=c", "http:/healthz=204"] {
        assert_eq!(text.parse::<Probe>().unwrap().to_string(), text);
        text.parse::<Ready>().unwrap();
    }
    "line:listening on".parse::<Ready>().unwrap();
    for text in ["", "http", "http:healthz", "line:", "tcp", "http:/ a"] {
        assert!(text.parse::<Ready>().is_err(), "{text:?}");
    }
}
