//! Examples as processes: built, started, and found again with all their children.

use std::{
    collections::BTreeSet,
    env, fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

/// What marks an example of ours and all its children, in their environment.
const MARK: &str = "TOWER_ON_DEMAND_EXAMPLE_TEST";

/// The example's binary, built as this test was. One example per test binary.
pub fn program(name: &str) -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = env::current_exe().unwrap();
        // …/target/<profile>/deps/<test>-<hash>
        let profile = test.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--quiet", "--offline", "--example", name])
            .args(["--message-format", "json", "--target-dir"])
            .arg(profile.parent().unwrap())
            .args(["--features", "full"]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let built = cargo.stderr(Stdio::inherit()).output().unwrap();
        assert!(built.status.success(), "the example does not build");
        let messages = String::from_utf8(built.stdout).unwrap();
        let key = "\"executable\":\"";
        let (_, rest) = messages.rsplit_once(key).expect("an executable");
        PathBuf::from(rest.split_once('"').unwrap().0)
    })
}

/// A command that runs the example, and what marks it.
pub fn example(name: &str, args: &[&str]) -> (Command, String) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{count}", std::process::id());
    let mut command = Command::new(program(name));
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(args)
        .env(MARK, &mark)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    (command, mark)
}

/// Runs the example to its end: how it ended, what it printed, and its errors. No process may be left.
pub fn run_example(name: &str, args: &[&str]) -> (ExitStatus, String, String) {
    let (mut command, mark) = example(name, args);
    let mut child = command.spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(marked(&mark), BTreeSet::new(), "processes are left");
    (status, text, reader.join().unwrap())
}

/// Who is alive of those with this mark in their environment.
pub fn marked(mark: &str) -> BTreeSet<u32> {
    let wanted = format!("{MARK}={mark}\0");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .windows(wanted.len())
            .any(|part| part == wanted.as_bytes())
        {
            found.insert(pid);
        }
    }
    found
}
