//! The keeper: the task that scales one start up, watches it, and scales it down again.
//!
//! It outlives its owner: whoever drops a start or a backend at any moment leaves a task behind that undoes
//! what was done. Calls that change something are never broken off, so it knows what that is.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use kube::Client;
use tokio::{
    sync::{self, watch},
    time::Instant,
};
use tower_on_demand::{Error, ErrorKind, Target as _};

use crate::{
    api::{Count, Left, Patience, Pauses, Scaler},
    failure::Failure,
    hosts::{Hosts, Last},
    instance::{Instance, Kept},
    watching::{Look, Sight, lasting, pods},
    workload::{Key, Workload},
};

/// What all starts of one [`Scale`](crate::Scale) share.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) hosts: Option<Hosts>,
    doors: Mutex<HashMap<Key, Arc<Door>>>,
}

/// How many instances of one workload there are in this process. Who comes and who goes pass one by one.
///
/// Two stacks may front the same workload, and a reload starts the next instance before the last one
/// stops: it is scaled down by the last.
type Door = sync::Mutex<usize>;

impl Context {
    pub(crate) fn new(client: Client, hosts: Option<Hosts>) -> Self {
        Self {
            client,
            hosts,
            doors: Mutex::default(),
        }
    }

    fn door(&self, workload: &Workload) -> Arc<Door> {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.entry(workload.key()).or_default().clone()
    }

    /// Forgets the door if nobody stands in it.
    fn leave(&self, key: &Key, door: Arc<Door>) {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = door.try_lock().is_ok_and(|holders| *holders == 0);
        // Two: the map's and this one.
        if idle && Arc::strong_count(&door) == 2 {
            doors.remove(key);
        }
    }
}

pub(crate) struct Keeper {
    context: Arc<Context>,
    kept: Kept,
    scaled: Scaler,
    /// What it was last known to be scaled to.
    replicas: i32,
}

impl Keeper {
    pub(crate) fn new(context: Arc<Context>, instance: Arc<Instance>) -> Self {
        Self {
            scaled: Scaler::new(&context.client, &instance.workload),
            context,
            kept: Kept(instance),
            replicas: 0,
        }
    }

    fn workload(&self) -> &Workload {
        &self.kept.0.workload
    }

    /// The story.
    pub(crate) async fn run(mut self, orders: watch::Receiver<bool>) {
        let workload = self.workload().clone();
        let door = self.context.door(&workload);
        let deadline = Instant::now().checked_add(workload.ready_within);
        let mut patience = Patience::until(deadline, orders.clone());

        // ===== Stopped → Starting =====

        let entered = patience.wait(door.clone().lock_owned()).await;
        let mut holders = match entered {
            Ok(holders) => holders,
            Err(left) => {
                self.failed(left);
                self.context.leave(&workload.key(), door);
                return;
            }
        };
        *holders += 1;
        let up = self.scale_up(&mut patience).await;
        drop(holders);
        let started = match up {
            Ok(sight) => self.until_ready(sight, &mut patience).await,
            Err(left) => Err(left),
        };

        // ===== Starting → Running → Stopping =====

        match started {
            Ok(sight) => {
                self.kept.0.tell(|state| state.ready = true);
                self.live(sight, Patience::until(None, orders)).await;
            }
            Err(left) => self.failed(left),
        }

        // ===== Stopping → Stopped =====

        self.kept.0.serves(&[]);
        let mut holders = door.clone().lock_owned().await;
        *holders -= 1;
        let stopped = match *holders {
            0 => self.let_go().await,
            _ => Ok(None),
        };
        drop(holders);
        self.context.leave(&workload.key(), door);
        match stopped {
            Ok(Some(Count {
                selector: Some(selector),
                ..
            })) => self.until_gone(&selector).await,
            Ok(_) | Err(Left::Failed(Failure::Missing)) => {}
            Err(left) => self.trouble("it could not be scaled to zero", left),
        }
    }

    fn failed(&self, left: Left) {
        let instance = &self.kept.0;
        let error = match left {
            Left::Failed(failure) => failure.into_error(),
            Left::Late(last) => {
                let error = Error::not_ready_within(instance.workload.ready_within);
                match last {
                    Some(last) => error.because(last),
                    None => error,
                }
            }
            // Nobody hears it.
            Left::Ordered => Error::new(ErrorKind::Stopped),
        };
        instance.tell(|state| state.failed = Some(instance.named(error)));
    }

    /// Claims the workload, and scales it up if it is not.
    async fn scale_up(&mut self, patience: &mut Patience) -> Result<Sight, Left> {
        let workload = self.workload().clone();
        if let Some(hosts) = &self.context.hosts {
            hosts.claim(&workload, patience).await?;
        }
        let mut pauses = Pauses::new();
        let count = loop {
            let seen = self.scaled.get(patience).await?;
            self.replicas = seen.replicas;
            if seen.replicas > 0 {
                // Somebody did before, and how many is up to them.
                break seen;
            }
            if self
                .scaled
                .set(&seen, workload.replicas, &mut pauses, patience)
                .await?
            {
                self.replicas = workload.replicas;
                break seen;
            }
        };
        let (client, scaled) = (&self.context.client, &self.scaled);
        Ok(Sight::new(
            client,
            scaled,
            &workload,
            count.selector.as_deref(),
        ))
    }

