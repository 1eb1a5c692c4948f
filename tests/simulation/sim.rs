//! One run: a fleet, random steps, and the end of it all.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower::Service;
use tower_on_demand::{
    CeilingLayer, Group, IdleEvict, Sweep,
    test_util::{self, Clock, Task},
};

use crate::{
    fake::AsAsked,
    fleet::{Held, Node, Pool, Shared, Tenants, says_not_use},
    options::Plan,
    rng::Rng,
    support::{BoxFuture, ms, secs},
    world::World,
};

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) story: Vec<(Duration, String)>,
    pub(crate) polls: u64,
    /// Of one call beyond its own, and wakes of one start in line.
    pub(crate) most: (u64, u64),
}

/// A call under way, on a task or in the driver's hand.
pub(crate) struct Going {
    pub(crate) backend: usize,
    pub(crate) how: How,
}

pub(crate) enum How {
    Task(Task<()>),
    Hand(BoxFuture<()>),
}

pub(crate) struct Sim {
    pub(crate) seed: u64,
    pub(crate) rng: Rng,
    pub(crate) plan: Plan,
    pub(crate) clock: Clock,
    pub(crate) world: Arc<World>,
    pub(crate) shared: Option<Shared>,
    pub(crate) group: Group,
    pub(crate) ceiling: Option<CeilingLayer>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tenants: Option<Tenants>,
    pub(crate) pool: Option<Pool>,
    pub(crate) inner: Option<CeilingLayer>,
    pub(crate) going: Vec<Going>,
    pub(crate) kept: Vec<(usize, Arc<AtomicBool>, Task<Option<Held>>)>,
    pub(crate) orders: Vec<(usize, Task<()>)>,
    pub(crate) sweeper: Option<Task<()>>,
    pub(crate) executor_gone: bool,
    pub(crate) closed: bool,
    pub(crate) evictions: BTreeMap<usize, (u64, u64)>,
    pub(crate) restarts: BTreeMap<usize, u64>,
    /// Who was idle at the last look, and since when at most.
    pub(crate) idle: BTreeMap<usize, Duration>,
    pub(crate) keys: usize,
}

/// Runs a seed to its end.
pub(crate) fn run(seed: u64, story: bool) -> Outcome {
    let mut rng = Rng::fork(seed, 0, 0);
    let plan = Plan::new(&mut rng);
    let (runtime, clock) = test_util::runtime(seed);
    let world = World::new(&runtime, seed, plan.hostility, story);
    let (layer, sweeper) = IdleEvict::pair(runtime.clone(), AsAsked);
    let ceiling = match plan.limit {
        Some(limit) => CeilingLayer::new(runtime.clone(), limit),
        None => CeilingLayer::unbounded(runtime.clone()),
    };
    world.set_ceiling(Some(ceiling.clone()));
    let shared = Shared {
        runtime: runtime.clone(),
        world: world.clone(),
        group: Group::new(),
        ceiling: ceiling.clone(),
        inner: CeilingLayer::new(runtime.clone(), rng.range(1, 4)),
        evictable: says_not_use(layer),
    };
    let nodes = (0..plan.backends)
        .map(|index| shared.node(index, &plan, &mut rng))
        .collect();
    let tenants = (plan.keys > 0).then(|| shared.tenants(&plan, plan.backends));
    let pool = rng
        .percent(30)
        .then(|| shared.pool(&plan, plan.backends + plan.keys));
    let mut sim = Sim {
        pool,
        inner: Some(shared.inner.clone()),
        seed,
        rng,
        clock,
        world,
        group: shared.group.clone(),
        shared: Some(shared),
        ceiling: Some(ceiling),
        nodes,
        tenants,
        going: Vec::new(),
        kept: Vec::new(),
        orders: Vec::new(),
        sweeper: None,
        executor_gone: false,
        closed: false,
        evictions: BTreeMap::new(),
        restarts: BTreeMap::new(),
        idle: BTreeMap::new(),
        keys: 0,
        plan,
    };
    {
        let mut state = sim.world.lock();
        state.unlimited = sim.plan.limit.is_none();
        state.yields = sim.nodes.iter().any(|it| it.options.yield_after.is_some())
            || sim.plan.each.yield_after.is_some();
        state.looks = sim.nodes.iter().any(|it| !it.options.residency.is_zero())
            || !sim.plan.each.residency.is_zero();
    }
    sim.introduce();
    sim.sweeps(sweeper);
    let steps = sim.rng.range(30, 160);
    for _ in 0..steps {
        sim.act();
        let before = sim.clock.polls();
        sim.pass();
        let polls = sim.clock.polls() - before;
        if polls > 10_000 {
            sim.world.tell(|| format!("that took {polls} polls"));
        }
        if !sim.world.lock().violations.is_empty() {
            break;
        }
    }
    if sim.world.lock().violations.is_empty() {
        sim.end();
    }
    let polls = sim.clock.polls();
    let world = sim.world.clone();
    // What is left after a violation may well panic.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(sim)));
    world.set_ceiling(None);
    let mut state = world.lock();
    Outcome {
        violations: std::mem::take(&mut state.violations),
        counts: std::mem::take(&mut state.counts),
        story: state.story.take().unwrap_or_default(),
        polls,
        most: (state.most_polls, state.most_wakes),
    }
}

