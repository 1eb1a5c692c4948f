//! `MakeError`: refused, or not made.

use std::{error::Error as StdError, fmt};

use crate::error::{BoxError, Error};

/// Why a [`Ceiling`](super::Ceiling) made no instance.
///
/// It is generic over the maker's own error and is no `std::error::Error` itself, which keeps the
/// bound `Into<BoxError>` off the services (see the crate's notes on types). It turns into a
/// [`BoxError`] that is either of the two, unwrapped.
#[derive(Debug, Clone)]
pub enum MakeError<E> {
    /// The ceiling had no room. The maker was not called.
    Refused(Error),
    /// The maker's own error.
    Make(E),
}

impl<E: fmt::Display> fmt::Display for MakeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MakeError::Refused(error) => error.fmt(f),
            MakeError::Make(error) => error.fmt(f),
        }
    }
}

impl<E> MakeError<E> {
    /// The ceiling's refusal, if it is one.
    pub fn refused(&self) -> Option<&Error> {
        match self {
            MakeError::Refused(error) => Some(error),
            MakeError::Make(_) => None,
        }
    }
}

impl<E: Into<BoxError>> From<MakeError<E>> for BoxError {
    fn from(error: MakeError<E>) -> Self {
        match error {
            MakeError::Refused(error) => Box::<dyn StdError + Send + Sync>::from(error),
            MakeError::Make(error) => error.into(),
        }
    }
}
