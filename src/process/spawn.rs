//! `Spawn`: the maker of child processes.

use std::{
    fmt,
    future::Future,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    task::{Context, Poll},
};

use process_wrap::tokio::{CommandWrap, KillOnDrop, ProcessGroup};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tower_service::Service;

use super::{
    Protocol,
    address::{Address, Stream},
    child::{Order, Owner, Process, gone_from, keep},
    client::Client,
    command::{Alive, Command, fill},
    guard::Slot,
    place::{NoPlace, Prepared, is_taken},
    ready::{How, Probe, Ready},
};
use crate::{
    error::{BoxError, Clock, Error, ErrorKind},
    target::{Room, current_room},
};

/// How many ports are tried when strangers take them.
const PORTS: u32 = 3;

/// For `sh`: passes its standard input on as file descriptor 3. Only the child knows its own pid.
const HAND_OVER: &str = r#"export LISTEN_PID=$$; exec "$@" 3<&0 </dev/null"#;

/// Starts child processes: a `MakeService` whose target is a [`Command`] and whose answer is a
/// [`Client`].
///
/// It has no state and is always ready. See the [module](super) for what it sees to.
///
/// # Errors
///
/// | | |
/// |---|---|
/// | [`StartFailed`](ErrorKind::StartFailed) | the command is not valid, not found or not executable; its port or socket is in use, and by whom; it ended before it was ready, with its status |
/// | [`StartTimeout`](ErrorKind::StartTimeout) | it was not ready within [`ready_within`](Command::ready_within), and what the last probe said |
///
/// Both have the last lines of output in [`Error::detail`]; the cause is the error's
/// [`source`](std::error::Error::source) and is shown by `{:#}`.
///
/// # Cancel safety
///
/// Dropping the future kills the child, its group with it, and frees the port or socket. A task in
/// the background reaps it.
#[derive(Debug, Clone)]
pub struct Spawn {
    protocol: Protocol,
}

impl Spawn {
    /// For children that speak HTTP/1.1.
    pub const fn http() -> Self {
        Self {
            protocol: Protocol::Http1,
        }
    }

    /// For children that speak HTTP/2 without TLS, from the first byte on ("prior knowledge"):
    /// gRPC servers, for one.
    pub const fn h2c() -> Self {
        Self {
            protocol: Protocol::H2c,
        }
    }
}

impl Service<Command> for Spawn {
    type Response = Client;
    type Error = Error;
    type Future = Starting;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, command: Command) -> Starting {
        // A child takes a moment to be gone: so long its room is not another's.
        let room = current_room();
        Starting(Box::pin(start(command, self.protocol, room)))
    }
}

/// A start in progress: the future of [`Spawn`]. Dropping it kills the child.
#[must_use = "futures do nothing unless polled"]
pub struct Starting(Pin<Box<dyn Future<Output = Result<Client, Error>> + Send>>);

impl Future for Starting {
    type Output = Result<Client, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Starting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starting").finish_non_exhaustive()
    }
}

/// Why a start came to nothing.
enum Failure {
    /// For good.
    Failed(Error),
    /// Somebody else took the port.
    Stolen(Error),
}

