//! Child processes as backends, on tokio and on Unix.
//!
//! [`Spawn`] is the maker: it starts what a [`Command`] describes, waits until it is ready, and
//! answers with a [`Client`], the [`Backend`](crate::Backend). Its leases are [`Http`] services over
//! connections of this very instance.
//!
//! ```no_run
//! use tower::{Service, ServiceExt};
//! use tower_on_demand::{Backend, process::{Command, Spawn}};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let command = Command::new("files", "python3").args(["-m", "http.server", "{port}"]);
//! let files = Spawn::http().oneshot(command).await?;
//!
//! let request = http::Request::get("/").body(String::new())?;
//! let response = files.lease().oneshot(request).await?;
//! assert!(response.status().is_success());
//!
//! files.stop().await; // SIGTERM, then SIGKILL if need be; nothing is left of it
//! # Ok(())
//! # }
//! ```
//!
//! # What is seen to
//!
//! - Each child leads a process group of its own, and the whole group is stopped: SIGTERM, then
//!   SIGKILL to whoever is left after [`grace`](Command::grace). What has left the group (by
//!   `setsid`, as daemons do) is out of reach; run the host in a container or a cgroup if that
//!   matters.
//! - A child does not outlive its host, even one that is killed: a small `sh` watches the host and
//!   kills the groups that are left. It is there while there are children.
//! - An exit during a start is told at once, with its status and the last lines of output.
//! - Each line of output is a `tracing` event (level `INFO`, target `tower_on_demand::process`)
//!   with the fields `backend`, `pid` and `stream`; lines longer than 2 KiB are cut into several.
//! - A start never takes a stranger for the child: the socket must be the group's. Seen in `/proc`,
//!   so only on Linux; elsewhere choose a Unix socket or a [handed](Listen::handed) one.
//! - Dropping the future of a start kills the child; dropping the [`Client`] stops it.
//!
//! All of it needs a tokio runtime with I/O and time enabled; time is tokio's own. When the runtime
//! is shut down its children are killed.

use std::time::Duration;

use tokio::time::Instant;

mod address;
mod body;
mod call;
mod child;
mod client;
mod command;
mod group;
mod guard;
mod keeper;
mod launch;
#[cfg(target_os = "linux")]
mod linux;
mod listen;
mod output;
mod place;
mod ready;
mod service;
mod spawn;
mod watch;

#[cfg(target_os = "linux")]
#[cfg_attr(docsrs, doc(cfg(target_os = "linux")))]
pub use self::linux::Stats;
pub use self::{
    address::{Address, Stream},
    call::{Calling, ChildBody},
    child::Process,
    client::Client,
    command::{Command, Invalid},
    listen::Listen,
    ready::{Probe, Ready},
    service::Http,
    spawn::{Spawn, Starting},
};

/// The end of a bound that begins now, be it as long as it may.
fn after(bound: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    let now = Instant::now();
    now.checked_add(bound).unwrap_or(now + LONG)
}

/// What is spoken to a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    H2c,
}
