//! `Command`: what a child process is started from.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    address::Address,
    listen::Listen,
    ready::{Probe, Ready},
};
use crate::{error::BoxError, target::Target};

/// A program to run as a backend: how to start it, where it listens, how to tell that it is ready,
/// and how it is stopped.
///
/// It is a [`Target`]: each start gets a clone of it.
///
/// # Placeholders
///
/// Where the child shall listen is decided at each start. In arguments and in values of
/// environment variables these are replaced; other braces stay as they are:
///
/// | | |
/// |---|---|
/// | `{port}` | the port, for a child that listens on one |
/// | `{socket}` | the path of the socket, for a child that listens on a Unix socket |
/// | `{address}` | `127.0.0.1:` and the port, or the path of the socket |
///
/// ```
/// use std::time::Duration;
/// use tower_on_demand::process::{Command, Listen, Ready};
///
/// let files = Command::new("files", "python3")
///     .args(["-m", "http.server", "--bind", "127.0.0.1", "{port}"])
///     .listen(Listen::free_port())
///     .ready(Ready::http("/"))
///     .ready_within(Duration::from_secs(10))
///     .grace(Duration::from_secs(5));
/// files.validate().unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Command {
    pub(super) name: Arc<str>,
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, Option<OsString>)>,
    pub(super) env_clear: bool,
    pub(super) cwd: Option<PathBuf>,
    pub(super) listen: Listen,
    pub(super) ready: Option<Ready>,
    pub(super) ready_within: Duration,
    pub(super) probe_every: Duration,
    pub(super) probe_within: Duration,
    pub(super) grace: Duration,
    pub(super) alive: Option<Alive>,
    pub(super) any_listener: bool,
}

/// How a running instance is watched.
#[derive(Debug, Clone)]
pub(super) struct Alive {
    pub(super) probe: Probe,
    pub(super) every: Duration,
    pub(super) failures: u32,
}

/// What is wrong with a [`Command`], or with the text of one of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid(pub(super) String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

