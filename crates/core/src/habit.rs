//! What a stream's users do after they have handed over a command: wait for it, or go on.
//!
//! A command that is handed over to a worker and waited for a microsecond later costs two wake-ups, and its threads start
//! late. One that is left for its caller costs none, but if the caller does something else instead it starts late by a nap. So
//! a stream's commands are left for the caller only after it was seen several times in a row that it comes for them. A worker
//! does not linger for the next command of such a stream either: it would take what its caller runs sooner.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Nanoseconds after which somebody who comes had something else to do.
const SOON: u64 = 50_000;
/// Times in a row.
const USUAL: u32 = 3;
/// Ticks of a clock between submitting and waiting for it, if nothing is done in between: some microseconds, whatever a tick
/// is.
const AT_ONCE: u64 = 6000;

#[derive(Debug, Default)]
pub(crate) struct Habit {
    /// How often in a row somebody waited soon after the last command was handed over.
    soon: AtomicU32,
    /// When the first was that nobody has waited for yet, in nanoseconds of the device's life; zero if there is none.
    handed_over: AtomicU64,
}

impl Habit {
    /// A command was handed over.
    pub(crate) fn hands_over(&self, now: impl FnOnce() -> u64) {
        if self.handed_over.load(Ordering::Relaxed) == 0 {
            self.handed_over.store(now().max(1), Ordering::Relaxed);
        }
    }

    /// Somebody waits.
    pub(crate) fn waits(&self, now: impl FnOnce() -> u64) {
        let at = self.handed_over.load(Ordering::Relaxed);
        if at == 0 {
            return;
        }
        self.handed_over.store(0, Ordering::Relaxed);
        let soon = if now().saturating_sub(at) < SOON { self.soon.load(Ordering::Relaxed) + 1 } else { 0 };
        self.soon.store(soon.min(USUAL), Ordering::Relaxed);
    }

    /// Nobody came for what was left.
    pub(crate) fn forget(&self) {
        self.soon.store(0, Ordering::Relaxed);
    }

    /// Whether somebody will come soon for what is handed over.
    pub(crate) fn is_to_wait(&self) -> bool {
        self.soon.load(Ordering::Relaxed) == USUAL
    }
}

/// Whether those who submit wait for it at once, each time before the next: then nobody gains by a worker that does it
/// meanwhile, and it is run before they have their ticket. Launches are not counted, and end it: a kernel is foreign code, and
/// may wait for what its submitter is about to do.
#[derive(Debug, Default)]
pub(crate) struct Promptness {
    /// How often in a row.
    times: AtomicU32,
    /// When the last was submitted, in ticks; zero once it was waited for.
    submitted: AtomicU64,
}

impl Promptness {
    /// Something was submitted.
    #[inline]
    pub(crate) fn submits(&self, now: impl FnOnce() -> u64) {
        if self.submitted.load(Ordering::Relaxed) == 0 {
            self.submitted.store(now().max(1), Ordering::Relaxed);
        } else {
            self.forget(); // the one before was not waited for
        }
    }

    /// Somebody waits, however long it takes.
    #[inline]
    pub(crate) fn waits(&self, now: impl FnOnce() -> u64) {
        let at = self.submitted.load(Ordering::Relaxed);
        if at == 0 {
            return;
        }
        self.submitted.store(0, Ordering::Relaxed);
        if now().saturating_sub(at) >= AT_ONCE {
            self.forget();
        } else if !self.is_usual() {
            self.times.store(self.times.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// Somebody does something else than that.
    #[inline]
    pub(crate) fn forget(&self) {
        if self.times.load(Ordering::Relaxed) != 0 {
            self.times.store(0, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_usual(&self) -> bool {
        self.times.load(Ordering::Relaxed) >= USUAL
    }

    /// Whether it is usual, and was so the last time.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_usual() && self.submitted.load(Ordering::Relaxed) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_at_once_again_and_again_is_prompt_until_it_does_not() {
        let prompt = Promptness::default();
        let turn = |pause: u64| {
            prompt.submits(|| 100);
            prompt.waits(|| 100 + pause);
            prompt.is_usual()
        };
        let usual = || assert_eq!([turn(9), turn(9), turn(9)], [false, false, true]);
        usual();
        assert!(!turn(AT_ONCE), "it did something in between");
        usual();
        assert!(prompt.is_due());
        prompt.submits(|| 100);
        assert!(prompt.is_usual() && !prompt.is_due(), "this one was not waited for yet");
        prompt.submits(|| 100);
        assert!(!prompt.is_usual(), "the first was not waited for");
        prompt.waits(|| 100);
        prompt.waits(|| unreachable!("for both at once"));
        assert!(!prompt.is_usual());
    }
}
