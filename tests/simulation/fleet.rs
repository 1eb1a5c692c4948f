//! A random fleet: which backends there are, under which options, in which stacks.

use std::{ops::Deref, sync::Arc, time::Duration};

use tower::{Layer, ServiceBuilder};
use tower_on_demand::{
    CeilingLayer, Error, Group, Handle, IdleEvictLayer, Keyed, KeyedLayer, LazyStart,
    LazyStartLayer, Leased, Runtime,
    ceiling::By,
    test_util::{Counted, Counts},
};
use tower_service::Service;

use crate::{
    fake::{
        AsAsked, Asking, Caller, DropMaker, InFlight, Maker, Reply, Request, Spec, is_not_use,
        is_only_if_running, key_of, weight_of,
    },
    rng::Rng,
    support::{BoxFuture, ms, secs},
    world::{Bk, World},
};

type Says = fn(&Request) -> bool;
pub(crate) type Evictable = IdleEvictLayer<AsAsked, Says>;
type Ceiling = CeilingLayer<By<fn(&Spec) -> u64>>;
/// What a key's callers lease.
pub(crate) type KeyedLease = Leased<Caller, AsAsked, Says>;
pub(crate) type Tenants = Keyed<usize, KeyedLease, fn(&Request) -> Option<usize>>;

/// Which layers a backend stands under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// All of them.
    Full,
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
        matches!(self, Kind::Full | Kind::FullDrop | Kind::NoCeiling)
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
                0..=12 => Kind::Full,
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
    fn vary(&self, rng: &mut Rng, uniform: bool) -> Self {
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

    fn lazy(&self, layer: LazyStartLayer<Spec>) -> LazyStartLayer<Spec> {
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

    fn ceiling(&self, ceiling: &CeilingLayer) -> Ceiling {
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

    fn evict(&self, evictable: &Evictable) -> Evictable {
        let evictable = evictable.clone().idle_after(self.idle_after);
        evictable.pinned(self.pinned)
    }
}

/// A lease that is kept.
pub(crate) struct Kept {
    in_flight: InFlight,
    _lent: Box<dyn Send>,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let _ = &self.in_flight;
        f.write_str("Kept")
    }
}

pub(crate) type Called = BoxFuture<Result<Reply, Error>>;

/// What callers and the operator have of a backend.
pub(crate) struct Door {
    pub(crate) call: Box<dyn Fn(Request) -> (Called, Counts)>,
    pub(crate) lend: Box<dyn Fn(u64) -> BoxFuture<Result<Kept, Error>>>,
    pub(crate) handle: Handle<Spec>,
}

pub(crate) struct Node {
    pub(crate) spec: Spec,
    pub(crate) options: Options,
    pub(crate) door: Option<Door>,
}

/// What all stacks share.
pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) world: Arc<World>,
    pub(crate) group: Group,
    pub(crate) ceiling: CeilingLayer,
    pub(crate) evictable: Evictable,
}

pub(crate) fn says_not_use(evictable: IdleEvictLayer<AsAsked>) -> Evictable {
    evictable.not_use(is_not_use as Says)
}

impl Shared {
    fn maker(&self) -> Maker {
        Maker(self.world.clone())
    }

    fn asking<M>(&self, maker: M) -> Asking<M> {
        Asking {
            world: self.world.clone(),
            maker,
        }
    }

    pub(crate) fn node(&self, index: usize, plan: &Plan, rng: &mut Rng) -> Node {
        let options = plan.each.vary(rng, plan.uniform);
        let name = format!("b{index}");
        let spec = Spec {
            backend: index,
            name: name.as_str().into(),
            weight: options.weight,
            version: 0,
        };
        let mut backend = options.backend(&name);
        backend.stop_bound = options.stop_timeout.unwrap_or(secs(60));
        self.world.lock().backends.push(backend);
        let door = self.door(&spec, &options);
        Node {
            spec,
            options,
            door: Some(door),
        }
    }

