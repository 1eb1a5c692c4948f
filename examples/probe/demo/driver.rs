//! The demo's callers: they ask over real HTTP, and say what happens.

use std::{
    fmt,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::app::PROCESS;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// What a caller is told.
#[derive(Debug)]
pub(crate) enum Answer {
    /// By this subprocess.
    Found {
        file: &'static str,
        process: u32,
    },
    /// 429, and after what time to come back.
    Refused {
        file: &'static str,
        after: Duration,
    },
    Wrong(String),
}

/// A caller that is on its way.
pub(crate) type Asked = JoinHandle<Answer>;

pub(crate) struct Driver {
    client: Client<HttpConnector, Empty<Bytes>>,
    url: String,
    began: Instant,
    asked: u64,
}

impl Driver {
    pub(crate) fn new(url: String) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            url,
            began: Instant::now(),
            asked: 0,
        }
    }

    /// How many have asked.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
    }

    /// One line of the timeline.
    pub(crate) fn say(&self, what: impl fmt::Display) {
        println!("{:6.2} s  {what}", self.began.elapsed().as_secs_f64());
    }

    /// `callers` ask about each of `files`, all at once. What for differs, and is nothing to a probe.
    pub(crate) fn ask(&mut self, files: &[&'static str], callers: usize) -> Vec<Asked> {
        let mut asked = Vec::new();
        for caller in 0..callers {
            let purpose = ["web", "radio"][caller % 2];
            asked.extend(files.iter().map(|file| self.one(file, purpose)));
        }
        asked
    }

    fn one(&mut self, file: &'static str, purpose: &str) -> Asked {
        self.asked += 1;
        let client = self.client.clone();
        let uri = format!("{}/probe/{file}?for={purpose}", self.url);
        tokio::spawn(async move {
            let request = match Request::get(uri).body(Empty::new()) {
                Ok(request) => request,
                Err(error) => return Answer::Wrong(error.to_string()),
            };
            let answered = async {
                let (parts, body) = client.request(request).await?.into_parts();
                let body = body.collect().await.map_err(Box::new)?.to_bytes();
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Response::from_parts(parts, body))
            };
            match timeout(LONG, answered).await {
                Ok(Ok(response)) => Answer::of(file, &response),
                Ok(Err(error)) => Answer::Wrong(format!("{file}: {error}")),
                Err(_) => Answer::Wrong(format!("{file}: no answer")),
            }
        })
    }
}

impl Answer {
    fn of(file: &'static str, response: &Response<Bytes>) -> Self {
        let number = |name: &str| -> Option<u32> {
            let value = response.headers().get(name)?;
            value.to_str().ok()?.parse().ok()
        };
        let text = String::from_utf8_lossy(response.body());
        let after = number(header::RETRY_AFTER.as_str());
        match (response.status(), number(PROCESS), after) {
            // Both programs name the file that they were given.
            (StatusCode::OK, Some(process), _) if text.contains(file) => {
                Answer::Found { file, process }
            }
            (StatusCode::TOO_MANY_REQUESTS, _, Some(after)) => Answer::Refused {
                file,
                after: Duration::from_secs(after.into()),
            },
            (status, ..) => Answer::Wrong(format!("{file}: {status}: {}", text.trim())),
        }
    }
}

/// What they are told, when all of them are.
pub(crate) async fn answers(asked: Vec<Asked>) -> Vec<Answer> {
    let answers = join_all(asked).await.into_iter();
    answers
        .map(|answer| answer.unwrap_or_else(|error| Answer::Wrong(error.to_string())))
        .collect()
}

/// They leave, without an answer.
pub(crate) fn leave(asked: Vec<Asked>) {
    asked.iter().for_each(JoinHandle::abort);
}

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > LONG {
            return Err(format!("it never came to this: {what}"));
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
