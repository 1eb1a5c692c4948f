//! The keeper: the task that sees a child end, stops it, and reaps it.
//!
//! It is spawned together with the child and outlives everybody who wants something of that: they
//! ask, by an [`Order`], and read what became of it. So a start that is dropped, or an owner that
//! goes first, leaves no process behind.

use std::{io, sync::Arc, time::Duration};

use nix::sys::signal::Signal;
use process_wrap::tokio::ChildWrapper;
use tokio::{
    net::unix::pipe,
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    after,
    child::{Exit, Order, Owner, Process},
    group::{Group, is_alive},
    guard::Slot,
    output::{Output, Reading},
    place::Held,
};

/// After how long a child that was killed and does not end is reported.
const UNKILLABLE: Duration = Duration::from_secs(5);

/// What keeps one child.
struct Keeper {
    group: Group,
    /// Given up after the group.
    slot: Option<Slot>,
    process: Process,
    orders: watch::Receiver<Order>,
    grace: Duration,
    reading: Option<Reading>,
    /// Where it listens: free again when it is gone.
    held: Option<Held>,
}

/// Has `child` kept by a task. Must be called within a tokio runtime.
pub(super) fn keep(
    name: Arc<str>,
    child: Box<dyn ChildWrapper>,
    mut slot: Slot,
    (stdout, stderr): (pipe::Receiver, pipe::Receiver),
    awaited: Option<Arc<str>>,
    held: Held,
    grace: Duration,
) -> io::Result<Owner> {
    let pid = child
        .id()
        .ok_or_else(|| io::Error::other("it has no pid"))?;
    slot.guards(pid);
    let output = Output::new(name.clone(), pid, awaited);
    let reading = output.read(stdout, stderr);
    let process = Process::new(name, pid, held.address.clone(), output);
    let (owner, orders) = Owner::new(process.clone(), grace);
    let keeper = Keeper {
        group: Group::new(child, pid),
        slot: Some(slot),
        process,
        orders,
        grace,
        reading: Some(reading),
        held: Some(held),
    };
    tokio::spawn(keeper.run());
    Ok(owner)
}

impl Keeper {
    async fn run(mut self) {
        let ended = tokio::select! {
            biased;
            exit = self.group.leader() => Some(exit),
            () = ordered(&mut self.orders, Order::Stop) => None,
        };
        let exit = match ended {
            Some(exit) => exit,
            None => self.stop().await,
        };
        // Running, or stopping => ended. Whoever is left of the group has nobody to work for.
        self.process.set(|state| state.exit = Some(exit));
        self.group.signal(Signal::SIGKILL);
        if let Some(reading) = self.reading.take() {
            reading.finish().await;
        }
        self.process.set(|state| state.drained = true);
        // Ended => gone.
        self.group.reap().await;
        drop(self.held.take());
        if let Some(slot) = self.slot.take() {
            slot.release().await;
        }
        tracing::debug!(
            target: "tower_on_demand::process",
            backend = self.process.name(), pid = self.process.pid(), ?exit, "gone"
        );
    }

    async fn stop(&mut self) -> Exit {
        let killed = *self.orders.borrow() == Order::Kill;
        if !killed && !self.grace.is_zero() {
            let deadline = after(self.grace);
            self.group.signal(Signal::SIGTERM);
            // One that is suspended is to hear of it.
            self.group.signal(Signal::SIGCONT);
            let ended = tokio::select! {
                biased;
                exit = self.group.leader() => Some(exit),
                () = sleep_until(deadline) => None,
                () = ordered(&mut self.orders, Order::Kill) => None,
            };
            if let Some(exit) = ended {
                self.let_them_end(deadline).await;
                return exit;
            }
        }
        self.process.set(|state| state.killed = true);
        self.group.signal(Signal::SIGKILL);
        let killed = timeout(UNKILLABLE, self.group.leader()).await;
        match killed {
            Ok(exit) => exit,
            Err(_) => {
                tracing::error!(
                    target: "tower_on_demand::process",
                    backend = self.process.name(), pid = self.process.pid(),
                    "killed {UNKILLABLE:?} ago, and the system has not ended it yet"
                );
                self.group.leader().await
            }
        }
    }

    /// The leader was a shell, say: those it left have the rest of its grace.
    async fn let_them_end(&mut self, deadline: Instant) {
        let mut pause = Duration::from_millis(2);
        while Instant::now() < deadline && is_alive(self.group.id()).await {
            tokio::select! {
                () = sleep(pause) => {}
                () = ordered(&mut self.orders, Order::Kill) => return,
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

/// It is over, whether the child was reaped or the runtime went first.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.group.kill();
        self.process.set(|state| {
            state.exit.get_or_insert(None);
            state.drained = true;
        });
        self.process.is_gone_now();
    }
}

/// Waits for `order`, or one that overrules it.
async fn ordered(orders: &mut watch::Receiver<Order>, order: Order) {
    if orders.wait_for(|now| *now >= order).await.is_err() {
        // The owner is gone, and gave its last order by that.
        std::future::pending().await
    }
}
