//! Everything at once, at random, and from several threads: what must hold holds throughout.

use std::time::Duration;

use tower::{Layer, ServiceExt};
use tower_on_demand::{CeilingLayer, ErrorKind, IdleEvict, LazyStartLayer, Runtime, UntilResponse};

use crate::{
    common::{Call, Host},
    support::{World, ms, secs},
};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[test]
fn c1_c5_e1_w1_a_storm_keeps_the_limit_cuts_no_call_and_leaves_nothing_behind() {
    for seed in 1..=150 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let limit = 4 + random.below(4);
        // A fake that died is alive, to its own count, while calls are in flight on it.
        let deaths = seed % 2 == 0;
        let host = Host::new(seed, limit);
        let weights: Vec<u64> = (0..12).map(|_| 1 + random.below(3)).collect();
        let pinned = random.below(2);
        let stacks: Vec<_> = (0..12)
            .map(|n| {
                let name = format!("b{n}");
                host.world.plan(&name, |plan| {
                    plan.start = ms(random.below(30));
                    plan.stop = ms(random.below(30));
                });
                host.stack_with(&name, |it| {
                    let mut ceiling = it.ceiling.clone().weight(weights[n]).strict();
                    if random.one_in(3) {
                        ceiling = ceiling.yield_after(ms(random.below(200)));
                    }
                    if random.one_in(3) {
                        ceiling = ceiling.min_residency(ms(random.below(100)));
                    }
                    if random.one_in(4) {
                        ceiling = ceiling.wait(ms(random.below(300)));
                    }
                    it.ceiling = ceiling;
                    it.lazy = it.lazy.clone().backoff(ms(1), ms(5));
                    if random.one_in(3) {
                        it.lazy = it.lazy.clone().cancel_when_abandoned();
                    }
                    it.evictable = it.evictable.clone().pinned((n as u64) < pinned);
                })
            })
            .collect();
        let mut calls: Vec<Call> = Vec::new();

        for _ in 0..300 {
            match random.below(20) {
                0..=11 => {
                    let stack = &stacks[random.below(12) as usize];
                    calls.push(host.call(stack, ms(random.below(60))));
                }
                12 if !calls.is_empty() => {
                    let gone = random.below(calls.len() as u64) as usize;
                    drop(calls.swap_remove(gone));
                }
                13 => {
                    let name = format!("b{}", random.below(12));
                    host.world.plan(&name, |plan| plan.failing = 1);
                }
                14 if deaths => host.world.kill(&format!("b{}", random.below(12))),
                15 if random.one_in(4) => {
                    host.ceiling.set_limit(3 + random.below(8));
                }
                _ => host.clock.advance(ms(random.below(20))),
            }
            let room = host.ceiling.occupancy();
            let alive: u64 = (0..12)
                .map(|n| host.world.saw(&format!("b{n}")).alive * weights[n])
                .sum();
            assert!(
                deaths || alive <= room.used,
                "seed {seed}: {alive} are alive, {room:?}"
            );
        }
        host.ceiling.set_limit(9);
        for call in calls {
            if let Err(error) = host.clock.block_on(call) {
                let expected = matches!(
                    error.kind(),
                    ErrorKind::NoRoom(_)
                        | ErrorKind::StartFailed
                        | ErrorKind::BackingOff { .. }
                        | ErrorKind::Died
                        | ErrorKind::NeverFits { .. }
                        | ErrorKind::Evicted
                );
                assert!(expected, "seed {seed}: {error:?}");
            }
        }
        // Back within the limit, once nothing is in use.
        host.clock.advance(secs(1));
        assert!(host.ceiling.occupancy().used <= 9);
        for stack in &stacks {
            let _ = host.clock.block_on(stack.clone().oneshot(ms(1)));
        }
        for n in 0..12 {
            let saw = host.world.saw(&format!("b{n}"));
            assert_eq!(
                (saw.misdelivered, saw.in_flight),
                (0, 0),
                "seed {seed}: b{n}"
            );
            assert!(deaths || saw.peak <= 1, "seed {seed}: b{n}");
        }
        host.over(stacks);
    }
}

#[test]
fn c1_w1_heads_are_counted_exactly_in_a_storm_without_deaths() {
    for seed in 1..=100 {
        let mut random = Random(0x2545_f491_4f6c_dd1d_u64.wrapping_mul(seed));
        let host = Host::new(seed, 3);
        let stacks: Vec<_> = (0..10)
            .map(|n| {
                let name = format!("b{n}");
                host.world.plan(&name, |plan| {
                    plan.start = ms(random.below(20));
                    plan.stop = ms(random.below(20));
                });
                host.stack(&name)
            })
            .collect();
        let mut calls: Vec<Call> = Vec::new();
        for _ in 0..200 {
            let stack = &stacks[random.below(10) as usize];
            calls.push(host.call(stack, ms(random.below(30))));
            if random.one_in(3) {
                host.clock.advance(ms(random.below(25)));
            }
        }
        let count = calls.len() as u64;
        for call in calls {
            host.clock.block_on(call).expect("it is served");
        }
        let saw = (0..10).map(|n| host.world.saw(&format!("b{n}")));
        let answered: u64 = saw.clone().map(|saw| saw.answered).sum();
        let cut: u64 = saw.map(|saw| saw.cut + saw.misdelivered).sum();
        assert_eq!((answered, cut, host.world.peak()), (count, 0, 3));
        host.over(stacks);
    }
}

#[test]
fn e1_e2_on_many_threads_no_call_meets_a_condemned_instance_and_the_limit_holds() {
    const BACKENDS: u64 = 6;
    const CALLERS: u64 = 8;
    const CALLS: u64 = if cfg!(miri) { 2 } else { 150 };
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("threads");
    threads.block_on(async {
        let runtime = Runtime::tokio();
        let world = World::new(&runtime);
        let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
        let evictable = evictable.idle_after(ms(2));
        let ceiling = CeilingLayer::new(runtime.clone(), 2).wait(Duration::from_secs(120));
        let sweeper = tokio::spawn(idle_evict.run());
        let stacks: Vec<_> = (0..BACKENDS)
            .map(|n| {
                let name = format!("b{n}");
                world.plan(&name, |plan| (plan.start, plan.stop) = (ms(0), ms(0)));
                LazyStartLayer::new(runtime.clone(), name)
                    .layer(evictable.layer(ceiling.layer(world.maker())))
            })
            .collect();
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let stacks = stacks.clone();
                tokio::spawn(async move {
                    let mut random = Random(caller + 1);
                    for _ in 0..CALLS {
                        let stack = &stacks[random.below(BACKENDS) as usize];
                        let takes = Duration::from_micros(random.below(3) * 300);
                        stack.clone().oneshot(takes).await.expect("it is served");
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.expect("no panic");
        }
        let saw = (0..BACKENDS).map(|n| world.saw(&format!("b{n}")));
        let answered: u64 = saw.clone().map(|saw| saw.answered).sum();
        let wrong: u64 = saw.map(|saw| saw.cut + saw.misdelivered).sum();
        assert_eq!((answered, wrong), (CALLERS * CALLS, 0));
        assert!(world.peak() <= 2, "{}", world.peak());
        drop((stacks, evictable));
        sweeper.await.expect("it ends with the last instance");
        assert_eq!((ceiling.occupancy().used, world.alive()), (0, 0));
    });
}
