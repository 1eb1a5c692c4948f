//! The processes of a backend: one, or two while one is replaced.

use std::sync::{Arc, Mutex, PoisonError};

use tower_on_demand::process::Process;

/// Those of one backend that have been ready and are not gone. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Children(Arc<Mutex<Vec<Process>>>);

impl Children {
    pub(crate) fn born(&self, process: Process) {
        let mut children = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|process| !process.is_gone());
        children.push(process);
    }

    /// The oldest first.
    pub(crate) fn alive(&self) -> Vec<Process> {
        let children = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = children.iter().filter(|process| !process.is_gone());
        alive.cloned().collect()
    }
}
