//! The service behind the layer: it counts what it sees, and answers when the test says so.

use std::{
    cell::Cell,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use tower::{Layer, Service};
use tower_on_demand::{
    Coalesce, CoalesceHandle, CoalesceLayer, Error, ErrorKind,
    test_util::{Counted, poll_once},
};

/// What a call asks for, by name. Names that start with `-` have no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask(pub(crate) &'static str);

pub(crate) type Name = &'static str;

/// What a call is answered with: says which call of the inner service it was, and counts its clones.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) call: usize,
    clones: Arc<Mutex<usize>>,
}

impl Clone for Answer {
    fn clone(&self) -> Self {
        *self.clones.lock().unwrap() += 1;
        Self {
            call: self.call,
            clones: self.clones.clone(),
        }
    }
}

/// What a call fails with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answer,
    Broken(&'static str),
    Panic,
}

#[derive(Default)]
struct Call {
    name: Name,
    end: Option<End>,
    waker: Option<Waker>,
    polls: usize,
    over: bool,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// Every call ends so, at its first poll.
    at_once: Option<End>,
    live: usize,
    peak: usize,
    readied: usize,
    clones: Arc<Mutex<usize>>,
    panic_in_call: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Inner {
    state: Arc<Mutex<State>>,
}

pub(crate) struct InnerFuture {
    inner: Inner,
    call: usize,
}

impl Inner {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Every call is answered at its first poll.
    pub(crate) fn prompt() -> Self {
        let inner = Self::new();
        inner.at_once(Some(End::Answer));
        inner
    }

    fn at_once(&self, end: Option<End>) {
        self.state.lock().unwrap().at_once = end;
    }

    pub(crate) fn fail_at_once(&self, with: &'static str) {
        self.at_once(Some(End::Broken(with)));
    }

    pub(crate) fn panic_in_call(&self, panic: bool) {
        self.state.lock().unwrap().panic_in_call = panic;
    }

    /// How many calls it has seen.
    pub(crate) fn calls(&self) -> usize {
        self.state.lock().unwrap().calls.len()
    }

    /// What they asked for.
    pub(crate) fn names(&self) -> Vec<Name> {
        let state = self.state.lock().unwrap();
        state.calls.iter().map(|call| call.name).collect()
    }

    /// How many futures of it are alive.
    pub(crate) fn live(&self) -> usize {
        self.state.lock().unwrap().live
    }

    /// How many were alive at most.
    pub(crate) fn peak(&self) -> usize {
        self.state.lock().unwrap().peak
    }

    /// How many times a clone of it was readied.
    pub(crate) fn readied(&self) -> usize {
        self.state.lock().unwrap().readied
    }

    /// How many times an answer of it was cloned.
    pub(crate) fn clones(&self) -> usize {
        *self.state.lock().unwrap().clones.lock().unwrap()
    }

    pub(crate) fn polls(&self, call: usize) -> usize {
        self.state.lock().unwrap().calls[call].polls
    }

    /// Ends a call, and wakes whoever polled it last.
    fn end(&self, call: usize, end: End) {
        let waker = {
            let mut state = self.state.lock().unwrap();
            state.calls[call].end = Some(end);
            state.calls[call].waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn answer(&self, call: usize) {
        self.end(call, End::Answer);
    }

    pub(crate) fn fail(&self, call: usize, with: &'static str) {
        self.end(call, End::Broken(with));
    }

    pub(crate) fn panic(&self, call: usize) {
        self.end(call, End::Panic);
    }

    /// Wakes whoever polled it last, for nothing.
    pub(crate) fn wake(&self, call: usize) {
        let waker = self.state.lock().unwrap().calls[call].waker.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Service<Ask> for Inner {
    type Response = Answer;
    type Error = Broken;
    type Future = InnerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.state.lock().unwrap().readied += 1;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Ask) -> InnerFuture {
        let mut state = self.state.lock().unwrap();
        let call = state.calls.len();
        let end = state.at_once;
        state.calls.push(Call {
            name: request.0,
            end,
            ..Call::default()
        });
        if state.panic_in_call {
            drop(state);
            panic!("the inner call panics");
        }
        state.live += 1;
        state.peak = state.peak.max(state.live);
        InnerFuture {
            inner: self.clone(),
            call,
        }
    }
}

impl Future for InnerFuture {
    type Output = Result<Answer, Broken>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.inner.state.lock().unwrap();
        let clones = state.clones.clone();
        let call = &mut state.calls[self.call];
        assert!(!call.over, "polled after it was done");
        call.polls += 1;
        let Some(end) = call.end else {
            call.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        call.over = true;
        drop(state);
        match end {
            End::Answer => Poll::Ready(Ok(Answer {
                call: self.call,
                clones,
            })),
            End::Broken(with) => Poll::Ready(Err(Broken(with))),
            End::Panic => panic!("the inner future panics"),
        }
    }
}

impl Drop for InnerFuture {
    fn drop(&mut self) {
        self.inner.state.lock().unwrap().live -= 1;
    }
}

pub(crate) type ByName = fn(&Ask) -> Option<Name>;

fn by_name(request: &Ask) -> Option<Name> {
    (!request.0.starts_with('-')).then_some(request.0)
}

/// The plain layer.
pub(crate) fn layer<S: Service<Ask>>() -> CoalesceLayer<ByName, Ask, S> {
    CoalesceLayer::new(by_name as ByName)
}

/// The plain layer over `inner`.
pub(crate) fn stack(inner: Inner) -> (Coalesce<Inner, ByName, Ask>, CoalesceHandle<Name>) {
    let (layer, handle) = layer().with_handle();
    (layer.layer(inner), handle)
}

/// Calls without polling.
pub(crate) fn call<S: Service<Ask>>(service: &mut S, name: Name) -> Counted<S::Future> {
    Counted::new(service.call(Ask(name)))
}

/// Nothing is in flight, nobody waits.
pub(crate) fn assert_empty<K>(handle: &CoalesceHandle<K>) {
    let now = handle.statistics();
    assert_eq!((now.in_flight, now.waiting), (0, 0), "{now:?}");
}

/// The outcome is there.
pub(crate) fn done<F: Future>(future: &mut Counted<F>) -> F::Output {
    match poll_once(future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is not done"),
    }
}

pub(crate) fn pending<F: Future>(future: &mut Counted<F>) {
    assert!(poll_once(future).is_pending());
}

pub(crate) fn kind<T: fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind().clone()
}

/// The inner error that `error` is about.
pub(crate) fn broken(error: &Error) -> &Broken {
    assert_eq!(*error.kind(), ErrorKind::Service);
    let source = std::error::Error::source(error).expect("a source");
    source.downcast_ref().expect("the inner error")
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs what reports no panic.
pub(crate) fn quietly<R>(run: impl FnOnce() -> R) -> R {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let result = run();
    QUIET.set(false);
    result
}

/// Runs what panics; gives what it panicked with.
pub(crate) fn panics<R>(run: impl FnOnce() -> R) -> String {
    let run = std::panic::AssertUnwindSafe(run);
    match quietly(|| std::panic::catch_unwind(run)) {
        Ok(_) => panic!("it did not panic"),
        Err(panic) => match panic.downcast::<&'static str>() {
            Ok(message) => (*message).to_owned(),
            Err(panic) => *panic.downcast::<String>().expect("a message"),
        },
    }
}
