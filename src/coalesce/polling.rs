//! Which flights this thread polls just now, so that a call from within its own flight is refused
//! instead of waiting for itself.

use std::cell::RefCell;

/// One flight among all of the process: its table's address, its number there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) table: usize,
    pub(crate) flight: u64,
}

thread_local! {
    static POLLING: RefCell<Vec<Mark>> = const { RefCell::new(Vec::new()) };
}

/// Ends with the poll.
pub(crate) struct Polling {
    noted: bool,
}

impl Mark {
    /// This flight is being polled, or dropped, until the guard is dropped.
    pub(crate) fn polling(self) -> Polling {
        // Not while the thread's own values are being dropped.
        let noted = POLLING.try_with(|polling| polling.borrow_mut().push(self));
        Polling {
            noted: noted.is_ok(),
        }
    }

    /// Whether this thread is within a poll of this flight.
    pub(crate) fn is_polled_here(self) -> bool {
        POLLING
            .try_with(|polling| polling.borrow().contains(&self))
            .unwrap_or(false)
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.noted {
            let _ = POLLING.try_with(|polling| polling.borrow_mut().pop());
        }
    }
}
