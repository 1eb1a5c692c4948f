//! The page for those who wait for a start in a browser.
#![allow(missing_docs)]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use support::{ms, secs};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_on_demand::{
    CeilingLayer, DropToStop, Error, Handle, IdleEvict, IdleEvictLayer, LazyStartLayer, Runtime,
    State, UntilResponse,
    http::{ProgressPageLayer, StatusLayer},
    test_util::{self, Clock, Task},
};

type Page = BoxCloneSyncService<Request<()>, Response<String>, Error>;

/// What Chromium sends when somebody opens a page.
const NAVIGATION: [(&str, &str); 2] = [
    ("accept", "text/html,application/xhtml+xml,*/*;q=0.8"),
    ("sec-fetch-mode", "navigate"),
];

struct Host {
    runtime: Runtime,
    clock: Clock,
    ceiling: CeilingLayer,
    evictable: IdleEvictLayer<UntilResponse>,
    starts: Arc<AtomicU32>,
    /// So many starts fail.
    failing: Arc<AtomicU32>,
}

impl Host {
    fn new(limit: u64) -> Self {
        let (runtime, clock) = test_util::runtime(1);
        let (evictable, sweeper) = IdleEvict::pair(runtime.clone(), UntilResponse);
        runtime.spawn(sweeper.run());
        Self {
            ceiling: CeilingLayer::new(runtime.clone(), limit).wait(secs(60)),
            evictable,
            runtime,
            clock,
            starts: Arc::default(),
            failing: Arc::default(),
        }
    }

    /// A backend that takes 3 s to start, and as long to answer as the path says in milliseconds.
    fn page(
        &self,
        name: &str,
        options: impl FnOnce(ProgressPageLayer) -> ProgressPageLayer,
        lazy: impl FnOnce(LazyStartLayer<String>) -> LazyStartLayer<String>,
    ) -> (Page, Handle<String>) {
        let (starts, failing) = (self.starts.clone(), self.failing.clone());
        let runtime = self.runtime.clone();
        let maker = service_fn(move |name: String| {
            let (starts, failing, runtime) = (starts.clone(), failing.clone(), runtime.clone());
            async move {
                runtime.sleep(secs(3)).await;
                starts.fetch_add(1, Ordering::Relaxed);
                let less = |left: u32| left.checked_sub(1);
                if failing
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
                    .is_ok()
                {
                    return Err("its <config> is wrong");
                }
                let backend = service_fn(move |request: Request<()>| {
                    let (name, runtime) = (name.clone(), runtime.clone());
                    async move {
                        let takes = request.uri().path()[1..].parse().unwrap_or(0);
                        runtime.sleep(Duration::from_millis(takes)).await;
                        Ok::<_, Error>(Response::new(Full::new(Bytes::from(name))))
                    }
                });
                Ok(DropToStop::new(backend))
            }
        });
        let lazy = lazy(LazyStartLayer::new(self.runtime.clone(), name.to_owned()));
        let (lazy, handle) = lazy.pair();
        let page = ProgressPageLayer::new(self.runtime.clone(), handle.clone());
        let stack = ServiceBuilder::new()
            .map_err(|never: std::convert::Infallible| match never {})
            .map_response(|response: Response<_>| {
                response.map(|body| {
                    let body = BodyExt::collect(body).now_or_never().expect("at hand");
                    let bytes = body.expect("whole").to_bytes();
                    String::from_utf8(bytes.to_vec()).expect("text")
                })
            })
            .layer(options(page))
            .layer(StatusLayer::new())
            .layer(lazy)
            .layer(self.evictable.clone())
            .layer(self.ceiling.clone())
            .service(maker);
        (BoxCloneSyncService::new(stack), handle)
    }

    fn plain(&self, name: &str) -> (Page, Handle<String>) {
        self.page(name, |page| page, |lazy| lazy)
    }

