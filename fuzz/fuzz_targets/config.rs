//! Configurations of the host example. `tests/input` runs the same on stable.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../examples/host/config.rs"]
mod config;
#[allow(dead_code)]
#[path = "../../src/process/output.rs"]
mod output;
#[allow(dead_code)]
#[path = "../../tests/input/parsers.rs"]
mod parsers;
#[allow(dead_code, unused_imports)]
#[path = "../../src/sync.rs"]
mod sync;

fuzz_target!(|text: &str| {
    parsers::config(text);
});