impl Sim {
    fn introduce(&self) {
        let world = &self.world;
        world.tell(|| {
            format!(
                "seed {}: {} backends, {} keys, limit {:?}, hostility {}",
                self.seed, self.plan.backends, self.plan.keys, self.plan.limit, self.plan.hostility
            )
        });
        for node in &self.nodes {
            world.tell(|| format!("{}: {:?}", node.spec.name, node.options));
        }
        if self.tenants.is_some() {
            world.tell(|| format!("keys: {:?}", self.plan.each));
        }
    }

    /// Who retires what is idle: nobody, `run`, or one who checks what is said of it.
    fn sweeps(&mut self, mut sweeper: IdleEvict) {
        let world = self.world.clone();
        let runtime = world.runtime.clone();
        let sweeper: BoxFuture<()> = match self.rng.below(10) {
            0 => {
                drop(sweeper);
                return;
            }
            1 | 2 => Box::pin(sweeper.run()),
            3 => {
                let until = self.rng.any();
                let world = world.clone();
                Box::pin(async move {
                    let told = async {
                        runtime.sleep(until).await;
                        // It sweeps no more, and waits for what it has swept.
                        world.lock().sweeps = false;
                    };
                    sweeper.run_until(told).await;
                    world.count("a sweeper ended when it was told to");
                })
            }
            _ => {
                let world = world.clone();
                Box::pin(async move {
                    while poll_fn(|cx| sweeper.poll_ready(cx)).await.is_ok() {
                        let swept = sweeper.call(Sweep).await.expect("it never fails");
                        let gone = world.swept(&swept);
                        let world = world.clone();
                        runtime.spawn(async move {
                            swept.gone().await;
                            world.swept_are_gone(&gone);
                        });
                    }
                })
            }
        };
        world.lock().sweeps = true;
        self.sweeper = Some(self.clock.spawn(sweeper));
    }

    /// Some time passes, or some of the tasks run.
    fn pass(&mut self) {
        match self.rng.below(20) {
            0..=3 => return,
            4..=8 => {
                let turns = self.rng.range(1, 12);
                self.clock.block_on(Turns(turns));
            }
            9..=12 => self.clock.run(),
            13..=16 => self.clock.advance(self.rng.short()),
            17 | 18 => self.clock.advance(self.rng.any()),
            _ => match self.clock.next_timer() {
                // To the very moment at which something is due.
                Some(next) => self.clock.advance(next.min(secs(7_200))),
                None => self.clock.run(),
            },
        }
        self.clock.run();
        self.check();
    }

    /// Drives the clock on until `future` is done, at most for `within`.
    pub(crate) fn finish<F: Future>(&self, within: Duration, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let end = self.clock.elapsed() + within;
        loop {
            // What it asks for when it is polled is done before it is polled again.
            for _ in 0..2 {
                let polled = future
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(done) = polled {
                    return Some(done);
                }
                self.clock.run();
            }
            let next = self.clock.next_timer()?;
            if self.clock.elapsed() + next > end {
                return None;
            }
            self.clock.advance(next);
        }
    }

    pub(crate) fn drop_going(&mut self, index: usize) {
        let going = self.going.swap_remove(index);
        self.world.touch_backend(going.backend);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(going.how)));
    }

    pub(crate) fn poll_going(&mut self, index: usize) {
        let going = &mut self.going[index];
        if let How::Hand(future) = &mut going.how {
            let mut cx = Context::from_waker(Waker::noop());
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
            if !matches!(polled, Ok(Poll::Pending)) {
                self.drop_going(index);
            }
        }
    }

    /// Whether anybody of this test has anything of the backend.
    pub(crate) fn has_anything(&self, backend: usize) -> bool {
        self.going.iter().any(|it| it.backend == backend)
            || self.kept.iter().any(|it| it.0 == backend)
            || self.orders.iter().any(|it| it.0 == backend)
    }

    pub(crate) fn forget_done(&mut self) {
        self.going
            .retain(|it| !matches!(&it.how, How::Task(task) if task.is_finished()));
        self.orders.retain(|(_, task)| !task.is_finished());
        self.kept
            .retain(|(_, lent, task)| !task.is_finished() || lent.load(Ordering::Relaxed));
    }
}

/// Lets some of the tasks run: it is done after so many turns of its own.
struct Turns(u64);

impl Future for Turns {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Drops `future` after so many polls.
pub(crate) async fn left_after(polls: u64, future: BoxFuture<()>) {
    let mut future = Some(future);
    let mut polls = polls;
    poll_fn(move |cx| {
        let Some(inner) = &mut future else {
            return Poll::Ready(());
        };
        let polled = inner.as_mut().poll(cx);
        if polls == 0 {
            future = None;
            return Poll::Ready(());
        }
        polls -= 1;
        polled
    })
    .await;
}

pub(crate) const HOUR: Duration = secs(3_600);
pub(crate) const SLACK: Duration = ms(1);
