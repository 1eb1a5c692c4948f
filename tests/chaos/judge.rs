//! What was told, seen and done, held against each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    GROWTH, LIMIT,
    child::{self, Line},
    hand::{Deed, What},
    host, ms,
    proc::{self, Id, Stat},
    watch::Seen,
};

/// How long one of the host's may be defunct, or somebody outlive the child whose group it is of, on a machine
/// that has other things to do.
const MOMENT: u64 = 5_000_000;

/// What the host has, at rest.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    resident: i64,
    /// Bytes that are allocated, and in how many blocks.
    heap: (i64, i64),
    descriptors: i64,
    open: Vec<String>,
}

impl Reading {
    /// The least of some: what is let go is let go a moment later.
    pub(crate) fn take(host: &mut host::Process) -> Self {
        let pid = host.pid();
        let readings = (0..10).map(|_| {
            std::thread::sleep(ms(150));
            (proc::resident(pid), proc::descriptors(pid))
        });
        let readings: Vec<_> = readings.collect();
        Self {
            resident: readings.iter().map(|it| it.0).min().unwrap(),
            descriptors: readings.iter().map(|it| it.1).min().unwrap(),
            open: proc::open(pid),
            heap: host.heap(),
        }
    }
}

pub(crate) struct Facts {
    /// The first after the warm-up.
    pub(crate) readings: Vec<Reading>,
    /// What the host said.
    pub(crate) calls: Vec<String>,
    pub(crate) done: Vec<Deed>,
    pub(crate) seen: Seen,
    /// What the children said.
    pub(crate) log: String,
    /// Who is left of them all.
    pub(crate) left: Vec<Stat>,
}

pub(crate) struct Verdict {
    /// In one line.
    pub(crate) facts: String,
    pub(crate) wrong: Vec<String>,
}

/// An error as a caller was told it.
struct Told<'a> {
    id: u64,
    called: &'a str,
    named: &'a str,
    kind: &'a str,
    from: u64,
    to: u64,
}

impl<'a> Told<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.strip_prefix("error ")?.split(' ');
        Some(Self {
            id: words.next()?.parse().ok()?,
            called: words.next()?,
            named: words.next()?,
            kind: words.next()?,
            from: words.next()?.parse().ok()?,
            to: words.next()?.parse().ok()?,
        })
    }
}

pub(crate) fn judge(facts: &Facts) -> Verdict {
    let mut wrong = Vec::new();
    let causes = judge_errors(facts, &mut wrong);
    judge_cuts(facts, &mut wrong);
    judge_lives(facts, &mut wrong);

    let seen = &facts.seen;
    let (before, after) = (&facts.readings[0], facts.readings.last().unwrap());
    let grown = |reading: &Reading| (reading.resident - before.resident) / 1024;
    let growth: Vec<_> = facts.readings[1..].iter().map(grown).collect();
    let heap = after.heap.0 - before.heap.0;
    if heap > GROWTH.1 {
        let (now, then) = (after.heap, before.heap);
        wrong.push(format!(
            "allocated bytes and blocks: {now:?}, before {then:?}"
        ));
    }
    let descriptors = after.descriptors - before.descriptors;
    if after.resident - before.resident > GROWTH.0 {
        let from = before.resident;
        wrong.push(format!(
            "resident bytes at first {from}, then {growth:?} KiB more"
        ));
    }
    if descriptors > 0 {
        let (now, then) = (&after.open, &before.open);
        wrong.push(format!(
            "{descriptors} descriptors more: {now:?}, before {then:?}"
        ));
    }

    let mut kinds = BTreeMap::<&str, usize>::new();
    for told in facts.calls.iter().filter_map(|line| Told::parse(line)) {
        *kinds.entry(told.kind).or_default() += 1;
    }
    let done = |what| facts.done.iter().filter(|deed| deed.what == what).count();
    let logged = child::counts(&facts.log);
    let numbers = facts
        .calls
        .iter()
        .find_map(|line| line.strip_prefix("numbers "));
    let facts = format!(
        "chaos: {}, errors {kinds:?}, {causes:?}; kills {}, freezes {} and {} for \
         ever, slowed {}, made to spew {}; children {}, grandchildren {}, leaks {}, SIGTERMs {}; alive at most {} of \
         {LIMIT} in {} looks; defunct for at most {} ms, strays for {} ms; resident {} KiB, then {growth:?} KiB more, heap {} KiB, {heap} bytes and {} \
         blocks more, descriptors {} and {descriptors} \
         more",
        numbers.unwrap_or("no numbers"),
        done(What::Kill),
        done(What::Freeze),
        done(What::FreezeForEver),
        done(What::Slow),
        done(What::Spew),
        logged.get("here").unwrap_or(&0),
        seen.grandchildren.len(),
        logged.get("leaked").unwrap_or(&0),
        logged.get("term").unwrap_or(&0),
        seen.most,
        seen.looks,
        seen.defunct / 1_000,
        seen.stray / 1_000,
        before.resident / 1024,
        before.heap.0 / 1024,
        after.heap.1 - before.heap.1,
        before.descriptors,
    );
    if numbers.is_none() {
        wrong.push("the host did not come to its end".to_owned());
    }
    Verdict { facts, wrong }
}

