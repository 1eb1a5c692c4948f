//! Measuring in turns, and the table.

use std::{
    future::Future,
    hint::black_box,
    pin::pin,
    sync::Barrier,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// How many rounds each side has.
const ROUNDS: usize = 401;
/// How long one round lasts, about: shorter than the time that the system gives a thread at once, so that
/// what else the machine does falls between most rounds and not into them.
const ROUND: Duration = Duration::from_millis(1);

/// Where it stands which rows miss their target, by how much, and why.
const LISTED: [&str; 3] = [
    include_str!("../../docs/performance/backends.md"),
    include_str!("../../docs/performance/coalesce.md"),
    include_str!("../../docs/performance/processes.md"),
];

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

/// The same on two threads at once, each with what `make` gives it.
pub(crate) fn two_threads<'a, F>(make: impl Fn(usize) -> F + Sync + 'a) -> Side<'a>
where
    F: FnMut(),
{
    Box::new(move |times| {
        let start = Barrier::new(2);
        let run = |thread| {
            let mut work = make(thread);
            start.wait();
            let begun = Instant::now();
            for _ in 0..times {
                work();
            }
            (begun, Instant::now())
        };
        // From the first to begin to the last to end: one after the other is not side by side.
        let (here, there) = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(1));
            (run(0), other.join().expect("no panic"))
        });
        here.1.max(there.1) - here.0.min(there.0)
    })
}

struct Row {
    title: String,
    ours: f64,
    reference: f64,
    target: f64,
    /// Why it says nothing on this machine.
    void: Option<String>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.reference
    }

    fn verdict(&self) -> String {
        match &self.void {
            Some(why) => format!("void: {why}"),
            None if self.ratio() <= self.target => "ok".to_owned(),
            None => {
                let title = format!("`{}`", self.title);
                let listed = LISTED.iter().any(|page| page.contains(&title));
                if listed { "listed" } else { "missed" }.to_owned()
            }
        }
    }
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
        ours: Side<'_>,
        reference: Side<'_>,
    ) {
        self.compare_where(name, target, against, ours, reference, || None);
    }

    /// The same, of a row that says nothing on a machine where there is something `against_it`.
    pub(crate) fn compare_where(
        &mut self,
        name: &str,
        target: f64,
        against: &str,
        mut ours: Side<'_>,
        mut reference: Side<'_>,
        against_it: impl FnOnce() -> Option<String>,
    ) {
        if !self.wants(name) {
            return;
        }
        let (ours, reference) = in_turns(&mut ours, &mut reference);
        self.rows.push(Row {
            title: format!("{name} [{against}]"),
            ours,
            reference,
            target,
            void: against_it(),
        });
    }

    /// Numbers that are the same each time: `ours` may be so many times the reference.
    pub(crate) fn count(
        &mut self,
        name: &str,
        target: f64,
        against: &str,
        ours: f64,
        reference: f64,
    ) {
        if self.wants(name) {
            self.rows.push(Row {
                title: format!("{name} [{against}]"),
                ours,
                reference,
                target,
                void: None,
            });
        }
    }

    /// A row that cannot be measured here.
    pub(crate) fn void(&mut self, name: &str, target: f64, against: &str, why: &str) {
        self.rows.push(Row {
            title: format!("{name} [{against}]"),
            ours: f64::NAN,
            reference: f64::NAN,
            target,
            void: Some(why.to_owned()),
        });
    }

    /// Prints the table; the exit code says whether every row is within its target.
    pub(crate) fn print(&self) -> i32 {
        println!(
            "{:<74} {:>10} {:>10} {:>7} {:>7}  verdict",
            "row [reference]", "ours", "reference", "ratio", "target"
        );
        for row in &self.rows {
            println!(
                "{:<74} {:>10.1} {:>10.1} {:>7.2} {:>7.2}  {}",
                row.title,
                row.ours,
                row.reference,
                row.ratio(),
                row.target,
                row.verdict(),
            );
        }
        let missed = |row: &Row| row.verdict() == "missed";
        i32::from(self.rows.iter().any(missed))
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

/// Medians of both sides, in nanoseconds for each time.
pub(crate) fn in_turns(ours: &mut Side<'_>, reference: &mut Side<'_>) -> (f64, f64) {
    let times = [calibrated(ours), calibrated(reference)];
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        a.push(ours(times[0]).as_secs_f64() * 1e9 / times[0] as f64);
        b.push(reference(times[1]).as_secs_f64() * 1e9 / times[1] as f64);
    }
    (median(&mut a), median(&mut b))
}

pub(crate) fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
