//! The processes of one child's group.

use std::{process::ExitStatus, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use process_wrap::tokio::ChildWrapper;
use tokio::time::{Instant, sleep, timeout};

/// How long to wait for the processes of a killed group to be gone.
const KILLED: Duration = Duration::from_secs(1);

/// The group's processes. Dropping it kills them.
pub(super) struct Group {
    child: Box<dyn ChildWrapper>,
    id: u32,
    reaped: bool,
}

impl Group {
    pub(super) fn new(child: Box<dyn ChildWrapper>, id: u32) -> Self {
        Self {
            child,
            id,
            reaped: false,
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// Waits for the leader, and for no other.
    pub(super) async fn leader(&mut self) -> Option<ExitStatus> {
        self.child.inner_mut().wait().await.ok()
    }

    pub(super) fn signal(&self, what: Signal) {
        signal(self.id, what);
    }

    pub(super) fn kill(&mut self) {
        if !self.reaped {
            let _ = self.child.start_kill();
        }
    }

    /// Reaps whoever is the host's child by now: it may be the one who adopts orphans.
    pub(super) async fn reap(&mut self) {
        let _ = timeout(KILLED, self.child.wait()).await;
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        while is_alive(self.id).await && began.elapsed() < KILLED {
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        self.reaped = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) fn signal(group: u32, signal: Signal) {
    if let Ok(group) = i32::try_from(group) {
        // The one error there is: the group is empty.
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// Whether any process of the group runs.
pub(super) async fn is_alive(group: u32) -> bool {
    let Ok(id) = i32::try_from(group) else {
        return false;
    };
    if killpg(Pid::from_raw(id), None).is_err() {
        return false;
    }
    // An orphan that nobody reaps is still there for `kill`.
    #[cfg(target_os = "linux")]
    let alive = tokio::task::spawn_blocking(move || super::linux::is_alive(group))
        .await
        .unwrap_or(false);
    #[cfg(not(target_os = "linux"))]
    let alive = true;
    alive
}
