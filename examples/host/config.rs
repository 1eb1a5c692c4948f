//! `--config FILE`: which backends there are, and how they are run.
//!
//! ```toml
//! listen = "127.0.0.1:8080"
//! limit = 2                 # backends alive at once
//! wait = "10s"              # how long a start waits for room
//!
//! [backend.files]           # served below /files/; what begins with _ is the host's own
//! command = ["python3", "-m", "http.server", "--bind", "127.0.0.1", "{port}"]
//! listen = "port"           # or "port:9000", "unix", "unix:/run/files.sock", "handed:…"
//! ready = "http:/"          # or "connect", "line:listening"
//! ready_within = "10s"
//! idle_after = "30s"
//! pinned = false            # true: counts, and is never stopped
//! progress = false          # true: browsers that wait for a start are shown how it goes
//! ```

use std::{
    collections::BTreeMap,
    fmt, fs,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU64,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};
use toml::Spanned;
use tower_on_demand::process::{Command, Listen, Ready};

/// A whole host.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) limit: u64,
    pub(crate) wait: Duration,
    /// How long calls in flight have when the host stops.
    pub(crate) drain: Duration,
    /// How long an upload may be silent.
    pub(crate) upload_pause: Duration,
    pub(crate) backends: Vec<Backend>,
}

#[derive(Debug, Clone)]
pub(crate) struct Backend {
    pub(crate) command: Command,
    /// `None`: never for its age.
    pub(crate) idle_after: Option<Duration>,
    pub(crate) pinned: bool,
    /// Browsers that wait for a start are shown how it goes.
    pub(crate) progress: bool,
}

/// The file, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "local")]
    listen: SocketAddr,
    limit: NonZeroU64,
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    wait: Duration,
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    drain: Duration,
    #[serde(default = "thirty_seconds", with = "humantime_serde")]
    upload_pause: Duration,
    backend: BTreeMap<Name, Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    command: Program,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    #[serde(default = "Listen::free_port", deserialize_with = "parsed")]
    listen: Listen,
    #[serde(default, deserialize_with = "parsed_option")]
    ready: Option<Ready>,
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    ready_within: Duration,
    #[serde(default = "ten_seconds", with = "humantime_serde")]
    grace: Duration,
    #[serde(default, with = "humantime_serde")]
    idle_after: Option<Duration>,
    #[serde(default)]
    pinned: bool,
    #[serde(default)]
    progress: bool,
}

/// A program and its arguments.
#[derive(Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Program(String, Vec<String>);

impl TryFrom<Vec<String>> for Program {
    type Error = &'static str;

    fn try_from(words: Vec<String>) -> Result<Self, &'static str> {
        let mut words = words.into_iter();
        match words.next() {
            Some(program) if !program.is_empty() => Ok(Self(program, words.collect())),
            _ => Err("a command needs a program: [\"program\", \"argument\", …]"),
        }
    }
}

/// The first part of a path.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if name.is_empty() || !name.chars().all(plain) || name.starts_with('.') {
            return Err(format!(
                "{name:?} cannot stand in a URL as the name of a backend: use letters, digits and - . _"
            ));
        }
        if name.starts_with('_') {
            return Err(format!(
                "{name:?} cannot be the name of a backend: what begins with _ is the host's own, /_status for one"
            ));
        }
        Ok(Self(name))
    }
}

fn local() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 8080).into()
}

fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(D::Error::custom)
}

fn parsed_option<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    parsed(deserializer).map(Some)
}

impl Config {
    /// Reads `path`.
    ///
    /// The error names the file, the field and its line.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("")))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Directories in `text` are relative to `base`.
    pub(crate) fn parse(text: &str, base: &Path) -> Result<Self, String> {
        let deserializer = toml::Deserializer::parse(text).map_err(|error| error.to_string())?;
        let file: File = serde_path_to_error::deserialize(deserializer).map_err(|error| {
            // What `Spanned` adds to the path is nobody's field.
            let path = error.path().to_string();
            let path = path.replace(".$__serde_spanned_private_value", "");
            let error = error.into_inner();
            match path.as_str() {
                "." => error.to_string(),
                path => format!("{path}: {error}"),
            }
        })?;
        let backends: Result<_, String> = file
            .backend
            .into_iter()
            .map(|(name, entry)| {
                let line = 1 + text[..entry.span().start].matches('\n').count();
                let backend = entry.into_inner().backend(&name.0, base);
                backend.map_err(|error| format!("backend.{}, line {line}: {error}", name.0))
            })
            .collect();
        Ok(Self {
            listen: file.listen,
            limit: file.limit.get(),
            wait: file.wait,
            drain: file.drain,
            upload_pause: file.upload_pause,
            backends: backends?,
        })
    }
}

impl Entry {
    fn backend(self, name: &str, base: &Path) -> Result<Backend, String> {
        let Program(program, args) = self.command;
        let mut command = Command::new(name, program)
            .args(args)
            .listen(self.listen)
            .ready_within(self.ready_within)
            .grace(self.grace);
        for (key, value) in self.env {
            command = command.env(key, value);
        }
        if let Some(cwd) = self.cwd {
            command = command.cwd(base.join(cwd));
        }
        if let Some(ready) = self.ready {
            command = command.ready(ready);
        }
        command.validate().map_err(|invalid| invalid.to_string())?;
        if self.idle_after.is_some_and(|bound| bound.is_zero()) {
            return Err(
                "idle_after is 0: say `pinned = true` for a backend that is never stopped".into(),
            );
        }
        Ok(Backend {
            command,
            idle_after: self.idle_after,
            pinned: self.pinned,
            progress: self.progress,
        })
    }
}
