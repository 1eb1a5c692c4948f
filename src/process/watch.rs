//! Waiting until a child is ready, and watching it while it runs.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::{
    Protocol,
    address::Stream,
    after,
    child::Process,
    command::{Alive, Command},
    ready::{How, Probe, Ready},
};
use crate::error::{BoxError, Error, ErrorKind};

/// The shortest time from one readiness probe to the next.
const SHORTEST: Duration = Duration::from_millis(1);

/// Why a child is not ready.
pub(super) enum NotReady {
    Ended,
    /// Another than the child listens where it shall.
    Stranger(String),
    /// The bound is over; what the last probe said.
    Late(Option<BoxError>),
}

pub(super) async fn until_ready(
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
    // A look at all processes may take longer than a probe has, on a busy machine: the next probe awaits the same.
    let mut verifying = None;
    let mut last = None;
    let started = Instant::now();
    loop {
        let began = Instant::now();
        let bound = after(command.probe_within).min(deadline);
        let tried = timeout_at(bound, async {
            let stream = process.address().connect().await?;
            if !verified {
                let verdict = verifying.get_or_insert_with(|| Box::pin(verify(process, &stream)));
                let verdict = verdict.await;
                verifying = None;
                match verdict {
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
        // A quarter of the time it has taken so far: one that is quick is found to be ready quickly, and one that
        // is slow is not asked all the time.
        let every = ((began - started) / 4)
            .max(SHORTEST)
            .min(command.probe_every);
        let next = began.checked_add(every).unwrap_or(deadline);
        sleep_until(next.min(deadline)).await;
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
fn verify(process: &Process, stream: &Stream) -> impl Future<Output = Verdict> + use<> {
    use super::linux::{Listener, who_listens};
    let (address, group) = (process.address().clone(), process.pid());
    let (at, peer) = (address.clone(), stream.peer());
    let seen = tokio::task::spawn_blocking(move || who_listens(&at, group, peer));
    async move {
        match seen.await {
            Ok(Listener::Group) => Verdict::Child,
            Ok(Listener::Stranger(Some(holder))) => Verdict::Stranger(format!(
                "{holder} listens on {address} and is not of its process group"
            )),
            Ok(Listener::Stranger(None)) => Verdict::Stranger(format!(
                "who listens on {address} is not seen to be of its process group \
                 (`any_listener` accepts whoever it is)"
            )),
            Ok(Listener::Nobody) | Err(_) => Verdict::Unseen(format!(
                "nobody is seen to listen on {address} (`any_listener` accepts whoever it is)"
            )),
        }
    }
}

/// Who listens is not seen here.
#[cfg(not(target_os = "linux"))]
fn verify(_process: &Process, _stream: &Stream) -> impl Future<Output = Verdict> + use<> {
    std::future::ready(Verdict::Child)
}

/// Probes a running instance until it ends or fails too often.
pub(super) async fn watch(alive: Alive, within: Duration, protocol: Protocol, process: Process) {
    let ended = process.drained();
    let probes = async {
        let mut failures = 0;
        loop {
            sleep(alive.every).await;
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
            Error::new(ErrorKind::Died).of(process.name()).because(format!("it is unhealthy: {} probes failed in a row, the last: {error}", alive.failures)).seen(process.output().told()),
        ),
    }
}
