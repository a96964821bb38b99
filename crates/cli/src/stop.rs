//! Stopping a run that the user has seen enough of, at a place where it can end well.

use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const RUNNING: u8 = 1;
const STOPPING: u8 = 2;

/// Whether a run is under way, and whether it is to stop.
pub(crate) struct Run(AtomicU8);

impl Run {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(IDLE))
    }

    pub(crate) fn begin(&self) {
        self.0.store(RUNNING, Ordering::Relaxed);
    }

    /// Says whether it was told to stop.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(IDLE, Ordering::Relaxed) == STOPPING
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.load(Ordering::Relaxed) == STOPPING
    }

    /// Asks the run to stop, once; says whether there is one that will.
    pub(crate) fn stop(&self) -> bool {
        self.0.compare_exchange(RUNNING, STOPPING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
