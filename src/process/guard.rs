//! The guard: what kills the children of a host that was killed itself.
//!
//! A host that ends by SIGKILL runs no code. So one small `sh` beside all children, in a process
//! group of its own, reads the host's pipe: it is told which process groups exist, and when the
//! pipe closes, because the host has ended by whatever cause, it kills those that are left. It
//! starts with the first child and ends with the last.
//!
//! (Linux can signal a child when its parent ends, `PR_SET_PDEATHSIG`, but not the child's own
//! children; and it fires when the parent's *thread* ends.)

use std::{
    collections::BTreeSet,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{ChildStdin, Command, Stdio},
    thread,
};

use tokio::sync::oneshot;

use super::place::between_forks;
use crate::sync::{Mutex, lock};

const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
groups=
while read -r op id; do
    case $op in
        +) groups="$groups $id" ;;
        -) kept=
           for group in $groups; do
               [ "$group" = "$id" ] || kept="$kept $group"
           done
           groups=$kept ;;
    esac
done
for group in $groups; do
    kill -KILL "-$group"
done
"#;

static STATE: Mutex<State> = Mutex::new(State {
    sh: None,
    slots: 0,
    groups: BTreeSet::new(),
});

struct State {
    sh: Option<Sh>,
    /// Children that live or are about to.
    slots: usize,
    groups: BTreeSet<u32>,
}

/// The guard that runs. Dropping it lets it end.
#[derive(Debug)]
struct Sh {
    pid: u32,
    pipe: ChildStdin,
    /// Resolves when it is reaped.
    ended: oneshot::Receiver<()>,
}

/// The guard's care for one child. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Slot {
    group: Option<u32>,
    released: bool,
}

impl Slot {
    /// Has the guard running before there is a child.
    pub(super) fn new() -> io::Result<Self> {
        let mut state = lock(&STATE);
        state.ensure()?;
        state.slots += 1;
        Ok(Self {
            group: None,
            released: false,
        })
    }

    /// Tells the guard of the child's group.
    pub(super) fn guards(&mut self, group: u32) {
        self.group = Some(group);
        let mut state = lock(&STATE);
        state.groups.insert(group);
        state.say('+', group);
    }

    /// Ends the care, and waits for the guard's own end if this was the last.
    pub(super) async fn release(mut self) {
        if let Some(Sh { pipe, ended, .. }) = self.end() {
            drop(pipe);
            let _ = ended.await;
        }
    }

    fn end(&mut self) -> Option<Sh> {
        if std::mem::replace(&mut self.released, true) {
            return None;
        }
        let mut state = lock(&STATE);
        if let Some(group) = self.group.take() {
            state.groups.remove(&group);
            state.say('-', group);
        }
        state.slots -= 1;
        if state.slots == 0 {
            return state.sh.take();
        }
        None
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl State {
    /// Starts the guard if it does not run, and tells it of all there are.
    fn ensure(&mut self) -> io::Result<()> {
        if self.sh.is_some() {
            return Ok(());
        }
        let mut child = Command::new("/bin/sh");
        child
            .args(["-c", SCRIPT, "tower-on-demand-guard"])
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = between_forks(|| child.spawn())?;
        let pid = child.id();
        let pipe = child.stdin.take();
        let (tell, ended) = oneshot::channel();
        let reaper = thread::Builder::new().name("on-demand-guard".to_owned());
        reaper.spawn(move || {
            let _ = child.wait();
            let again = lock(&STATE).has_ended(pid);
            let _ = tell.send(());
            if let Err(error) = again {
                tracing::warn!(
                    target: "tower_on_demand::process",
                    %error, "no guard: if the host is killed now, its children live on"
                );
            }
        })?;
        let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
        let sh = self.sh.insert(Sh { pid, pipe, ended });
        for group in &self.groups {
            // If it fails it has ended again, and its reaper starts another.
            let _ = writeln!(sh.pipe, "+ {group}");
        }
        Ok(())
    }

    fn say(&mut self, op: char, group: u32) {
        if let Some(sh) = &mut self.sh {
            // If it fails it has ended, and its reaper starts another.
            let _ = writeln!(sh.pipe, "{op} {group}");
        }
    }

    /// The guard `pid` was reaped. If there are children it was killed, and another is told of them.
    fn has_ended(&mut self, pid: u32) -> io::Result<()> {
        if !matches!(&self.sh, Some(sh) if sh.pid == pid) {
            return Ok(());
        }
        self.sh = None;
        self.ensure()
    }
}
