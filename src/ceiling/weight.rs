//! `Weigh`: what a start weighs.

/// What a start weighs against the ceiling's limit.
pub trait Weigh<T> {
    /// The weight of what `target` describes, in units of the limit. 0 takes no room.
    fn weigh(&self, target: &T) -> u64;
}

/// What says a weight at all: [`Fixed`] and [`By`], and not [`Unweighed`].
#[diagnostic::on_unimplemented(
    message = "this stack does not say what it weighs under its ceiling",
    note = "a ceiling made by `CeilingLayer::weighed` wants every stack to: `.weight(n)` or `.weigh(|target| …)`"
)]
pub trait SaysWeight: Clone {}

/// The same weight whatever the target: 1, unless [`CeilingLayer::weight`](super::CeilingLayer::weight)
/// says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed(pub u64);

/// The weight that a function reads off the target: [`CeilingLayer::weigh`](super::CeilingLayer::weigh).
#[derive(Debug, Clone, Copy)]
pub struct By<F>(pub F);

/// No weight yet: the stack must say one before it can start anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unweighed;

impl SaysWeight for Fixed {}

impl<F: Clone> SaysWeight for By<F> {}

impl<T> Weigh<T> for Fixed {
    fn weigh(&self, _target: &T) -> u64 {
        self.0
    }
}

impl<T, F> Weigh<T> for By<F>
where
    F: Fn(&T) -> u64,
{
    fn weigh(&self, target: &T) -> u64 {
        (self.0)(target)
    }
}
