//! What the demo's children themselves have seen: who was alive with whom, and what they served.
//!
//! A directory. Each child holds a lock on a file of its own for as long as it lives, which the system takes
//! from it however it ends, so that the next one can count who is alive; and all append to one log. The
//! host only reads.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use rustix::fs::{FlockOperation, flock};

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A child was born; `alive` live now, it included.
    Born { alive: usize },
    /// It serves a call.
    Call,
    /// It was told to stop.
    Told,
    /// It stopped, as it was told.
    Gone,
    /// The host as a whole begins to stop.
    Closing,
}

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    dir: PathBuf,
}

/// A child's own place in it, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Life {
    ledger: Ledger,
    _alive: File,
}

impl Ledger {
    pub(crate) fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        options.open(self.dir.join(name))
    }

    /// A child enters, and counts who is alive.
    pub(crate) fn enter(&self) -> io::Result<Life> {
        // One at a time, so that of two children at least one counts both.
        let door = self.open("door")?;
        flock(&door, FlockOperation::LockExclusive)?;
        let own = self.open(&format!("alive-{}", process::id()))?;
        flock(&own, FlockOperation::LockExclusive)?;
        let life = Life {
            ledger: self.clone(),
            _alive: own,
        };
        let alive = self.alive()?;
        life.note(&Entry::Born { alive })?;
        Ok(life)
    }

    /// How many children are alive.
    pub(crate) fn alive(&self) -> io::Result<usize> {
        let mut alive = 0;
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("alive-") {
                let file = File::open(entry.path())?;
                let taken = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
                alive += usize::from(taken);
            }
        }
        Ok(alive)
    }

    /// The host says that all that follows is its own end.
    pub(crate) fn closing(&self) -> io::Result<()> {
        self.note(&Entry::Closing)
    }

    fn note(&self, entry: &Entry) -> io::Result<()> {
        let line = match entry {
            Entry::Born { alive } => format!("born {alive}\n"),
            Entry::Call => "call\n".into(),
            Entry::Told => "told\n".into(),
            Entry::Gone => "gone\n".into(),
            Entry::Closing => "closing\n".into(),
        };
        // One write, at the end of the file: lines stay whole.
        self.open("log")?.write_all(line.as_bytes())
    }

    /// All that was noted, in order.
    pub(crate) fn read(&self) -> io::Result<Vec<Entry>> {
        let log = fs::read_to_string(self.dir.join("log"))?;
        log.lines().map(parse).collect()
    }
}

fn parse(line: &str) -> io::Result<Entry> {
    let entry = match line.split_once(' ') {
        Some(("born", alive)) => alive.parse().ok().map(|alive| Entry::Born { alive }),
        None if line == "call" => Some(Entry::Call),
        None if line == "told" => Some(Entry::Told),
        None if line == "gone" => Some(Entry::Gone),
        None if line == "closing" => Some(Entry::Closing),
        _ => None,
    };
    entry.ok_or_else(|| io::Error::other(format!("what is this line: {line:?}")))
}

impl Life {
    pub(crate) fn note(&self, entry: &Entry) -> io::Result<()> {
        self.ledger.note(entry)
    }
}
