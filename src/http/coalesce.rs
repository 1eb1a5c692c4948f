//! `CoalesceLayer` for HTTP: the safe preset, and options that know what a response is.

use http::{Request, Response, header};
use http_body::Body;
use tower_service::Service;

use super::{
    identity::{KEY_HEADERS, SameRequest},
    share_body::{SharedBody, lasting},
};
use crate::{
    CoalesceLayer, Identity,
    coalesce::{Passage, Policy, Sealed},
};

/// Shares what [`is_shareable`] is for: the policy of [`CoalesceLayer::http`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ShareSafe;

impl Sealed for ShareSafe {}

impl<B, E> Policy<Response<B>, E> for ShareSafe {
    const ASKS: bool = true;

    fn shares(&self, response: &Response<B>) -> bool {
        is_shareable(response)
    }

    fn shares_error(&self, _error: &E) -> bool {
        true
    }
}

/// Whether a response to one caller may be given to others who sent the [same request](SameRequest).
///
/// Not if it sets a cookie, if its `Cache-Control` says `private` or `no-store`, if it varies by a
/// header that is not in the key (or by `*`), or if it switches protocols.
pub fn is_shareable<B>(response: &Response<B>) -> bool {
    let headers = response.headers();
    let words = |name| {
        let values = headers.get_all(name).iter();
        // What is no text at all is not to be shared: it is a word that nobody knows.
        values.flat_map(|value| value.to_str().unwrap_or("*").split(',').map(str::trim))
    };
    let not_for_all = |directive: &str| {
        let name = directive.split('=').next().unwrap_or_default().trim();
        ["*", "private", "no-store"]
            .iter()
            .any(|no| name.eq_ignore_ascii_case(no))
    };
    let in_key = |name: &str| {
        name.is_empty()
            || KEY_HEADERS
                .iter()
                .any(|key| name.eq_ignore_ascii_case(key.as_str()))
    };
    !response.status().is_informational()
        && !headers.contains_key(header::SET_COOKIE)
        && !words(header::CACHE_CONTROL).any(not_for_all)
        && words(header::VARY).all(in_key)
}

/// By which call in flight a response came: an extension of responses, for logs.
///
/// From [`CoalesceLayer::flight_extension`]. Calls that passed by have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flight {
    id: u64,
    led: bool,
}

impl Flight {
    /// Names the call in flight among all of its layer.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the call was made for this caller; if not, it joined.
    pub fn led(&self) -> bool {
        self.led
    }
}

fn insert_flight<B>(response: &mut Response<B>, passage: Passage) {
    let Passage { flight, led } = passage;
    response.extensions_mut().insert(Flight { id: flight, led });
}

/// The size of a response, if it is known, in bytes.
fn size<B: Body>(response: &Response<B>) -> u64 {
    let headers: usize = response
        .headers()
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    match response.body().size_hint().upper() {
        Some(body) => body.saturating_add(headers as u64),
        None => u64::MAX,
    }
}

impl<B, S, R> CoalesceLayer<SameRequest, Request<B>, S, ShareSafe>
where
    B: Body,
    S: Service<Request<B>, Response = Response<R>>,
{
    /// For HTTP, safe by default: [the same `GET`s and `HEAD`s](SameRequest) share
    /// [what may be shared](is_shareable).
    ///
    /// The response's body must be `Clone`. A streamed one is not: put a
    /// [`ShareBodyLayer`](super::ShareBodyLayer) beneath, and add
    /// [`shared_bodies`](Self::shared_bodies).
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use tower::ServiceBuilder;
    /// use tower_on_demand::{CoalesceLayer, Runtime, http::ShareBodyLayer};
    /// # use bytes::Bytes;
    /// # use http::{Request, Response};
    /// # let backend = tower::service_fn(|_: Request<http_body_util::Empty<Bytes>>| async {
    /// #     Ok::<_, std::io::Error>(Response::new(http_body_util::Full::new(Bytes::new())))
    /// # });
    ///
    /// let runtime = Runtime::tokio();
    /// let service = ServiceBuilder::new()
    ///     .layer(CoalesceLayer::http().shared_bodies().flight_extension())
    ///     .layer(ShareBodyLayer::new(runtime, 256 * 1024))
    ///     .service(backend);
    /// # drop(service);
    /// # }
    /// ```
    ///
    /// What the key does not say is not told apart: see [what this layer sees](SameRequest#what-this-layer-sees).
    pub fn http() -> Self {
        CoalesceLayer::http_by(SameRequest)
    }
}

