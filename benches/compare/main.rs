//! Ours and the peers, on the same work in the same run: one table, row by row.
//!
//! `cargo bench --all-features --bench compare`. Each row is measured in rounds, ours and the reference
//! in turn, and compares the medians, so that a noisy machine disturbs both alike. With `-- --plots` it
//! draws curves into docs/performance instead.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod child;
mod coalesce;
#[path = "../../tests/support/example.rs"]
#[allow(dead_code, unreachable_pub, reason = "it belongs to the tests")]
mod example;
mod harness;
mod many;
mod plots;
mod process;
mod proxy;
mod running;

use harness::Table;

fn main() {
    child::serve_if_asked();
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let mut table = Table::new(only);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let _entered = tokio.enter();
    if std::env::args().any(|arg| arg == "--plots") {
        return plots::draw(&tokio);
    }
    running::rows(&mut table, &tokio);
    many::rows(&mut table, &tokio);
    coalesce::rows(&mut table);
    process::rows(&mut table, &tokio);
    proxy::rows(&mut table);
    std::process::exit(table.print());
}
