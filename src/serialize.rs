//! How status and statistics are serialized: enums as their words, durations as seconds.

use std::time::Duration;

use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::{
    error::{Error, ErrorKind},
    usage::Eviction,
};

pub(crate) fn seconds<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

pub(crate) fn seconds_if_any<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration
        .map(|duration| duration.as_secs_f64())
        .serialize(serializer)
}

/// A limit in units; none if it is without end, which is no number that others could read.
#[cfg(feature = "ceiling")]
pub(crate) fn limit<S: Serializer>(limit: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    Some(*limit)
        .filter(|limit| *limit < u64::MAX)
        .serialize(serializer)
}

/// With the fields `kind`, `text` (what it says, with its causes), `backend`, `retry_after_seconds` and
/// `detail` (what was seen of the backend, its last lines of output for one).
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut error = serializer.serialize_struct("Error", 5)?;
        error.serialize_field("kind", self.kind())?;
        error.serialize_field("text", &self.text())?;
        error.serialize_field("backend", &self.backend())?;
        let after = self.retry_after().map(|after| after.as_secs_f64());
        error.serialize_field("retry_after_seconds", &after)?;
        error.serialize_field("detail", &self.detail())?;
        error.end()
    }
}

macro_rules! as_words {
    ($($word:ty),*) => {$(
        #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
        impl Serialize for $word {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )*};
}

as_words!(ErrorKind, Eviction);
#[cfg(feature = "lazy-start")]
as_words!(crate::lazy_start::State);
#[cfg(feature = "ceiling")]
as_words!(crate::ceiling::Phase);
