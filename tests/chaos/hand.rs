//! The hand: what kills, freezes and slows.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};

use crate::{
    child, ms, now,
    proc::{self, Id, Stat},
    rng::Rng,
    watch::Watch,
};

/// Something that was done to a child.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    pub(crate) what: What,
    pub(crate) id: Id,
    pub(crate) name: String,
    /// Just before it was done.
    pub(crate) at: u64,
    /// When the frozen one was let go on.
    pub(crate) undone: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The child, or its whole group.
    Kill,
    /// For some time.
    Freeze,
    FreezeForEver,
    Slow,
    Spew,
}

pub(crate) struct Hand {
    rng: Rng,
    log: PathBuf,
    done: Vec<Deed>,
    /// Those that are frozen: which deed it was, and until when.
    frozen: Vec<(usize, u64)>,
}

impl Hand {
    pub(crate) fn new(seed: u64, log: PathBuf) -> Self {
        Self {
            rng: Rng::new(seed, 0),
            log,
            done: Vec::new(),
            frozen: Vec::new(),
        }
    }

    /// Does something every few milliseconds, for so long.
    pub(crate) fn play(&mut self, watch: &Watch, length: Duration) {
        let end = now() + u64::try_from(length.as_micros()).unwrap();
        while now() < end {
            std::thread::sleep(ms(self.rng.range(10, 90)));
            self.let_go(now());
            let running = watch.running();
            if running.is_empty() {
                continue;
            }
            let (stat, name) = &running[self.rng.below(running.len() as u64) as usize];
            let what = match self.rng.below(100) {
                0..=24 => What::Kill,
                25..=49 => What::Freeze,
                50..=64 => What::FreezeForEver,
                65..=84 => What::Slow,
                _ => What::Spew,
            };
            self.act(what, stat, name);
        }
    }

    /// Lets all those go on that are not frozen for ever.
    pub(crate) fn lets_go(&mut self) {
        self.let_go(u64::MAX);
    }

    pub(crate) fn done(self) -> Vec<Deed> {
        self.done
    }

    fn act(&mut self, what: What, stat: &Stat, name: &str) {
        let id = stat.id;
        let frozen = |deed: &&Deed| matches!(deed.what, What::Freeze | What::FreezeForEver);
        // Each child is frozen once: what comes of it is known then.
        let was_frozen = self.done.iter().filter(frozen).any(|deed| deed.id == id);
        let lately = now().saturating_sub(4_000_000);
        let recent = self.done.iter().rev().take_while(|it| it.at > lately);
        let many = recent.filter(|it| it.what == What::FreezeForEver).count() == 2;
        let allowed = match what {
            What::Kill => true,
            What::Freeze => !was_frozen && self.has_witness(id),
            // Not all of the few: nothing would go on.
            What::FreezeForEver => !was_frozen && !many && self.has_witness(id),
            What::Slow | What::Spew => self.hears(id),
        };
        if !allowed {
            return;
        }
        let at = now();
        // Not another one with the same pid.
        if proc::stat(id.pid).is_none_or(|now| now.id != id) {
            return;
        }
        let pid = Pid::from_raw(i32::try_from(id.pid).unwrap());
        let sent = match what {
            What::Kill if self.rng.percent(50) => killpg(pid, Signal::SIGKILL),
            What::Kill => kill(pid, Signal::SIGKILL),
            What::Freeze | What::FreezeForEver => kill(pid, Signal::SIGSTOP),
            What::Slow => kill(pid, Signal::SIGUSR1),
            What::Spew => kill(pid, Signal::SIGUSR2),
        };
        if sent.is_err() {
            return;
        }
        if what == What::Freeze {
            let until = at + self.rng.range(20_000, 700_000);
            self.frozen.push((self.done.len(), until));
        }
        self.done.push(Deed {
            what,
            id,
            name: name.to_owned(),
            at,
            undone: None,
        });
    }

    /// Lets those go on whose time is up.
    fn let_go(&mut self, now: u64) {
        let done = &mut self.done;
        self.frozen.retain(|(deed, until)| {
            if *until > now {
                return true;
            }
            let deed = &mut done[*deed];
            if proc::stat(deed.id.pid).is_some_and(|now| now.id == deed.id) {
                let _ = kill(
                    Pid::from_raw(i32::try_from(deed.id.pid).unwrap()),
                    Signal::SIGCONT,
                );
            }
            deed.undone = Some(crate::now());
            false
        });
    }

    /// Whether it has said that it is there.
    fn has_witness(&self, id: Id) -> bool {
        self.here().contains(&id.pid)
    }

    /// Whether it handles signals; they would end it before.
    fn hears(&self, id: Id) -> bool {
        let caught = std::fs::read_to_string(format!("/proc/{}/status", id.pid));
        let caught = caught.unwrap_or_default();
        let caught = caught.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let both = 1_u64 << (Signal::SIGUSR1 as u32 - 1) | 1 << (Signal::SIGUSR2 as u32 - 1);
        caught.is_some_and(|caught| caught & both == both)
    }

    fn here(&self) -> BTreeSet<u32> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let here = child::lines(&log).filter(|line| line.what == "here");
        here.map(|line| line.pid).collect()
    }
}
