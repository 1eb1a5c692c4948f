//! The HTTP service: `GET /probe/<file>`, and `GET /` for the counts.

use std::{
    io,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tower::ServiceExt;
use tower_on_demand::{CoalesceHandle, Runtime, coalesce::Statistics, http};

use crate::{
    line::Line,
    program::{Program, Verdict},
    stack::{Probes, stack},
};

/// The answer's header that names the subprocess it comes from.
pub(crate) const PROCESS: &str = "x-process";

/// What the service may do.
pub(crate) struct Settings {
    /// The files that may be asked about are in here.
    pub(crate) root: PathBuf,
    /// How many subprocesses may run at once.
    pub(crate) places: usize,
    /// For how long an answer can still be had after its subprocess has ended.
    pub(crate) linger: Duration,
}

/// The service. Clones are the same.
#[derive(Clone)]
pub(crate) struct App {
    root: Arc<FilePath>,
    probes: Probes,
    handle: CoalesceHandle<PathBuf>,
    line: Line,
}

impl App {
    pub(crate) fn new(program: Program, settings: &Settings) -> io::Result<Self> {
        let runtime = Runtime::tokio();
        let line = Line::new(runtime.clone(), settings.places);
        let (probes, handle) = stack(
            &runtime,
            program,
            settings.linger,
            settings.places,
            line.clone(),
        );
        Ok(Self {
            root: settings.root.canonicalize()?.into(),
            probes,
            handle,
            line,
        })
    }

    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route("/", get(counts))
            .route("/probe/{*file}", get(probe))
            .with_state(self.clone())
    }

    /// What was counted of all who asked.
    pub(crate) fn statistics(&self) -> Statistics {
        self.handle.statistics()
    }

    /// How many subprocesses were not started, because all places were taken.
    pub(crate) fn refused(&self) -> u64 {
        self.line.refused()
    }

    /// How many wait for the subprocess of `name`.
    pub(crate) fn waiting(&self, name: &str) -> usize {
        self.handle.waiting(&self.root.join(name))
    }

    /// Ends every subprocess that still runs; none will be started any more.
    pub(crate) async fn stop(&self) {
        self.handle.shutdown().await;
    }

    /// The one path of a file, by whatever name it was asked for. `None` if there is no such file in the root.
    async fn find(&self, name: &str) -> Option<PathBuf> {
        let file = tokio::fs::canonicalize(self.root.join(name)).await.ok()?;
        let metadata = tokio::fs::metadata(&file).await.ok()?;
        (file.starts_with(&self.root) && metadata.is_file()).then_some(file)
    }
}

/// Whatever else a request says, `?for=web` for one, is not looked at: such requests share a probe.
async fn probe(State(app): State<App>, Path(name): Path<String>) -> Response {
    let Some(file) = app.find(&name).await else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    match app.probes.oneshot(file).await {
        Ok(verdict) => verdict.into_response(),
        // 429 with Retry-After, 504 if it took too long, otherwise 502.
        Err(error) => http::response(&*error),
    }
}

async fn counts(State(app): State<App>) -> String {
    let now = app.statistics();
    let average = app.line.average().unwrap_or_default();
    format!(
        "subprocesses running: {}, for {} who wait\n\
         asked: {}, of whom joined: {}, left: {}\n\
         subprocesses refused: {}\n\
         a place is taken for {average:.1?} on average\n",
        now.in_flight,
        now.waiting,
        now.led + now.joined,
        now.joined,
        now.left_early,
        app.refused(),
    )
}

impl IntoResponse for Verdict {
    fn into_response(self) -> Response {
        let kind = if self.json {
            "application/json"
        } else {
            "text/plain; charset=utf-8"
        };
        let headers = [
            (header::CONTENT_TYPE.as_str(), kind.to_owned()),
            (PROCESS, self.process.to_string()),
        ];
        (headers, self.output).into_response()
    }
}
