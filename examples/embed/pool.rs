//! A small pool of SQLite connections: the backend.

use std::{
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use rusqlite::{Connection, Result};
use tokio::{sync::Semaphore, task::spawn_blocking};
use tower::Service;
use tower_on_demand::{Backend, Named, Stopped};

/// How many queries run at once, each on a connection of its own.
const CONNECTIONS: usize = 4;

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
";

/// What pools count of themselves.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) opened: AtomicUsize,
    pub(crate) closed: AtomicUsize,
    pub(crate) queries: AtomicUsize,
}

/// The maker: a `MakeService` whose target is the database's file.
#[derive(Debug, Clone)]
pub(crate) struct Open(Arc<Counts>);

impl Open {
    pub(crate) fn new(counts: Arc<Counts>) -> Self {
        Self(counts)
    }
}

impl Service<Named<PathBuf>> for Open {
    type Response = Opened;
    type Error = rusqlite::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Opened>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, file: Named<PathBuf>) -> Self::Future {
        let pool = Pool(Arc::new(Inner {
            file: file.into_inner(),
            free: Mutex::default(),
            turns: Arc::new(Semaphore::new(CONNECTIONS)),
            counts: self.0.clone(),
        }));
        Box::pin(async move {
            // The first connection, and whatever is wrong with the file.
            blocking(pool.clone(), |pool| {
                let connection = pool.0.connect()?;
                connection.execute_batch(SCHEMA)?;
                pool.0.free().push(connection);
                Ok(())
            })
            .await?;
            pool.0.counts.opened.fetch_add(1, Ordering::SeqCst);
            println!("the pool is open");
            Ok(Opened(pool))
        })
    }
}

/// An open pool, as its owner has it.
#[derive(Debug)]
pub(crate) struct Opened(Pool);

impl Backend for Opened {
    type Lease = Pool;

    fn lease(&self) -> Pool {
        self.0.clone()
    }

    /// Nobody has it lent any more when this is called, but a query whose caller has left may still run.
    fn stop(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let pool = self.0.clone();
        async move {
            let _all = pool.0.turns.acquire_many(CONNECTIONS as u32).await;
            let closed = blocking(pool.clone(), |pool| {
                let connections = std::mem::take(&mut *pool.0.free());
                for connection in connections {
                    connection.close().map_err(|(_, error)| error)?;
                }
                Ok(())
            });
            match closed.await {
                Ok(()) => {
                    pool.0.counts.closed.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => eprintln!("the pool was not closed: {error}"),
            }
            Stopped::Gone
        }
    }
}

/// An open pool, as callers have it.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: PathBuf,
    free: Mutex<Vec<Connection>>,
    turns: Arc<Semaphore>,
    counts: Arc<Counts>,
}

impl Inner {
    fn free(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> Result<Connection> {
        let connection = Connection::open(&self.file)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        Ok(connection)
    }
}

impl Pool {
    /// Runs `query` on a connection, on a thread that may wait.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.0.turns.clone().acquire_owned().await;
        blocking(self.clone(), move |pool| {
            // It ends with the query, not with the caller's patience.
            let _turn = turn;
            let free = pool.0.free().pop();
            let connection = match free {
                Some(connection) => connection,
                None => pool.0.connect()?,
            };
            pool.0.counts.queries.fetch_add(1, Ordering::SeqCst);
            let done = query(&connection);
            pool.0.free().push(connection);
            done
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    pool: Pool,
    work: impl FnOnce(&Pool) -> Result<T> + Send + 'static,
) -> Result<T> {
    match spawn_blocking(move || work(&pool)).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}
