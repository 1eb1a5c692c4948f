//! Measuring in turns, and the table.

use std::{
    future::Future,
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// How many rounds each side has.
const ROUNDS: usize = 31;
/// How long one round lasts, about.
const ROUND: Duration = Duration::from_millis(20);

/// The result of a future that is ready when it is polled.
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => black_box(output),
        Poll::Pending => panic!("measured work must not wait"),
    }
}

/// One side of a row: runs its work so many times.
pub(crate) type Side<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

/// Times `work` on this thread.
pub(crate) fn side<'a>(mut work: impl FnMut() + 'a) -> Side<'a> {
    Box::new(move |times| {
        let begun = Instant::now();
        for _ in 0..times {
            work();
        }
        begun.elapsed()
    })
}

struct Row {
    name: String,
    ours: f64,
    reference: f64,
    against: String,
    target: f64,
}

pub(crate) struct Table {
    only: Option<String>,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(only: Option<String>) -> Self {
        Self {
            only,
            rows: Vec::new(),
        }
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only))
    }

    /// Measures both sides in turns. `target` bounds ours as a multiple of the reference.
    pub(crate) fn compare(
        &mut self,
        name: &str,
        target: f64,
        against: &str,
        mut ours: Side<'_>,
        mut reference: Side<'_>,
    ) {
        if !self.wants(name) {
            return;
        }
        let times = [calibrated(&mut ours), calibrated(&mut reference)];
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            a.push(ours(times[0]).as_secs_f64() * 1e9 / times[0] as f64);
            b.push(reference(times[1]).as_secs_f64() * 1e9 / times[1] as f64);
        }
        self.rows.push(Row {
            name: name.to_owned(),
            ours: median(&mut a),
            reference: median(&mut b),
            against: against.to_owned(),
            target,
        });
    }

    /// Prints the table; the exit code says whether every row is within its target.
    pub(crate) fn print(&self) -> i32 {
        println!(
            "{:<58} {:>10} {:>10} {:>7} {:>7}  verdict",
            "row [reference]", "ours ns", "ref ns", "ratio", "target"
        );
        let mut missed = 0;
        for row in &self.rows {
            let ratio = row.ours / row.reference;
            let ok = ratio <= row.target;
            missed += i32::from(!ok);
            let title = format!("{} [{}]", row.name, row.against);
            println!(
                "{title:<58} {:>10.1} {:>10.1} {ratio:>7.2} {:>7.2}  {}",
                row.ours,
                row.reference,
                row.target,
                if ok { "ok" } else { "missed" }
            );
        }
        i32::from(missed > 0)
    }
}

/// How many times fill a round.
fn calibrated(side: &mut Side<'_>) -> u64 {
    let mut times = 16;
    loop {
        let took = side(times);
        if took >= ROUND / 4 {
            let per = took.as_secs_f64() / times as f64;
            return ((ROUND.as_secs_f64() / per) as u64).max(1);
        }
        times *= 4;
    }
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
