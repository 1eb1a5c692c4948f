//! What only Linux tells: who listens, who lives, and what they use, from `/proc`.

use std::{
    collections::HashSet,
    fmt,
    fs::File,
    io::{self, BufRead, BufReader},
    net::IpAddr,
    time::Duration,
};

use procfs::{
    FromBufReadSI,
    net::{TcpNetEntries, TcpNetEntry, UnixState},
    process::{FDTarget, Process, Stat},
};

use super::address::Address;

/// What the processes of one group use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// How many processes there are.
    pub processes: usize,
    /// Resident memory, in bytes; what they share is counted for each.
    pub rss: u64,
    /// CPU time used so far, by user and system, of the processes that live and of the children
    /// they have waited for.
    pub cpu: Duration,
    /// Threads.
    pub threads: u64,
    /// Open file descriptors, where the host may look.
    pub fds: usize,
}

/// A process as errors name it.
#[derive(Debug)]
pub(super) struct Holder {
    pid: i32,
    name: String,
}

impl Holder {
    fn of(process: &Process) -> Option<Self> {
        Some(Self {
            pid: process.pid(),
            name: process.stat().ok()?.comm,
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Who listens at an address.
#[derive(Debug)]
pub(super) enum Listener {
    /// The group alone.
    Group,
    /// Somebody else, or somebody else as well.
    Stranger(Option<Holder>),
    /// Nobody that can be seen.
    Nobody,
}

/// What is to be known of `process`, if it is of `group` and runs.
fn member(process: &Process, group: u32) -> Option<Stat> {
    let stat = process.stat().ok()?;
    let runs = !matches!(stat.state, 'Z' | 'X' | 'x');
    (runs && u32::try_from(stat.pgrp) == Ok(group)).then_some(stat)
}

/// The processes of `group` that run.
fn members(group: u32) -> impl Iterator<Item = (Process, Stat)> {
    let all = procfs::process::all_processes().into_iter().flatten();
    all.filter_map(move |process| {
        let process = process.ok()?;
        let stat = member(&process, group)?;
        Some((process, stat))
    })
}

/// The first process of `group`, if it runs: found without a look at all others.
fn leader(group: u32) -> Option<Process> {
    let process = Process::new(group.try_into().ok()?).ok()?;
    member(&process, group).map(|_| process)
}

pub(super) fn is_alive(group: u32) -> bool {
    leader(group).is_some() || members(group).next().is_some()
}

pub(super) fn stats(group: u32) -> io::Result<Stats> {
    let ticks = procfs::ticks_per_second().max(1);
    let mut stats = Stats::default();
    let mut cpu = 0_u64;
    for (process, stat) in members(group) {
        stats.processes += 1;
        stats.rss += stat.rss * procfs::page_size();
        stats.threads += u64::try_from(stat.num_threads).unwrap_or_default();
        stats.fds += process.fd_count().unwrap_or_default();
        cpu += stat.utime + stat.stime;
        cpu += u64::try_from(stat.cutime + stat.cstime).unwrap_or_default();
    }
    if stats.processes == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let rest = (cpu % ticks) * 1_000_000_000 / ticks;
    stats.cpu = Duration::from_secs(cpu / ticks) + Duration::from_nanos(rest);
    Ok(stats)
}

/// Who listens at `address`, seen from the child's group; `peer` is who a connection says it is.
pub(super) fn who_listens(address: &Address, group: u32, peer: Option<i32>) -> Listener {
    let sockets = listening(address);
    if sockets.is_empty() {
        // A socket may have been bound by another name for the same path.
        return match peer.map(Process::new) {
            Some(Ok(peer)) if members(group).any(|(member, _)| member.pid() == peer.pid()) => {
                Listener::Group
            }
            Some(Ok(peer)) => Listener::Stranger(Holder::of(&peer)),
            Some(Err(_)) | None => Listener::Nobody,
        };
    }
    let mut strange = sockets.clone();
    let others = members(group).map(|(process, _)| process);
    for process in leader(group).into_iter().chain(others) {
        for inode in sockets_of(&process) {
            strange.remove(&inode);
        }
        if strange.is_empty() {
            return Listener::Group;
        }
    }
    Listener::Stranger(holder_of(&strange))
}

/// Some process that listens at `address`.
pub(super) fn listener(address: &Address) -> Option<Holder> {
    holder_of(&listening(address))
}

fn holder_of(sockets: &HashSet<u64>) -> Option<Holder> {
    let all = procfs::process::all_processes().ok()?;
    let mut all = all.filter_map(Result::ok);
    let holder = all.find(|process| sockets_of(process).any(|inode| sockets.contains(&inode)))?;
    Holder::of(&holder)
}

fn sockets_of(process: &Process) -> impl Iterator<Item = u64> {
    let fds = process.fd().into_iter().flatten();
    fds.filter_map(|fd| match fd.ok()?.target {
        FDTarget::Socket(inode) => Some(inode),
        _ => None,
    })
}

/// The inodes of the sockets that get a connection to `address`.
fn listening(address: &Address) -> HashSet<u64> {
    match address {
        Address::Tcp(address) => {
            let inodes = |entries: &[TcpNetEntry], matches: &dyn Fn(IpAddr) -> bool| {
                let entries = entries.iter().filter(|entry| {
                    entry.local_address.port() == address.port() && matches(host(entry))
                });
                entries.map(|entry| entry.inode).collect::<HashSet<_>>()
            };
            // Of all, the one that is bound to this very address has precedence, by IPv4 before by IPv6.
            let mut entries = listeners("/proc/net/tcp");
            let exact = inodes(&entries, &|ip| ip == address.ip());
            if !exact.is_empty() {
                return exact;
            }
            entries.extend(listeners("/proc/net/tcp6"));
            let exact = inodes(&entries, &|ip| ip == address.ip());
            if exact.is_empty() {
                inodes(&entries, &|ip| ip.is_unspecified())
            } else {
                exact
            }
        }
        Address::Unix(path) => procfs::net::unix()
            .into_iter()
            .flatten()
            .filter(|entry| matches!(entry.state, UnixState::UNCONNECTED))
            .filter(|entry| entry.path.as_deref() == Some(path))
            .map(|entry| entry.inode)
            .collect(),
    }
}

/// Those of the sockets in `table`, one of the system's, that listen.
///
/// They stand first. Behind them are the connections, for which the system looks through a table of
/// hundreds of thousands of places, and that takes milliseconds: so it is asked for one line after the other.
fn listeners(table: &str) -> Vec<TcpNetEntry> {
    const LINE: usize = 150;
    const LISTENS: &str = "0A";
    let Ok(table) = File::open(table) else {
        return Vec::new();
    };
    let mut lines = BufReader::with_capacity(LINE, table)
        .lines()
        .map_while(Result::ok);
    let mut text = lines.next().unwrap_or_default();
    for line in lines.take_while(|line| line.split_whitespace().nth(3) == Some(LISTENS)) {
        text.push('\n');
        text.push_str(&line);
    }
    let entries = TcpNetEntries::from_buf_read(text.as_bytes(), procfs::current_system_info());
    entries.map(|entries| entries.0).unwrap_or_default()
}

fn host(entry: &TcpNetEntry) -> IpAddr {
    entry.local_address.ip().to_canonical()
}
