//! `Share`: which responses can be given to several callers.

/// A response that can be given to several callers: whatever is `Clone`.
///
/// HTTP responses are where their bodies are. A streamed body is not: `ShareBodyLayer` (feature `http`)
/// beneath `CoalesceLayer` makes it one that each caller reads from its first byte, as shown
/// [there](super::CoalesceLayer#http).
///
/// What is not `Clone` does not compile, and the compiler says what to do:
///
/// ```compile_fail
/// use tower::{Layer, service_fn};
/// use tower_on_demand::CoalesceLayer;
///
/// struct Stream; // not `Clone`
///
/// let layer = CoalesceLayer::new(|name: &String| Some(name.clone()));
/// layer.layer(service_fn(|_: String| async { Ok::<_, std::io::Error>(Stream) }));
/// ```
#[diagnostic::on_unimplemented(
    message = "a response of type `{Self}` cannot be given to several callers: it is not `Clone`",
    label = "not `Clone`",
    note = "if it is an HTTP response with a streamed body, put `tower_on_demand::http::ShareBodyLayer` beneath `CoalesceLayer` (see its section on HTTP)",
    note = "other responses can be wrapped in an `Arc`, beneath it too: `.map_response(Arc::new)`"
)]
pub trait Share {
    /// The same response, for one more caller.
    #[doc(hidden)]
    fn share(&self) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T: Clone> Share for T {
    fn share(&self) -> Self {
        self.clone()
    }
}
