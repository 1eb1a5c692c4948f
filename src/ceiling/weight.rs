//! `Weigh`: what a start weighs.

/// What a start weighs against the ceiling's limit.
///
/// Any `Fn(&Target) -> u64` does, see [`CeilingLayer::weigh`](super::CeilingLayer::weigh); [`Fixed`] is
/// the same for every target.
#[diagnostic::on_unimplemented(
    message = "nothing says what `{T}` weighs: `{Self}` does not",
    note = "a ceiling made by `CeilingLayer::weighed` wants every stack to say so: `.weight(n)` or `.weigh(|target| …)`"
)]
pub trait Weigh<T> {
    /// The weight of what `target` describes, in units of the limit. 0 takes no room.
    fn weigh(&self, target: &T) -> u64;
}

/// The same weight whatever the target: 1, unless [`CeilingLayer::weight`](super::CeilingLayer::weight)
/// says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed(pub u64);

/// No weight yet: the stack must say one before it can start anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unweighed;

impl<T> Weigh<T> for Fixed {
    fn weigh(&self, _target: &T) -> u64 {
        self.0
    }
}

impl<T, F> Weigh<T> for F
where
    F: Fn(&T) -> u64,
{
    fn weigh(&self, target: &T) -> u64 {
        self(target)
    }
}
