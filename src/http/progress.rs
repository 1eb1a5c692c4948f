//! A page for those who wait for a start in a browser.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::rt::Sleep;
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    answer::{retry_after, status, whole_seconds},
    page::{RELOAD, failed, waiting},
    status::StatusBody,
};
use crate::{
    Error, Runtime,
    lazy_start::{Handle, State as Stands, Status},
    sync::lock,
};

/// How long a page may take to come back: for so long the instance is kept for it, and a failure told.
const LATE: Duration = Duration::from_secs(RELOAD + 2);

/// Answers browsers that would wait for a start with a page that shows how it goes, and reloads into the
/// answer.
///
/// For backends that people open in a browser and that take seconds to start. Only navigations get it:
/// `GET`s that ask for `text/html`, and by which no script fetches (`Sec-Fetch-Mode`). Everything else
/// waits as ever, and so does a navigation whose start ends within [`patience`](Self::patience). The page
/// says where the start stands in the line for room, for how long it has gone on, and how long the last one
/// took. It needs no script and no other resource.
///
/// The answer is 503 with `Retry-After` and `Cache-Control: no-store`: it is not what was asked for, and nobody
/// keeps it. The start goes on though nobody waits for it then, also with
/// [`cancel_when_abandoned`](crate::LazyStartLayer::cancel_when_abandoned), and the instance is kept from being
/// evicted for the few seconds in which the page comes back. If the start fails the page says so, and
/// reloads no more.
///
/// It goes anywhere above the `LazyStartLayer` whose handle it has. The state is each service's own.
///
/// ```
/// # #[cfg(feature = "full")]
/// # fn example() {
/// use tower::ServiceBuilder;
/// use tower_on_demand::{
///     LazyStartLayer, Runtime,
///     http::{ProgressPageLayer, StatusLayer},
///     process::{Command, Spawn},
/// };
///
/// let runtime = Runtime::tokio();
/// let command = Command::new("notebook", "jupyter").args(["lab", "--port={port}"]);
/// let (lazy_start, handle) = LazyStartLayer::new(runtime.clone(), command).pair();
/// let notebook = ServiceBuilder::new()
///     .layer(ProgressPageLayer::new(runtime, handle))
///     .layer(StatusLayer::new())
///     .layer(lazy_start)
///     .service(Spawn::http());
/// # let _: axum::Router = axum::Router::new().nest_service("/notebook", notebook);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ProgressPageLayer {
    runtime: Runtime,
    handle: Handle,
    patience: Duration,
    terse: bool,
}

impl ProgressPageLayer {
    /// For the backend of `handle`: see [`LazyStartLayer::pair`](crate::LazyStartLayer::pair).
    pub fn new<T>(runtime: Runtime, handle: Handle<T>) -> Self {
        Self {
            runtime,
            handle: handle.erase(),
            patience: Duration::from_millis(500),
            terse: false,
        }
    }

    /// How long a navigation waits for the start before it gets the page, so that a quick one shows none.
    /// 500 ms unless set; zero is at once.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Does not say why a start failed, for visitors who shall not read what went wrong inside: errors
    /// quote the output of backends.
    #[must_use]
    pub fn terse(mut self) -> Self {
        self.terse = true;
        self
    }
}

impl<S> Layer<S> for ProgressPageLayer {
    type Service = ProgressPage<S>;

    fn layer(&self, inner: S) -> ProgressPage<S> {
        ProgressPage {
            inner,
            shared: Arc::new(Shared {
                options: self.clone(),
                attended: AtomicBool::new(false),
                failed: Mutex::new(None),
            }),
        }
    }
}

/// The service of [`ProgressPageLayer`].
#[derive(Debug, Clone)]
pub struct ProgressPage<S> {
    inner: S,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ProgressPageLayer,
    /// A task waits for the start, for those who have a page instead.
    attended: AtomicBool,
    /// The last such start that failed, and when.
    failed: Mutex<Option<(Instant, Error)>>,
}

impl<S> ProgressPage<S> {
    /// The service inside.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl Shared {
    /// The failure that those who have a page are to be told.
    fn failed_lately(&self) -> Option<Error> {
        let now = self.options.runtime.now();
        let failed = lock(&self.failed);
        let (at, error) = failed.as_ref()?;
        (now.saturating_duration_since(*at) < LATE).then(|| error.clone())
    }

    /// Has a task wait for the start in place of those who will come back.
    fn attend(self: &Arc<Self>) {
        if self.attended.swap(true, Ordering::AcqRel) {
            return;
        }
        let attending = Attending(self.clone());
        // In place from here on: whoever else waits may leave now.
        let held = self.options.handle.hold();
        self.options.runtime.spawn(async move {
            let shared = &attending.0;
            match held.await {
                Ok(kept) => {
                    // In use until the page is back.
                    shared.options.runtime.sleep(LATE).await;
                    drop(kept);
                }
                Err(error) => {
                    let now = shared.options.runtime.now();
                    let old = lock(&shared.failed).replace((now, error));
                    drop(old);
                }
            }
        });
    }

