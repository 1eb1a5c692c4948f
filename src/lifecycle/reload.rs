//! Running → Running: a new instance takes over from the old one.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Instant,
};

use super::{
    attend::{Either, Look, attend},
    core::Core,
    desk::{Desk, Reload},
    ending,
    instance::Instance,
    maker::{Caught, discard},
    owner::{End, Owner},
    starting::intent,
};
use crate::{
    backend::{Backend, Retired, Stopped},
    error::{Clock, Error, ErrorKind},
    events,
    sync::lock,
    target::Urgency,
};

/// What came of a reload.
pub(super) enum Reloaded {
    New,
    Unchanged,
    Over(End),
}

impl<T, B> Owner<T, B>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    /// Makes a new instance beside the running one, and moves the calls over once it is ready. If
    /// anything goes wrong nothing has changed.
    pub(super) async fn reload(
        &mut self,
        reload: Reload<T>,
        mut retired: Pin<&mut Caught<impl Future<Output = Retired>>>,
    ) -> Reloaded {
        let core = self.core.clone();
        let old = self.current.clone().expect("it was published");
        let Reload { target, done } = reload;
        let answer = |result: Result<(), Error>| {
            let name = core.name.clone();
            drop(done.send(result.map_err(|error| error.of(name))));
        };
        // Orders, and whatever ends the old one, go before.
        let generation = old.generation;
        let look = |desk: &mut Desk<T, B>, deadline: Option<Instant>, now: Instant| {
            if desk.must_stop() {
                Look::Act(Left::Halted)
            } else if let Some(error) = desk.take_distrust(generation) {
                Look::Act(Left::Over(End::Died(Some(error))))
            } else if deadline.is_some_and(|deadline| deadline <= now) {
                Look::Act(Left::TimedOut)
            } else {
                Look::GoOn(deadline)
            }
        };
        // At most two live at a time: the one that the last reload replaced must be gone.
        if let Some(mut last) = self.beside.take() {
            let gone = poll_fn(|cx| {
                if last.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                retired.as_mut().poll(cx).map(Some)
            });
            let looked = attend(&core, &mut self.beside, gone, |desk, now| {
                look(desk, None, now)
            })
            .await;
            let left = match looked {
                Either::Done(None) => None,
                Either::Done(Some(retired)) => Some(Left::Over(End::of(retired))),
                Either::Act(left) => Some(left),
            };
            if let Some(left) = left {
                self.beside = Some(last);
                return left.reloaded(answer);
            }
        }
        // The calls that come meanwhile are served by the old one, so it must not be evicted.
        let held = old.usage.claim();
        let supply = self.supply.as_mut().expect("the owner has the supply");
        let began = core.runtime.now();
        let deadline = core.start_deadline(began);
        let intent = intent(&core, Urgency::Demand, Some(old.start));
        let start = intent.start;
        let next = target.clone().unwrap_or_else(|| supply.target.clone());
        let mut making = supply.maker.make(next, intent);
        let first = poll_fn(|cx| {
            if lock(&core.desk).must_stop() {
                return Poll::Pending;
            }
            if let Poll::Ready(made) = making.as_mut().poll(cx) {
                return Poll::Ready(Either::Done(made));
            }
            retired.as_mut().poll(cx).map(Either::Act)
        });
        let made = attend(&core, &mut self.beside, first, |desk, now| {
            look(desk, deadline, now)
        })
        .await;
        let _ = discard(making);
        match made {
            Either::Done(Either::Done(Ok(backend))) => {
                let (lender, own) = match self.instance(backend, start) {
                    Ok(made) => made,
                    Err((instance, error)) => {
                        // Its end is nothing to wait for: orders, and the old one's own end, are heard.
                        instance.usage.close_now();
                        let ending = core.clone();
                        self.beside = Some(Box::pin(async move {
                            stopped(&ending, instance).await;
                        }));
                        answer(Err(error));
                        return Reloaded::Unchanged;
                    }
                };
                if let Some(target) = target {
                    let supply = self.supply.as_mut().expect("it is here");
                    let _ = discard(mem::replace(&mut supply.target, target));
                }
                let generation = lender.instance.generation;
                self.publish(lender, own);
                lock(&core.desk).past.make().counts.reloads += 1;
                events::reloaded(&core.name, generation);
                drop(held);
                self.beside = Some(Box::pin(replaced(core.clone(), old)));
                answer(Ok(()));
                Reloaded::New
            }
            Either::Done(Either::Done(Err(error))) => {
                answer(Err(error));
                Reloaded::Unchanged
            }
            Either::Act(Left::TimedOut) => {
                answer(Err(Error::new(ErrorKind::StartTimeout {
                    clock: Clock::StartTimeout,
                    after: core.config.start_timeout.unwrap_or_default(),
                })));
                Reloaded::Unchanged
            }
            Either::Done(Either::Act(retired)) => Left::Over(End::of(retired)).reloaded(answer),
            Either::Act(left) => left.reloaded(answer),
        }
    }
}

/// Why a reload was left.
enum Left {
    Halted,
    TimedOut,
    /// The old one's end is what counts now.
    Over(End),
}

impl Left {
    /// Tells that nothing comes of it.
    fn reloaded(self, answer: impl FnOnce(Result<(), Error>)) -> Reloaded {
        let (kind, reloaded) = match self {
            Left::Over(end) => {
                let kind = match end {
                    End::Died(_) => ErrorKind::Died,
                    End::Evicted(_) => ErrorKind::Evicted,
                    End::Halted => ErrorKind::Stopped,
                };
                (kind, Reloaded::Over(end))
            }
            Left::Halted | Left::TimedOut => (ErrorKind::Stopped, Reloaded::Unchanged),
        };
        answer(Err(Error::new(kind)));
        reloaded
    }
}

/// The end of an instance whose calls have moved to a new one.
async fn replaced<T, B>(core: Arc<Core<T, B>>, old: Arc<Instance<B>>)
where
    T: Clone + Send + 'static,
    B: Backend,
{
    // What is ordered of the new one while this drains bounds it as well.
    let bound = core.runtime.now().checked_add(core.config.drain_timeout);
    let until = || match (bound, core.drain_until()) {
        (Some(bound), Some(ordered)) => Some(bound.min(ordered)),
        (bound, ordered) => bound.or(ordered),
    };
    ending::drain(&core.runtime, &old.usage, until).await;
    let (begun, generation) = (core.runtime.now(), old.generation);
    if let Some(way) = stopped(&core, old).await {
        let took = core.runtime.now().saturating_duration_since(begun);
        events::stopped(&core.name, generation, took, way.as_str());
    }
}

/// Stops and drops what nobody uses any more, and says how it went; `None` if it did not stop as it should.
async fn stopped<T, B>(core: &Core<T, B>, instance: Arc<Instance<B>>) -> Option<Stopped>
where
    T: Clone + Send + 'static,
    B: Backend,
{
    let (name, generation) = (&core.name, instance.generation);
    match ending::stop(&core.runtime, instance, core.config.stop_timeout).await {
        Ok(ended) => Some(ended.way),
        Err(error) => {
            let error = error.of(name.clone());
            events::stop_failed(name, generation, &error);
            let old = lock(&core.desk).set_last_error(error);
            drop(old);
            None
        }
    }
}
