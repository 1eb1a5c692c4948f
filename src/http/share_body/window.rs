//! `Window`: what of a body has been pulled and is still needed.

use std::collections::VecDeque;

use bytes::Bytes;
use http::HeaderMap;
use slab::Slab;

use crate::Error;

/// The frames that are kept, and where each reader is.
///
/// *Whole*: everything is kept, and a reader can begin at the first byte. Once more has been pulled than
/// the cap allows it *slides*: what all readers have read goes, and nobody can begin any more.
pub(super) struct Window {
    cap: u64,
    whole: bool,
    frames: VecDeque<Kept>,
    /// The number of the first frame that is kept.
    first: u64,
    /// Bytes before it.
    start: u64,
    /// Bytes pulled.
    end: u64,
    finish: Option<Finish>,
    readers: Slab<Reader>,
}

struct Kept {
    bytes: Bytes,
    /// Readers that have not read it yet; counted only while it slides.
    left: usize,
}

/// How the source ended.
#[derive(Clone)]
pub(super) enum Finish {
    Done(Option<HeaderMap>),
    Failed(Error),
}

#[derive(Debug, Clone, Copy, Default)]
struct Reader {
    /// The number of its next frame, and the bytes before it.
    next: u64,
    at: u64,
    lagged: bool,
}

/// What there is for a reader.
pub(super) enum Next {
    /// `rouse`: those who wait for room can go on.
    Frame {
        bytes: Bytes,
        rouse: bool,
    },
    Finish(Finish),
    /// It was too slow.
    Lagged,
    /// It is the fastest, and as much is kept for the slowest as may be.
    Full,
    /// Nothing yet: pull.
    Nothing,
}

impl Window {
    pub(super) fn new(cap: u64) -> Self {
        Self {
            cap,
            whole: true,
            frames: VecDeque::new(),
            first: 0,
            start: 0,
            end: 0,
            finish: None,
            readers: Slab::new(),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(super) fn finish(&self) -> Option<&Finish> {
        self.finish.as_ref()
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Where a reader is, in bytes.
    pub(super) fn at(&self, reader: usize) -> u64 {
        self.readers.get(reader).map_or(0, |reader| reader.at)
    }

    /// Adds a reader at the first byte; `None` if it is too late for that.
    pub(super) fn add(&mut self) -> Option<usize> {
        self.whole.then(|| self.readers.insert(Reader::default()))
    }

    /// Whether there is room again for those who wait for it.
    pub(super) fn remove(&mut self, reader: usize) -> bool {
        let was_full = self.is_full();
        let reader = self.readers.remove(reader);
        if !reader.lagged {
            self.pass(reader.next, self.first + self.frames.len() as u64);
        }
        was_full && !self.is_full()
    }

    pub(super) fn next(&mut self, reader: usize) -> Next {
        let was_full = self.is_full();
        let Some(state) = self.readers.get_mut(reader) else {
            return Next::Lagged;
        };
        if state.lagged {
            return Next::Lagged;
        }
        let number = state.next;
        // What it has not read is kept: `first` has not passed it.
        let Some(kept) = self.frames.get((number - self.first) as usize) else {
            return match &self.finish {
                Some(finish) => Next::Finish(finish.clone()),
                None if was_full => Next::Full,
                None => Next::Nothing,
            };
        };
        let bytes = kept.bytes.clone();
        state.next += 1;
        state.at += bytes.len() as u64;
        self.pass(number, number + 1);
        let rouse = was_full && !self.is_full();
        Next::Frame { bytes, rouse }
    }

    /// Whether there is nothing for a reader to read but what is pulled next.
    pub(super) fn is_at_end(&self, reader: usize) -> bool {
        let newest = self.first + self.frames.len() as u64;
        self.finish.is_none()
            && self
                .readers
                .get(reader)
                .is_some_and(|reader| !reader.lagged && reader.next == newest)
    }

    /// Adds what was pulled. True: with this it has begun to slide.
    pub(super) fn push(&mut self, bytes: Bytes) -> bool {
        self.end += bytes.len() as u64;
        let left = match self.whole {
            true => 0,
            false => self
                .readers
                .iter()
                .filter(|(_, reader)| !reader.lagged)
                .count(),
        };
        self.frames.push_back(Kept { bytes, left });
        self.trim();
        if !self.whole || self.end <= self.cap {
            return false;
        }
        // Whole => Sliding
        self.whole = false;
        for (number, kept) in (self.first..).zip(&mut self.frames) {
            let left = self
                .readers
                .iter()
                .filter(|(_, reader)| reader.next <= number);
            kept.left = left.count();
        }
        self.trim();
        true
    }

    pub(super) fn finish_with(&mut self, finish: Finish) {
        self.finish = Some(finish);
    }

    /// Gives up the readers for which too much is kept. True if there is room then.
    pub(super) fn lag_out(&mut self) -> bool {
        if !self.is_full() {
            return true;
        }
        let newest = self.first + self.frames.len() as u64;
        let mut passed = Vec::new();
        for (_, reader) in &mut self.readers {
            if !reader.lagged && reader.at < self.end && self.end - reader.at >= self.cap {
                reader.lagged = true;
                passed.push(reader.next);
            }
        }
        for next in passed {
            self.pass(next, newest);
        }
        !self.is_full()
    }

    /// As much is kept as may be: the cap, and one frame, since frames are pulled whole.
    fn is_full(&self) -> bool {
        !self.whole && self.end > self.start && self.end - self.start >= self.cap
    }

    /// A reader needs the frames from `from` to before `to` no more.
    fn pass(&mut self, from: u64, to: u64) {
        if self.whole {
            return;
        }
        for number in from..to {
            if let Some(kept) = self.frames.get_mut((number - self.first) as usize) {
                kept.left -= 1;
            }
        }
        self.trim();
    }

    fn trim(&mut self) {
        if self.whole {
            return;
        }
        while self.frames.front().is_some_and(|kept| kept.left == 0) {
            if let Some(kept) = self.frames.pop_front() {
                self.first += 1;
                self.start += kept.bytes.len() as u64;
            }
        }
    }
}
