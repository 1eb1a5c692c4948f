//! `--demo`: asks the service over real HTTP, and then compares with what its subprocesses have recorded.

mod driver;
mod record;

use std::{path::Path, time::Duration};

use tokio::{net::TcpListener, time::sleep};

use self::{
    driver::{Answer, Driver, answers, leave, until},
    record::{Entry, Record, done, most_at_once, sound},
};
use crate::{
    app::{App, Settings},
    program::Program,
};

/// The files. There is a place for all but two of them, so those are refused at first.
const FILES: [&str; 5] = [
    "aria.wav",
    "ballad.wav",
    "chorale.wav",
    "dirge.wav",
    "etude.wav",
];
const PLACES: usize = 3;

/// How many callers each file has.
const CALLERS: usize = 10;

const LINGER: Duration = Duration::from_secs(2);

/// What came of one round.
#[derive(Default)]
struct Round {
    /// Callers who had their answer in the end: about what, and from which subprocess.
    found: Vec<(&'static str, u32)>,
    refused: usize,
    wrong: Vec<String>,
}

struct Demo {
    app: App,
    record: Record,
    driver: Driver,
}

pub(crate) async fn run() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let text = |error: std::io::Error| error.to_string();
    let root = dir.path().join("files");
    files(&root).map_err(text)?;
    let record = Record::new(dir.path()).map_err(text)?;
    let program = Program::find(Duration::from_secs(60))?;
    let name = program.name();
    let settings = Settings {
        root,
        places: PLACES,
        linger: LINGER,
    };
    let app = App::new(program.run_by(record.wrapper()), &settings).map_err(text)?;

    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(text)?;
    let url = format!("http://{}", listener.local_addr().map_err(text)?);
    let router = app.router();
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    let callers = FILES.len() * CALLERS;
    println!(
        "{callers} callers, {} files, at most {PLACES} subprocesses at once, each of them {name}",
        FILES.len()
    );
    let mut demo = Demo {
        app,
        record,
        driver: Driver::new(url),
    };

    let mut rounds = Vec::new();
    for number in 1..=2 {
        println!("\nRound {number}");
        let before = demo.log()?.len();
        let round = demo.round().await?;
        rounds.push((round, demo.log()?.split_off(before)));
        if number == 1 {
            sleep(LINGER + Duration::from_millis(100)).await;
            demo.driver
                .say("nothing lingers any more: the next ones are new questions");
        }
    }
    demo.app.stop().await;
    serving.abort();
    demo.verdict(&rounds)
}

fn files(root: &Path) -> std::io::Result<()> {
    std::fs::create_dir(root)?;
    for (file, seed) in FILES.into_iter().zip(0..) {
        sound(&root.join(file), seed)?;
    }
    Ok(())
}

impl Demo {
    fn log(&self) -> Result<Vec<Entry>, String> {
        self.record.read().map_err(|error| error.to_string())
    }

    /// Resolves when `waiting` callers wait, for subprocesses that have all begun.
    async fn gathered(&self, waiting: usize, running: usize, before: usize) -> Result<(), String> {
        until("all have joined", || {
            let begun = |log: Vec<Entry>| {
                let began = |entry: &&Entry| matches!(entry, Entry::Began { .. });
                log.iter().skip(before).filter(began).count()
            };
            let begun = self.record.read().map(begun).unwrap_or_default();
            self.app.statistics().waiting == waiting && begun == running
        })
        .await
    }

    /// Lets the subprocesses go on, to their end.
    async fn finish(&self) -> Result<(), String> {
        let _open = self.record.open().map_err(|error| error.to_string())?;
        until("all have ended", || self.app.statistics().in_flight == 0).await
    }

