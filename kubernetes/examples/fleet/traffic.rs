//! Who calls what, when.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use fastrand::Rng;

use super::{Options, Spread};

/// One call.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Since the beginning.
    pub(super) at: Duration,
    pub(super) host: usize,
    pub(super) workload: usize,
    /// What of the workload is asked for: twins ask for the same.
    pub(super) item: u64,
}

/// Calls at random moments. Few workloads are called often and most of them seldom, as in Zipf's law. Every third call
/// has a twin, 50 ms later, if no other twin is on its way: about one call in nine is one.
pub(super) struct Traffic {
    rng: Rng,
    rate: f64,
    now: f64,
    hosts: usize,
    spread: Spread,
    /// Up to each workload, the share of calls.
    shares: Vec<f64>,
    twin: Option<Call>,
    held: Option<Call>,
    made: u64,
}

impl Traffic {
    pub(super) fn new(options: &Options, spread: Spread) -> Self {
        let mut sum = 0.0;
        let shares = (1..=options.workloads).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self {
            rng: Rng::with_seed(options.seed),
            rate: options.calls,
            now: 0.0,
            hosts: options.hosts,
            spread,
            shares: shares.collect(),
            twin: None,
            held: None,
            made: 0,
        }
    }

    /// The next one, in order of time.
    pub(super) fn next(&mut self) -> Call {
        let first = match self.held.take() {
            Some(call) => call,
            None => self.fresh(),
        };
        if let Some(twin) = self.twin.take_if(|twin| twin.at <= first.at) {
            self.held = Some(first);
            return twin;
        }
        if self.twin.is_none() && self.rng.u8(..3) == 0 {
            let at = first.at + Duration::from_millis(50);
            let host = self.host(first.workload);
            self.twin = Some(Call { at, host, ..first });
        }
        first
    }

    fn fresh(&mut self) -> Call {
        self.now -= (1.0 - self.rng.f64()).ln() / self.rate;
        let total = self.shares.last().copied().unwrap_or(1.0);
        let at = self.rng.f64() * total;
        let workload = self.shares.partition_point(|share| *share < at);
        self.made += 1;
        Call {
            at: Duration::from_secs_f64(self.now),
            host: self.host(workload),
            workload,
            item: self.made,
        }
    }

    fn host(&mut self, workload: usize) -> usize {
        match self.spread {
            Spread::Hashed => hashed(workload, self.hosts),
            Spread::Random => self.rng.usize(..self.hosts),
        }
    }

    /// So many workloads are called once within a minute.
    pub(super) fn morning(options: &Options, calls: usize) -> Vec<Call> {
        let mut rng = Rng::with_seed(options.seed);
        let mut all: Vec<usize> = (0..options.workloads).collect();
        rng.shuffle(&mut all);
        let calls = all.into_iter().take(calls).map(|workload| Call {
            at: Duration::from_secs_f64(rng.f64() * 60.0),
            host: hashed(workload, options.hosts),
            workload,
            item: 0,
        });
        let mut calls: Vec<Call> = calls.collect();
        calls.sort_by_key(|call| call.at);
        calls
    }
}

/// Where a load balancer sends it that hashes the workload's name.
fn hashed(workload: usize, hosts: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    workload.hash(&mut hasher);
    (hasher.finish() % hosts as u64) as usize
}