    fn sent(&self, page: &Page, request: Request<()>) -> Task<Result<Response<String>, Error>> {
        let task = self.clock.spawn(page.clone().oneshot(request));
        self.clock.run();
        task
    }

    /// Somebody opens it, and sees what there is after the patience.
    fn open(&self, page: &Page) -> Response<String> {
        let opened = page.clone().oneshot(navigation("/"));
        self.clock.block_on(opened).expect("an answer")
    }

    fn starts(&self) -> u32 {
        self.starts.load(Ordering::Relaxed)
    }
}

fn navigation(path: &str) -> Request<()> {
    request(Method::GET, path, &NAVIGATION)
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let request = Request::builder().method(method).uri(path);
    let headers = headers.iter();
    let request = headers.fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    request.body(()).expect("a request")
}

fn header<'a>(response: &'a Response<String>, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().expect("text"))
}

#[test]
fn a_browser_that_waits_gets_a_page_and_its_reload_the_answer() {
    let host = Host::new(1);
    let (page, handle) = host.plain("films & <music>");

    let shown = host.open(&page);
    assert_eq!(host.clock.elapsed(), ms(500), "its patience");
    assert_eq!(shown.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&shown, "content-type"), "text/html; charset=utf-8");
    assert_eq!(header(&shown, "cache-control"), "no-store");
    assert_eq!(header(&shown, "retry-after"), "1");
    let html = shown.body();
    assert!(html.contains("<title>films &amp; &lt;music&gt; is starting</title>"));
    assert!(html.contains("<meta http-equiv=\"refresh\" content=\"1\">"));
    assert!(html.contains("Its start began 0.5 s ago."), "{html}");
    // Browsers show a page of their own instead of a short one with such a status.
    assert!(html.len() > 512);
    for elsewhere in ["<script", "http:", "https:", "src=", "@import", "url("] {
        assert!(!html.contains(elsewhere), "{elsewhere}");
    }

    // It reloads until it is there: one start in all, which nobody's leaving has ended.
    host.clock.advance(secs(1));
    let again = host.open(&page);
    assert_eq!(again.status(), 503);
    assert!(again.body().contains("2.0 s ago"), "{}", again.body());
    host.clock.advance(secs(1));
    let answer = host.open(&page);
    assert_eq!(
        (answer.status(), answer.body().as_str()),
        (StatusCode::OK, "films & <music>")
    );
    assert_eq!(host.starts(), 1);

    // The next time it says how long the last one took.
    host.clock.block_on(handle.stop()).expect("stopped");
    let shown = host.open(&page);
    assert!(
        shown.body().contains("The last one took 3.0 s."),
        "{}",
        shown.body()
    );
    assert!(shown.body().contains("value=\"0.17\""), "{}", shown.body());
}

#[test]
fn a_start_within_the_patience_shows_no_page_and_neither_does_a_slow_answer() {
    let host = Host::new(1);
    let (page, _handle) = host.page("films", |page| page.patience(secs(5)), |lazy| lazy);
    let answer = host.open(&page);
    assert_eq!(
        (answer.status(), host.clock.elapsed()),
        (StatusCode::OK, secs(3))
    );
    // It runs, and takes longer than any patience: also when it was started for this.
    let slow = host
        .clock
        .block_on(page.clone().oneshot(navigation("/60000")));
    assert_eq!(slow.expect("an answer").status(), 200);
    let (page, _handle) = host.page("music", |page| page.patience(secs(4)), |lazy| lazy);
    let slow = host
        .clock
        .block_on(page.clone().oneshot(navigation("/60000")));
    assert_eq!(slow.expect("an answer").status(), 200);
}

