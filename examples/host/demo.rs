//! `--demo`: drives the host over real HTTP, and then asks the children what they have seen.

mod driver;

use std::{env, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{sync::oneshot, time::sleep};
use tower_on_demand::{
    State,
    process::{Command, Listen},
};

use self::driver::Driver;
use crate::{
    config::{Backend, Config},
    feed::Feed,
    host::{self, Host},
    ledger::{Entry, Ledger},
    pages::Pages,
    timeline::Timeline,
};

/// Where the children find their ledger.
pub(crate) const LEDGER: &str = "HOST_DEMO_LEDGER";

const NAMES: [&str; 6] = ["films", "mail", "maps", "music", "news", "wiki"];
const LIMIT: u64 = 2;

/// The host without a file: six backends, which are this same program.
pub(crate) fn config(ledger: Option<&Ledger>) -> Result<Config, String> {
    let program = env::current_exe().map_err(|error| format!("where am I? {error}"))?;
    let backends = NAMES.map(|name| {
        let mut command = Command::new(name, program.clone())
            .args(["--backend", name, "{socket}"])
            .listen(Listen::unix())
            .grace(Duration::from_secs(5));
        if let Some(ledger) = ledger {
            command = command.env(LEDGER, ledger.dir());
        }
        Backend {
            command,
            idle_after: Some(Duration::from_secs(if ledger.is_some() { 2 } else { 10 })),
            pinned: false,
            progress: false,
        }
    });
    Ok(Config {
        listen: ([127, 0, 0, 1], if ledger.is_some() { 0 } else { 8080 }).into(),
        limit: LIMIT,
        wait: Duration::from_secs(20),
        drain: Duration::from_secs(10),
        upload_pause: Duration::from_secs(30),
        backends: backends.into(),
    })
}

/// Shows all of it, and fails if the children saw anything else than they should.
pub(crate) async fn run() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let ledger = Ledger::at(dir.path());
    let config = config(Some(&ledger))?;
    let feed = Feed::new();
    crate::log("warn", &feed);

    let listener = host::bind(config.listen).await?;
    let url = host::url(&listener);
    let (host, idle_evict) = Host::new(&config, feed.clone(), Pages::new(false, None));
    let sweeping = tokio::spawn(idle_evict.run());
    let host = Arc::new(host);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(host::serve(host.clone(), listener, async {
        let _ = stopped.await;
    }));
    let timeline = Timeline::new(feed);
    let following = tokio::spawn(timeline.clone().follow());

    println!("six backends, room for {LIMIT} at once, on {url}/<backend>/\n");
    let driver = Driver::new(&url, timeline.clone());
    script(&driver, &host).await;
    timeline.caught_up().await;

    heading("The host stops: nothing is left.");
    ledger.closing().map_err(|error| error.to_string())?;
    let _ = stop.send(());
    let begun = serving.await.map_err(|error| error.to_string())?;
    host.stop(config.drain, begun).await;
    sweeping.abort();
    // What happened last is said as well.
    let _ = following.await;

    verdict(&ledger, &host, &driver)
}

fn heading(text: &str) {
    println!("\n{text}");
}

async fn script(driver: &Driver, host: &Host) {
    heading("Nothing runs until somebody asks. The first call starts a backend, and waits for it.");
    driver.get("films", "/").await;
    driver.get("music", "/").await;

    heading("There is room for two. A third one takes the room of the one that rests longest.");
    driver.get("maps", "/").await;

    heading("Ten callers want the same report at the same time: it is made once.");
    driver.herd("maps", "/report", 10).await;

    heading("A streamed answer and a WebSocket are use until they end, however full it is.");
    let socket = driver.websocket("music").await;
    let stream = driver.stream("maps");
    let waits = async {
        sleep(Duration::from_millis(300)).await;
        driver
            .say("ask for mail, while both places are in use")
            .await;
        driver.get("mail", "/").await;
    };
    tokio::join!(stream, waits);
    driver.talk(socket).await;

    heading(
        "Everybody wants something else at once. Nobody is refused, and never more than two live.",
    );
    let calls = (0..3).flat_map(|_| NAMES);
    join_all(calls.map(|name| driver.get_quietly(name, "/"))).await;
    driver.say("have 18 answers").await;

    heading("And when nobody asks any more they are stopped, one by one.");
    for name in NAMES {
        if let Some(handle) = host.group().handle(name) {
            handle.until(State::Stopped).await;
        }
    }
}

/// Compares what was asked with what the children noted.
fn verdict(ledger: &Ledger, host: &Host, driver: &Driver) -> Result<(), String> {
    let log = ledger.read().map_err(|error| error.to_string())?;
    let left = ledger.alive().map_err(|error| error.to_string())?;
    let alive = log.iter().filter_map(|entry| match entry {
        Entry::Born { alive } => Some(*alive as u64),
        _ => None,
    });
    let most = alive.clone().max().unwrap_or(0);
    let started = alive.count() as u64;
    let count = |log: &[Entry], wanted| log.iter().filter(|entry| **entry == wanted).count() as u64;
    let closing = log.iter().position(|entry| *entry == Entry::Closing);
    let evicted = count(&log[..closing.unwrap_or(log.len())], Entry::Told);
    let calls = count(&log, Entry::Call);
    let (asked, failed) = (driver.asked(), driver.failed());
    let shared = (asked - failed).saturating_sub(calls);

    let mut wrong = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    let status = host.group().status();
    let starts: u64 = status.iter().map(|status| status.starts).sum();
    let evictions: u64 = status.iter().map(|status| status.evictions).sum();
    check(most == LIMIT, format!("alive at most {most}, not {LIMIT}"));
    check(shared > 0, "no call was shared".into());
    check(failed == 0, format!("{failed} calls failed"));
    check(left == 0, format!("{left} children are left"));
    check(
        starts == started,
        format!("the host counts {starts} starts, the children {started}"),
    );
    check(
        evictions == evicted,
        format!("the host counts {evictions} evictions, the children {evicted}"),
    );
    check(
        calls <= asked,
        format!("the children served {calls} calls of {asked}"),
    );
    let gone = count(&log, Entry::Gone);
    check(
        gone == started,
        format!("{gone} of {started} children ended as they were told"),
    );

    println!(
        "\ndemo: alive at most {most} of {LIMIT}, started {started}, evicted {evicted}, \
         shared {shared}, failed {failed}, left {left}"
    );
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}
