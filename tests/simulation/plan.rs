//! What an instance will do.

use std::time::Duration;

use crate::rng::Rng;

/// What an instance will do: drawn when it is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) start: Duration,
    /// It wakes itself so often before it starts.
    pub(crate) fidgets: u32,
    pub(crate) never_ready: bool,
    pub(crate) fails: bool,
    pub(crate) make_panics: bool,
    pub(crate) poll_panics: bool,
    /// The start future panics when it is dropped before it is done.
    pub(crate) drop_panics: bool,
    pub(crate) lives: Option<Duration>,
    pub(crate) unhealthy: bool,
    pub(crate) retired_panics: bool,
    pub(crate) retired_poll_panics: bool,
    pub(crate) stop: Duration,
    pub(crate) never_stops: bool,
    pub(crate) stop_panics: bool,
    pub(crate) stop_poll_panics: bool,
    pub(crate) with_the_last_lease: bool,
    /// Every so many leases one panics.
    pub(crate) lease_panics: Option<u32>,
    pub(crate) lease_drop_panics: Option<u32>,
    pub(crate) backend_drop_panics: bool,
    /// A lease is ready only after so long.
    pub(crate) slow_ready: Option<Duration>,
    /// After so many leases the next ones fail to become ready.
    pub(crate) breaks: Option<u32>,
}

/// What is not as usual.
pub(crate) fn shown(plan: &Plan) -> String {
    let all = format!("{plan:?}");
    let fields = all.trim_start_matches("Plan { ").trim_end_matches(" }");
    let telling = fields
        .split(", ")
        .filter(|it| !it.ends_with("false") && !it.ends_with("None") && !it.ends_with(": 0"));
    telling.collect::<Vec<_>>().join(", ")
}

/// What an instance will do, whatever else happens in its world.
pub(crate) fn plan(seed: u64, backend: usize, number: u64, hostility: u64) -> Plan {
    let mut rng = Rng::fork(seed, backend as u64 + 1, number);
    let h = hostility;
    // Some backends are worse than others.
    let bad = h * (1 + 3 * u64::from(Rng::fork(seed, backend as u64 + 1, u64::MAX).percent(20)));
    let mut plan = Plan {
        start: rng.short(),
        stop: rng.short(),
        fidgets: if rng.percent(10) { 3 } else { 0 },
        never_ready: rng.rarely(400 * bad),
        fails: rng.rarely(3_000 * bad),
        make_panics: rng.rarely(500 * bad),
        poll_panics: rng.rarely(500 * bad),
        drop_panics: rng.rarely(1_000 * h),
        lives: rng.rarely(6_000 * bad).then(|| rng.any()),
        unhealthy: rng.percent(20),
        retired_panics: rng.rarely(200 * h),
        retired_poll_panics: rng.percent(5),
        never_stops: rng.rarely(1_000 * h),
        stop_panics: rng.rarely(500 * h),
        stop_poll_panics: rng.rarely(500 * h),
        with_the_last_lease: rng.percent(10),
        lease_panics: rng.rarely(500 * h).then(|| rng.range(1, 8) as u32),
        lease_drop_panics: rng.rarely(300 * h).then(|| rng.range(1, 8) as u32),
        backend_drop_panics: rng.rarely(500 * h),
        slow_ready: rng.percent(5).then(|| rng.short()),
        breaks: rng.rarely(1_000 * bad).then(|| rng.range(1, 20) as u32),
    };
    if rng.percent(30) {
        plan.start = Duration::ZERO;
    }
    if rng.percent(30) {
        plan.stop = Duration::ZERO;
    }
    plan
}
