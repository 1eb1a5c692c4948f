//! `Keyed`: the service.

use std::{
    fmt,
    hash::Hash,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use super::map::{Entry, Map, Place};
use crate::{
    error::{BoxError, Error, ErrorKind},
    identity::Identity,
    lazy_start::{Handle, ResponseFuture},
    lifecycle::entrance::Entrance,
};

/// Makes the backend of a new key.
pub(super) type Opener<K, L> =
    dyn Fn(&K, Place) -> Result<Arc<dyn Entrance<L>>, Error> + Send + Sync;

/// One service for backends known only at run time. Made by [`KeyedLayer`](super::KeyedLayer).
///
/// Cheap to clone; all clones share the keys. It is always ready, as [`LazyStart`](crate::LazyStart) is.
/// Dropping the last clone stops every backend that no handle holds.
pub struct Keyed<K, L, I> {
    map: Arc<Map<K, L>>,
    open: Arc<Opener<K, L>>,
    identity: I,
}

impl<K: Eq + Hash, L, I> Keyed<K, L, I> {
    pub(super) fn new(map: Arc<Map<K, L>>, open: Arc<Opener<K, L>>, identity: I) -> Self {
        Self {
            map,
            open,
            identity,
        }
    }

    /// A handle of `key`'s backend, for orders from outside: to start it ahead, to unload it, to watch it.
    /// A key with a handle is not forgotten.
    ///
    /// # Errors
    ///
    /// `Unknown` where there is no target for it, `TooManyKeys` where it would be one too many.
    pub fn handle(&self, key: K) -> Result<Handle, Error> {
        let entry = self.entry(key)?;
        self.map.watch(&entry);
        Ok(Handle::of(entry.entrance.clone().control()))
    }

    /// How many keys there are now, running or remembered.
    pub fn keys(&self) -> usize {
        self.map.len()
    }

    fn entry(&self, key: K) -> Result<Arc<Entry<K, L>>, Error> {
        let hash = self.map.hash(&key);
        match self.map.get(hash, &key) {
            Some(entry) => Ok(entry),
            None => self.map.get_or_insert(hash, key, &*self.open),
        }
    }
}

impl<K, L, I, Req> Service<Req> for Keyed<K, L, I>
where
    K: Eq + Hash,
    I: Identity<Req, Key = K>,
    L: Service<Req>,
    L::Error: Into<BoxError>,
{
    type Response = L::Response;
    type Error = Error;
    type Future = ResponseFuture<L, Req>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let found = match self.identity.identity(&request) {
            Some(key) => self.entry(key),
            None => Err(Error::new(ErrorKind::Unknown)),
        };
        match found {
            Ok(entry) => {
                let future = ResponseFuture::new(&entry.entrance, request, true);
                if future.has_failed() {
                    self.map.refused(entry);
                }
                future
            }
            Err(error) => ResponseFuture::failed(error),
        }
    }
}

impl<K, L, I: Clone> Clone for Keyed<K, L, I> {
    fn clone(&self) -> Self {
        Self {
            map: self.map.clone(),
            open: self.open.clone(),
            identity: self.identity.clone(),
        }
    }
}

impl<K: Eq + Hash, L, I> fmt::Debug for Keyed<K, L, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("keys", &self.map.len())
            .finish_non_exhaustive()
    }
}
