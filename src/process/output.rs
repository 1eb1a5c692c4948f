//! What a child prints: line by line into `tracing`, the last of it kept for errors.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    net::unix::pipe,
    sync::watch,
    task::JoinHandle,
};

use crate::sync::{Mutex, lock};

/// How many lines are kept.
const KEPT_LINES: usize = 64;
/// The longest line, in bytes; a longer one is cut into several.
const LONGEST_LINE: usize = 2048;
/// How many lines are taken before others have their turn.
const AT_A_TIME: u64 = 64;
/// How long to read on when the child is gone: somebody else may hold its pipes.
const READ_ON: Duration = Duration::from_millis(100);

/// The output of one child.
#[derive(Debug)]
pub(super) struct Output {
    name: Arc<str>,
    pid: u32,
    last: Mutex<VecDeque<String>>,
    /// What is waited for in a line, and whether it came.
    awaited: Option<Arc<str>>,
    came: watch::Sender<bool>,
}

/// The task that reads both pipes. It ends when they are closed, or when this is dropped.
#[derive(Debug)]
pub(super) struct Reading {
    done: JoinHandle<()>,
    stop: watch::Sender<()>,
}

impl Output {
    pub(super) fn new(name: Arc<str>, pid: u32, awaited: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self {
            name,
            pid,
            last: Mutex::default(),
            awaited,
            came: watch::Sender::new(false),
        })
    }

    /// Reads both pipes in the background.
    pub(super) fn read(
        self: &Arc<Self>,
        stdout: pipe::Receiver,
        stderr: pipe::Receiver,
    ) -> Reading {
        let (stop, stopped) = watch::channel(());
        let output = self.clone();
        let done = tokio::spawn(async move {
            tokio::join!(
                output.read_one(stdout, "stdout", stopped.clone()),
                output.read_one(stderr, "stderr", stopped.clone()),
            );
        });
        Reading { done, stop }
    }

    pub(super) async fn read_one(
        &self,
        pipe: impl AsyncRead + Unpin,
        stream: &str,
        mut stopped: watch::Receiver<()>,
    ) {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        let mut lines = 0_u64;
        loop {
            let chunk = tokio::select! {
                biased;
                chunk = pipe.fill_buf() => chunk.unwrap_or_default(),
                _ = stopped.changed() => &[],
            };
            if chunk.is_empty() {
                break;
            }
            let room = &chunk[..chunk.len().min(LONGEST_LINE - line.len())];
            let (taken, whole) = match room.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (room.len(), line.len() + room.len() == LONGEST_LINE),
            };
            line.extend_from_slice(&room[..taken]);
            pipe.consume(taken);
            if whole {
                self.line(&line, stream);
                line.clear();
                lines += 1;
                if lines % AT_A_TIME == 0 {
                    tokio::task::yield_now().await;
                }
            }
        }
        if !line.is_empty() {
            self.line(&line, stream);
        }
    }

    fn line(&self, line: &[u8], stream: &str) {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches(['\n', '\r']);
        tracing::info!(
            target: "tower_on_demand::process",
            backend = &*self.name, pid = self.pid, stream, "{line}"
        );
        {
            let mut last = lock(&self.last);
            if last.len() == KEPT_LINES {
                last.pop_front();
            }
            last.push_back(line.to_owned());
        }
        if let Some(awaited) = &self.awaited {
            if line.contains(&**awaited) {
                self.came.send_replace(true);
            }
        }
    }

    /// Waits for the line that is waited for.
    pub(super) async fn awaited(&self) {
        // Cannot fail: the sender is `self`'s.
        let _ = self.came.subscribe().wait_for(|came| *came).await;
    }

    /// The last lines, oldest first.
    pub(super) fn last(&self) -> Vec<String> {
        lock(&self.last).iter().cloned().collect()
    }

    /// The last lines as an error tells them.
    pub(super) fn told(&self) -> String {
        let last = self.last();
        if last.is_empty() {
            return "it printed nothing".to_owned();
        }
        let mut told = String::from("its last lines of output:");
        for line in &last {
            told.push_str("\n  ");
            told.push_str(line);
        }
        told
    }
}

impl Reading {
    /// Reads what is left, and closes the pipes even if somebody else still holds them.
    pub(super) async fn finish(self) {
        let Self { mut done, stop } = self;
        if tokio::time::timeout(READ_ON, &mut done).await.is_err() {
            drop(stop);
            let _ = done.await;
        }
    }
}
