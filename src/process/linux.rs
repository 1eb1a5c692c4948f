//! What only Linux tells: who listens, who lives, and what they use, from `/proc`.

use std::{collections::HashSet, fmt, io, net::IpAddr, time::Duration};

use procfs::{
    net::{TcpNetEntry, TcpState, UnixState},
    process::{FDTarget, Process},
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

/// The processes of `group` that run.
fn members(group: u32) -> impl Iterator<Item = (Process, procfs::process::Stat)> {
    let all = procfs::process::all_processes().into_iter().flatten();
    all.filter_map(Result::ok)
        .filter_map(|process| {
            let stat = process.stat().ok()?;
            Some((process, stat))
        })
        .filter(move |(_, stat)| {
            u32::try_from(stat.pgrp) == Ok(group) && !matches!(stat.state, 'Z' | 'X' | 'x')
        })
}

pub(super) fn is_alive(group: u32) -> bool {
    members(group).next().is_some()
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
    for (process, _) in members(group) {
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
            let entries = procfs::net::tcp().into_iter().flatten();
            let entries: Vec<_> = entries
                .chain(procfs::net::tcp6().into_iter().flatten())
                .filter(|entry| {
                    entry.state == TcpState::Listen && entry.local_address.port() == address.port()
                })
                .collect();
            let inodes = |matches: &dyn Fn(IpAddr) -> bool| -> HashSet<u64> {
                let entries = entries.iter();
                let ours = entries.filter(|entry| matches(host(entry)));
                ours.map(|entry| entry.inode).collect()
            };
            // The one that is bound to this very address has precedence.
            let exact = inodes(&|ip| ip == address.ip());
            if exact.is_empty() {
                inodes(&|ip| ip.is_unspecified())
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

fn host(entry: &TcpNetEntry) -> IpAddr {
    entry.local_address.ip().to_canonical()
}
