//! A fleet of hosts in front of many workloads, simulated: what does it ask of the API server, and how long do
//! first calls wait? The numbers in `docs/scale.md` are from here.
//!
//! ```sh
//! cargo run --release -p tower-on-demand-kubernetes --example fleet
//! cargo run --release -p tower-on-demand-kubernetes --example fleet -- --hosts 10 --workloads 1000 --calls 5
//! ```
//!
//! Everything but the cluster is the real thing: a thousand hosts, each with a kube client, a heartbeat and a stack of
//! `Coalesce`, `Keyed`, `IdleEvict` and `Ceiling` over `Scale`, on one thread and on tokio's paused clock. Behind them is
//! the fake of `test_util`. The same seed gives the same arrivals.

use std::{env, process::ExitCode, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

mod host;
mod numbers;
mod traffic;

use host::Fleet;
use traffic::Traffic;

/// What is simulated.
#[derive(Debug, Clone)]
struct Options {
    hosts: usize,
    workloads: usize,
    /// Calls per second, of all hosts together.
    calls: f64,
    seed: u64,
    /// Until the fleet is in its stride, and how long it is watched then.
    warm_up: Duration,
    watched: Duration,
    idle_after: Duration,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            hosts: 1_000,
            workloads: 100_000,
            calls: 100.0,
            seed: 1,
            warm_up: Duration::from_secs(600),
            watched: Duration::from_secs(600),
            idle_after: Duration::from_secs(300),
        };
        while let Some(arg) = args.next() {
            let value = args.next().ok_or(format!("{arg} needs a value"))?;
            let number: f64 = value
                .parse()
                .map_err(|_| format!("{value:?} is no number"))?;
            match &*arg {
                "--hosts" => options.hosts = number as usize,
                "--workloads" => options.workloads = number as usize,
                "--calls" => options.calls = number,
                "--seed" => options.seed = number as u64,
                "--minutes" => options.watched = Duration::from_secs_f64(number * 60.0),
                other => return Err(format!("{other:?} is no option")),
            }
        }
        Ok(options)
    }
}

/// Which host gets a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// By the workload's name: always the same.
    Hashed,
    Random,
}

/// Calls that come as they do, for a while.
async fn steady(options: &Options, spread: Spread) {
    let fleet = Fleet::new(options, None);
    let mut traffic = Traffic::new(options, spread);
    let begun = Instant::now();
    let (from, until) = (
        begun + options.warm_up,
        begun + options.warm_up + options.watched,
    );
    let mut watched = false;
    loop {
        let call = traffic.next();
        let at = begun + call.at;
        if at >= from && !watched {
            watched = true;
            sleep_until(from).await;
            fleet.numbers.begin();
        }
        if at >= until {
            break;
        }
        sleep_until(at).await;
        fleet.call(call);
    }
    sleep_until(until).await;
    let name = match spread {
        Spread::Hashed => "steady, by consistent hash",
        Spread::Random => "steady, at random",
    };
    fleet.report(name, options.watched);
}

/// A twentieth of all workloads is called for the first time within a minute.
async fn morning(options: &Options, limit: Option<(u32, u32)>) {
    let fleet = Fleet::new(options, limit);
    // All hosts are up.
    sleep(Duration::from_secs(120)).await;
    fleet.numbers.begin();
    let begun = Instant::now();
    let calls = options.workloads / 20;
    for call in Traffic::morning(options, calls) {
        sleep_until(begun + call.at).await;
        fleet.call(call);
    }
    let watched = Duration::from_secs(240);
    sleep_until(begun + watched).await;
    let name = match limit {
        Some((per_second, _)) => format!("a morning, at most {per_second} API calls per second"),
        None => "a morning, as many API calls as there are".to_owned(),
    };
    fleet.report(&name, watched);
}

/// Runs `scenario` on a clock of its own, and drops all that is left of it.
fn run(scenario: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(scenario);
}

fn main() -> ExitCode {
    let options = match Options::parse(env::args().skip(1)) {
        Ok(options) => options,
        Err(unknown) => {
            eprintln!("fleet: {unknown}");
            return ExitCode::from(2);
        }
    };
    println!(
        "{} hosts, {} workloads, {} calls/s, idle after {:?}, seed {}",
        options.hosts, options.workloads, options.calls, options.idle_after, options.seed
    );
    run(steady(&options, Spread::Hashed));
    run(steady(&options, Spread::Random));
    run(morning(&options, None));
    run(morning(&options, Some((500, 1_000))));
    ExitCode::SUCCESS
}
