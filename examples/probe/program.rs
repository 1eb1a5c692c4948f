//! The subprocess that finds out about one file.

use std::{
    env,
    ffi::OsString,
    fmt, io,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout,
};
use tower::timeout::error::Elapsed;

/// What is read of a subprocess's output; one that prints more is ended.
const MOST: u64 = 1024 * 1024;

/// The programs that can do it, in the order in which they are preferred, and what they are told before the file.
const KNOWN: [(&str, &[&str]); 2] = [
    (
        "ffprobe",
        &[
            "-v",
            "error",
            "-print_format",
            "json",
            "-show_format",
            "-show_streams",
        ],
    ),
    ("sha256sum", &[]),
];

/// A program, and for how long it may run.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    name: &'static str,
    /// All but the file.
    command: Arc<[OsString]>,
    within: Duration,
}

/// What a subprocess found out.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) process: u32,
    pub(crate) json: bool,
    pub(crate) output: Bytes,
}

impl Program {
    /// `ffprobe` where it is installed, otherwise `sha256sum`.
    pub(crate) fn find(within: Duration) -> Result<Self, String> {
        let path = env::var_os("PATH").unwrap_or_default();
        for (name, args) in KNOWN {
            let mut places = env::split_paths(&path).map(|dir| dir.join(name));
            if let Some(found) = places.find(|place| is_program(place)) {
                let args = args.iter().map(OsString::from);
                return Ok(Self {
                    name,
                    command: [found.into()].into_iter().chain(args).collect(),
                    within,
                });
            }
        }
        Err("neither ffprobe nor sha256sum is installed".into())
    }

    /// Run by another command, which is given it as its last arguments.
    pub(crate) fn run_by(self, wrapper: impl IntoIterator<Item = OsString>) -> Self {
        let command = wrapper.into_iter().chain(self.command.iter().cloned());
        Self {
            command: command.collect(),
            ..self
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn within(&self) -> Duration {
        self.within
    }

    /// Asks it about `file`.
    ///
    /// When this returns the subprocess is gone, and not only told to go: the place that it took is given back
    /// right after. Dropped before, it takes the subprocess along.
    pub(crate) async fn ask(&self, file: &Path) -> Result<Verdict, Failed> {
        let failed = |why| Failed {
            program: self.name,
            file: file.file_name().unwrap_or_default().to_owned(),
            why,
        };
        let mut running = self.spawn(file).map_err(|error| failed(Why::Io(error)))?;
        match timeout(self.within, running.finish()).await {
            Ok(Ok(output)) => Ok(Verdict {
                process: running.process,
                json: self.name == "ffprobe",
                output,
            }),
            Ok(Err(why)) => {
                running.end().await;
                Err(failed(why))
            }
            Err(_) => {
                running.end().await;
                Err(failed(Why::TooLong(self.within, Elapsed::new())))
            }
        }
    }

    fn spawn(&self, file: &Path) -> io::Result<Running> {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Together with whatever it starts.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn()?;
        Ok(Running {
            process: child.id().unwrap_or_default(),
            child,
        })
    }
}

fn is_program(path: &Path) -> bool {
    let metadata = path.metadata();
    metadata.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// A subprocess, ended when this is dropped.
struct Running {
    child: Child,
    process: u32,
}

impl Running {
    /// What it prints, if it ends well.
    async fn finish(&mut self) -> Result<Bytes, Why> {
        let out = whole(self.child.stdout.take());
        let err = whole(self.child.stderr.take());
        let (out, err) = tokio::try_join!(out, err)?;
        let status = self.child.wait().await.map_err(Why::Io)?;
        if status.success() {
            Ok(out.into())
        } else {
            let said = String::from_utf8_lossy(&err).trim().to_owned();
            Err(Why::Status(status, said))
        }
    }

    /// Ends it, and waits until it is gone.
    async fn end(&mut self) {
        self.kill();
        let _ = self.child.wait().await;
    }

    fn kill(&self) {
        // `None` once it is gone: its number may be another one's by now.
        let group = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn whole(pipe: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, Why> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let mut pipe = pipe.take(MOST + 1);
        pipe.read_to_end(&mut bytes).await.map_err(Why::Io)?;
    }
    if bytes.len() as u64 > MOST {
        return Err(Why::TooMuch);
    }
    Ok(bytes)
}

/// Why there is no verdict.
#[derive(Debug)]
pub(crate) struct Failed {
    program: &'static str,
    file: OsString,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Io(io::Error),
    Status(ExitStatus, String),
    TooMuch,
    /// With tower's own error as its source, so that whoever answers for it answers 504.
    TooLong(Duration, Elapsed),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.program, Path::new(&self.file).display())?;
        match &self.why {
            Why::Io(_) => f.write_str("could not be run"),
            Why::Status(status, said) if said.is_empty() => write!(f, "{status}"),
            Why::Status(status, said) => write!(f, "{status}: {said}"),
            Why::TooMuch => write!(f, "printed more than {MOST} bytes, and was ended"),
            Why::TooLong(bound, _) => write!(f, "took longer than {bound:?}, and was ended"),
        }
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.why {
            Why::Io(error) => Some(error),
            Why::TooLong(_, elapsed) => Some(elapsed),
            Why::Status(..) | Why::TooMuch => None,
        }
    }
}
