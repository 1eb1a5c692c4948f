//! Starting the program.

use std::{
    fmt, io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
};

use process_wrap::tokio::{CommandWrap, KillOnDrop, ProcessGroup};
use tokio::net::unix::pipe;

use super::{
    address::Address,
    child::Owner,
    command::{Command, fill},
    guard::Slot,
    keeper::keep,
    place::{NoPlace, Prepared, between_forks},
    ready::How,
};
use crate::error::{BoxError, Error, ErrorKind};

/// For `sh`: passes its standard input on as file descriptor 3. Only the child knows its own pid.
const HAND_OVER: &str = r#"export LISTEN_PID=$$; exec "$@" 3<&0 </dev/null"#;

/// What happened, and why if the system says.
#[derive(Debug)]
pub(super) struct Because {
    pub(super) what: String,
    pub(super) source: Option<io::Error>,
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

pub(super) fn failed(because: impl Into<BoxError>) -> Error {
    Error::new(ErrorKind::StartFailed).because(because)
}

/// Starts the program and has it kept.
pub(super) fn launch(command: &Command, prepared: Prepared) -> Result<Owner, Error> {
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
    let (stdout, stderr) = (pipe(), pipe());
    let no_pipe = |error| told("its output could not be piped", error);
    let (stdout, stdout_of_child) = stdout.map_err(no_pipe)?;
    let (stderr, stderr_of_child) = stderr.map_err(no_pipe)?;
    let slot =
        Slot::new(&stdout_of_child).map_err(|error| told("no guard could be started", error))?;
    let Prepared { held, inherits } = prepared;
    let mut child = configure(command, &held.address, inherits)?;
    child
        .command_mut()
        .stdout(stdout_of_child)
        .stderr(stderr_of_child);
    let spawned = between_forks(|| child.spawn());
    // With what the child inherits.
    drop(child);
    let child = spawned.map_err(|error| cannot_run(command, error))?;
    let awaited = match command.how_ready().0 {
        How::Line(line) => Some(line),
        How::Probe(_) => None,
    };
    keep(
        command.name.clone(),
        child,
        slot,
        (stdout, stderr),
        awaited,
        held,
        command.grace,
    )
    .map_err(|error| told("it cannot be kept", error))
}

/// A pipe whose other end is a child's.
fn pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((receiver, sender.into_blocking_fd()?))
}

fn configure(
    command: &Command,
    address: &Address,
    inherits: Option<OwnedFd>,
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