    fn door(&self, spec: &Spec, options: &Options) -> Door {
        let lazy = LazyStartLayer::new(self.runtime.clone(), spec.clone()).join(&self.group);
        let lazy = options
            .lazy(lazy)
            .only_if_running(is_only_if_running as Says);
        let evict = options.evict(&self.evictable);
        let ceiling = options.ceiling(&self.ceiling);
        let plain = |answer| Reply { answer, busy: None };
        let stack = ServiceBuilder::new().layer(lazy);
        match options.kind {
            Kind::Full => {
                let maker = self.asking(ceiling.layer(self.maker()));
                door(stack.layer(evict).service(maker), |reply| reply)
            }
            Kind::FullDrop => {
                let maker = self.asking(ceiling.layer(DropMaker(self.maker())));
                door(stack.layer(evict).service(maker), |reply| reply)
            }
            Kind::Uncounted => {
                let maker = self.asking(ceiling.layer(self.maker()));
                door(stack.service(maker), plain)
            }
            Kind::UncountedDrop => {
                let maker = self.asking(ceiling.layer(DropMaker(self.maker())));
                door(stack.service(maker), plain)
            }
            Kind::NoCeiling => {
                let stack = stack.layer(evict).service(self.maker());
                door(stack, |reply| reply)
            }
            Kind::Alone => door(stack.service(self.maker()), plain),
        }
    }

    /// Backends known only at run time, all with the options of all.
    pub(crate) fn tenants(&self, plan: &Plan, first: usize) -> Tenants {
        let options = Options {
            kind: Kind::Full,
            ..plan.each.clone()
        };
        for key in 0..plan.keys {
            let mut backend = options.backend(&format!("k{key}"));
            backend.keyed = true;
            backend.stop_bound = options.stop_timeout.unwrap_or(secs(60));
            self.world.lock().backends.push(backend);
        }
        let maker = options.ceiling(&self.ceiling).layer(self.maker());
        let maker = options.evict(&self.evictable).layer(self.asking(maker));
        let (group, weight) = (self.group.clone(), options.weight);
        let most = plan.max_keys;
        KeyedLayer::new(
            self.runtime.clone(),
            key_of as fn(&Request) -> Option<usize>,
            move |key: &usize| {
                let spec = Spec {
                    backend: first + key,
                    name: format!("k{key}").into(),
                    weight,
                    version: 0,
                };
                Ok::<_, Error>(spec)
            },
        )
        .each(move |layer| options.lazy(layer).join(&group))
        .max_keys(most)
        .layer(maker)
    }
}

trait Leads {
    fn caller(&self) -> &Caller;
}

impl Leads for Caller {
    fn caller(&self) -> &Caller {
        self
    }
}

impl<S: Leads, H, P> Leads for Leased<S, H, P> {
    fn caller(&self) -> &Caller {
        self.deref().caller()
    }
}

fn door<L>(
    service: LazyStart<Spec, L, Says>,
    reply: impl Fn(L::Response) -> Reply + Copy + Send + 'static,
) -> Door
where
    L: Service<Request> + Leads + Send + 'static,
    L::Error: Into<tower_on_demand::BoxError>,
    L::Future: Send,
    L::Response: 'static,
{
    let handle = service.handle();
    let lender = service.clone();
    Door {
        call: Box::new(move |request| {
            let mut service = service.clone();
            counted(service.call(request), reply)
        }),
        lend: Box::new(move |call| {
            let lending = lender.lend();
            Box::pin(async move {
                let lent = lending.await?;
                Ok(Kept {
                    in_flight: lent.caller().keep(call),
                    _lent: Box::new(lent),
                })
            })
        }),
        handle,
    }
}

/// A call of a key.
pub(crate) fn call_key(tenants: &Tenants, request: Request) -> (Called, Counts) {
    counted(tenants.clone().call(request), |reply| reply)
}

fn counted<F, R>(future: F, reply: impl Fn(R) -> Reply + Send + 'static) -> (Called, Counts)
where
    F: Future<Output = Result<R, Error>> + Send + 'static,
{
    let counted = Counted::new(future);
    let counts = counted.counts();
    (Box::pin(async move { counted.await.map(reply) }), counts)
}
