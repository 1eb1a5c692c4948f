//! `Ceiling`: a bound on how much lives at once.
//!
//! See [`CeilingLayer`].

mod error;
mod future;
mod holders;
mod layer;
mod occupied;
mod queue;
mod room;
mod service;
mod state;
mod status;
mod victims;
mod weight;

pub use self::{
    error::MakeError,
    future::ResponseFuture,
    layer::CeilingLayer,
    occupied::Occupied,
    service::Ceiling,
    state::Occupancy,
    status::{Holding, Phase, Status, Waiting},
    weight::{By, Fixed, SaysWeight, Unweighed, Weigh},
};
