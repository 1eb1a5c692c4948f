//! Who looks at `/proc` all the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    LIMIT, child, ms, now,
    proc::{self, Id, Stat},
};

/// Between two looks, at least.
const PAUSE: Duration = ms(3);
/// How long a fact may take to come about on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// What one of the host's children is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Not seen yet: it has not run its program.
    Unknown,
    /// The small `sh` that kills the children of a host that was killed.
    Guard,
    Backend,
}

/// The host's children as they were last seen, defunct ones too, without the guard.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scan {
    pub(crate) children: Vec<Stat>,
}

/// A child as it was seen from its first moment to its last.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) id: Id,
    /// Of its backend, once it ran its program.
    pub(crate) name: Option<String>,
    kind: Kind,
    /// When it was first there.
    pub(crate) born: u64,
    /// When it was first not there any more.
    pub(crate) gone: Option<u64>,
    defunct_since: Option<u64>,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) lives: BTreeMap<Id, Life>,
    pub(crate) looks: u64,
    /// At most so many were alive at one moment: a child, or somebody of its group.
    pub(crate) most: usize,
    /// Moments with more than may be, as far as is known: those who had not run their program may be guards.
    crowds: Vec<Vec<Id>>,
    /// For how long at most one of the host's was defunct.
    pub(crate) defunct: u64,
    /// For how long at most anybody of a child's group lived on after its child.
    pub(crate) stray: u64,
    /// Those who belonged to the groups of children.
    pub(crate) grandchildren: BTreeSet<Id>,
    stray_since: BTreeMap<Id, u64>,
    before: BTreeSet<Id>,
    last: Scan,
}

pub(crate) struct Watch {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    watcher: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn start(host: u32) -> Self {
        let (seen, over) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (sees, ends) = (seen.clone(), over.clone());
        let watcher = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let begun = now();
                let all = proc::all();
                sees.lock().unwrap().look(host, &all);
                // Not more than half of a processor.
                let took = Duration::from_micros(now() - begun);
                std::thread::sleep(PAUSE.max(took));
            }
        });
        Self {
            seen,
            over,
            watcher,
        }
    }

    /// The children that have run their program and are not defunct, and their backends' names.
    pub(crate) fn running(&self) -> Vec<(Stat, String)> {
        let seen = self.seen.lock().unwrap();
        let running = seen.last.children.iter().filter(|stat| stat.state != 'Z');
        let named = running.filter_map(|stat| {
            let name = seen.lives.get(&stat.id)?.name.clone()?;
            Some((stat.clone(), name))
        });
        named.collect()
    }

    /// Waits until a look after now shows `fact`.
    pub(crate) fn until(&self, what: &str, fact: impl Fn(&Scan) -> bool) {
        let looks = || self.seen.lock().unwrap().looks;
        let (begun, first) = (now(), looks());
        while looks() < first + 2 || !fact(&self.seen.lock().unwrap().last) {
            let last = self.seen.lock().unwrap().last.clone();
            let waited = Duration::from_micros(now() - begun);
            assert!(waited < SOON, "not within {SOON:?}: {what}: {last:?}");
            std::thread::sleep(PAUSE);
        }
    }

    /// What was seen to the end.
    pub(crate) fn end(self) -> Seen {
        // Whoever is still there is seen to be.
        std::thread::sleep(10 * PAUSE);
        self.over.store(true, Ordering::Relaxed);
        self.watcher.join().unwrap();
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl Seen {
    fn look(&mut self, host: u32, all: &[Stat]) {
        let at = now();
        self.looks += 1;
        let own: Vec<&Stat> = all.iter().filter(|stat| stat.parent == host).collect();
        for stat in &own {
            let life = self.lives.entry(stat.id).or_insert_with(|| Life {
                id: stat.id,
                name: None,
                kind: Kind::Unknown,
                born: at,
                gone: None,
                defunct_since: None,
            });
            life.look(stat, at);
            if let Some(since) = life.defunct_since {
                self.defunct = self.defunct.max(at - since);
            }
        }
        let there: BTreeSet<Id> = own.iter().map(|stat| stat.id).collect();
        for life in self.lives.values_mut() {
            if life.gone.is_none() && !there.contains(&life.id) {
                life.gone = Some(at);
            }
        }
        let left_behind = self.look_for_strays(all, at);
        let alive: BTreeSet<Id> = there.union(&left_behind).copied().collect();
        // A look takes a while. Who was there in two that follow each other was there between them.
        let both = self.before.intersection(&alive);
        let both = both.filter(|id| self.lives[id].kind != Kind::Guard);
        let (known, unknown): (Vec<_>, Vec<_>) =
            both.partition(|id| self.lives[id].kind == Kind::Backend);
        self.most = self.most.max(known.len());
        if known.len() + unknown.len() > LIMIT {
            self.crowds
                .push(known.into_iter().chain(unknown).copied().collect());
        }
        self.before = alive;
        let backends = own
            .into_iter()
            .filter(|stat| self.lives[&stat.id].kind != Kind::Guard);
        self.last.children = backends.cloned().collect();
    }

    /// The children that are gone, or defunct, while somebody of their group lives.
    fn look_for_strays(&mut self, all: &[Stat], at: u64) -> BTreeSet<Id> {
        let backends = self
            .lives
            .values()
            .filter(|life| life.kind == Kind::Backend);
        // Of several with one pid, the last.
        let groups: BTreeMap<u32, Id> = backends.map(|life| (life.id.pid, life.id)).collect();
        let mut strays = BTreeMap::new();
        let mut left_behind = BTreeSet::new();
        for stat in all {
            let Some(leader) = groups.get(&stat.group).filter(|it| **it != stat.id) else {
                continue;
            };
            if stat.state == 'Z' {
                continue;
            }
            self.grandchildren.insert(stat.id);
            let there = all.iter().find(|it| it.id == *leader);
            if there.is_none_or(|leader| leader.state == 'Z') {
                let since = self.stray_since.get(&stat.id).copied().unwrap_or(at);
                self.stray = self.stray.max(at - since);
                strays.insert(stat.id, since);
                left_behind.insert(*leader);
            }
        }
        self.stray_since = strays;
        left_behind
    }

    /// Moments at which more were alive than may be.
    pub(crate) fn crowds(&self) -> Vec<Vec<Id>> {
        // Who was never seen to run a program was killed before: it had room, too.
        let counts = |id: &&Id| self.lives[*id].kind != Kind::Guard;
        let crowds = self.crowds.iter().map(|ids| {
            let counted: Vec<Id> = ids.iter().filter(counts).copied().collect();
            counted
        });
        crowds.filter(|ids| ids.len() > LIMIT).collect()
    }
}

impl Life {
    fn look(&mut self, stat: &Stat, at: u64) {
        if self.kind == Kind::Unknown {
            // Between its fork and its exec it has the host's name and environment.
            match child::name_of(self.id.pid) {
                Some(name) => {
                    self.kind = Kind::Backend;
                    self.name = Some(name);
                }
                None if stat.name == "sh" => self.kind = Kind::Guard,
                None => {}
            }
        }
        if stat.state == 'Z' {
            self.defunct_since.get_or_insert(at);
        }
    }
}