impl<I, Req, S, R> CoalesceLayer<I, Req, S, ShareSafe>
where
    I: Identity<Req>,
    S: Service<Req, Response = Response<R>>,
{
    /// As [`http`](Self::http), by an identity of your own in place of [`SameRequest`]: what must be told
    /// apart beside the request, which is a part of the key by [`RequestKey::of`].
    ///
    /// ```
    /// use http::Request;
    /// use tower_on_demand::{CoalesceLayer, http::RequestKey};
    /// # use http::Response;
    /// # use tower::{ServiceBuilder, service_fn};
    ///
    /// /// Put into the request by what has taken the name out of its path.
    /// #[derive(Clone, PartialEq, Eq, Hash)]
    /// struct Tenant(String);
    ///
    /// let by_tenant = |request: &Request<String>| {
    ///     let tenant = request.extensions().get::<Tenant>()?.clone();
    ///     Some((tenant, RequestKey::of(request)?))
    /// };
    /// let layer = CoalesceLayer::http_by(by_tenant);
    /// # let _ = ServiceBuilder::new().layer(layer).service(service_fn(|_: Request<String>| async {
    /// #     Ok::<_, std::io::Error>(Response::new(String::new()))
    /// # }));
    /// ```
    ///
    /// [`RequestKey::of`]: super::RequestKey::of
    pub fn http_by(identity: I) -> Self {
        CoalesceLayer::new(identity).rebuild(|_| ShareSafe, |driver| driver)
    }
}

impl<I, Req, S, R, P, D> CoalesceLayer<I, Req, S, P, D>
where
    S: Service<Req, Response = Response<R>>,
    I: Identity<Req>,
{
    /// Puts a [`Flight`] into the extensions of each response that came by a call in flight: whether
    /// its caller led or joined, and the number of that call.
    ///
    /// Off by default, since inserting allocates.
    #[must_use]
    pub fn flight_extension(self) -> Self {
        self.labelled(insert_flight::<R>)
    }

    /// How much the responses that linger may weigh together, in bytes of headers and bodies. What would be
    /// too much, or is of unknown size, does not linger.
    #[must_use]
    pub fn linger_bytes(self, most: u64) -> Self
    where
        R: Body,
    {
        self.linger_weight(most, size::<R>)
    }
}

impl<I, Req, S, B, P, D> CoalesceLayer<I, Req, S, P, D>
where
    B: Body,
    S: Service<Req, Response = Response<SharedBody<B>>>,
    I: Identity<Req>,
{
    /// Over a [`ShareBodyLayer`](super::ShareBodyLayer): a call can be joined until its response's body
    /// has ended, and those who come late read it from its first byte.
    ///
    /// That ends when the body grows beyond the cap. Then newcomers lead anew, and whoever has joined and
    /// not collected its response yet makes a call of its own, as if the response had been kept from
    /// sharing; so joiners keep their requests. Bodies that cannot be shared at all are the leader's.
    ///
    /// Comes after the options that change the layer's type.
    #[must_use]
    pub fn shared_bodies(self) -> Self
    where
        S: Send + 'static,
        S::Future: Send + 'static,
        S::Error: 'static,
        B: Send + 'static,
        I: Send + Sync + 'static,
        I::Key: Send + Sync + 'static,
        Req: Send + 'static,
        P: Send + Sync + 'static,
        D: Send + Sync + 'static,
    {
        self.lasting(lasting::<B>())
    }
}
