//! Who runs a kernel of the processor: a right that moves.
//!
//! Its worker runs it when nobody waits. One who asks, while little else waits and the handler is known to be brief, takes
//! the right and runs the kernel itself, up to its own message: the answer is there without a thread having been woken.
//! What is sent and not asked is the worker's, who stays awake for more of it; unless its sender asks soon every time. Then it
//! is left for that sender, and the worker only looks now and then whether it was left lying.
//! The message takes its place in the ring all the same, and the kernel's own steps decide what comes next, so order,
//! priorities, restarts, checkpoints and telemetry are the same whoever runs it. A plain message whose place is the next one
//! need not be written there, nor its answer to the ring that leads back: the handler is called with the one and gives the
//! other, and the place is passed over.
//!
//! What must stay true: a worker that goes to sleep has left its waker and has then looked once more, with the right in
//! its hand. So whoever sends without having the right rings the bell, and whoever has it and leaves anything undone rings
//! it after it gave the right back. Who leaves a message for itself has seen, after it was sent, that the worker minds; and
//! one that no longer does says so before it leaves its waker. `tests/loom.rs` has the model.

use std::sync::atomic::Ordering;

use millrace_ring::{Turnstile, poll_while_worthwhile};

use crate::{
    header::Header,
    kernel::{Kernel, Step},
    port::{Attachment, Outgoing, Port},
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

/// What came of a message whose sender ran the kernel.
pub(crate) enum Ran {
    /// Its answer was read.
    Answered,
    /// The answer to the message of this number is where answers are, or will be.
    Sent(u64),
}

impl Port {
    /// Lets `work` run a kernel that is known to be brief; it says whether there is nothing left to do. Whoever has the right
    /// gives it back soon: another one who asks, or the worker on its way to sleep, and to give up would only wake it again.
    #[inline]
    fn drive<R>(&self, urgent: bool, work: impl FnOnce(&mut Kernel) -> Option<(R, bool)>) -> Option<R> {
        // Before the right: the worker that has it is not to be disturbed.
        let wheel = self.wheel.get().filter(|_| self.brief.load(Ordering::Relaxed))?;
        let mut turn = wheel.try_pass().or_else(|| poll_while_worthwhile(|| wheel.try_pass()))?;
        let kernel = turn.as_mut().filter(|kernel| kernel.is_brief())?;
        // Urgent messages are the worker's, and so are many, or those that are overtaken.
        let ((high, normal), most) = (self.depth(), if urgent { 1 } else { MOST });
        if high > 0 || normal >= most {
            return None;
        }
        let (result, done) = work(kernel)?;
        drop(turn);
        if !done {
            self.work.ring();
        }
        Some(result)
    }

    /// Runs the kernel with a message, and has its answer read. None if it was not sent, because somebody else runs the kernel
    /// or it is better left to its worker.
    #[inline]
    pub(crate) fn call(
        &self,
        message: &mut Outgoing<'_>,
        read: impl FnOnce(&Header, &[u8], Option<Attachment>),
    ) -> Option<Ran> {
        self.drive(message.head.high, |kernel| {
            let number = self.claim(message.head.high).ok()?;
            if kernel.reaches(number, &message.head, MOST) {
                let (id, answered) = kernel.call(number, message, read);
                return Some((if answered { Ran::Answered } else { Ran::Sent(id) }, kernel.is_done()));
            }
            let id = self.put(number, message);
            Some((Ran::Sent(id), kernel.run_until(id, message.head.clock, MOST)))
        })
    }

    /// Sends a message, with `inject`, which does not ring, and runs the kernel until it is handled. Gives the message's
    /// number. None if it was not sent, because somebody else runs the kernel or it is better left to its worker.
    #[inline]
    pub(crate) fn send_and_run(&self, urgent: bool, inject: impl FnOnce() -> Result<u64, Refusal>) -> Option<u64> {
        self.drive(urgent, |kernel| {
            let id = inject().ok()?;
            Some((id, kernel.run_until(id, self.clock.last(), MOST)))
        })
    }
}
