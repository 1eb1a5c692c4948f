//! Chance, from a seed.

#[path = "../support/rng.rs"]
mod splitmix;

pub(crate) use self::splitmix::Rng;

impl Rng {
    pub(crate) fn new(seed: u64, who: u64) -> Self {
        let mut rng = Self(seed ^ who.wrapping_mul(0xA076_1D64_78BD_642F));
        rng.next();
        rng
    }

    /// One of `from..=to`.
    pub(crate) fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
