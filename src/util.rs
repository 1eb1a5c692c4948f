//! `ServiceBuilderExt`: the layers as methods of tower's `ServiceBuilder`.

use tower::ServiceBuilder;

mod sealed {
    #[allow(unreachable_pub)]
    pub trait Sealed {}
    impl<L> Sealed for tower::ServiceBuilder<L> {}
}

/// The layers of this crate as methods of [`ServiceBuilder`], with their defaults.
///
/// For their options, set them on the layer and add it with [`layer`](ServiceBuilder::layer). Layers whose
/// state is shared (`CeilingLayer`, `IdleEvictLayer`) are taken by reference, and shared.
///
/// ```
/// # #[cfg(feature = "full")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_on_demand::Error> {
/// use std::time::Duration;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_on_demand::{
///     CeilingLayer, DropToStop, IdleEvict, Runtime, ServiceBuilderExt, UntilResponse,
/// };
///
/// let runtime = Runtime::tokio();
/// let (evictable, idle_evict) = IdleEvict::pair(runtime.clone(), UntilResponse);
/// let evictable = evictable.idle_after(Duration::from_secs(900));
/// let ceiling = CeilingLayer::new(runtime.clone(), 8);
///
/// let echo = ServiceBuilder::new()
///     .lazy_start(runtime.clone(), "echo")
///     .idle_evict(&evictable)
///     .ceiling(&ceiling)
///     .service(service_fn(|_: &'static str| async {
///         let echo = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(n) });
///         Ok::<_, std::io::Error>(DropToStop::new(echo))
///     }));
/// runtime.spawn(async move { drop(idle_evict.run().await) });
///
/// assert_eq!(echo.oneshot(42).await?, 42);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "full"))]
/// # fn main() {}
/// ```
pub trait ServiceBuilderExt<L>: sealed::Sealed + Sized {
    /// Starts what `target` describes on its first call: a
    /// [`LazyStartLayer`](crate::LazyStartLayer).
    #[cfg(feature = "lazy-start")]
    #[cfg_attr(docsrs, doc(cfg(feature = "lazy-start")))]
    fn lazy_start<T: crate::Target>(
        self,
        runtime: crate::Runtime,
        target: T,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::LazyStartLayer<T>, L>>;

    /// Turns each started backend into an ordinary service: a [`KeepLayer`](crate::KeepLayer).
    #[cfg(feature = "lazy-start")]
    #[cfg_attr(docsrs, doc(cfg(feature = "lazy-start")))]
    fn keep(
        self,
        runtime: crate::Runtime,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::KeepLayer, L>>;

    /// Counts use, under the registry of `layer`: a clone of it.
    #[cfg(feature = "idle-evict")]
    #[cfg_attr(docsrs, doc(cfg(feature = "idle-evict")))]
    fn idle_evict<H: Clone, P: Clone>(
        self,
        layer: &crate::IdleEvictLayer<H, P>,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::IdleEvictLayer<H, P>, L>>;

    /// Takes room for each start, under the limit of `layer`: a clone of it.
    #[cfg(feature = "ceiling")]
    #[cfg_attr(docsrs, doc(cfg(feature = "ceiling")))]
    fn ceiling<W: Clone>(
        self,
        layer: &crate::CeilingLayer<W>,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::CeilingLayer<W>, L>>;

    /// Makes identical calls once: a [`CoalesceLayer`](crate::CoalesceLayer).
    #[cfg(feature = "coalesce")]
    #[cfg_attr(docsrs, doc(cfg(feature = "coalesce")))]
    fn coalesce<I, Req, S>(
        self,
        identity: I,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::CoalesceLayer<I, Req, S>, L>>
    where
        I: crate::Identity<Req>,
        S: tower::Service<Req>;

    /// Answers errors with HTTP responses: a [`StatusLayer`](crate::http::StatusLayer).
    #[cfg(feature = "http")]
    #[cfg_attr(docsrs, doc(cfg(feature = "http")))]
    fn errors_as_responses<Req>(
        self,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::http::StatusLayer<Req>, L>>;

    /// Answers errors with gRPC status: a [`StatusLayer`](crate::grpc::StatusLayer).
    #[cfg(feature = "grpc")]
    #[cfg_attr(docsrs, doc(cfg(feature = "grpc")))]
    fn errors_as_status<Req>(
        self,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::grpc::StatusLayer<Req>, L>>;
}

impl<L> ServiceBuilderExt<L> for ServiceBuilder<L> {
    #[cfg(feature = "lazy-start")]
    fn lazy_start<T: crate::Target>(
        self,
        runtime: crate::Runtime,
        target: T,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::LazyStartLayer<T>, L>> {
        self.layer(crate::LazyStartLayer::new(runtime, target))
    }

    #[cfg(feature = "lazy-start")]
    fn keep(
        self,
        runtime: crate::Runtime,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::KeepLayer, L>> {
        self.layer(crate::KeepLayer::new(runtime))
    }

    #[cfg(feature = "idle-evict")]
    fn idle_evict<H: Clone, P: Clone>(
        self,
        layer: &crate::IdleEvictLayer<H, P>,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::IdleEvictLayer<H, P>, L>> {
        self.layer(layer.clone())
    }

    #[cfg(feature = "ceiling")]
    fn ceiling<W: Clone>(
        self,
        layer: &crate::CeilingLayer<W>,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::CeilingLayer<W>, L>> {
        self.layer(layer.clone())
    }

    #[cfg(feature = "coalesce")]
    fn coalesce<I, Req, S>(
        self,
        identity: I,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::CoalesceLayer<I, Req, S>, L>>
    where
        I: crate::Identity<Req>,
        S: tower::Service<Req>,
    {
        self.layer(crate::CoalesceLayer::new(identity))
    }

    #[cfg(feature = "http")]
    fn errors_as_responses<Req>(
        self,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::http::StatusLayer<Req>, L>> {
        self.layer(crate::http::StatusLayer::new())
    }

    #[cfg(feature = "grpc")]
    fn errors_as_status<Req>(
        self,
    ) -> ServiceBuilder<tower::layer::util::Stack<crate::grpc::StatusLayer<Req>, L>> {
        self.layer(crate::grpc::StatusLayer::new())
    }
}
