//! Many callers ask about few files, and each file is looked at once.
//!
//! ```text
//! probe [--root DIR]      GET /probe/<file> on http://127.0.0.1:8080: what ffprobe says of it, or its sha256sum
//! probe --demo            shows what the layers do, in a few seconds, and checks it
//! ```
//!
//! A subprocess costs more than a request should be able to cost. So callers who ask about the same file at the same
//! time share one, however many they are; and no more than a few run at once, whatever is asked. The stack that
//! does it is in `stack.rs`.
#![allow(clippy::disallowed_methods)] // an example may read the clock

mod app;
mod demo;
mod line;
mod program;
mod stack;

use std::{
    env, future::IntoFuture, net::SocketAddr, path::PathBuf, pin::pin, process::ExitCode,
    thread::available_parallelism, time::Duration,
};

use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::{
    app::{App, Settings},
    program::Program,
};

const USAGE: &str = "\
usage: probe [--root DIR] [--listen ADDRESS] [--places N] [--within SECONDS]
       probe --demo

  --root DIR        the files that may be asked about are in it: the current directory
  --listen ADDRESS  instead of 127.0.0.1:8080
  --places N        how many subprocesses may run at once: as many as there are processors
  --within SECONDS  how long each of them may take: 10
  --demo            shows in a few seconds what the layers do, and checks it
";

/// For how long an answer can still be had: for who was on the way already, not a cache.
const LINGER: Duration = Duration::from_secs(1);

/// What the command line asks for.
enum Task {
    Serve {
        settings: Settings,
        listen: SocketAddr,
        within: Duration,
    },
    Demo,
    Help,
}

fn task(mut args: impl Iterator<Item = String>) -> Result<Task, String> {
    let mut settings = Settings {
        root: PathBuf::from("."),
        places: available_parallelism().map_or(1, usize::from),
        linger: LINGER,
    };
    let mut listen = SocketAddr::from(([127, 0, 0, 1], 8080));
    let mut within = Duration::from_secs(10);
    while let Some(arg) = args.next() {
        let mut value = |of: &str| args.next().ok_or(format!("{arg} needs {of}"));
        match arg.as_str() {
            "--root" => settings.root = value("a directory")?.into(),
            "--listen" => listen = parsed(&value("an address")?, "an address, 127.0.0.1:8080 say")?,
            "--places" => {
                let places: u16 = parsed(&value("a number")?, "a number of places")?;
                settings.places = usize::from(places);
            }
            "--within" => {
                let seconds: u32 = parsed(&value("a time")?, "a whole number of seconds")?;
                within = Duration::from_secs(seconds.into());
            }
            "--demo" => return Ok(Task::Demo),
            "-h" | "--help" => return Ok(Task::Help),
            _ => return Err(format!("what is {arg:?}?\n\n{USAGE}")),
        }
    }
    if settings.places == 0 || within.is_zero() {
        return Err("--places 0 or --within 0 would refuse every file".into());
    }
    Ok(Task::Serve {
        settings,
        listen,
        within,
    })
}

fn parsed<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not {what}"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match task(env::args().skip(1)) {
        Ok(Task::Serve {
            settings,
            listen,
            within,
        }) => serve(&settings, listen, within).await,
        Ok(Task::Demo) => demo::run().await,
        Ok(Task::Help) => {
            print!("{USAGE}");
            Ok(())
        }
        Err(wrong) => Err(wrong),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("probe: {}", error.trim_end());
            ExitCode::FAILURE
        }
    }
}

async fn serve(settings: &Settings, listen: SocketAddr, within: Duration) -> Result<(), String> {
    let program = Program::find(within)?;
    let root = settings.root.display();
    let name = program.name();
    let app = App::new(program, settings).map_err(|error| format!("{root}: {error}"))?;
    let mut stop = Stop::new()?;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    println!(
        "{name} for the files in {root}, at most {} at once, on http://{address}/probe/<file>\n\
         Ctrl-C stops it",
        settings.places
    );

    let (tell, told) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app.router()).with_graceful_shutdown(async {
        let _ = told.await;
    });
    let mut serving = pin!(serving.into_future());
    tokio::select! {
        ended = &mut serving => return ended.map_err(|error| error.to_string()),
        () = stop.asked() => {}
    }
    println!("stopping: who waits is answered, a second signal ends it at once");
    let _ = tell.send(());
    tokio::select! {
        _ = &mut serving => {}
        () = stop.asked() => {}
    }
    // A subprocess that nobody waits for may still run.
    app.stop().await;
    println!("stopped");
    Ok(())
}

/// Ctrl-C or SIGTERM.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> Result<Self, String> {
        let on = |kind| signal(kind).map_err(|error| error.to_string());
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
