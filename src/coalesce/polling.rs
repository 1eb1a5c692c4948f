//! Which flights this thread polls just now, so that a call from within its own flight is refused
//! instead of waiting for itself.

use std::cell::{Cell, RefCell};

/// One flight among all of the process: its table's address, its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) table: usize,
    pub(super) flight: u64,
}

/// No table is there.
const NOWHERE: Mark = Mark {
    table: 0,
    flight: 0,
};

thread_local! {
    static INNERMOST: Cell<Mark> = const { Cell::new(NOWHERE) };
    /// Those it is polled within, save for `NOWHERE`.
    static OUTER: RefCell<Vec<Mark>> = const { RefCell::new(Vec::new()) };
}

/// Ends with the poll.
pub(super) struct Polling {
    outer: Mark,
}

impl Mark {
    /// This flight is being polled, or dropped, until the guard is dropped.
    #[inline]
    pub(super) fn polling(self) -> Polling {
        let outer = INNERMOST.replace(self);
        if outer != NOWHERE {
            push(outer);
        }
        Polling { outer }
    }

    /// Whether this thread is within a poll of this flight.
    #[inline]
    pub(super) fn is_polled_here(self) -> bool {
        let innermost = INNERMOST.get();
        innermost != NOWHERE && (innermost == self || is_outer(self))
    }
}

impl Drop for Polling {
    #[inline]
    fn drop(&mut self) {
        INNERMOST.set(self.outer);
        if self.outer != NOWHERE {
            pop();
        }
    }
}

// Not while the thread's own values are being dropped: then only the innermost is known.

fn push(outer: Mark) {
    let _ = OUTER.try_with(|marks| marks.borrow_mut().push(outer));
}

fn pop() {
    let _ = OUTER.try_with(|marks| marks.borrow_mut().pop());
}

fn is_outer(mark: Mark) -> bool {
    OUTER
        .try_with(|marks| marks.borrow().contains(&mark))
        .unwrap_or(false)
}
