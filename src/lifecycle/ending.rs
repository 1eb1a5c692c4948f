//! How an instance ends: drained, stopped, dropped.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use hyper::rt::Sleep;

use super::{
    instance::Instance,
    maker::{Caught, discard},
};
use crate::{
    backend::{Backend, Stopped},
    error::{BoxError, Error, ErrorKind},
    runtime::Runtime,
    usage::Usage,
    wakers::Key,
};

/// Closes the instance and waits until its last use has ended. Those still in flight at `until` are
/// cut; it is asked whenever this is polled.
pub(crate) async fn drain(
    runtime: &Runtime,
    usage: &Arc<Usage>,
    until: impl Fn() -> Option<Instant>,
) {
    usage.close_now();
    let mut drained = pin!(drained(usage.clone()));
    let mut timer: Option<(Instant, Pin<Box<dyn Sleep>>)> = None;
    poll_fn(|cx| {
        if drained.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some(until) = until() else {
            timer = None;
            return Poll::Pending;
        };
        let sleep = match &mut timer {
            Some((set, sleep)) if *set == until => sleep,
            _ => &mut timer.insert((until, runtime.sleep_until(until))).1,
        };
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        usage.cut();
        Poll::Ready(())
    })
    .await;
}

/// How an instance has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) way: Stopped,
    /// It is gone; else it goes with its last lease.
    pub(crate) gone: bool,
}

/// Stops the instance and drops it. The error is for the status: it did not stop as it should.
pub(crate) async fn stop<B: Backend>(
    runtime: &Runtime,
    instance: Arc<Instance<B>>,
    bound: Option<Duration>,
) -> Result<Ended, Error> {
    let bound = bound.unwrap_or_else(|| instance.backend.stop_within());
    let stopped = within(runtime, bound, Caught::call(|| instance.backend.stop())).await;
    let usage = instance.usage.clone();
    if matches!(stopped, Some(Ok(Stopped::WithTheLastLease))) && !usage.look().is_drained() {
        // What a cut call still holds, the instance holds with it: room, for one.
        usage.hold_until_drained(Box::new(instance));
        return Ok(Ended {
            way: Stopped::WithTheLastLease,
            gone: false,
        });
    }
    let dropped = discard(instance);
    match stopped {
        Some(Ok(way)) => dropped.map(|()| Ended { way, gone: true }),
        Some(Err(panicked)) => Err(panicked),
        None => {
            let late: BoxError = format!("stop() had not ended after {bound:?}").into();
            Err(Error::new(ErrorKind::Stopped).because(late))
        }
    }
}

/// Resolves when the instance is closed and its last use has ended.
fn drained(usage: Arc<Usage>) -> impl Future<Output = ()> + Send {
    struct Registration(Arc<Usage>, Key);
    impl Drop for Registration {
        fn drop(&mut self) {
            self.0.forget_drained(&mut self.1);
        }
    }
    let mut place = Registration(usage, None);
    poll_fn(move |cx| place.0.poll_drained(&mut place.1, cx.waker()))
}

/// What `work` gives, if it does within `bound`.
pub(crate) async fn within<F: Future>(
    runtime: &Runtime,
    bound: Duration,
    work: F,
) -> Option<F::Output> {
    let mut work = pin!(work);
    let mut sleep = None;
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        // Made only when it is needed.
        let sleep = sleep.get_or_insert_with(|| runtime.sleep(bound));
        Pin::new(sleep).poll(cx).map(|()| None)
    })
    .await
}
