//! A random fleet: which backends there are, under which options, in which stacks.

use std::{ops::Deref, sync::Arc};

use tower::{Layer, ServiceBuilder};
use tower_on_demand::{
    BoxError, CeilingLayer, Error, Group, Handle, IdleEvictLayer, KeepLayer, Keyed, KeyedLayer,
    LazyStart, LazyStartLayer, Leased, Runtime,
    ceiling::By,
    keep::Kept,
    test_util::{Counted, Counts},
};
use tower_service::Service;

use crate::{
    fake::{AsAsked, Caller, InFlight, Reply, Request, is_not_use, is_only_if_running, key_of},
    options::{Kind, Options, Plan},
    rng::Rng,
    start::{Asking, DropMaker, Granted, Maker, Spec},
    support::{BoxFuture, secs},
    world::World,
};

type Says = fn(&Request) -> bool;
pub(crate) type Evictable = IdleEvictLayer<AsAsked, Says>;
pub(crate) type Ceiling = CeilingLayer<By<fn(&Spec) -> u64>>;
/// What a key's callers lease.
pub(crate) type KeyedLease = Leased<Caller, AsAsked, Says>;
pub(crate) type Tenants = Keyed<usize, KeyedLease, fn(&Request) -> Option<usize>>;

/// A lease that is kept.
pub(crate) struct Held {
    in_flight: InFlight,
    _lent: Box<dyn Send>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let _ = &self.in_flight;
        f.write_str("Held")
    }
}

pub(crate) type Called = BoxFuture<Result<Reply, Error>>;

/// What callers and the operator have of a backend.
pub(crate) struct Door {
    pub(crate) call: Box<dyn Fn(Request) -> (Called, Counts)>,
    pub(crate) lend: Box<dyn Fn(u64) -> BoxFuture<Result<Held, Error>>>,
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
    /// The second one, of some.
    pub(crate) inner: CeilingLayer,
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
            Kind::Nested => {
                let inner = options.ceiling(&self.inner).layer(self.maker());
                let inner = Granted {
                    world: self.world.clone(),
                    maker: inner,
                };
                let maker = self.asking(ceiling.layer(inner));
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

/// A started backend as an ordinary service, without a name and a handle.
pub(crate) type Pooled = Kept<Leased<Caller, AsAsked, Says>>;
pub(crate) type Pool = Box<dyn Fn() -> BoxFuture<Result<Pooled, BoxError>>>;

impl Shared {
    /// Makes instances that nobody but their users knows.
    pub(crate) fn pool(&self, plan: &Plan, index: usize) -> Pool {
        let options = Options {
            kind: Kind::Full,
            ..plan.each.clone()
        };
        let mut backend = options.backend("pool");
        backend.pool = true;
        backend.kept = false;
        backend.stop_bound = options.stop_timeout.unwrap_or(secs(60));
        self.world.lock().backends.push(backend);
        let maker = options.ceiling(&self.ceiling).layer(self.maker());
        let maker = options.evict(&self.evictable).layer(self.asking(maker));
        let mut keep = KeepLayer::new(self.runtime.clone()).name("pool");
        if let Some(timeout) = options.stop_timeout {
            keep = keep.stop_timeout(timeout);
        }
        let keep = keep.layer(maker);
        let spec = Spec {
            backend: index,
            name: "pool".into(),
            weight: options.weight,
            version: 0,
        };
        Box::new(move || Box::pin(keep.clone().call(spec.clone())))
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
                Ok(Held {
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
