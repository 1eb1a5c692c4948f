//! One streamed body for several readers: [`ShareBodyLayer`].

mod body;
mod layer;
mod source;
mod window;

use http::Response;
use http_body::Body;

use crate::coalesce::{Lasting, Lasts, Tie};
use std::sync::Arc;

pub use self::{
    body::SharedBody,
    layer::{ShareBody, ShareBodyFuture, ShareBodyLayer},
};

/// How `Coalesce` treats responses with such bodies.
pub(super) fn lasting<B: Body>() -> Lasting<Response<SharedBody<B>>> {
    fn tie<B: Body>(response: &Response<SharedBody<B>>, tie: &dyn Fn() -> Arc<dyn Tie>) -> Lasts {
        response.body().tie(tie)
    }
    Lasting {
        tie: tie::<B>,
        copy: Response::clone,
        enlist: |response| response.body_mut().enlist(),
    }
}
