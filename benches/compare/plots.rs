//! Curves of cost against joiners, backends and threads, drawn from what is measured in this run.

use std::{
    ops::Range,
    path::Path,
    sync::{Barrier, Mutex},
    time::Instant,
};

use plotters::prelude::*;

use crate::{
    coalesce::joined,
    harness::{in_turns, median},
    many::{a_victim, in_vain},
    running::{Host, call, calls, get_and_call, pool},
};

/// A name, and what was measured at which x.
type Line = (&'static str, Vec<(f64, f64)>);

const COLORS: [RGBColor; 3] = [
    RGBColor(0, 90, 180),
    RGBColor(210, 90, 0),
    RGBColor(0, 130, 80),
];

fn chart(file: &str, title: &str, x: &str, y: &str, lines: &[Line]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs/performance")
        .join(file);
    let points = || lines.iter().flat_map(|(_, points)| points);
    let least = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let far = points().map(|point| point.0).fold(0.0, f64::max);
    let (across, up): (Range<f64>, Range<f64>) = (1.0..far, least / 2.0..most * 3.0);
    let area = SVGBackend::new(&path, (720, 420)).into_drawing_area();
    area.fill(&WHITE).expect("drawn");
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .margin_right(32)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(across.log_scale(), up.log_scale())
        .expect("drawn");
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .x_desc(x)
        .y_desc(y)
        .draw()
        .expect("drawn");
    for ((name, points), color) in lines.iter().zip(COLORS) {
        let line = LineSeries::new(points.clone(), color.stroke_width(2)).point_size(3);
        let drawn = chart.draw_series(line).expect("drawn");
        drawn
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()
        .expect("drawn");
    area.present().expect("written");
    println!("{}", path.display());
    for (name, points) in lines {
        println!("  {name}: {points:.1?}");
    }
}

fn joiners() {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for joiners in [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000] {
        let (mut coalesce, mut shared) = joined(joiners);
        let (coalesce, shared) = in_turns(&mut coalesce, &mut shared);
        let x = joiners as f64;
        ours.push((x, coalesce / x));
        theirs.push((x, shared / x));
    }
    chart(
        "joiners.svg",
        "A flight, from the first call to the last answer",
        "joiners",
        "ns per joiner",
        &[("Coalesce", ours), ("futures::Shared", theirs)],
    );
}

fn backends(tokio: &tokio::runtime::Runtime) {
    let (mut running, mut sweeps, mut victims) = (Vec::new(), Vec::new(), Vec::new());
    for backends in [1, 10, 100, 1_000, 10_000] {
        let host = Host::new(backends as u64);
        let stacks: Vec<_> = (0..backends)
            .map(|_| tokio.block_on(host.running()))
            .collect();
        let mut calls = calls(&stacks[backends / 2]);
        let (ran, swept) = in_turns(&mut calls, &mut in_vain(tokio, backends));
        let mut victim = a_victim(backends);
        let (made, _) = in_turns(&mut victim, &mut calls);
        let x = backends as f64;
        running.push((x, ran));
        sweeps.push((x, swept));
        victims.push((x, made));
    }
    chart(
        "backends.svg",
        "What so many running backends cost",
        "backends",
        "ns",
        &[
            ("a call of one", running),
            ("a sweep with none due", sweeps),
            ("an eviction and a start", victims),
        ],
    );
}

/// Nanoseconds of a call on each of so many threads at once: from the first to begin to the last to end.
fn threads<F: FnMut()>(count: usize, make: impl Fn(usize) -> F + Sync) -> f64 {
    /// Long beside what it takes to wake a thread.
    const CALLS: u64 = 200_000;
    let once = |_| {
        let start = Barrier::new(count);
        let times = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..count {
                let (start, times, make) = (&start, &times, &make);
                scope.spawn(move || {
                    let mut work = make(thread);
                    start.wait();
                    let begun = Instant::now();
                    for _ in 0..CALLS {
                        work();
                    }
                    let time = (begun, Instant::now());
                    times.lock().expect("not poisoned").push(time);
                });
            }
        });
        let times = times.into_inner().expect("not poisoned");
        let begun = times.iter().map(|time| time.0).min().expect("a thread");
        let ended = times.iter().map(|time| time.1).max().expect("a thread");
        (ended - begun).as_secs_f64() * 1e9 / CALLS as f64
    };
    median(&mut (0..41).map(once).collect::<Vec<_>>())
}

fn side_by_side(tokio: &tokio::runtime::Runtime) {
    let most = std::thread::available_parallelism().map_or(2, usize::from);
    let host = Host::new(most as u64);
    let stacks: Vec<_> = (0..most).map(|_| tokio.block_on(host.running())).collect();
    let pool = Mutex::new(pool(tokio));
    let (mut apart, mut together, mut singleton) = (Vec::new(), Vec::new(), Vec::new());
    for count in 1..=most {
        let x = count as f64;
        let own = |thread: usize| {
            let stack = stacks[thread].clone();
            move || {
                call(&stack);
            }
        };
        apart.push((x, threads(count, own)));
        together.push((x, threads(count, |_| own(0))));
        let get = |_| {
            let pool = pool.lock().expect("not poisoned").clone();
            move || get_and_call(&pool)
        };
        singleton.push((x, threads(count, get)));
    }
    chart(
        "threads.svg",
        "Calls of running backends, by threads at once",
        "threads",
        "ns per call on each",
        &[
            ("the stack, a backend for each thread", apart),
            ("the stack, one backend", together),
            ("Singleton", singleton),
        ],
    );
}

pub(crate) fn draw(tokio: &tokio::runtime::Runtime) {
    joiners();
    backends(tokio);
    side_by_side(tokio);
}
