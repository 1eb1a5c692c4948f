//! What holds for whatever text the parsers get: the property tests here and the fuzz targets in `fuzz/` run the very
//! same functions. Each says whether the text was accepted.

use std::{
    fmt::Display,
    future::Future,
    path::Path,
    pin::pin,
    str::FromStr,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::{io::AsyncReadExt, sync::watch};
use tower_on_demand::process::{Command, Listen, Probe, Ready};

use crate::{config::Config, output::Output};

/// A configuration of the host example is one that can be run, or it is told what is wrong and where.
pub(crate) fn config(text: &str) -> bool {
    let config = match Config::parse(text, Path::new("/base")) {
        Ok(config) => config,
        Err(error) => {
            let told = error.contains("line ") || error.contains("missing field");
            assert!(told, "not told where: {error:?}");
            return false;
        }
    };
    assert!(config.limit > 0);
    let _ = (config.wait, config.drain, config.upload_pause);
    let mut names: Vec<_> = Vec::new();
    for backend in &config.backends {
        let name = backend.command.name();
        assert_eq!(backend.command.validate(), Ok(()));
        assert!(!backend.idle_after.is_some_and(|bound| bound.is_zero()));
        let path = format!("/{name}/x?y").parse::<http::Uri>();
        let path = path.expect("a name is part of a URL");
        assert_eq!(path.path().split('/').nth(1), Some(name));
        names.push((name, backend.pinned));
    }
    assert!(names.windows(2).all(|two| two[0].0 < two[1].0), "{names:?}");
    assert_ne!(config.listen.to_string(), "");
    true
}

/// Where a child listens and when it is ready is read as it is written, and what is accepted can be used.
pub(crate) fn readiness(text: &str) -> bool {
    let probe = read_and_written::<Probe>(text);
    let listen = read_and_written::<Listen>(text);
    let ready = text.parse::<Ready>();
    assert_eq!(
        ready.is_ok(),
        probe.is_some()
            || text
                .strip_prefix("line:")
                .is_some_and(|it| !it.is_empty() && !it.contains('\n')),
        "{ready:?}"
    );
    if let Some(written) = &probe {
        if let Some(path) = written.strip_prefix("http:") {
            let path = match path.rsplit_once('=') {
                Some((path, status)) if status.parse::<http::StatusCode>().is_ok() => path,
                _ => path,
            };
            // The two ways in which it is asked.
            assert!(http::Request::get(path).body(()).is_ok());
            let absolute = http::Request::get(format!("http://localhost{path}"));
            assert!(absolute.body(()).is_ok());
        }
    }
    if let Some(written) = &listen {
        let path = written.strip_prefix("handed:").unwrap_or(written);
        if let Some(path) = path.strip_prefix("unix:") {
            let address = std::os::unix::net::SocketAddr::from_pathname(path);
            assert!(address.is_ok(), "{address:?}");
        }
    }
    if let (Ok(listen), Ok(ready)) = (text.parse::<Listen>(), text.parse::<Ready>()) {
        panic!("{listen:?} and {ready:?} at once");
    }
    // In a command they are valid together or it is said why not.
    let mut command = Command::new("name", "program").args(["{address}"]);
    if let Ok(listen) = text.parse() {
        command = command.listen(listen);
    }
    if let Ok(ready) = ready.clone() {
        command = command.ready(ready);
    }
    assert_eq!(command.validate(), Ok(()));
    probe.is_some() || listen.is_some() || ready.is_ok()
}

/// How `text` is written when it was read, if it was; the same for good.
fn read_and_written<T>(text: &str) -> Option<String>
where
    T: FromStr<Err: Display> + Display,
{
    match text.parse::<T>() {
        Ok(read) => {
            let written = read.to_string();
            let again = written.parse::<T>().unwrap_or_else(|error| {
                panic!("{text:?} is read, {written:?} is not: {error}");
            });
            assert_eq!(again.to_string(), written);
            Some(written)
        }
        Err(error) => {
            assert_ne!(error.to_string(), "");
            None
        }
    }
}

/// What a child prints is told in lines of 2 KiB at most, the last 64 are kept, and the line that is waited for is
/// seen, wherever the bytes are cut into reads. True if that line came.
pub(crate) fn output(bytes: &[u8], cut: usize, awaited: &str) -> bool {
    let output = Output::new("name".into(), 1, Some(Arc::from(awaited)));
    let (one, two) = bytes.split_at(cut.min(bytes.len()));
    let (_stop, stopped) = watch::channel(());
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime
        .expect("a runtime")
        .block_on(output.read_one(one.chain(two), "stdout", stopped));
    let came = pin!(output.awaited()).poll(&mut Context::from_waker(Waker::noop()));

    let mut lines: Vec<Vec<u8>> = Vec::new();
    let mut line = Vec::new();
    for byte in bytes {
        line.push(*byte);
        if *byte == b'\n' || line.len() == 2048 {
            lines.push(std::mem::take(&mut line));
        }
    }
    lines.extend(Some(line).filter(|line| !line.is_empty()));
    let lines = lines.iter().map(|line| String::from_utf8_lossy(line));
    let lines: Vec<String> = lines
        .map(|line| line.trim_end_matches(['\n', '\r']).to_owned())
        .collect();
    let kept = lines.len().saturating_sub(64);
    assert_eq!(output.last(), lines[kept..]);
    let expected = lines.iter().any(|line| line.contains(awaited));
    assert_eq!(came.is_ready(), expected);
    if lines.is_empty() {
        assert_eq!(output.told(), "it printed nothing");
    }
    expected
}
