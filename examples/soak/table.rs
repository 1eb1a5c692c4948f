//! What is measured, and what is made of it.

use std::{
    alloc::System,
    fs,
    time::{Duration, SystemTime},
};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts what is allocated and not freed.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How much more may be resident in the second half than in the first, after its first fifth.
const RESIDENT: u64 = 1024;
/// How much more may be allocated at the end, when all is stopped, than at the begin. KiB, as all here.
const LEFT: i64 = 64;

/// One line of the table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) at: Duration,
    /// KiB, where the system says so.
    pub(crate) resident: Option<u64>,
    pub(crate) heap: i64,
    pub(crate) descriptors: Option<usize>,
    /// Keys that have been called so far.
    pub(crate) keys: u64,
    pub(crate) calls: u64,
    /// Calls that were not answered as they should have been.
    pub(crate) wrong: u64,
    pub(crate) starts: u64,
    /// Backends alive by their own count: at most so far, as many as may be, and now.
    pub(crate) most: u64,
    pub(crate) limit: u64,
    pub(crate) alive: u64,
    /// Entries of `Keyed`, and how many there may be.
    pub(crate) keyed: usize,
    pub(crate) keyed_at_most: usize,
    /// Entries of `Coalesce`.
    pub(crate) shared: usize,
    /// Room that is taken, and starts in line.
    pub(crate) room: u64,
    pub(crate) waiting: usize,
    /// All is stopped.
    pub(crate) ended: bool,
}

impl Row {
    /// What there is when there is nothing.
    pub(crate) fn of_none() -> Self {
        Self::default().measured()
    }

    pub(crate) fn measured(mut self) -> Self {
        let heap = HEAP.stats();
        self.heap = (heap.bytes_allocated as i64 - heap.bytes_deallocated as i64) / 1024;
        let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        self.resident = rollup.lines().find_map(|line| {
            let kilobytes = line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?;
            kilobytes.parse().ok()
        });
        self.descriptors = fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        self
    }
}

pub(crate) struct Table {
    begun: SystemTime,
    rows: Vec<Row>,
}

impl Table {
    #[allow(clippy::disallowed_methods, reason = "it tells how long it took")]
    pub(crate) fn begin() -> Self {
        println!(
            "{:>7} {:>8} {:>9} {:>9} {:>6} {:>8} {:>7} {:>4} {:>6} {:>9} {:>5} {:>5}",
            "seconds",
            "keys",
            "calls",
            "starts",
            "alive",
            "RSS KiB",
            "heap",
            "fds",
            "Keyed",
            "Coalesce",
            "room",
            "line"
        );
        Self {
            begun: SystemTime::now(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, mut row: Row) {
        row.at = self.begun.elapsed().unwrap_or_default();
        let known = |number: Option<u64>| number.map_or("-".to_owned(), |it| it.to_string());
        println!(
            "{:>7.1} {:>8} {:>9} {:>9} {:>6} {:>8} {:>7} {:>4} {:>6} {:>9} {:>5} {:>5}",
            row.at.as_secs_f64(),
            row.keys,
            row.calls,
            row.starts,
            row.alive,
            known(row.resident),
            row.heap,
            known(row.descriptors.map(|it| it as u64)),
            row.keyed,
            row.shared,
            row.room,
            row.waiting,
        );
        self.rows.push(row);
    }

    /// Flat is:
    ///
    /// - the most that is resident in the second half of the churn is at most 1 MiB more than the most in the first
    ///   half, whose first fifth is the warm-up;
    /// - there are never more descriptors than before;
    /// - never more backends alive than the limit, and never more keys known than live, are asked for, or failed
    ///   lately;
    /// - at the end nothing lives, nothing holds or awaits room, no call is shared, no key is known but those that
    ///   failed lately; and once the services are dropped at most 64 KiB more are allocated than at the begin.
    pub(crate) fn verdict(&self) -> Result<String, String> {
        let [first, rows @ .., last] = &*self.rows else {
            return Err("nothing was measured".to_owned());
        };
        let half = rows.len() / 2;
        let most = |rows: &[Row]| rows.iter().filter_map(|row| row.resident).max();
        let (before, after) = (most(&rows[half / 5..half]), most(&rows[half..]));
        let grown = before
            .zip(after)
            .map(|(before, after)| after as i64 - before as i64);
        let left = last.heap - first.heap;
        let mut wrong = Vec::new();
        let mut check = |fine: bool, what: String| {
            if !fine {
                wrong.push(what);
            }
        };
        check(
            grown.is_none_or(|grown| grown <= RESIDENT as i64),
            format!("resident: {before:?} KiB in the first half, {after:?} in the second"),
        );
        for row in rows.iter().chain([last]) {
            let at = row.at;
            check(
                row.descriptors <= first.descriptors,
                format!(
                    "descriptors: {:?} at {at:.1?}, {:?} at first",
                    row.descriptors, first.descriptors
                ),
            );
            check(
                row.most <= row.limit,
                format!("alive: {} of {} at {at:.1?}", row.most, row.limit),
            );
            check(
                row.keyed <= row.keyed_at_most,
                format!(
                    "keys: {} of {} are known at {at:.1?}",
                    row.keyed, row.keyed_at_most
                ),
            );
        }
        check(
            last.ended && (last.alive, last.room, last.shared, last.waiting) == (0, 0, 0, 0),
            format!("at the end {last:?}"),
        );
        check(
            left <= LEFT,
            format!("{left} KiB more are allocated than at first"),
        );
        check(
            last.wrong == 0,
            format!("{} calls were answered wrongly", last.wrong),
        );
        check(last.starts > 0, "nothing was ever started".to_owned());
        if !wrong.is_empty() {
            return Err(format!("not flat: {}", wrong.join("; ")));
        }
        let grown = grown.map_or("unknown".to_owned(), |grown| format!("{grown} KiB"));
        Ok(format!(
            "flat: {} calls, {} keys, {} starts; resident {grown} more in the second half, left at the end: {left} KiB \
             allocated, 0 alive",
            last.calls, last.keys, last.starts
        ))
    }
}
