//! What `/proc` shows.

use std::fs;

/// A process; two that had the same pid are told apart by when they started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) pid: u32,
    started: u64,
}

/// A process as it is seen.
#[derive(Debug, Clone)]
pub(crate) struct Stat {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: u32,
    pub(crate) group: u32,
}

pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything.
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some(Stat {
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        id: Id {
            pid,
            started: fields.get(19)?.parse().ok()?,
        },
    })
}

fn pids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// All processes, one after the other: not one moment.
pub(crate) fn all() -> Vec<Stat> {
    pids().filter_map(stat).collect()
}

/// The value of a variable in the environment a process was started with.
pub(crate) fn variable(pid: u32, name: &str) -> Option<String> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut all = environ.split(|byte| *byte == 0);
    all.find_map(|entry| {
        let entry = std::str::from_utf8(entry).ok()?;
        entry
            .strip_prefix(name)?
            .strip_prefix('=')
            .map(str::to_owned)
    })
}

/// Who was started, by whomever, with this variable set so. A zombie has no environment.
pub(crate) fn marked((name, value): &(&str, String)) -> Vec<Stat> {
    let marked = pids().filter(|pid| variable(*pid, name).as_ref() == Some(value));
    marked.filter_map(stat).collect()
}

/// Resident bytes.
pub(crate) fn resident(pid: u32) -> i64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
    kilobytes.parse::<i64>().unwrap() * 1024
}

/// Open descriptors.
pub(crate) fn descriptors(pid: u32) -> i64 {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
        .try_into()
        .unwrap()
}

/// What the open descriptors are.
pub(crate) fn open(pid: u32) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = all.filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut links: Vec<_> = links.map(|link| link.display().to_string()).collect();
    links.sort();
    links
}