impl Command {
    /// `program`, found in `PATH` if it is a plain name, as the backend `name`.
    ///
    /// Unless [`listen`](Self::listen) says otherwise it is given a free loopback port.
    pub fn new(name: impl Into<Arc<str>>, program: impl Into<OsString>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            env_clear: false,
            cwd: None,
            listen: Listen::free_port(),
            ready: None,
            ready_within: Duration::from_secs(10),
            probe_every: Duration::from_millis(50),
            probe_within: Duration::from_secs(1),
            grace: Duration::from_secs(10),
            alive: None,
            any_listener: false,
        }
    }

    /// Adds an argument. [Placeholders](Self#placeholders) are replaced.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments. [Placeholders](Self#placeholders) are replaced.
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable. [Placeholders](Self#placeholders) in its value are replaced.
    ///
    /// The child has the host's environment besides, less `LISTEN_FDS` and its kin: those are
    /// for the host.
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), Some(value.into())));
        self
    }

    /// Takes an environment variable of the host's away.
    pub fn env_remove(mut self, key: impl Into<OsString>) -> Self {
        self.env.push((key.into(), None));
        self
    }

    /// Gives the child none of the host's environment, only what [`env`](Self::env) sets.
    pub fn env_clear(mut self) -> Self {
        self.env_clear = true;
        self
    }

    /// The directory it runs in. The host's own, if not set.
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Where it listens.
    pub fn listen(mut self, listen: Listen) -> Self {
        self.listen = listen;
        self
    }

    /// When it is ready. If not set: when it accepts connections; with a socket that the host
    /// opened ([`Listen::handed`]), when it answers `GET /` with any status.
    pub fn ready(mut self, ready: impl Into<Ready>) -> Self {
        self.ready = Some(ready.into());
        self
    }

    /// How long it may take from its spawn until it is ready: 10 seconds if not set. Then it is
    /// killed, and the start fails with [`StartTimeout`](crate::ErrorKind::StartTimeout).
    pub fn ready_within(mut self, bound: Duration) -> Self {
        self.ready_within = bound;
        self
    }

    /// The time from one readiness probe to the next (50 ms; at first, less), and the bound of each
    /// (1 s).
    ///
    /// A probe that is refused ends at once, so the child is known to be ready at most `every`
    /// after it is; one that hangs delays the next until `within` is over.
    pub fn probes(mut self, every: Duration, within: Duration) -> Self {
        self.probe_every = every;
        self.probe_within = within;
        self
    }

    /// The time from SIGTERM to SIGKILL at a stop: 10 seconds if not set. With 0 it is killed.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Probes the running child `every` so often; after `failures` in a row the instance is
    /// [`Unhealthy`](crate::Retired::Unhealthy) and retired.
    ///
    /// Each probe has the bound set by [`probes`](Self::probes). It uses a connection of its own
    /// and is not a use: it does not move the idle clock. A child that serves one call at a time
    /// cannot answer HTTP while it works; probe that one with [`Probe::connect`].
    pub fn alive(mut self, probe: impl Into<Probe>, every: Duration, failures: u32) -> Self {
        self.alive = Some(Alive {
            probe: probe.into(),
            every,
            failures,
        });
        self
    }

    /// Takes whoever listens for the child.
    ///
    /// A start succeeds only if the socket belongs to a process of the child's own group, so that a
    /// stranger who took the port is never taken for the child (seen on Linux only). That is wrong
    /// for a child whose socket another process opens for it, a container engine's, say, or one
    /// that runs as another user whose files the host may not look into.
    pub fn any_listener(mut self) -> Self {
        self.any_listener = true;
        self
    }

    /// Whether this can be started at all; each start checks it, too.
    ///
    /// # Errors
    ///
    /// [`Invalid`], which says what to change: an empty name or program, a placeholder that does
    /// not fit [`listen`](Self::listen), a child that nobody tells where to listen, a socket path
    /// that is too long, a readiness that says nothing, a bound of zero, text that the system does not
    /// take.
    pub fn validate(&self) -> Result<(), Invalid> {
        let invalid = |text: String| Err(Invalid(text));
        if self.name.is_empty() {
            return invalid("the backend has no name".into());
        }
        if self.program.is_empty() {
            return invalid("the program is empty".into());
        }
        if self
            .texts()
            .any(|text| text.as_encoded_bytes().contains(&0))
        {
            return invalid("the program, an argument or a variable contains a NUL byte".into());
        }
        let cwd = self.cwd.as_deref().map(Path::as_os_str).unwrap_or_default();
        if cwd.as_encoded_bytes().contains(&0) {
            return invalid("the directory contains a NUL byte".into());
        }
        let mut names = self.env.iter().map(|(name, _)| name);
        if let Some(name) = names.find(|it| it.is_empty() || it.as_encoded_bytes().contains(&b'='))
        {
            return invalid(format!(
                "{name:?} is no name of a variable: it is empty or contains `=`"
            ));
        }
        self.listen.validate()?;
        let uses = |placeholder| self.texts().any(|text| contains(text, placeholder));
        if self.listen.is_unix() && uses("{port}") {
            return invalid(format!(
                "`{{port}}` is used, but it listens on {}: use `{{socket}}`",
                self.listen
            ));
        }
        if !self.listen.is_unix() && uses("{socket}") {
            return invalid(format!(
                "`{{socket}}` is used, but it listens on {}: use `{{port}}`",
                self.listen
            ));
        }
        let own = if self.listen.is_unix() {
            "{socket}"
        } else {
            "{port}"
        };
        if self.listen.must_be_told() && !uses(own) && !uses("{address}") {
            return invalid(format!(
                "nothing tells the child where to listen: put `{own}` in an argument or a variable"
            ));
        }
        if let Some(ready) = &self.ready {
            ready.validate()?;
            if self.listen.is_handed() && ready.is_connect() {
                return invalid(
                    "ready by `connect` says nothing about a child whose socket the host opened: \
                     use `http:` or `line:`"
                        .into(),
                );
            }
        }
        if self.ready_within.is_zero() || self.probe_within.is_zero() || self.probe_every.is_zero()
        {
            return invalid("`ready_within` and the times of `probes` must not be 0".into());
        }
        if let Some(alive) = &self.alive {
            alive.probe.validate()?;
            if alive.every.is_zero() || alive.failures == 0 {
                return invalid("`alive`: neither `every` nor `failures` may be 0".into());
            }
        }
        Ok(())
    }

    /// The name of the backend.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The time from SIGTERM to SIGKILL at a stop.
    pub const fn grace_period(&self) -> Duration {
        self.grace
    }

    pub(super) fn how_ready(&self) -> Ready {
        match &self.ready {
            Some(ready) => ready.clone(),
            None if self.listen.is_handed() => Probe::any_answer("/").into(),
            None => Probe::connect().into(),
        }
    }

    /// Everything that reaches the child as text.
    fn texts(&self) -> impl Iterator<Item = &OsStr> {
        let env = self.env.iter();
        let env = env.flat_map(|(key, value)| [Some(key), value.as_ref()]);
        std::iter::once(&self.program)
            .chain(&self.args)
            .chain(env.flatten())
            .map(OsString::as_os_str)
    }
}

impl Target for Command {
    fn name(&self) -> &str {
        &self.name
    }

    fn validate(&self) -> Result<(), BoxError> {
        Ok(Command::validate(self)?)
    }
}

fn contains(text: &OsStr, placeholder: &str) -> bool {
    text.to_str().is_some_and(|text| text.contains(placeholder))
}

/// `text` with its placeholders replaced.
pub(super) fn fill(text: &OsStr, address: &Address) -> OsString {
    let Some(text) = text.to_str() else {
        return text.to_owned();
    };
    match address {
        Address::Tcp(address) => text
            .replace("{port}", &address.port().to_string())
            .replace("{address}", &address.to_string())
            .into(),
        Address::Unix(path) => fill_path(text, path),
    }
}

/// The path need not be Unicode.
fn fill_path(text: &str, path: &Path) -> OsString {
    let mut filled = OsString::new();
    let text = text.replace("{address}", "{socket}");
    let mut parts = text.split("{socket}");
    filled.push(parts.next().unwrap_or_default());
    for part in parts {
        filled.push(path);
        filled.push(part);
    }
    filled
}