    async fn round(&mut self) -> Result<Round, String> {
        let mut round = Round::default();
        let (first, later) = FILES.split_at(PLACES);
        let (stayed_for, left_for) = first.split_at(PLACES - 1);

        let before = self.log()?.len();
        let stay = self.driver.ask(stayed_for, CALLERS);
        let go = self.driver.ask(left_for, CALLERS);
        self.gathered(PLACES * CALLERS, PLACES, before).await?;
        self.driver.say(format_args!(
            "{} callers ask about {PLACES} files: {PLACES} subprocesses begin, and all others join",
            PLACES * CALLERS
        ));

        let refused = answers(self.driver.ask(later, CALLERS)).await;
        let mut back = Duration::ZERO;
        for answer in refused {
            match answer {
                Answer::Refused { after, .. } => {
                    round.refused += 1;
                    back = back.max(after);
                }
                other => round.take(other),
            }
        }
        self.driver.say(format_args!(
            "{} callers ask about {} more: 429, all places are taken, try again in {back:?}",
            round.refused,
            later.len()
        ));

        leave(go);
        until("they have left", || {
            left_for.iter().all(|file| self.app.waiting(file) == 0)
        })
        .await?;
        self.driver.say(format_args!(
            "the {CALLERS} callers of {} leave: nobody waits for it, and it goes on",
            left_for[0]
        ));

        self.finish().await?;
        round.take_all(answers(stay).await);
        self.driver.say(format_args!(
            "the subprocesses end: {} callers have their answers",
            round.found.len()
        ));
        let before = round.found.len();
        round.take_all(answers(self.driver.ask(left_for, CALLERS)).await);
        self.driver.say(format_args!(
            "{} callers ask about {} again: its answer lingers, and nothing begins",
            round.found.len() - before,
            left_for[0]
        ));

        sleep(back).await;
        let before = self.log()?.len();
        let again = self.driver.ask(later, CALLERS);
        self.gathered(later.len() * CALLERS, later.len(), before)
            .await?;
        self.driver.say(format_args!(
            "the {} who were refused come back: {} subprocesses begin, and all others join",
            later.len() * CALLERS,
            later.len()
        ));
        self.finish().await?;
        round.take_all(answers(again).await);
        self.driver.say(format_args!(
            "all {} callers have their answers",
            round.found.len()
        ));
        Ok(round)
    }

    /// What the callers were told, what the layers counted and what the subprocesses recorded must be one story.
    fn verdict(&self, rounds: &[(Round, Vec<Entry>)]) -> Result<(), String> {
        let callers = FILES.len() * CALLERS;
        let mut wrong = Vec::new();
        let mut check = |what: &str, is: u64, expected: u64| {
            if is != expected {
                wrong.push(format!("{what}: {is}, not {expected}"));
            }
        };
        let mut failed = 0;
        let (mut began, mut refused) = (0, 0);
        for (round, log) in rounds {
            let processes = done(log);
            for file in FILES {
                let count = processes.iter().filter(|(_, its)| *its == file).count();
                check(
                    &format!("subprocesses for {file} in a round"),
                    count as u64,
                    1,
                );
            }
            check("lines in a round", log.len() as u64, 2 * FILES.len() as u64);
            check("at once", most_at_once(log) as u64, PLACES as u64);
            // Each answer is what the one subprocess of this round for this file has found.
            let right = |found: &&(&str, u32)| processes.contains(&(found.1, found.0));
            failed += callers.saturating_sub(round.found.iter().filter(right).count());
            began += processes.len() as u64;
            refused += round.refused as u64;
        }
        let counted = self.app.statistics();
        let (asked, not_begun) = (self.driver.asked(), self.app.refused());
        let later = (FILES.len() - PLACES) * CALLERS;
        check("refusals", refused, 2 * later as u64);
        check("those who led", counted.led, began + not_begun);
        check(
            "those who joined",
            counted.joined,
            asked - began - not_begun,
        );
        check("those who left", counted.left_early, 2 * CALLERS as u64);

        wrong.extend(rounds.iter().flat_map(|(round, _)| round.wrong.clone()));
        println!(
            "\nasked {asked} times: {began} began a subprocess, {} shared one, {refused} were refused",
            asked - began - refused
        );
        println!(
            "probe: {callers} callers, {} files, 2 rounds, {began} subprocesses, failed {failed}",
            FILES.len()
        );
        if failed > 0 {
            wrong.push(format!(
                "{failed} callers were not answered as they should be"
            ));
        }
        wrong.dedup();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(wrong.join("\n       "))
        }
    }
}

impl Round {
    fn take_all(&mut self, answers: Vec<Answer>) {
        answers.into_iter().for_each(|answer| self.take(answer));
    }

    fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Found { file, process } => self.found.push((file, process)),
            Answer::Refused { file, after } => {
                self.wrong.push(format!("{file}: refused for {after:?}"));
            }
            Answer::Wrong(why) => self.wrong.push(why),
        }
    }
}
