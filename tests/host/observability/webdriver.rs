//! A headless Chromium, driven by its chromedriver.

use std::{
    io::{BufRead, BufReader},
    panic::{AssertUnwindSafe, resume_unwind},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use fantoccini::{
    Client, ClientBuilder,
    actions::{InputSource, KeyAction, KeyActions},
    key::Key,
    wd::WebDriverCompatibleCommand,
};
use futures_util::FutureExt;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use url::Url;

use crate::support::LONG;

/// A browser. Dropped, it is ended.
pub struct Browser {
    driver: Driver,
    client: Client,
}

struct Driver {
    child: Child,
    /// For what it would leave behind.
    _dir: tempfile::TempDir,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command of Chromium's that WebDriver does not have.
#[derive(Debug)]
struct Special {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Special {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or(""), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}

/// Runs `test` in a browser, which is ended whatever comes of it; without Chromium it says so, and does nothing.
pub async fn with_browser(test: impl AsyncFnOnce(&Browser)) {
    let found = Command::new("chromedriver")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if found.is_err() {
        eprintln!(
            "skipped: there is no chromedriver here (Debian's packages chromium and chromium-driver)"
        );
        return;
    }
    let browser = Browser::open().await;
    let tested = AssertUnwindSafe(test(&browser)).catch_unwind().await;
    let Browser { driver, client } = browser;
    let closed = client.close().await;
    drop(driver);
    match tested {
        Ok(()) => closed.expect("closed"),
        Err(panic) => resume_unwind(panic),
    }
}

impl Browser {
    async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("chromedriver")
            .arg("--port=0")
            .env("TMPDIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut driver = Driver {
            child: child.unwrap(),
            _dir: dir,
        };
        let mut lines = BufReader::new(driver.child.stdout.take().unwrap()).lines();
        let port: u16 = lines
            .find_map(|line| {
                let line = line.unwrap();
                let (_, port) = line.split_once("started successfully on port ")?;
                port.trim_end_matches('.').parse().ok()
            })
            .expect("chromedriver's port");
        std::thread::spawn(move || lines.count());
        let capabilities = json!({
            "goog:chromeOptions": { "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                "--window-size=1100,1000",
            ]},
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(capabilities) = capabilities else {
            unreachable!()
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("a session");
        Self { driver, client }
    }

    pub async fn goto(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    async fn special(&self, path: &'static str, body: Value) -> Value {
        self.client.issue_cmd(Special { path, body }).await.unwrap()
    }

    async fn devtools(&self, command: &str, params: Value) -> Value {
        self.special(
            "goog/cdp/execute",
            json!({ "cmd": command, "params": params }),
        )
        .await
    }

    /// What `script` returns, a function's body.
    pub async fn run(&self, script: &str) -> Value {
        self.client
            .execute(script, Vec::new())
            .await
            .unwrap_or_else(|error| panic!("{error}: {script}"))
    }

    /// Waits until `script` returns something that counts as true, and gives it.
    pub async fn until(&self, script: &str) -> Value {
        let began = Instant::now();
        loop {
            let value = self.run(script).await;
            if !matches!(value, Value::Null | Value::Bool(false)) {
                return value;
            }
            if began.elapsed() > LONG {
                let page = self.run("return document.body.innerText").await;
                panic!("never: {script}\n{}", page.as_str().unwrap_or_default());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A click where a person would click.
    pub async fn click(&self, selector: &str) {
        let found = self.client.find(fantoccini::Locator::Css(selector)).await;
        let element = found.unwrap_or_else(|error| panic!("{selector}: {error}"));
        element
            .click()
            .await
            .unwrap_or_else(|error| panic!("{selector}: {error}"));
    }

    pub async fn press(&self, key: Key) {
        let key = char::from(key);
        let pressed = KeyActions::new("keyboard".into())
            .then(KeyAction::Down { value: key })
            .then(KeyAction::Up { value: key });
        self.client.perform_actions(pressed).await.unwrap();
    }

    /// As people set their screens: `dark` or `light`, and so many pixels wide; a phone's if they are few.
    pub async fn screen(&self, scheme: &str, width: u32, height: u32) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        )
        .await;
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", screen)
            .await;
    }

    /// What is on the screen, as PNG.
    pub async fn picture(&self) -> Vec<u8> {
        let taken = self
            .devtools("Page.captureScreenshot", json!({ "format": "png" }))
            .await;
        BASE64_STANDARD
            .decode(taken["data"].as_str().unwrap())
            .unwrap()
    }

    /// What the console has got since this was asked for last.
    pub async fn console(&self) -> Vec<Value> {
        let log = self.special("se/log", json!({ "type": "browser" })).await;
        log.as_array().unwrap().clone()
    }
}