/// What the causes of the errors were.
#[derive(Debug, Default)]
struct Causes {
    /// The child was killed, or was frozen, during the call.
    in_flight: usize,
    /// The call began while the child was on its way out: killed, or frozen, and not gone.
    on_its_way: usize,
    /// The call joined a start whose child was killed and gone, before the host had read the last of its output,
    /// seen its group empty, and told those who waited.
    joined: usize,
}

/// Every error names the backend that was called, and something was done to that backend: see [`Causes`].
fn judge_errors(facts: &Facts, wrong: &mut Vec<String>) -> Causes {
    let mut causes = Causes::default();
    let fine = ["numbers ", "left ", "held used=0 waiting=0"];
    for line in &facts.calls {
        let Some(told) = Told::parse(line) else {
            if !fine.iter().any(|fine| line.starts_with(fine)) {
                wrong.push(line.clone());
            }
            continue;
        };
        let hurts = |what| matches!(what, What::Kill | What::Freeze | What::FreezeForEver);
        let hurt = facts
            .done
            .iter()
            .filter(|deed| deed.name == told.called && hurts(deed.what) && deed.at <= told.to);
        let lasting = hurt
            .clone()
            .filter(|deed| until(deed, &facts.seen) >= told.from);
        let starting = matches!(told.kind, "StartFailed" | "StartTimeout");
        if told.named != told.called {
            wrong.push(line.clone());
        } else if lasting.clone().any(|deed| deed.at >= told.from) {
            causes.in_flight += 1;
        } else if lasting.count() > 0 {
            causes.on_its_way += 1;
        } else if starting
            && last_child(told.called, told.to, &facts.seen)
                .is_some_and(|last| hurt.clone().any(|deed| deed.id == last))
        {
            causes.joined += 1;
        } else {
            wrong.push(line.clone());
        }
    }
    causes
}

/// The last child of a backend that there was until then.
fn last_child(name: &str, until: u64, seen: &Seen) -> Option<Id> {
    let own = seen.lives.values();
    let own = own.filter(|life| life.name.as_deref() == Some(name) && life.born <= until);
    own.max_by_key(|life| life.born).map(|life| life.id)
}

/// Until when a deed is a cause.
fn until(deed: &Deed, seen: &Seen) -> u64 {
    let gone = seen.lives.get(&deed.id).and_then(|life| life.gone);
    let gone = gone.unwrap_or(u64::MAX);
    deed.undone.map_or(gone, |undone| undone.min(gone))
}

/// E1: no child is told to stop while it serves, unless nobody waits for that answer or it was frozen.
fn judge_cuts(facts: &Facts, wrong: &mut Vec<String>) {
    let left = facts.calls.iter().filter_map(|line| {
        let left = line.strip_prefix("left ")?;
        left.parse::<u64>().ok()
    });
    let failed = facts.calls.iter().filter_map(|line| Told::parse(line));
    let left: BTreeSet<u64> = left.chain(failed.map(|told| told.id)).collect();
    for Line {
        what,
        name,
        pid,
        at,
    } in child::lines(&facts.log)
    {
        let Some(calls) = what.strip_prefix("term:") else {
            continue;
        };
        // One that was found to be frozen is stopped, hears of it, and may answer yet.
        let frozen = |deed: &&Deed| matches!(deed.what, What::Freeze | What::FreezeForEver);
        if facts
            .done
            .iter()
            .filter(frozen)
            .any(|deed| deed.id.pid == pid)
        {
            continue;
        }
        let calls = calls.split(',').filter_map(|call| call.parse().ok());
        let cut: Vec<u64> = calls.filter(|call| !left.contains(call)).collect();
        if !cut.is_empty() {
            wrong.push(format!(
                "E1: {name} (pid {pid}) was told to stop at {at} and had {cut:?}"
            ));
        }
    }
}

/// C1 and S5, by what `/proc` showed and by what the children themselves saw; and that all have ended.
fn judge_lives(facts: &Facts, wrong: &mut Vec<String>) {
    let seen = &facts.seen;
    for crowd in seen.crowds() {
        wrong.push(format!("C1: alive at one moment: {crowd:?}"));
    }
    for line in child::lines(&facts.log) {
        if line.what == "too-many" || line.what == "two" {
            wrong.push(format!("{} saw {}, at {}", line.name, line.what, line.at));
        }
    }
    if seen.defunct > MOMENT {
        wrong.push(format!("one was defunct for {} µs", seen.defunct));
    }
    if seen.stray > MOMENT {
        wrong.push(format!("one outlived its child for {} µs", seen.stray));
    }
    let there = seen.lives.values().filter(|life| life.gone.is_none());
    let there: Vec<_> = there.collect();
    if !there.is_empty() {
        wrong.push(format!("children are left: {there:?}"));
    }
    if !facts.left.is_empty() {
        wrong.push(format!("processes are left: {:?}", facts.left));
    }
}