#[test]
fn only_who_opens_a_page_gets_one() {
    let host = Host::new(1);
    let (page, _handle) = host.page("films", |page| page.patience(Duration::ZERO), |lazy| lazy);
    let html = ("accept", "text/html");
    let waiting = [
        request(Method::GET, "/", &[]),
        request(Method::GET, "/", &[("accept", "*/*")]),
        request(
            Method::GET,
            "/",
            &[("accept", "application/json, text/html;q=0")],
        ),
        request(Method::GET, "/", &[html, ("sec-fetch-mode", "cors")]),
        request(Method::POST, "/", &[html]),
        request(Method::HEAD, "/", &[html]),
    ];
    let waiting = waiting.map(|request| host.sent(&page, request));
    let given = [
        request(Method::GET, "/", &[html]),
        request(Method::GET, "/", &[("accept", "a/b, Text/HTML; q=0.5")]),
        navigation("/"),
    ];
    for request in given {
        let shown = host.clock.block_on(page.clone().oneshot(request));
        assert_eq!(shown.expect("an answer").status(), 503);
    }
    for waits in waiting {
        let answer = host.clock.block_on(waits).expect("an answer");
        assert_eq!(answer.status(), 200);
    }
    assert_eq!((host.starts(), host.clock.elapsed()), (1, secs(3)));
}

#[test]
fn a_page_says_where_its_start_stands_and_gets_its_instance_however_many_want_the_room() {
    let host = Host::new(1);
    let [(films, _a), (music, _b), (books, books_handle)] =
        ["films", "music", "books"].map(|name| host.plain(name));
    let busy = host.sent(&films, request(Method::GET, "/10000", &[]));
    let ahead = host.sent(&music, request(Method::GET, "/", &[]));
    host.clock.advance(secs(5));
    let shown = host.open(&books);
    let says = "It waits for room, at place 2 in line, and has waited for 0.5 s.";
    assert!(shown.body().contains(says), "{}", shown.body());

    // Somebody is in line behind it when it runs at last: it is there for the page all the same.
    host.clock.block_on(busy).expect("answered");
    host.clock.block_on(ahead).expect("answered");
    let behind = host.sent(&films, request(Method::GET, "/", &[]));
    host.clock.block_on(books_handle.until(State::Running));
    host.clock.advance(secs(1));
    assert_eq!(host.open(&books).body(), "books");
    // And not for longer than that.
    host.clock.block_on(behind).expect("answered");
    assert_eq!(books_handle.status().evictions, 1);
}

#[test]
fn a_start_goes_on_for_its_page_though_it_is_cancelled_when_abandoned() {
    let host = Host::new(1);
    let cancelled = |lazy: LazyStartLayer<String>| lazy.cancel_when_abandoned();
    let (page, handle) = host.page("films", |page| page, cancelled);
    assert_eq!(host.open(&page).status(), 503);
    host.clock.advance(ms(2500));
    assert_eq!(handle.status().state, State::Running);
    assert_eq!(host.starts(), 1);
}

#[test]
fn a_page_says_that_the_start_has_failed_and_a_later_visit_tries_again() {
    for terse in [false, true] {
        let host = Host::new(1);
        host.failing.store(1, Ordering::Relaxed);
        let options = |page: ProgressPageLayer| if terse { page.terse() } else { page };
        let (page, _handle) = host.page("films", options, |lazy| lazy);
        assert_eq!(host.open(&page).status(), 503);
        host.clock.advance(secs(3));
        // Whoever has a page hears of it, one as the other.
        for _ in 0..2 {
            let failed = host.open(&page);
            assert_eq!(failed.status(), StatusCode::BAD_GATEWAY);
            let html = failed.body();
            assert!(html.contains("films could not be started"), "{html}");
            assert!(!html.contains("refresh"), "{html}");
            assert_eq!(
                html.contains("its &lt;config&gt; is wrong"),
                !terse,
                "{html}"
            );
            assert!(html.len() > 512);
        }
        assert_eq!(host.starts(), 1);
        host.clock.advance(secs(5));
        assert_eq!(host.open(&page).status(), 503);
        host.clock.advance(secs(3));
        assert_eq!(host.open(&page).status(), 200);
        assert_eq!(host.starts(), 2);
    }
}
