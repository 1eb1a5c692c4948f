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
    process::{Child, Command, Stdio},
};

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
    sh: Option<Child>,
    /// Children that live or are about to.
    slots: usize,
    groups: BTreeSet<u32>,
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
        if let Some(sh) = self.end() {
            // Where nothing can be run any more the drop of the task ends the guard all the same.
            let _ = tokio::task::spawn_blocking(move || reap(sh)).await;
        }
    }

    fn end(&mut self) -> Option<Child> {
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
        if let Some(sh) = self.end() {
            let reaper = std::thread::Builder::new();
            // Without a thread it stays defunct until the host ends.
            let _ = reaper.spawn(move || reap(sh));
        }
    }
}

/// Lets the guard end, and waits for it.
fn reap(mut sh: Child) {
    drop(sh.stdin.take());
    let _ = sh.wait();
}

impl State {
    /// Starts the guard if it does not run, and tells it of all there are.
    fn ensure(&mut self) -> io::Result<()> {
        if let Some(sh) = &mut self.sh {
            if let Ok(None) = sh.try_wait() {
                return Ok(());
            }
        }
        let mut sh = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "tower-on-demand-guard"])
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(pipe) = &mut sh.stdin {
            for group in &self.groups {
                writeln!(pipe, "+ {group}")?;
            }
        }
        self.sh = Some(sh);
        Ok(())
    }

    fn say(&mut self, op: char, group: u32) {
        let pipe = self.sh.as_mut().and_then(|sh| sh.stdin.as_mut());
        let said = pipe.map(|pipe| writeln!(pipe, "{op} {group}"));
        if matches!(said, Some(Ok(()))) {
            return;
        }
        // Somebody killed it.
        if let Some(mut sh) = self.sh.take() {
            let _ = sh.kill();
            let _ = sh.wait();
        }
        if let Err(error) = self.ensure() {
            tracing::warn!(%error, "no guard: children outlive a host that is killed");
        }
    }
}
