//! What a random fleet is like: its limit, its backends and their options.

use std::time::Duration;

use tower_on_demand::{CeilingLayer, LazyStartLayer};

use crate::{
    fleet::{Ceiling, Evictable},
    rng::Rng,
    start::{Spec, weight_of},
    support::{ms, secs},
    world::Bk,
};

/// Which layers a backend stands under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All of them.
    Full,
    /// All of them, with a second ceiling under the first.
    Nested,
    /// No `IdleEvict`.
    Uncounted,
    /// All of them, over a service that goes when it is dropped.
    FullDrop,
    /// That without `IdleEvict`.
    UncountedDrop,
    /// No `Ceiling`.
    NoCeiling,
    /// `LazyStart` alone.
    Alone,
}

impl Kind {
    pub(crate) fn evictable(self) -> bool {
        matches!(
            self,
            Kind::Full | Kind::Nested | Kind::FullDrop | Kind::NoCeiling
        )
    }

    pub(crate) fn under_ceiling(self) -> bool {
        !matches!(self, Kind::NoCeiling | Kind::Alone)
    }

    pub(crate) fn drops(self) -> bool {
        matches!(self, Kind::FullDrop | Kind::UncountedDrop)
    }
}

/// The options of one backend.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) pinned: bool,
    pub(crate) keep_running: bool,
    pub(crate) cancel: bool,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) drain: Duration,
    pub(crate) stop_timeout: Option<Duration>,
    pub(crate) backoff: Option<(Duration, Duration)>,
    pub(crate) budget: Option<(u32, Duration)>,
    pub(crate) max_callers: Option<usize>,
    pub(crate) wait: Duration,
    pub(crate) max_waiting: Option<usize>,
    pub(crate) strict: bool,
    pub(crate) yield_after: Option<Duration>,
    pub(crate) residency: Duration,
    pub(crate) weight: u64,
}

/// What is common to all.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) hostility: u64,
    pub(crate) backends: usize,
    pub(crate) keys: usize,
    pub(crate) max_keys: usize,
    pub(crate) limit: Option<u64>,
    pub(crate) uniform: bool,
    pub(crate) each: Options,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let backends = match rng.below(10) {
            0..=2 => rng.range(1, 3),
            3..=6 => rng.range(4, 8),
            7 | 8 => rng.range(9, 20),
            _ => rng.range(21, 40),
        } as usize;
        let keys = if rng.percent(25) {
            rng.range(1, 12) as usize
        } else {
            0
        };
        let uniform = rng.percent(60);
        let all = (backends + keys) as u64;
        let limit = match rng.below(12) {
            0 => None,
            1..=4 => Some(1),
            5..=8 => Some(rng.range(1, all.min(4))),
            _ => Some(rng.range(1, all)),
        };
        let limit = limit.map(|limit| if uniform { limit } else { limit * 2 });
        Self {
            hostility: rng.pick(&[0, 1, 1, 3]),
            backends,
            keys,
            max_keys: if rng.percent(30) { 3 } else { 1_000 },
            limit,
            uniform,
            each: Options::new(rng, uniform),
        }
    }
}