    fn page<B>(&self, status: &Status) -> Response<StatusBody<B>> {
        let after = Some(Duration::from_secs(RELOAD));
        html(StatusCode::SERVICE_UNAVAILABLE, after, waiting(status))
    }

    fn failure<B>(&self, error: &Error) -> Response<StatusBody<B>> {
        let why = match self.options.terse {
            true => String::new(),
            false => format!("{error:#}"),
        };
        let page = failed(self.options.handle.name(), &why);
        html(status(error), retry_after(error), page)
    }
}

/// A task that waits for a start, until it ends in whatever way.
#[derive(Debug)]
struct Attending(Arc<Shared>);

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.attended.store(false, Ordering::Release);
    }
}

fn html<B>(status: StatusCode, after: Option<Duration>, page: String) -> Response<StatusBody<B>> {
    let mut response = Response::new(StatusBody::text(page));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.extend(after.map(|after| (header::RETRY_AFTER, whole_seconds(after))));
    response
}

/// Whether somebody opens a page with it.
fn is_navigation<A>(request: &Request<A>) -> bool {
    let headers = request.headers();
    let mode = headers.get("sec-fetch-mode");
    request.method() == Method::GET
        && mode.is_none_or(|mode| mode == "navigate")
        && headers.get_all(header::ACCEPT).iter().any(|accept| {
            let accept = accept.to_str().unwrap_or_default();
            accept.split(',').any(is_html)
        })
}

/// Whether one range of an `Accept` header is HTML by name. (`*/*` comes from everybody.)
fn is_html(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let html = parts
        .next()
        .is_some_and(|it| it.eq_ignore_ascii_case("text/html"));
    html && !parts
        .any(|it| matches!(it.split_once('='), Some(("q" | "Q", q)) if q.parse() == Ok(0.0)))
}

impl<S, A, B> Service<Request<A>> for ProgressPage<S>
where
    S: Service<Request<A>, Response = Response<B>>,
{
    type Response = Response<StatusBody<B>>;
    type Error = S::Error;
    type Future = ProgressPageFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let shared = &self.shared;
        let state = if !is_navigation(&request) {
            State::Passed(self.inner.call(request))
        } else {
            match shared.options.handle.status().state {
                Stands::Running | Stands::Unloaded | Stands::ShutDown => {
                    State::Passed(self.inner.call(request))
                }
                // It waits for a start, or begins one, unless it is here to be told of the last.
                _ => match shared.failed_lately() {
                    Some(error) => State::Failed(Some(error), shared.clone()),
                    None => State::Waiting {
                        call: self.inner.call(request),
                        patience: Some(shared.options.runtime.sleep(shared.options.patience)),
                        shared: shared.clone(),
                    },
                },
            }
        };
        ProgressPageFuture { state }
    }
}

/// The response future of [`ProgressPage`].
///
/// # Cancel safety
///
/// As the inner service's; what it has begun for a page goes on.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ProgressPageFuture<F> {
    #[pin]
    state: State<F>,
}

#[pin_project(project = StateProj)]
enum State<F> {
    Passed(#[pin] F),
    /// With a page instead, if it does not run when the patience is over. After that it is as passed.
    Waiting {
        #[pin]
        call: F,
        patience: Option<Pin<Box<dyn Sleep>>>,
        shared: Arc<Shared>,
    },
    Failed(Option<Error>, Arc<Shared>),
    Done,
}

impl<F, B, E> Future for ProgressPageFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<StatusBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        let answer = match state.as_mut().project() {
            StateProj::Passed(call) => ready!(call.poll(cx)).map(|it| it.map(StatusBody::inner)),
            StateProj::Waiting {
                call,
                patience,
                shared,
            } => match call.poll(cx) {
                Poll::Ready(answer) => answer.map(|it| it.map(StatusBody::inner)),
                Poll::Pending => {
                    let Some(sleep) = patience else {
                        return Poll::Pending;
                    };
                    ready!(sleep.as_mut().poll(cx));
                    *patience = None;
                    let now = shared.options.handle.status();
                    if now.state == Stands::Running {
                        // It has the call, and takes its time.
                        return Poll::Pending;
                    }
                    shared.attend();
                    Ok(shared.page(&now))
                }
            },
            StateProj::Failed(error, shared) => {
                let error = error.take().expect("polled after it was done");
                Ok(shared.failure(&error))
            }
            StateProj::Done => panic!("polled after it was done"),
        };
        state.set(State::Done);
        Poll::Ready(answer)
    }
}

impl<F> fmt::Debug for ProgressPageFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressPageFuture").finish_non_exhaustive()
    }
}
