//! What the servers themselves have seen: a file that all append to.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// One line of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A server was started.
    Start,
    /// It was called.
    Call,
    /// It was told to stop.
    Told,
    /// It stopped, as it was told.
    Gone,
    /// The host as a whole begins to stop.
    Closing,
}

const LINES: [(Entry, &str); 5] = [
    (Entry::Start, "start"),
    (Entry::Call, "call"),
    (Entry::Told, "told"),
    (Entry::Gone, "gone"),
    (Entry::Closing, "closing"),
];

#[derive(Debug, Clone)]
pub(crate) struct Ledger(PathBuf);

impl Ledger {
    pub(crate) fn at(path: impl AsRef<OsStr>) -> Self {
        Self(path.as_ref().into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn note(&self, entry: Entry) -> io::Result<()> {
        let line = LINES.iter().find(|(its, _)| *its == entry);
        let line = line.map_or("", |(_, line)| line);
        // One write, at the end of the file: lines stay whole.
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        file.write_all(format!("{line}\n").as_bytes())
    }

    /// All that was noted, in order.
    pub(crate) fn read(&self) -> io::Result<Vec<Entry>> {
        let parse = |line: &str| {
            let entry = LINES.iter().find(|(_, its)| *its == line);
            let entry = entry.map(|(entry, _)| *entry);
            entry.ok_or_else(|| io::Error::other(format!("what is this line: {line:?}")))
        };
        fs::read_to_string(&self.0)?.lines().map(parse).collect()
    }
}