impl Options {
    /// Mostly tight, so that much happens.
    fn new(rng: &mut Rng, uniform: bool) -> Self {
        Self {
            kind: match rng.below(20) {
                0..=10 => Kind::Full,
                11 | 12 => Kind::Nested,
                13 | 14 => Kind::FullDrop,
                15 | 16 => Kind::Uncounted,
                17 => Kind::UncountedDrop,
                18 => Kind::NoCeiling,
                _ => Kind::Alone,
            },
            idle_after: match rng.below(10) {
                0..=2 => None,
                3 => Some(Duration::ZERO),
                _ => Some(rng.any().max(ms(50))),
            },
            pinned: rng.percent(10),
            keep_running: rng.percent(20),
            cancel: rng.percent(35),
            start_timeout: rng.percent(30).then(|| rng.any()),
            drain: match rng.below(3) {
                0 => Duration::ZERO,
                1 => rng.short(),
                _ => secs(30),
            },
            stop_timeout: rng.percent(30).then(|| rng.short()),
            backoff: rng
                .percent(50)
                .then(|| (rng.short().max(ms(1)), rng.any().max(secs(5)))),
            budget: rng.percent(20).then(|| (rng.range(1, 3) as u32, rng.any())),
            max_callers: rng.percent(15).then(|| rng.range(1, 4) as usize),
            wait: match rng.below(8) {
                0 if rng.percent(40) => Duration::ZERO,
                1 => Duration::MAX,
                2 => rng.short(),
                3 | 4 => secs(600),
                _ => secs(10),
            },
            max_waiting: rng.percent(20).then(|| rng.range(0, 4) as usize),
            strict: rng.percent(30),
            yield_after: rng.percent(50).then(|| rng.short()),
            residency: if rng.percent(25) {
                rng.short()
            } else {
                Duration::ZERO
            },
            weight: if uniform {
                1
            } else {
                rng.pick(&[0, 1, 1, 1, 2, 2, 3, 4])
            },
        }
    }

    /// As those of all, but for some.
    pub(crate) fn vary(&self, rng: &mut Rng, uniform: bool) -> Self {
        let new = Self::new(rng, uniform);
        if rng.percent(50) {
            return new;
        }
        Self {
            kind: new.kind,
            idle_after: new.idle_after,
            pinned: new.pinned,
            keep_running: new.keep_running,
            weight: new.weight,
            ..self.clone()
        }
    }

    fn pins(&self) -> bool {
        self.kind.evictable() && (self.pinned || self.idle_after == Some(Duration::ZERO))
    }

    pub(crate) fn backend(&self, name: &str) -> Bk {
        Bk {
            name: name.to_owned(),
            pinned: self.pins(),
            kept: self.keep_running,
            counted: self.kind.evictable() || self.kind.drops(),
            evictable: self.kind.evictable(),
            drops: self.kind.drops(),
            under_ceiling: self.kind.under_ceiling(),
            nested: self.kind == Kind::Nested,
            layer_pins: self.pins(),
            always_pinned: self.pinned,
            bound: self.idle_after.filter(|_| self.kind.evictable()),
            drain: self.drain,
            wait: self.wait,
            strict: self.strict,
            residency: self.residency,
            ..Bk::default()
        }
    }

    pub(crate) fn lazy(&self, layer: LazyStartLayer<Spec>) -> LazyStartLayer<Spec> {
        let mut layer = layer.drain_timeout(self.drain);
        if let Some(timeout) = self.start_timeout {
            layer = layer.start_timeout(timeout);
        }
        if let Some(timeout) = self.stop_timeout {
            layer = layer.stop_timeout(timeout);
        }
        if let Some((first, longest)) = self.backoff {
            layer = layer.backoff(first, longest);
        }
        if let Some((most, per)) = self.budget {
            layer = layer.restart_budget(most, per);
        }
        if let Some(most) = self.max_callers {
            layer = layer.max_callers(most);
        }
        if self.cancel {
            layer = layer.cancel_when_abandoned();
        }
        if self.keep_running {
            layer = layer.keep_running();
        }
        layer
    }

    pub(crate) fn ceiling(&self, ceiling: &CeilingLayer) -> Ceiling {
        let mut ceiling = ceiling
            .clone()
            .weigh(weight_of as fn(&Spec) -> u64)
            .wait(self.wait)
            .min_residency(self.residency);
        if let Some(most) = self.max_waiting {
            ceiling = ceiling.max_waiting(most);
        }
        if self.strict {
            ceiling = ceiling.strict();
        }
        if let Some(after) = self.yield_after {
            ceiling = ceiling.yield_after(after);
        }
        ceiling
    }

    pub(crate) fn evict(&self, evictable: &Evictable) -> Evictable {
        let evictable = evictable.clone().idle_after(self.idle_after);
        evictable.pinned(self.pinned)
    }
}
