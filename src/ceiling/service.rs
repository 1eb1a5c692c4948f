//! `Ceiling`: the maker, behind the limit.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{
    error::MakeError,
    future::ResponseFuture,
    layer::Options,
    occupied::Occupied,
    room::{Permit, Room},
    state::Ask,
    weight::{Fixed, Weigh},
};
use crate::{
    backend::Backend,
    clock::nanos,
    target::{Intent, Urgency, find_room},
};

/// A maker that is called once there is room for what it makes: see
/// [`CeilingLayer`](super::CeilingLayer).
///
/// It is always ready; the place in line is taken in `call`, the wait is in the future. The maker is
/// cloned per start, and made ready when there is room, so nothing of its own is reserved while the
/// start waits.
#[derive(Clone)]
pub struct Ceiling<M, W = Fixed> {
    maker: M,
    room: Arc<Room>,
    weigh: W,
    options: Arc<Options>,
}

impl<M, W> Ceiling<M, W> {
    pub(super) fn new(maker: M, room: Arc<Room>, weigh: W, options: Arc<Options>) -> Self {
        Self {
            maker,
            room,
            weigh,
            options,
        }
    }

    /// The maker.
    pub const fn get_ref(&self) -> &M {
        &self.maker
    }

    /// The maker, to change it.
    pub const fn get_mut(&mut self) -> &mut M {
        &mut self.maker
    }

    /// The maker, without the ceiling.
    pub fn into_inner(self) -> M {
        self.maker
    }
}

impl<M, W, T> Service<T> for Ceiling<M, W>
where
    M: Service<T> + Clone,
    M::Response: Backend,
    W: Weigh<T>,
{
    type Response = Occupied<M::Response>;
    type Error = MakeError<M::Error>;
    type Future = ResponseFuture<M, T>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: T) -> Self::Future {
        let options = &*self.options;
        let intent = Intent::current();
        let urgency = intent.as_ref().map(|intent| intent.urgency);
        let ask = Ask {
            weight: self.weigh.weigh(&target),
            name: intent.as_ref().map(|intent| intent.name.clone()),
            first: urgency == Some(Urgency::Restart),
            free_only: urgency == Some(Urgency::FreeOnly),
            start: intent.as_ref().map(|intent| intent.start.0),
            replaces: intent
                .as_ref()
                .and_then(|intent| intent.replaces)
                .map(|start| start.0),
            takes: intent
                .as_ref()
                .and_then(|intent| intent.room.as_ref())
                .and_then(|room| {
                    find_room(room, &mut |room| {
                        room.downcast_ref::<Permit>()?.of(&self.room)
                    })
                }),
            max_waiting: options.max_waiting,
            strict: options.strict,
            residency: nanos(options.min_residency),
        };
        let (maker, weight) = (self.maker.clone(), ask.weight);
        let asked = self.room.ask(ask);
        ResponseFuture::new(asked, maker, target, intent, options, weight)
    }
}

impl<M: fmt::Debug, W> fmt::Debug for Ceiling<M, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ceiling")
            .field("maker", &self.maker)
            .field("occupancy", &self.room.occupancy())
            .finish_non_exhaustive()
    }
}
