//! After failed starts and crashes: when to try again.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use crate::seldom::Seldom;

/// The first window; it doubles with every failure in a row.
const FIRST: Duration = Duration::from_millis(100);
/// The longest window, and how long an instance must live for its life to count as a good one.
const LONGEST: Duration = Duration::from_secs(30);
/// The shortest pause after anything that went wrong, so that no restart is tried without end.
const SHORTEST: Duration = Duration::from_millis(1);
/// Beyond this no window is told from another, and no clock overflows.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// How a backend's failed starts and crashes bound its next starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    /// At most so many crashes within the time.
    pub(crate) budget: Option<(u32, Duration)>,
}

impl Policy {
    pub(crate) fn set_backoff(&mut self, first: Duration, longest: Duration) {
        self.first = first.min(FOR_EVER);
        self.longest = longest.max(first).min(FOR_EVER);
    }

    pub(crate) fn set_budget(&mut self, most: u32, per: Duration) {
        self.budget = Some((most, per.min(FOR_EVER)));
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            first: FIRST,
            longest: LONGEST,
            budget: None,
        }
    }
}

/// What has failed lately.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Starts that failed in a row.
    failed: u32,
    /// Lives in a row that ended in a crash before they were good.
    short_lives: u32,
    /// Restarts in a row that were refused: no room, say.
    refused: u32,
    /// How often it was all forgotten.
    resets: u32,
    /// No start before.
    until: Option<Instant>,
    /// The latest crashes, oldest first, as many as the budget allows.
    crashes: Seldom<VecDeque<Instant>>,
}

/// No start yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotYet {
    pub(crate) failures: u32,
    pub(crate) left: Duration,
}

impl History {
    /// Whether a start may be tried now.
    pub(crate) fn check(&self, policy: &Policy, now: Instant) -> Result<(), NotYet> {
        if let Some(left) = left(self.until, now) {
            return Err(NotYet {
                failures: self.failed,
                left,
            });
        }
        if let Some((most, per)) = policy.budget {
            let crashes = self.crashes.get();
            let spent = crashes.map_or(0, VecDeque::len) >= most as usize;
            let oldest = crashes.and_then(VecDeque::front);
            let frees = oldest.map(|oldest| *oldest + per);
            if let Some(left) = left(frees, now).filter(|_| spent) {
                return Err(NotYet {
                    failures: most,
                    left,
                });
            }
        }
        Ok(())
    }

    /// Whether a failure keeps starts away now, or counts against the budget.
    pub(crate) fn is_recent(&self, policy: &Policy, now: Instant) -> bool {
        let counts = |per| {
            let latest = self.crashes.get().and_then(VecDeque::back);
            latest.is_some_and(|crash| now < *crash + per)
        };
        left(self.until, now).is_some() || policy.budget.is_some_and(|(_, per)| counts(per))
    }

    /// A start failed.
    pub(crate) fn start_failed(&mut self, policy: &Policy, now: Instant, seed: impl Hash) {
        self.failed = self.failed.saturating_add(1);
        self.until = Some(now + window(policy, self.failed, seed));
    }

    /// A start succeeded.
    pub(crate) fn started(&mut self) {
        self.until = None;
        self.refused = 0;
    }

    /// A restart was refused. That is no failure, but it is not tried again at once.
    pub(crate) fn restart_refused(&mut self) {
        self.refused = self.refused.saturating_add(1);
    }

    /// An instance crashed after `lived`.
    pub(crate) fn crashed(&mut self, policy: &Policy, now: Instant, lived: Duration) {
        if lived >= policy.longest {
            self.good_life();
        } else {
            self.short_lives = self.short_lives.saturating_add(1);
        }
        if let Some((most, _)) = policy.budget {
            let crashes = self.crashes.make();
            while crashes.len() >= (most as usize).max(1) {
                crashes.pop_front();
            }
            crashes.push_back(now);
        }
    }

    /// An instance ended as it should, or has lived long enough.
    pub(crate) fn good_life(&mut self) {
        self.failed = 0;
        self.short_lives = 0;
    }

    /// How long what must keep running waits before it is started again.
    pub(crate) fn restart_after(&self, policy: &Policy, now: Instant, seed: impl Hash) -> Duration {
        let pause = match self.short_lives.max(self.refused).max(self.failed) {
            0 => Duration::ZERO,
            times => window(policy, times, seed).max(SHORTEST),
        };
        let not_yet = self.check(policy, now).err().map(|not_yet| not_yet.left);
        pause.max(not_yet.unwrap_or_default())
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            resets: self.resets.wrapping_add(1),
            ..Self::default()
        };
    }

    pub(crate) fn resets(&self) -> u32 {
        self.resets
    }
}

fn left(until: Option<Instant>, now: Instant) -> Option<Duration> {
    let left = until?.saturating_duration_since(now);
    (!left.is_zero()).then_some(left)
}

/// `first` doubled `failures - 1` times, at most `longest`, less up to a quarter. What it is less by
/// comes from `seed`, so that backends which failed together do not try together.
fn window(policy: &Policy, failures: u32, seed: impl Hash) -> Duration {
    let doubled = 2u32
        .checked_pow(failures.saturating_sub(1))
        .and_then(|factor| policy.first.checked_mul(factor))
        .unwrap_or(policy.longest);
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    let jitter = (hasher.finish() % 1024) as u32;
    let whole = doubled.min(policy.longest);
    whole - whole / 4096 * jitter
}
