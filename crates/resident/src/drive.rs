//! Who runs a kernel of the processor: a right that moves.
//!
//! Its worker runs it when nobody waits. One who asks, while little else waits and the handler is known to be brief, takes
//! the right and runs the kernel itself, up to its own message: the answer is there without a thread having been woken.
//! What is sent and not asked is the worker's, who stays awake for more of it; unless its sender asks soon every time. Then it
//! is left for that sender, and the worker only looks now and then whether it was left lying.
//! A plain question need not even be put into the ring: the handler is called with it, after all that was sent before it, and
//! its answer goes straight to who asked. A message of any other kind takes its place in the ring all the same. In either case
//! the kernel's own steps are what is run, so order, priorities, restarts, checkpoints and telemetry are the same whoever runs
//! it.
//!
//! What must stay true: a worker that goes to sleep has left its waker and has then looked once more, with the right in
//! its hand. So whoever sends without having the right rings the bell, and whoever has it and leaves anything undone rings
//! it after it gave the right back. Who leaves a message for itself has seen, after it was sent, that the worker minds; and
//! one that no longer does says so before it leaves its waker. `tests/loom.rs` has the model.

use std::sync::atomic::Ordering;

use millrace_ring::{Turnstile, poll_while_worthwhile};

use crate::{
    Moment,
    handler::Answer,
    header::Header,
    kernel::{Kernel, Step},
    layout::flags,
    port::{Head, Place, Port},
    slots::Refusal,
};

/// Messages that an asker runs at most: its own, and those before it.
pub(crate) const MOST: u32 = 8;

/// A kernel, and the right to run it: none once it has ended. Who asks again and again, alone, has it for nothing.
pub(crate) type Wheel = Turnstile<Option<Kernel>>;

/// Runs a kernel that somebody has the right to; one that has ended is dropped.
pub(crate) fn run(slot: &mut Option<Kernel>, budget: usize) -> Step {
    let Some(kernel) = slot else { return Step::Ended };
    let step = kernel.run(budget);
    if step == Step::Ended {
        *slot = None;
    }
    step
}

/// A plain question that is in no ring.
pub(crate) struct Question<'a> {
    pub(crate) urgent: bool,
    pub(crate) kind: u32,
    pub(crate) bytes: &'a [u8],
}

impl Question<'_> {
    /// What is known of it as of a message.
    #[inline(always)]
    pub(crate) fn head(&self, clock: Moment) -> Head {
        let (high, kind, flags) = (self.urgent, self.kind, flags::ASK | flags::WILLING);
        Head { high, kind, flags, clock, buffer: (0, 0), quietly: true }
    }

    /// What stands in front of it. Its number is none of a ring's.
    #[inline(always)]
    pub(crate) fn header(&self, number: u64, clock: Moment) -> Header {
        let head = self.head(clock);
        Header { id: 1 << 63 | number, ..head.header(number, self.bytes.len(), head.flags) }
    }
}

/// What came of a question whose sender ran the kernel.
pub(crate) enum Ran<R> {
    /// This is its answer.
    Answered(R),
    /// The answer to the message of this number is where answers are, or will be.
    Sent(u64),
}

impl Port {
    /// Lets `work` run a kernel that is known to be brief. Whoever has the right gives it back soon: another one who asks, or the
    /// worker on its way to sleep, and to give up would only wake it again.
    #[inline(always)]
    fn drive<R>(&self, urgent: bool, work: impl FnOnce(&mut Kernel) -> Option<R>) -> Option<R> {
        // Before the right: the worker that has it is not to be disturbed.
        let wheel = self.wheel.get().filter(|_| self.brief.load(Ordering::Relaxed))?;
        let mut turn = wheel.try_pass().or_else(|| poll_while_worthwhile(|| wheel.try_pass()))?;
        let kernel = turn.as_mut().filter(|kernel| kernel.is_brief())?;
        // Urgent messages are the worker's, and so are many, or those that are overtaken.
        let ([high, normal], most) = (kernel.waiting(), if urgent { 1 } else { MOST });
        if high > 0 || normal >= most {
            return None;
        }
        let result = work(kernel);
        let done = kernel.is_done();
        drop(turn);
        if !done {
            self.work.ring();
        }
        result
    }

    /// Runs the kernel with a question, and has its answer written to a place. None if it was not asked, because somebody else
    /// runs the kernel or it is better left to its worker.
    #[inline(never)]
    pub(crate) fn call(&self, question: &Question<'_>, place: Place) -> Option<Ran<Answer>> {
        self.drive(question.urgent, |kernel| kernel.answer(question, place))
    }

    /// Sends a message, with `inject`, which does not ring, and runs the kernel until it is handled. Gives the message's
    /// number. None if it was not sent, because somebody else runs the kernel or it is better left to its worker.
    #[inline]
    pub(crate) fn send_and_run(&self, urgent: bool, inject: impl FnOnce() -> Result<u64, Refusal>) -> Option<u64> {
        self.drive(urgent, |kernel| {
            let id = inject().ok()?;
            kernel.run_until(id, self.clock.last());
            Some(id)
        })
    }
}
