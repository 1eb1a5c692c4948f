//! A reverse proxy whose backends are child processes that run only while somebody needs them.
//!
//! ```text
//! host                    six demo backends on http://127.0.0.1:8080/<backend>/…
//! host --config FILE      the backends of a TOML file; see real.toml
//! host --demo             shows what the layers do, in a few seconds, and checks it
//! ```
//!
//! `http://127.0.0.1:8080/_` is a page that shows them all; with `--admin` it has buttons. See `pages`.
#![allow(clippy::disallowed_methods)] // an example may read the clock

mod backend;
mod children;
mod config;
mod demo;
mod feed;
mod headers;
mod host;
mod ledger;
mod pages;
mod proxy;
mod share;
mod timeline;
mod tunnel;
mod upload;
mod uses;

use std::{
    env,
    io::{self, IsTerminal},
    net::SocketAddr,
    path::PathBuf,
    process::{self, ExitCode},
    sync::Arc,
};

use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    config::Config,
    feed::Feed,
    host::Host,
    ledger::Ledger,
    pages::{Metrics, Pages},
    timeline::Timeline,
};

const USAGE: &str = "\
usage: host [--config FILE] [--listen ADDRESS] [--admin]
       host --demo

  --config FILE     the backends of a TOML file, instead of six demo backends
  --listen ADDRESS  instead of 127.0.0.1:8080 or what the file says
  --admin           takes orders from its page: start, stop, reload, unload, load
  --demo            shows in a few seconds what the layers do, and checks it
";

/// What the command line asks for.
enum Task {
    Serve {
        config: Option<PathBuf>,
        listen: Option<SocketAddr>,
        admin: bool,
    },
    Demo,
    /// This process is one of the demo's children.
    Backend {
        name: String,
        socket: PathBuf,
    },
    Help,
}

fn task(mut args: impl Iterator<Item = String>) -> Result<Task, String> {
    let (mut config, mut listen, mut admin) = (None, None, false);
    while let Some(arg) = args.next() {
        let mut value = |of: &str| args.next().ok_or(format!("{arg} needs {of}"));
        match arg.as_str() {
            "--config" => config = Some(value("a file")?.into()),
            "--listen" => {
                let address = value("an address")?;
                let parsed = address.parse().map_err(|_| {
                    format!("{address:?} is no address to listen on: 127.0.0.1:8080 is one")
                });
                listen = Some(parsed?);
            }
            "--admin" => admin = true,
            "--demo" => return Ok(Task::Demo),
            "--backend" => {
                let name = value("a name")?;
                let socket = value("a socket")?.into();
                return Ok(Task::Backend { name, socket });
            }
            "-h" | "--help" => return Ok(Task::Help),
            _ => return Err(format!("what is {arg:?}?\n\n{USAGE}")),
        }
    }
    Ok(Task::Serve {
        config,
        listen,
        admin,
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match task(env::args().skip(1)) {
        Ok(Task::Serve {
            config,
            listen,
            admin,
        }) => serve(config, listen, admin).await,
        Ok(Task::Demo) => demo::run().await,
        Ok(Task::Backend { name, socket }) => {
            let ledger = env::var_os(demo::LEDGER).map(Ledger::at);
            backend::run(name, socket, ledger).await
        }
        Ok(Task::Help) => {
            print!("{USAGE}");
            Ok(())
        }
        Err(wrong) => Err(wrong),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("host: {}", error.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// Logs to stderr: what children print, and what `RUST_LOG` asks for. What the layers tell goes to the feed.
fn log(default: &str, feed: &Feed) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let stderr = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter);
    tracing_subscriber::registry()
        .with(stderr)
        .with(feed.clone())
        .init();
}

async fn serve(
    file: Option<PathBuf>,
    listen: Option<SocketAddr>,
    admin: bool,
) -> Result<(), String> {
    let mut config = match &file {
        Some(file) => Config::read(file)?,
        None => demo::config(None)?,
    };
    if let Some(listen) = listen {
        config.listen = listen;
    }
    let feed = Feed::new();
    log("info", &feed);
    let listener = host::bind(config.listen).await?;
    let metrics = Metrics::install().map_err(|error| error.to_string())?;
    let pages = Pages::new(admin, Some(metrics));
    let (host, idle_evict) = Host::new(&config, feed.clone(), pages);
    let sweeping = tokio::spawn(idle_evict.run());
    let watching = tokio::spawn(uses::follow(host.group().clone(), feed.clone()));
    let following = tokio::spawn(Timeline::new(feed).follow());

    welcome(&host, &config, &listener, file.is_none());
    let host = Arc::new(host);
    let begun = host::serve(host.clone(), listener, stopped()?).await;
    println!(
        "stopping: calls in flight have {:?}, a second signal ends it at once",
        config.drain
    );
    let mut again = stopped()?;
    tokio::select! {
        () = host.stop(config.drain, begun) => {}
        () = &mut again => {
            eprintln!("host: stopped at once");
            process::exit(1);
        }
    }
    watching.abort();
    sweeping.abort();
    // What happened last is said as well.
    let _ = following.await;
    println!("stopped: nothing is left");
    Ok(())
}

fn welcome(host: &Host, config: &Config, listener: &TcpListener, demo: bool) {
    let url = host::url(listener);
    println!(
        "{} backends, room for {} at once, on {url}/<backend>/",
        config.backends.len(),
        config.limit
    );
    for name in host.names() {
        println!("  {url}/{name}/");
    }
    println!("  {url}/_  shows them");
    if demo {
        println!(
            "\ntry, in another terminal:\n  \
             curl {url}/                       # who runs\n  \
             curl {url}/films/                 # starts it\n  \
             curl {url}/music/ {url}/maps/     # the third one takes the first one's room\n  \
             curl -N {url}/news/stream         # is never stopped in the middle\n  \
             for i in 1 2 3 4; do curl -s {url}/mail/report & done; wait     # made once\n"
        );
    }
    println!("Ctrl-C stops it\n");
}

/// Resolves at Ctrl-C or SIGTERM.
fn stopped() -> Result<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>, String> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    Ok(Box::pin(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }))
}
