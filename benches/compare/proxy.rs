//! Requests per second through the host example and through nginx, to the same child.

use std::{
    fmt::Write,
    io::{BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    child::{PROXY, ROLE, program},
    example,
    harness::{Table, median},
};

/// How often each side is asked, and for how many seconds.
const ROUNDS: usize = 5;
const SECONDS: u32 = 2;
/// Connections of clients.
const CONNECTIONS: u32 = 32;

/// A process of ours: told to stop, and waited for, when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).expect("a pid");
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// The host, with one worker thread and one backend that listens at `socket`; the URL of that.
fn host(dir: &Path, socket: &Path) -> (Running, String) {
    let config = dir.join("host.toml");
    let text = format!(
        "listen = '127.0.0.1:0'\nlimit = 1\n[backend.child]\ncommand = [{:?}, '{ROLE}', '{{socket}}']\n\
         listen = 'unix:{}'\npinned = true\n",
        program(),
        socket.display()
    );
    std::fs::write(&config, text).expect("a file");
    let mut child = Command::new(example::program("host"))
        .arg("--config")
        .arg(&config)
        .env("TOKIO_WORKER_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let stdout = child.stdout.take().expect("piped");
    let host = Running(child);
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let url = lines.find_map(|line| {
        let url = line.trim();
        url.ends_with("/child/").then(|| url.to_owned())
    });
    // It goes on to print.
    std::thread::spawn(move || lines.for_each(drop));
    (host, url.expect("where it listens"))
}

/// nginx, one process that passes all on to `socket` with the headers that the host sets; its URL.
fn nginx(program: &str, dir: &Path, socket: &Path) -> (Running, String) {
    let address = free_address();
    let mut text = format!(
        "daemon off; master_process off; worker_processes 1; pid {dir}/nginx.pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off; keepalive_requests 100000000;\n",
        dir = dir.display()
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(text, "  {kind}_temp_path {}/{kind};", dir.display()).expect("written");
    }
    write!(
        text,
        "  upstream child {{\n    server unix:{};\n    \
             keepalive {CONNECTIONS}; keepalive_requests 100000000;\n  }}\n  \
           server {{\n    listen {address};\n    location /child/ {{\n      \
             proxy_pass http://child/; proxy_http_version 1.1; proxy_set_header Connection '';\n      \
             proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $remote_addr;\n      \
             proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $http_host;\n      \
             proxy_set_header X-Forwarded-Prefix /child;\n    }}\n  }}\n}}\n",
        socket.display()
    )
    .expect("written");
    let config = dir.join("nginx.conf");
    std::fs::write(&config, text).expect("a file");
    let child = Command::new(program)
        .args(["-e", "stderr", "-c"])
        .arg(&config)
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    let nginx = Running(child);
    listens(address);
    (nginx, format!("http://{address}/child/"))
}

/// As little as a proxy can do with hyper, one worker thread and `socket`; its URL.
fn by_hand(socket: &Path) -> (Running, String) {
    let address = free_address();
    let child = Command::new(program())
        .args([PROXY, &address.port().to_string()])
        .arg(socket)
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    let proxy = Running(child);
    listens(address);
    (proxy, format!("http://{address}/child/"))
}

fn free_address() -> SocketAddr {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    free.expect("a port")
}

/// Waits until somebody listens.
fn listens(address: SocketAddr) {
    while TcpStream::connect(address).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Requests per second that `wrk` has answered. They carry a cookie: each is its caller's own, so that the
/// host shares none of them.
fn wrk(url: &str, seconds: u32) -> f64 {
    let ended = Command::new("wrk")
        .args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s")])
        .args(["-H", "Cookie: a=b", url])
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&ended.stdout);
    let failed = told.contains("Non-2xx") || told.contains("Socket errors");
    assert!(ended.status.success() && !failed, "{told}");
    let rate = told
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    rate.and_then(|rate| rate.trim().parse().ok())
        .expect("a rate")
}

fn is_here(program: &str) -> bool {
    // `wrk` has no way to be asked for nothing that succeeds.
    Command::new(program).arg("-v").output().is_ok()
}

pub(crate) fn rows(table: &mut Table) {
    const NAME: &str = "host example, us per request of wrk on a running child";
    const AGAINST: &str = "nginx proxy_pass";
    /// 0.90 of the requests per second.
    const TARGET: f64 = 1.0 / 0.90;
    if !table.wants(NAME) {
        return;
    }
    let mut nginxes = ["nginx", "/usr/sbin/nginx"].into_iter();
    let program = nginxes.find(|program| is_here(program));
    let Some(program) = program.filter(|_| is_here("wrk")) else {
        return table.void(NAME, TARGET, AGAINST, "nginx or wrk is not here");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("child");
    let (_host, ours) = host(dir.path(), &socket);
    // Starts the child.
    wrk(&ours, 1);
    let (_nginx, reference) = nginx(program, dir.path(), &socket);
    wrk(&reference, 1);
    let (_proxy, by_hand) = by_hand(&socket);
    wrk(&by_hand, 1);
    let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        a.push(1e6 / wrk(&ours, SECONDS));
        b.push(1e6 / wrk(&reference, SECONDS));
        c.push(1e6 / wrk(&by_hand, SECONDS));
    }
    let least = median(&mut c);
    println!("us per request through a proxy by hand, hyper alone: {least:.1}");
    table.count(NAME, TARGET, AGAINST, median(&mut a), median(&mut b));
}
