//! `Counted`: for backends whose uses last longer than their responses, and which therefore count
//! themselves where no `IdleEvict` above them counts.

use std::sync::{Arc, OnceLock};

use crate::{clock::Recency, lease::Leased, matches::Nothing, usage::Usage};

/// Who counts the uses of a backend: somebody above, by a word that is attached, or else the
/// backend by its own, made at the first need.
pub(crate) struct Counted {
    counting: OnceLock<Counting>,
}

enum Counting {
    Attached(Arc<Usage>),
    Own(Arc<Usage>),
}

/// The clock of usage words that nobody asks for recency.
struct NoClock;

impl Recency for NoClock {
    fn now(&self) -> u64 {
        0
    }
}

impl Counted {
    pub(crate) const fn new() -> Self {
        Self {
            counting: OnceLock::new(),
        }
    }

    pub(crate) fn attach(&self, usage: &Arc<Usage>) {
        let _ = self.counting.set(Counting::Attached(usage.clone()));
    }

    fn counting(&self) -> &Counting {
        self.counting
            .get_or_init(|| Counting::Own(Usage::new(Arc::new(NoClock))))
    }

    pub(crate) fn usage(&self) -> &Arc<Usage> {
        match self.counting() {
            Counting::Attached(usage) | Counting::Own(usage) => usage,
        }
    }

    /// A lease of `service`, counted here unless somebody above counts.
    pub(crate) fn lease<S, H>(&self, service: S, hold: H) -> Leased<S, H> {
        match self.counting() {
            Counting::Attached(_) => Leased::uncounted(service, hold),
            Counting::Own(usage) => Leased::claimed(service, usage, hold, Nothing),
        }
    }
}

/// An instance without an owner is closed, and what was not used of it yet is void.
impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(Counting::Own(usage)) = self.counting.get() {
            usage.close_dead();
        }
    }
}
