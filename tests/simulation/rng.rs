//! The one source of chance: a seed decides everything.

#[path = "../support/rng.rs"]
mod splitmix;

use std::time::Duration;

pub(crate) use self::splitmix::Rng;
use crate::support::{ms, secs};

impl Rng {
    /// One of its own for `what`, whatever else is drawn from this one.
    pub(crate) fn fork(seed: u64, what: u64, number: u64) -> Self {
        let mut rng = Self(seed ^ what.wrapping_mul(0xA076_1D64_78BD_642F));
        rng.0 = rng.next() ^ number.wrapping_mul(0xE703_7ED1_A0B4_28DB);
        rng.next();
        rng
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub(crate) fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True `times` in a hundred thousand.
    pub(crate) fn rarely(&mut self, times: u64) -> bool {
        self.below(100_000) < times
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())].clone()
    }

    /// A time on the scale of starts and calls: mostly milliseconds.
    pub(crate) fn short(&mut self) -> Duration {
        match self.below(8) {
            0 => Duration::ZERO,
            1..=4 => ms(self.range(1, 50)),
            5 | 6 => ms(self.range(50, 1_000)),
            _ => ms(self.range(1_000, 20_000)),
        }
    }

    /// A time on any scale, up to hours.
    pub(crate) fn any(&mut self) -> Duration {
        match self.below(6) {
            0 | 1 => self.short(),
            2 => secs(self.range(1, 30)),
            3 => secs(self.range(30, 900)),
            4 => secs(self.range(900, 7_200)),
            _ => ms(self.range(1, 3_000)),
        }
    }
}
