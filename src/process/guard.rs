//! The guard: what kills the children of a host that was killed itself.
//!
//! A host that ends by SIGKILL runs no code. So one small `sh` beside all children, in a process
//! group of its own, reads the host's pipe: it is told which process groups exist, and when the
//! pipe closes, because the host has ended by whatever cause, it kills those that are left. It
//! starts with the first child and ends with the last.
//!
//! Between its fork and the host's word of it a child has no name yet. So the guard is told before what
//! the child will have as standard output; when the host ends just then (which is seen only once every
//! child has passed its exec, for until then it has a copy of the guard's pipe), it looks for the
//! process that has it. That needs `/proc`, and so Linux.
//!
//! (Linux can signal a child when its parent ends, `PR_SET_PDEATHSIG`, but not the child's own
//! children; it fires when the parent's *thread* ends, and it has the same gap.)

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt, process::CommandExt},
    },
    process::{ChildStdin, Command, Stdio},
    thread,
};

use tokio::sync::oneshot;

use super::place::between_forks;
use crate::sync::{Mutex, lock};

/// Lines: `expect INODE`, `guard GROUP INODE`, `forget GROUP INODE`.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
without() {
    left=
    for item in $1; do
        [ "$item" = "$2" ] || left="$left $item"
    done
}
groups= expected=
while read -r op one other; do
    case $op in
        expect) expected="$expected $one" ;;
        guard) groups="$groups $one"; without "$expected" "$other"; expected=$left ;;
        forget) without "$groups" "$one"; groups=$left
                without "$expected" "$other"; expected=$left ;;
    esac
done
for group in $groups; do
    kill -KILL "-$group"
done
[ "$expected" ] && ls -l /proc/[0-9]*/fd/1 | while read -r line; do
    for inode in $expected; do
        case $line in
            *"pipe:[$inode]") pid=${line#*/proc/}; pid=${pid%%/*}; kill -KILL "-$pid" "$pid" ;;
        esac
    done
done
"#;

static STATE: Mutex<State> = Mutex::new(State {
    sh: None,
    slots: BTreeMap::new(),
    next: 0,
});

struct State {
    sh: Option<Sh>,
    /// Children that live or are about to.
    slots: BTreeMap<u64, Known>,
    next: u64,
}

/// What is known of one child.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// Its group, once it runs.
    group: u32,
    /// The inode of its standard output.
    output: u64,
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
pub(super) struct Slot(Option<u64>);

impl Slot {
    /// Has the guard running, and expecting a child with this standard output, before there is one.
    pub(super) fn new(output: &OwnedFd) -> io::Result<Self> {
        let output = File::from(output.try_clone()?).metadata()?.ino();
        let mut state = lock(&STATE);
        state.ensure()?;
        let id = state.next;
        state.next += 1;
        state.slots.insert(id, Known { group: 0, output });
        let said = state.say(format_args!("expect {output}"));
        drop(state);
        let slot = Self(Some(id));
        said.map(|()| slot)
    }

    /// Tells the guard of the child's group.
    pub(super) fn guards(&mut self, group: u32) {
        let mut state = lock(&STATE);
        let known = self.0.and_then(|id| state.slots.get_mut(&id));
        if let Some(known) = known {
            known.group = group;
            let output = known.output;
            let said = state.say(format_args!("guard {group} {output}"));
            drop(state);
            warn(said);
        }
    }

    /// Ends the care, and waits for the guard's own end if this was the last.
    pub(super) async fn release(mut self) {
        if let Some(Sh { pipe, ended, .. }) = self.end() {
            drop(pipe);
            let _ = ended.await;
        }
    }

    fn end(&mut self) -> Option<Sh> {
        let id = self.0.take()?;
        let mut state = lock(&STATE);
        let Known { group, output } = state.slots.remove(&id)?;
        if state.slots.is_empty() {
            let mut last = state.sh.take()?;
            // If it fails it has ended already.
            let _ = writeln!(last.pipe, "forget {group} {output}");
            return Some(last);
        }
        let said = state.say(format_args!("forget {group} {output}"));
        drop(state);
        warn(said);
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
            warn(again);
        })?;
        let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
        let sh = self.sh.insert(Sh { pid, pipe, ended });
        for Known { group, output } in self.slots.values() {
            // If it fails the guard has ended again, and its reaper starts another.
            let _ = match group {
                0 => writeln!(sh.pipe, "expect {output}"),
                group => writeln!(sh.pipe, "guard {group} {output}"),
            };
        }
        Ok(())
    }

    /// Tells the guard something, or, if it was killed, another one everything.
    fn say(&mut self, what: fmt::Arguments<'_>) -> io::Result<()> {
        let said = self.sh.as_mut().map(|sh| writeln!(sh.pipe, "{what}"));
        if matches!(said, Some(Ok(()))) {
            return Ok(());
        }
        self.sh = None;
        self.ensure()
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

fn warn(guarded: io::Result<()>) {
    if let Err(error) = guarded {
        tracing::warn!(
            target: "tower_on_demand::process",
            %error, "no guard: if the host is killed now, its children live on"
        );
    }
}
