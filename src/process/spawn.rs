//! `Spawn`: the maker of child processes.

use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;

use super::{
    Protocol,
    address::Address,
    after,
    child::{Order, gone_from},
    client::Client,
    command::Command,
    launch::{Because, failed, launch},
    place::{Prepared, is_taken},
    watch::{NotReady, until_ready, watch},
};
use crate::{
    error::{BoxError, Clock, Error, ErrorKind},
    target::{Room, current_room},
};

/// How many ports are tried when strangers take them.
const PORTS: u32 = 3;

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

async fn start(command: Command, protocol: Protocol, room: Option<Room>) -> Result<Client, Error> {
    let named = |error: Error| error.of(command.name.clone());
    command
        .validate()
        .map_err(|invalid| named(failed(invalid)))?;
    let deadline = after(command.ready_within);
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
    let mut owner = launch(command, prepared).map_err(Failure::Failed)?;
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
                Some(last) => timeout.because(LastLook(process.address().clone(), last)),
                None => timeout,
            }))
        }
    })
}

/// Why the last look at a child that was to get ready was in vain.
#[derive(Debug)]
struct LastLook(Address, BoxError);

impl fmt::Display for LastLook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the last look at {}", self.0)
    }
}

impl StdError for LastLook {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.1)
    }
}