/// What happened, and why if the system says.
#[derive(Debug)]
struct Because {
    what: String,
    source: Option<io::Error>,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Because {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<NoPlace> for Because {
    fn from(no_place: NoPlace) -> Self {
        Self {
            what: no_place.what,
            source: no_place.source,
        }
    }
}

fn failed(because: impl Into<BoxError>) -> Error {
    Error::new(ErrorKind::StartFailed).because(because)
}

async fn start(command: Command, protocol: Protocol, room: Option<Room>) -> Result<Client, Error> {
    let named = |error: Error| error.of(command.name.clone());
    command
        .validate()
        .map_err(|invalid| named(failed(invalid)))?;
    let deadline = Instant::now() + command.ready_within;
    let mut tries = 0;
    loop {
        tries += 1;
        match try_start(&command, protocol, deadline, room.clone()).await {
            Ok(client) => return Ok(client),
            Err(Failure::Stolen(error)) if tries < PORTS && Instant::now() < deadline => {
                tracing::warn!(
                    target: "tower_on_demand::process",
                    backend = &*command.name, error = format!("{error:#}"),
                    "its port was taken, another is tried"
                );
            }
            Err(Failure::Failed(error) | Failure::Stolen(error)) => return Err(named(error)),
        }
    }
}

async fn try_start(
    command: &Command,
    protocol: Protocol,
    deadline: Instant,
    room: Option<Room>,
) -> Result<Client, Failure> {
    if let Some(address) = command.listen.always() {
        let last = gone_from(&address);
        timeout_at(deadline, last).await.map_err(|_| {
            let what = format!("the last instance has not left {address} yet");
            Failure::Failed(failed(what))
        })?;
    }
    let prepared = Prepared::new(&command.listen)
        .map_err(|no_place| Failure::Failed(failed(Because::from(no_place))))?;
    let mut owner = spawn(command, prepared).map_err(Failure::Failed)?;
    let process = owner.process.clone();
    if let Some(room) = room {
        process.keep(Box::new(room));
    }
    let ready = async {
        tokio::select! {
            biased;
            _ = process.drained() => Err(NotReady::Ended),
            ready = until_ready(command, protocol, &process, deadline) => ready,
        }
    };
    let not_ready = match ready.await {
        Ok(()) => {
            owner.on_drop = Order::Stop;
            if let Some(alive) = &command.alive {
                tokio::spawn(watch(
                    alive.clone(),
                    command.probe_within,
                    protocol,
                    process,
                ));
            }
            return Ok(Client::new(owner, protocol));
        }
        Err(not_ready) => not_ready,
    };
    // Nothing is left of it when the failure is told, unless the system cannot end it.
    owner.order(Order::Kill);
    let _ = timeout(command.probe_within, process.gone()).await;
    let chosen = command.listen.must_be_told();
    let told = |error: Error| error.seen(process.output().told());
    Err(match not_ready {
        NotReady::Ended if chosen && is_taken(process.address()) => {
            Failure::Stolen(told(failed(format!(
                "{} before it was ready; somebody else has taken {}",
                process.ending(),
                process.address()
            ))))
        }
        NotReady::Ended => Failure::Failed(told(failed(format!(
            "{} before it was ready",
            process.ending()
        )))),
        NotReady::Stranger(who) if chosen => Failure::Stolen(told(failed(who))),
        NotReady::Stranger(who) => Failure::Failed(told(failed(who))),
        NotReady::Late(last) => {
            let timeout = Error::new(ErrorKind::StartTimeout {
                clock: Clock::ReadyWithin,
                after: command.ready_within,
            });
            Failure::Failed(told(match last {
                Some(last) => timeout.because(last),
                None => timeout,
            }))
        }
    })
}

/// Why a child is not ready.
enum NotReady {
    Ended,
    /// Another than the child listens where it shall.
    Stranger(String),
    /// The bound is over; what the last probe said.
    Late(Option<BoxError>),
}

async fn until_ready(
    command: &Command,
    protocol: Protocol,
    process: &Process,
    deadline: Instant,
) -> Result<(), NotReady> {
    let probe = match command.how_ready() {
        Ready(How::Probe(probe)) => probe,
        Ready(How::Line(line)) => {
            let printed = timeout_at(deadline, process.output().awaited()).await;
            printed
                .map_err(|_| NotReady::Late(Some(format!("it never printed {line:?}").into())))?;
            Probe::connect()
        }
    };
    // A socket that the host opened is nobody else's.
    let mut verified = command.any_listener || command.listen.is_handed();
    let mut last = None;
    loop {
        let began = Instant::now();
        let bound = (began + command.probe_within).min(deadline);
        let tried = timeout_at(bound, async {
            let stream = process.address().connect().await?;
            if !verified {
                match verify(process, &stream).await {
                    Verdict::Child => verified = true,
                    Verdict::Unseen(why) => return Err(why.into()),
                    Verdict::Stranger(who) => return Ok(Some(who)),
                }
            }
            probe.ask(process.address(), stream, protocol).await?;
            Ok::<_, BoxError>(None)
        });
        match tried.await {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(stranger))) => return Err(NotReady::Stranger(stranger)),
            Ok(Err(error)) => last = Some(error),
            Err(_) if Instant::now() < deadline || last.is_none() => {
                let within = command.probe_within;
                last = Some(format!("{probe}: no answer within {within:?}").into());
            }
            // What the last whole probe said says more.
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            return Err(NotReady::Late(last));
        }
        sleep_until((began + command.probe_every).min(deadline)).await;
    }
}

/// Whose a socket is.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
enum Verdict {
    Child,
    Stranger(String),
    Unseen(String),
}

#[cfg(target_os = "linux")]
async fn verify(process: &Process, stream: &Stream) -> Verdict {
    use super::linux::{Listener, who_listens};
    let (address, group) = (process.address().clone(), process.pid());
    let peer = stream.peer();
    let seen = tokio::task::spawn_blocking(move || who_listens(&address, group, peer)).await;
    let address = process.address();
    match seen {
        Ok(Listener::Group) => Verdict::Child,
        Ok(Listener::Stranger(Some(holder))) => Verdict::Stranger(format!(
            "{holder} listens on {address} and is not of its process group"
        )),
        Ok(Listener::Stranger(None)) => Verdict::Stranger(format!(
            "who listens on {address} is not seen to be of its process group \
             (`any_listener` accepts whoever it is)"
        )),
        Ok(Listener::Nobody) | Err(_) => {
            Verdict::Unseen(format!("nobody is seen to listen on {address}"))
        }
    }
}

/// Who listens is not seen here.
#[cfg(not(target_os = "linux"))]
async fn verify(_process: &Process, _stream: &Stream) -> Verdict {
    Verdict::Child
}

