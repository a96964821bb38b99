//! Whether one who asks may run a kernel: lately somebody asked, soon after all that was sent, and the handler was brief every
//! time.

use millrace_ring::TickClock;

use crate::{LaunchOptions, Moment, WaitPolicy, drive};

/// Ticks of a handler that is brief: some microseconds, less than waking a thread costs, whatever the clock.
const BRIEF: u64 = 20_000;
/// Times in a row that somebody has to ask, and the handler to be brief, before one who asks runs it.
const PROOF: u32 = 32;
/// Who asks later after something that it sent does not ask soon.
const SOON: u64 = 50; // microseconds
/// One in so many is timed once the handler is known to be brief.
const SAMPLED: u64 = 8;

/// What a kernel has learned of its handler and of those who ask.
pub(crate) struct Brevity {
    /// Whether anybody but its worker may run it at all: a worker that never sleeps always has the right.
    matters: bool,
    /// Times in a row that somebody asked and the handler was brief, up to [`PROOF`].
    proof: u32,
    /// The handler was not brief the last time.
    doubted: bool,
    /// Messages in a row that the worker handled and nobody asked with.
    posted: u32,
    ticks: TickClock,
}

impl Brevity {
    pub(crate) fn new(options: &LaunchOptions) -> Self {
        let matters = options.wait != WaitPolicy::Spin;
        Self { matters, proof: 0, doubted: false, posted: 0, ticks: TickClock::pick() }
    }

    #[inline(always)]
    pub(crate) fn matters(&self) -> bool {
        self.matters
    }

    /// Whether one who asks may run it.
    #[inline(always)]
    pub(crate) fn is_proven(&self) -> bool {
        self.proof >= PROOF
    }

    /// It has to be shown again.
    pub(crate) fn forget(&mut self) {
        self.proof = 0;
    }

    /// A message is about to be handled, for one who `asked` then or by the worker; whether its sender asks with it, and is
    /// willing to run it. Says since when, if that is to be timed.
    ///
    /// What was sent before a question, and is not many or long ago, is run with it. All others are the worker's, who had better
    /// stay awake for more of them; and so are questions that it had to handle after all.
    #[inline(always)]
    pub(crate) fn before(
        &mut self,
        sent: Moment,
        asked: Option<Moment>,
        ask: bool,
        willing: bool,
        handled: u64,
    ) -> Option<u64> {
        let known = self.is_proven();
        self.posted = if ask || asked.is_some() { 0 } else { self.posted.saturating_add(1) };
        let asked_soon = match asked {
            Some(asked) => ask || asked.micros_since(sent) < SOON,
            None if ask => !known,
            None => self.posted < drive::MOST,
        };
        if !willing || !asked_soon {
            self.proof = 0;
        }
        let sampled = asked.is_some() && (self.doubted || handled.is_multiple_of(SAMPLED));
        (willing && (ask || asked.is_some()) && (sampled || !self.is_proven())).then(|| self.ticks.now())
    }

    /// It was handled, since then.
    #[inline(always)]
    pub(crate) fn after(&mut self, known: bool, since: u64) {
        let brief = self.ticks.now().wrapping_sub(since) < BRIEF;
        // Once may have been the system's fault, which interrupts whom it likes.
        self.doubted = !brief && known && !self.doubted;
        self.proof = if brief || self.doubted { PROOF.min(self.proof + 1) } else { 0 };
    }
}
