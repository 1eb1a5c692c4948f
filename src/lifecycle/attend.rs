//! How an owner awaits something without becoming deaf to its desk.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::Poll,
    time::Instant,
};

use hyper::rt::Sleep;

use super::{core::Core, desk::Desk};
use crate::{backend::Backend, sync::lock};

/// What a look at the desk says.
pub(crate) enum Look<A> {
    /// Leave the work, and do this.
    Act(A),
    /// Go on. Look again when an order wakes the owner, and at this moment.
    GoOn(Option<Instant>),
}

/// The work's result, or what the desk said first.
pub(crate) enum Either<R, A> {
    Done(R),
    Act(A),
}

/// Something that goes on beside the owner's story: the end of an instance that was replaced.
pub(crate) type Beside = Option<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Awaits `work`, and looks at the desk before every wait. `look` runs under the desk's lock.
pub(crate) async fn attend<T, B, W, A>(
    core: &Core<T, B>,
    beside: &mut Beside,
    work: W,
    mut look: impl FnMut(&mut Desk<T, B>, Instant) -> Look<A>,
) -> Either<W::Output, A>
where
    T: Clone + Send + 'static,
    B: Backend,
    W: Future,
{
    let mut work = pin!(work);
    let mut timer: Option<(Instant, Pin<Box<dyn Sleep>>)> = None;
    poll_fn(|cx| {
        loop {
            if let Some(other) = beside {
                if other.as_mut().poll(cx).is_ready() {
                    *beside = None;
                }
            }
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Either::Done(done));
            }
            let waker = cx.waker().clone();
            let now = core.runtime.now();
            let mut desk = lock(&core.desk);
            let looked = look(&mut desk, now);
            let old = desk.owner.replace(waker);
            drop(desk);
            drop(old);
            let at = match looked {
                Look::Act(act) => return Poll::Ready(Either::Act(act)),
                Look::GoOn(None) => return Poll::Pending,
                Look::GoOn(Some(at)) => at,
            };
            let sleep = match &mut timer {
                Some((armed, sleep)) if *armed == at => sleep,
                _ => &mut timer.insert((at, core.runtime.sleep_until(at))).1,
            };
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            timer = None;
        }
    })
    .await
}
