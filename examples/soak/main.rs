//! Churn over 100,000 keys, for as long as you like: does anything grow?
//!
//! Each key is a backend of `Keyed`, started by its first call under a ceiling of 64, evicted for the next one, and
//! forgotten; and an identity of `Coalesce`. One key in twenty never starts. Two hundred callers go through the keys
//! again and again.
//!
//! `cargo run --release --all-features --example soak -- 60` runs a minute (without a number: 10 seconds), prints a
//! table, and fails unless everything is flat: see [`table::Table::verdict`].

mod churn;
mod table;

use std::{process::ExitCode, time::Duration};

use self::{
    churn::Churn,
    table::{Row, Table},
};

/// Rows of the table.
const ROWS: u32 = 20;

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).map(|word| word.parse());
    let Ok(seconds) = seconds.unwrap_or(Ok(10)) else {
        eprintln!("soak: expected a number of seconds");
        return ExitCode::FAILURE;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let verdict = match runtime {
        Ok(runtime) => runtime.block_on(soak(Duration::from_secs(seconds))),
        Err(error) => Err(error.to_string()),
    };
    match verdict {
        Ok(flat) => {
            println!("soak: {flat}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(length: Duration) -> Result<String, String> {
    let mut table = Table::begin();
    // What a first use allocates for good is there before the first row.
    Churn::start().end().await;
    table.add(Row::of_none());

    let churn = Churn::start();
    for _ in 0..ROWS {
        tokio::time::sleep(length / ROWS).await;
        table.add(churn.row());
    }
    table.add(churn.end().await);
    table.verdict()
}
