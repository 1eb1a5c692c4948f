//! The one source of chance: a seed decides everything.

use std::time::Duration;

use crate::support::{ms, secs};

/// SplitMix64.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    /// One of its own for `what`, whatever else is drawn from this one.
    pub(crate) fn fork(seed: u64, what: u64, number: u64) -> Self {
        let mut rng = Self(seed ^ what.wrapping_mul(0xA076_1D64_78BD_642F));
        rng.0 = rng.next() ^ number.wrapping_mul(0xE703_7ED1_A0B4_28DB);
        rng.next();
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..below`.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(below)) >> 64) as u64
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
