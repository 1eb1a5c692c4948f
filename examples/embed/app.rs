//! The application: two handlers over a database that is lent to them.

use std::path::PathBuf;

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use tower_on_demand::{LazyStart, Leased, Named, http};

use crate::pool::Pool;

/// The database: what opens it when it is needed.
pub(crate) type Db = LazyStart<Named<PathBuf>, Leased<Pool>>;

pub(crate) fn router(db: Db) -> Router {
    Router::new()
        .route("/notes", get(count).post(write))
        .with_state(db)
}

async fn count(State(db): State<Db>) -> Result<String, Failed> {
    let db = db.lend().await?;
    let notes: i64 = db
        .query(|db| db.query_row("SELECT count(*) FROM notes", [], |row| row.get(0)))
        .await?;
    Ok(format!("{notes} notes"))
}

async fn write(State(db): State<Db>, note: String) -> Result<&'static str, Failed> {
    // In use until it is dropped: the pool is not closed under the query.
    let db = db.lend().await?;
    db.query(move |db| db.execute("INSERT INTO notes (text) VALUES (?1)", [note]))
        .await?;
    Ok("written")
}

/// Why there is no answer.
pub(crate) enum Failed {
    /// The pool could not be opened, say.
    NoPool(tower_on_demand::Error),
    Query(rusqlite::Error),
}

impl From<tower_on_demand::Error> for Failed {
    fn from(error: tower_on_demand::Error) -> Self {
        Self::NoPool(error)
    }
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Query(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Failed::NoPool(error) => http::response(&error),
            Failed::Query(error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
            }
        }
    }
}
