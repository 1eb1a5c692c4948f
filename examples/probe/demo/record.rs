//! What the demo's subprocesses record of themselves, and the gate that holds them until all callers are there.
//!
//! Each subprocess is a shell around the real one. It appends a line to a log when it begins and another when it
//! ends, and in between waits at a gate: a named pipe, which opens for reading only while somebody has it open for
//! writing. So the demo needs no luck with time to see callers join.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, mkfifoat};

const SHELL: &str = r#"
log=$1 gate=$2; shift 2
for file in "$@"; do :; done     # the last argument
echo "begin $$ ${file##*/}" >> "$log"
: < "$gate"
"$@"; code=$?
echo "end $$ ${file##*/} $code" >> "$log"
exit $code
"#;

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Began { process: u32, file: String },
    Ended { process: u32, code: i32 },
}

/// The log and the gate.
pub(crate) struct Record {
    log: PathBuf,
    gate: PathBuf,
}

impl Record {
    pub(crate) fn new(dir: &Path) -> io::Result<Self> {
        let (log, gate) = (dir.join("log"), dir.join("gate"));
        File::create(&log)?;
        mkfifoat(CWD, &gate, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { log, gate })
    }

    /// The command that runs another one, and records it.
    pub(crate) fn wrapper(&self) -> [OsString; 6] {
        let [log, gate] = [&self.log, &self.gate].map(OsString::from);
        [
            "sh".into(),
            "-c".into(),
            SHELL.into(),
            "sh".into(),
            log,
            gate,
        ]
    }

    /// Lets all through who stand at the gate, and who come to it until what this returns is dropped.
    pub(crate) fn open(&self) -> io::Result<File> {
        // For reading as well, since for writing alone it would wait for a reader.
        File::options().read(true).write(true).open(&self.gate)
    }

    pub(crate) fn read(&self) -> io::Result<Vec<Entry>> {
        let text = fs::read_to_string(&self.log)?;
        // The last line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let entries = whole.lines().map(|line| {
            entry(line).ok_or_else(|| io::Error::other(format!("what is {line:?} in the log?")))
        });
        entries.collect()
    }
}

fn entry(line: &str) -> Option<Entry> {
    let mut words = line.split(' ');
    let what = words.next()?;
    let process = words.next()?.parse().ok()?;
    let file = words.next()?.to_owned();
    match what {
        "begin" => Some(Entry::Began { process, file }),
        "end" => {
            let code = words.next()?.parse().ok()?;
            Some(Entry::Ended { process, code })
        }
        _ => None,
    }
}

/// How many ran at the same time, at most.
pub(crate) fn most_at_once(log: &[Entry]) -> usize {
    let (mut now, mut most) = (0_usize, 0);
    for entry in log {
        match entry {
            Entry::Began { .. } => now += 1,
            Entry::Ended { .. } => now = now.saturating_sub(1),
        }
        most = most.max(now);
    }
    most
}

/// Which subprocesses began for which file, and have ended well.
pub(crate) fn done(log: &[Entry]) -> Vec<(u32, &str)> {
    let well = |number: u32| {
        log.iter()
            .any(|entry| matches!(entry, Entry::Ended { process, code: 0 } if *process == number))
    };
    let began = log.iter().filter_map(|entry| match entry {
        Entry::Began { process, file } => Some((*process, &**file)),
        Entry::Ended { .. } => None,
    });
    began.filter(|(process, _)| well(*process)).collect()
}

/// A second of silence and a bit: something that `ffprobe` has to say something about.
pub(crate) fn sound(file: &Path, seed: u8) -> io::Result<()> {
    const RATE: u32 = 8000;
    let samples = RATE + u32::from(seed);
    let mut wave = Vec::new();
    wave.extend(b"RIFF");
    wave.extend((36 + samples).to_le_bytes());
    wave.extend(b"WAVEfmt ");
    wave.extend(16_u32.to_le_bytes());
    // PCM, one channel.
    wave.extend([1, 0, 1, 0]);
    wave.extend(RATE.to_le_bytes());
    wave.extend(RATE.to_le_bytes());
    // One byte per frame, eight bits per sample.
    wave.extend([1, 0, 8, 0]);
    wave.extend(b"data");
    wave.extend(samples.to_le_bytes());
    wave.resize(wave.len() + samples as usize, 128);
    fs::write(file, wave)
}