/// Probes a running instance until it ends or fails too often.
async fn watch(alive: Alive, within: std::time::Duration, protocol: Protocol, process: Process) {
    let ended = process.drained();
    let probes = async {
        let mut failures = 0;
        loop {
            tokio::time::sleep(alive.every).await;
            let tried = timeout(within, async {
                let stream = process.address().connect().await?;
                alive.probe.ask(process.address(), stream, protocol).await
            });
            let error: BoxError = match tried.await {
                Ok(Ok(())) => {
                    failures = 0;
                    continue;
                }
                Ok(Err(error)) => error,
                Err(_) => format!("{}: no answer within {within:?}", alive.probe).into(),
            };
            failures += 1;
            if failures == alive.failures {
                return error;
            }
        }
    };
    tokio::select! {
        biased;
        _ = ended => {}
        error = probes => process.fell_sick(
            Error::new(ErrorKind::Died).of(process.name()).because(Because {
                what: format!("{} probes failed in a row, the last: {error}", alive.failures),
                source: None,
            }).seen(process.output().told()),
        ),
    }
}

/// Starts the program and has it kept.
fn spawn(command: &Command, prepared: Prepared) -> Result<Owner, Error> {
    let told = |what: &str, error: io::Error| {
        failed(Because {
            what: what.to_owned(),
            source: Some(error),
        })
    };
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(failed(
            "processes need a tokio runtime, and there is none here",
        ));
    }
    let slot = Slot::new().map_err(|error| told("no guard could be started", error))?;
    let Prepared { held, inherits } = prepared;
    let mut child = configure(command, &held.address, inherits)?;
    let child = child.spawn().map_err(|error| cannot_run(command, error))?;
    let awaited = match command.how_ready().0 {
        How::Line(line) => Some(line),
        How::Probe(_) => None,
    };
    keep(
        command.name.clone(),
        child,
        slot,
        awaited,
        held,
        command.grace,
    )
    .map_err(|error| told("it cannot be kept", error))
}

fn configure(
    command: &Command,
    address: &Address,
    inherits: Option<std::os::fd::OwnedFd>,
) -> Result<CommandWrap, Error> {
    let program = match inherits.is_some() {
        false => command.program.clone(),
        // `sh` must not be the one who says that it is not there.
        true => find(command)
            .map_err(|error| cannot_run(command, error))?
            .into(),
    };
    let mut child = match inherits.is_some() {
        false => tokio::process::Command::new(program),
        true => {
            let mut sh = tokio::process::Command::new("/bin/sh");
            sh.args(["-c", HAND_OVER, "sh"]).arg(program);
            sh
        }
    };
    child.args(command.args.iter().map(|arg| fill(arg, address)));
    if command.env_clear {
        child.env_clear();
    }
    for key in ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        child.env_remove(key);
    }
    for (key, value) in &command.env {
        match value {
            Some(value) => child.env(key, fill(value, address)),
            None => child.env_remove(key),
        };
    }
    if let Some(cwd) = &command.cwd {
        child.current_dir(cwd);
    }
    match inherits {
        Some(socket) => {
            child.env("LISTEN_FDS", "1");
            child.stdin(Stdio::from(socket));
        }
        None => {
            child.stdin(Stdio::null());
        }
    }
    child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = CommandWrap::from(child);
    child.wrap(ProcessGroup::leader()).wrap(KillOnDrop);
    Ok(child)
}

/// Where the program is.
fn find(command: &Command) -> io::Result<PathBuf> {
    let program = Path::new(&command.program);
    let cwd = command.cwd.as_deref().unwrap_or(Path::new(""));
    let runs = |path: &Path| -> io::Result<()> {
        let found = cwd.join(path).metadata()?;
        if found.is_file() && found.permissions().mode() & 0o111 != 0 {
            return Ok(());
        }
        Err(io::ErrorKind::PermissionDenied.into())
    };
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return runs(program).map(|()| program.to_owned());
    }
    let set = command.env.iter().rev().find(|(key, _)| key == "PATH");
    let path = match set {
        Some((_, path)) => path.clone(),
        None => std::env::var_os("PATH"),
    };
    let mut denied = io::ErrorKind::NotFound.into();
    for dir in std::env::split_paths(&path.unwrap_or_default()) {
        let path = dir.join(program);
        match runs(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied = error,
            Err(_) => {}
        }
    }
    Err(denied)
}

/// Why the program cannot be run, in words.
fn cannot_run(command: &Command, error: io::Error) -> Error {
    let program = Path::new(&command.program).display();
    let cwd = command.cwd.as_ref().filter(|cwd| !cwd.is_dir());
    let what = match (error.kind(), cwd) {
        (_, Some(cwd)) => format!("the directory to run in does not exist: {}", cwd.display()),
        (io::ErrorKind::NotFound, None) => format!("command not found: {program}"),
        (io::ErrorKind::PermissionDenied, None) => {
            format!("permission denied to run {program}: is it an executable file?")
        }
        _ => format!("{program} could not be run"),
    };
    failed(Because {
        what,
        source: Some(error),
    })
}