    async fn until_ready(
        &mut self,
        mut sight: Sight,
        patience: &mut Patience,
    ) -> Result<Sight, Left> {
        let mut last = None;
        loop {
            let again = match sight.look(Instant::now()) {
                Look::Ready => {
                    let ready = sight.ready();
                    sight.settle();
                    self.kept.0.serves(&ready);
                    return Ok(sight);
                }
                Look::Failed(failure) => return Err(failure.into()),
                Look::Wait(again) => again,
            };
            let looked_at_again = async {
                match again {
                    Some(moment) => tokio::time::sleep_until(moment).await,
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                tokio::select! {
                    changed = sight.changed() => changed,
                    () = looked_at_again => Ok(()),
                }
            };
            match patience.wait(changed).await {
                Ok(Ok(())) => self.replicas = sight.replicas().unwrap_or(self.replicas),
                Ok(Err(error)) => match lasting(error) {
                    Ok(failure) => return Err(failure.into()),
                    Err(error) => last = Some(error),
                },
                Err(Left::Late(None)) => {
                    return Err(Left::Late(last.map(|e| kube::Error::Service(e.into()))));
                }
                Err(left) => return Err(left),
            }
        }
    }

    /// Until it retires or is told to stop.
    async fn live(&mut self, mut sight: Sight, mut patience: Patience) {
        let instance = self.kept.0.clone();
        loop {
            match patience.wait(sight.changed()).await {
                // What is known stays known while the API server is away.
                Ok(Err(_)) => continue,
                Ok(Ok(())) => {}
                Err(_) => return,
            }
            self.replicas = sight.replicas().unwrap_or(self.replicas);
            let ready = sight.ready();
            sight.settle();
            instance.serves(&ready);
            if self.replicas == 0 {
                instance.retire("somebody else scaled it to zero");
            } else if ready.is_empty() {
                instance.retire("its last endpoint is not ready any more");
            } else {
                continue;
            }
            // Its owner stops it, or drops it.
            patience.over().await;
            return;
        }
    }

    /// Gives the workload back, and scales it to zero if nobody else claims it. What it was then.
    async fn let_go(&mut self) -> Result<Option<Count>, Left> {
        let workload = self.workload().clone();
        let mut patience = Patience::endless();
        let Some(hosts) = self.context.hosts.clone() else {
            return self.scale_down(None, &mut patience).await;
        };
        let Some(last) = hosts.release(&workload, &mut patience).await? else {
            return Ok(None);
        };
        let down = self.scale_down(Some(&last), &mut patience).await;
        last.done(&mut patience).await?;
        down
    }

    /// Scales it to zero, unless somebody else has scaled it up since it was seen last. What it was then.
    async fn scale_down(
        &mut self,
        last: Option<&Last>,
        patience: &mut Patience,
    ) -> Result<Option<Count>, Left> {
        let mut pauses = Pauses::new();
        loop {
            let seen = self.scaled.get(patience).await?;
            if seen.replicas == 0 {
                return Ok(Some(seen));
            }
            if seen.replicas > self.replicas {
                tracing::info!(
                    target: "tower_on_demand::kubernetes",
                    backend = self.workload().name(), replicas = seen.replicas,
                    "left as it is: somebody else has scaled it up"
                );
                return Ok(None);
            }
            if let Some(last) = last
                && !last.holds(patience).await?
            {
                return Ok(None);
            }
            // If it is another by now it is looked at again.
            if self.scaled.set(&seen, 0, &mut pauses, patience).await? {
                return Ok(Some(seen));
            }
        }
    }

    /// Until the pods that `selector` selects now are gone. Those that come later are another start's.
    async fn until_gone(&self, selector: &str) {
        let mut pods = pods(&self.context.client, self.workload(), selector);
        let mut first: Option<HashSet<String>> = None;
        loop {
            if pods.changed().await.is_err() {
                continue;
            }
            let uids = pods.objects().filter_map(|pod| pod.metadata.uid.clone());
            let now: HashSet<_> = uids.collect();
            let first = first.get_or_insert_with(|| now.clone());
            first.retain(|uid| now.contains(uid));
            if first.is_empty() {
                return;
            }
        }
    }

    fn trouble(&self, what: &str, left: Left) {
        if let Left::Failed(failure) = left {
            tracing::error!(
                target: "tower_on_demand::kubernetes",
                backend = self.workload().name(), error = %failure, "{what}"
            );
        }
    }
}
