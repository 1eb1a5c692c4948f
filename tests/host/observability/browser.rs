//! `/_` in a real browser.

use std::{path::Path, time::Duration};

use fantoccini::key::Key;
use serde_json::Value;

use super::webdriver::{Browser, with_browser};
use crate::{
    example::program,
    support::{Host, demo},
};

/// A child that tries to be more than text, and fails.
const MAIL: &str = r#"
[backend.mail]
command = ["sh", "-c", "echo '<img src=x onerror=alert(1)> opening the spool'; exit 3", "mail", "{port}"]
"#;

/// Notes when the page shows a state, and what it is told of when that was.
const WATCH: &str = r#"
    window.shown = {};
    window.told = {};
    const look = () => {
        for (const row of document.querySelectorAll('.backend')) {
            window.shown[`${row.dataset.name} ${row.dataset.state}`] ??= Date.now();
        }
    };
    look();
    new MutationObserver(look).observe(document.body, { subtree: true, attributes: true, childList: true });
    const events = new EventSource('/_events');
    events.onmessage = ({ data }) => {
        const { backend, event, at_ms } = JSON.parse(data);
        window.told[`${backend} ${event}`] ??= at_ms;
    };
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_shows_what_happens_as_it_happens_and_takes_orders() {
    with_browser(async |browser| {
        let names = ["films", "maps", "music"];
        let host = Host::start_with(&demo(2, &names, MAIL), &["--admin"]);
        browser.goto(&host.url("/_")).await;
        browser.until("return document.querySelector('#link').dataset.link === 'live'").await;
        browser.run(WATCH).await;
        let all = "return document.querySelectorAll('.backend[data-state=stopped]').length === 4";
        browser.until(all).await;

        // A request starts a backend, and the page shows it: from the event to the shape on the screen.
        let mut delays = Vec::new();
        for name in names {
            host.ok(&format!("/{name}/")).await;
            let delay = browser
                .until(&format!(
                    "const shown = window.shown['{name} running'], told = window.told['{name} ready']; \
                     return shown && told ? [shown - told] : null"
                ))
                .await;
            delays.push(delay[0].as_i64().unwrap());
        }
        delays.sort_unstable();
        println!("from ready to shown: {delays:?} ms");
        // The one in the middle: the machine may do something else for a moment.
        assert!(delays[1] < 1000, "{delays:?} ms");

        // The third took the room of the first, and the page says so, with the reason and for whom.
        browser.until(&said("#log", "films is stopped: music needs its room")).await;
        browser.until(&said("[data-name=films] .word", "music needed its room")).await;
        browser.until("return document.querySelector('[data-name=films] .mark.evicted') !== null").await;
        // The timeline says it to those who do not see it.
        browser
            .until("return document.querySelector('[data-name=films] [role=img]').ariaLabel?.includes('evicted 1 time')")
            .await;
        browser.until(&said("#room", "maps idle")).await;
        browser.until(&said("#room", "music idle")).await;

        // What a child says is text.
        assert_eq!(host.get("/mail/").await.unwrap().status(), 502);
        browser.until(&said("[data-name=mail] .trouble", "exit status: 3")).await;
        let lines = "return document.querySelector('[data-name=mail] pre').textContent";
        let lines = browser.run(lines).await;
        assert!(lines.as_str().unwrap().contains("<img src=x onerror=alert(1)> opening the spool"));
        assert_eq!(browser.run("return document.images.length").await, 0);

        // A button stops a backend that runs.
        let running = "return document.querySelector('.backend[data-state=running]').dataset.name";
        let running = browser.run(running).await;
        let running = running.as_str().unwrap();
        browser.click(&format!("[data-name={running}] [data-order=stop]")).await;
        browser.until(&said(&format!("[data-name={running}] .outcome"), "stop: done")).await;
        browser.until(&format!("return document.querySelector('[data-name={running}]').dataset.state === 'stopped'")).await;
        assert!(host.line(running).await.contains("Stopped"));

        // And the keyboard starts it, which leaves the focus where it is: on what stops it now.
        reach(browser, &format!("Start {running}")).await;
        browser.press(Key::Enter).await;
        browser.until(&format!("return document.querySelector('[data-name={running}]').dataset.state === 'running'")).await;
        browser.until(&format!("return document.activeElement.getAttribute('aria-label') === 'Stop {running}'")).await;

        // The same backend anew: it runs all the time, and the old instance goes.
        browser.click(&format!("[data-name={running}] [data-order=reload]")).await;
        browser.until(&said(&format!("[data-name={running}] .outcome"), "reload: done")).await;
        browser.until(&said("#log", &format!("{running} has let its old instance go"))).await;
        browser.until(&format!("return document.querySelector('[data-name={running}]').dataset.state === 'running'")).await;
        everything_is_reached_by_keyboard(browser).await;

        for scheme in ["light", "dark"] {
            browser.screen(scheme, 1100, 1000).await;
            all_is_readable(browser, scheme).await;
        }
        browser.screen("dark", 360, 740).await;
        let width = browser.until("return innerWidth === 360 && document.documentElement.scrollWidth").await;
        assert_eq!(width, 360, "nothing is wider than a phone");
        all_is_readable(browser, "phone").await;

        let text = browser.run("return document.body.innerText").await;
        for wrong in ["NaN", "undefined", "null", "[object"] {
            assert!(!text.as_str().unwrap().contains(wrong), "{wrong}: {text}");
        }
        let console = browser.console().await;
        assert!(console.is_empty(), "{console:#?}");

        // A host that takes no orders shows no buttons.
        let looking = Host::start(&demo(1, &["films"], ""));
        browser.goto(&looking.url("/_")).await;
        browser.until("return document.querySelector('#no-orders').checkVisibility()").await;
        assert_eq!(browser.run("return document.querySelector('.orders').checkVisibility()").await, false);
        let console = browser.console().await;
        assert!(console.is_empty(), "{console:#?}");
        looking.stop();
        host.stop();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_that_waits_for_a_start_is_shown_how_it_goes_and_then_the_answer() {
    // It starts when it is let.
    let dir = tempfile::tempdir().unwrap();
    let (gate, program) = (dir.path().join("gate"), program("host"));
    let script = r#"until [ -e "$2" ]; do sleep 0.1; done; exec "$3" --backend slow "$1""#;
    let slow = format!(
        "[backend.slow]\ncommand = [\"sh\", \"-c\", '{script}', \"sh\", \"{{socket}}\", {gate:?}, {program:?}]\n\
         listen = \"unix\"\nready_within = \"60s\"\nprogress = true\n"
    );
    let host = Host::start(&demo(1, &[], &slow));
    let page = async |accept| {
        let request = http::Request::get(host.url("/slow/")).header("accept", accept);
        let request = request.body(http_body_util::Full::default()).unwrap();
        host.send(request).await.unwrap()
    };
    let shown = page("text/html").await;
    assert_eq!(shown.status(), 503);
    assert_eq!(shown.headers()["cache-control"], "no-store");
    let looked = with_browser(async |browser| {
        browser.goto(&host.url("/slow/")).await;
        browser
            .until("return document.title === 'slow is starting'")
            .await;
        std::fs::write(&gate, "").unwrap();
        browser
            .until("return document.body.innerText.startsWith('slow, process ')")
            .await;
    });
    let looked = async {
        looked.await;
        // Without a browser it may start now.
        std::fs::write(&gate, "").unwrap();
    };
    // A program waits for the answer itself.
    let (answer, ()) = tokio::join!(page("*/*"), looked);
    assert_eq!(answer.status(), 200);
    assert!(host.line("slow").await.contains("1 starts"));
    host.stop();
}

fn said(selector: &str, text: &str) -> String {
    format!("return document.querySelector('{selector}')?.textContent.includes('{text}')")
}

/// Presses Tab until what is called `label` has the focus.
async fn reach(browser: &Browser, label: &str) {
    browser
        .run("document.activeElement.blur(); scrollTo(0, 0)")
        .await;
    for _ in 0..100 {
        browser.press(Key::Tab).await;
        let focused = browser
            .run("return document.activeElement.getAttribute('aria-label')")
            .await;
        if focused == label {
            return;
        }
    }
    panic!("{label:?} is not reached by Tab");
}

/// All that can be used is reached by Tab, and it is seen where one is.
async fn everything_is_reached_by_keyboard(browser: &Browser) {
    let usable = browser
        .run(
            "window.usable = [...document.querySelectorAll('a, button, select, summary, [tabindex]')] \
                 .filter((e) => e.checkVisibility() && !e.closest('details:not([open])')?.querySelector('pre')?.contains(e)); \
             window.reached = new Set(); \
             document.activeElement.blur(); \
             return window.usable.length",
        )
        .await;
    let usable = usable.as_u64().unwrap();
    assert!(usable > 20, "{usable}");
    for _ in 0..usable + 5 {
        browser.press(Key::Tab).await;
        let seen = browser
            .run(
                "const e = document.activeElement; \
                 if (e === document.body) return true; \
                 window.reached.add(e); \
                 return getComputedStyle(e).outlineStyle !== 'none' && parseFloat(getComputedStyle(e).outlineWidth) >= 2",
            )
            .await;
        assert_eq!(seen, true, "the focus is not seen");
    }
    let missed = browser
        .run("return window.usable.filter((e) => !window.reached.has(e)).map((e) => e.outerHTML)")
        .await;
    assert_eq!(missed, serde_json::json!([]), "not reached by Tab");
}

/// Every text stands out from what is behind it, by 4.5 to 1 at least (WCAG 2, 1.4.3).
async fn all_is_readable(browser: &Browser, how: &str) {
    let faint = browser
        .run(
            r"
            const channels = (color) => color.match(/[\d.]+/g).map(Number);
            const luminance = ([r, g, b]) => {
                const [x, y, z] = [r, g, b].map((c) => {
                    const s = c / 255;
                    return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
                });
                return 0.2126 * x + 0.7152 * y + 0.0722 * z;
            };
            const behind = (element) => {
                for (let e = element; e; e = e.parentElement) {
                    const color = channels(getComputedStyle(e).backgroundColor);
                    if (color.length === 3 || color[3] === 1) return color;
                }
                return [255, 255, 255];
            };
            const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            const faint = [];
            let looked = 0;
            while (texts.nextNode()) {
                const text = texts.currentNode;
                const element = text.parentElement;
                if (!text.data.trim() || !element.checkVisibility() || element.closest('script, style')) continue;
                looked += 1;
                const [a, b] = [getComputedStyle(element).color, behind(element)];
                const [light, dark] = [luminance(channels(a)), luminance(b)].sort((x, y) => y - x);
                const ratio = (light + 0.05) / (dark + 0.05);
                if (ratio < 4.5) faint.push(`${ratio.toFixed(2)}: ${text.data}`);
            }
            return looked > 50 ? faint : `only ${looked} texts`;
            ",
        )
        .await;
    assert_eq!(faint, Value::Array(Vec::new()), "{how}");
}

/// Takes the pictures of `docs/observability.md`: with `SCREENSHOTS` set to the directory they shall go to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_are_taken_when_they_are_asked_for() {
    let Some(dir) = std::env::var_os("SCREENSHOTS") else {
        return;
    };
    with_browser(async |browser| {
        let trouble = r#"
[backend.mail]
command = ["sh", "-c", "echo 'mail: opening the spool' >&2; echo 'mail: /var/spool/mail: Permission denied' >&2; exit 3", "mail", "{port}"]
"#;
        let names = ["films", "maps", "music", "news", "wiki"];
        let host = Host::start_with(&demo(3, &names, trouble), &["--admin"]);
        browser.screen("light", 1000, 1120).await;
        browser.goto(&host.url("/_")).await;
        browser.until("return document.querySelector('#link').dataset.link === 'live'").await;
        an_evening(&host).await;
        browser.run("document.querySelector('[data-name=mail] .trouble details').open = true").await;
        for (scheme, width, height, file) in [
            ("light", 1000, 0, "status-light.png"),
            ("dark", 1000, 0, "status-dark.png"),
            ("dark", 360, 1200, "status-phone.png"),
        ] {
            browser.screen(scheme, width, 1000).await;
            let whole = browser.run("return document.documentElement.scrollHeight").await;
            let whole = whole.as_u64().unwrap().try_into().unwrap();
            browser.screen(scheme, width, if height == 0 { whole } else { height }).await;
            browser.until(&format!("return innerWidth === {width}")).await;
            // The next drawing is for this width.
            tokio::time::sleep(Duration::from_millis(600)).await;
            let picture = browser.picture().await;
            assert!(picture.len() < 300_000, "{file}: {} bytes", picture.len());
            std::fs::write(Path::new(&dir).join(file), picture).unwrap();
        }
        host.stop();
    })
    .await;
}

/// Two minutes of calls, at the end of which all are busy and one waits.
async fn an_evening(host: &Host) {
    let pause = async |seconds: f64| tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let call = async |path: String| {
        let _ = host.get(&path).await;
    };
    for round in 0..6 {
        let (first, second, third) = match round % 3 {
            0 => ("films", "maps", "music"),
            1 => ("news", "wiki", "films"),
            _ => ("music", "maps", "wiki"),
        };
        tokio::join!(
            call(format!("/{first}/stream")),
            async {
                pause(1.0).await;
                call(format!("/{second}/stream")).await;
                pause(0.7).await;
                call(format!("/{second}/report")).await;
            },
            async {
                pause(2.0).await;
                let path = format!("/{third}/report");
                tokio::join!(call(path.clone()), call(path.clone()), call(path));
                pause(4.0).await;
                call(format!("/{third}/stream")).await;
            },
        );
        if round == 3 {
            call("/mail/".into()).await;
        }
        pause(5.0 + f64::from(round)).await;
    }
    // In use until the host stops: one call begins before the other ends.
    for name in ["films", "maps", "music"] {
        let calls = host.calls(&format!("/{name}/stream"));
        tokio::spawn(async move {
            loop {
                tokio::spawn(calls());
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
        });
        pause(0.5).await;
    }
    for name in ["news", "wiki"] {
        tokio::spawn(host.calls(&format!("/{name}/report"))());
        pause(0.8).await;
    }
}
