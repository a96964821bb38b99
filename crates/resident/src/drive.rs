//! Who runs a kernel of the processor: a right that moves.
//!
//! Its worker runs it when nobody waits. One who asks, while nothing else waits and the handler is known to be brief, takes
//! the right and runs the kernel itself, up to its own message: the answer is there without a thread having been woken.
//! What is sent and not asked is left to the worker, and so are questions among it: it is awake then, and had to be woken
//! again and again otherwise.
//! The message takes its place in the ring all the same, and the kernel's own steps decide what comes next, so order,
//! priorities, restarts, checkpoints and telemetry are the same whoever runs it. A plain message whose place is the next one
//! need not be written there, nor its answer to the ring that leads back: the handler is called with the one and gives the
//! other, and the place is passed over.
//!
//! What must stay true: a worker that goes to sleep has left its waker and has then looked once more, with the right in
//! its hand. So whoever sends without having the right rings the bell, and whoever has it and leaves anything undone rings
//! it after it gave the right back. `tests/loom.rs` has the model.

use std::sync::{Mutex, MutexGuard, TryLockError, atomic::Ordering};

use millrace_ring::poll_while_worthwhile;

use crate::{
    header::Header,
    kernel::{Kernel, Step},
    port::{Attachment, Outgoing, Port, lock},
    slots::Refusal,
};

/// Messages that an asker runs at most: its own, and those that came between.
const MOST: u32 = 8;

/// A kernel, and the right to run it.
pub(crate) struct Wheel {
    /// None once it has ended.
    kernel: Mutex<Option<Kernel>>,
}

impl Wheel {
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self { kernel: Mutex::new(Some(kernel)) }
    }

    /// Takes the right, waiting for it.
    pub(crate) fn take(&self) -> MutexGuard<'_, Option<Kernel>> {
        lock(&self.kernel)
    }

    /// Takes the right if nobody has it.
    pub(crate) fn try_take(&self) -> Option<MutexGuard<'_, Option<Kernel>>> {
        match self.kernel.try_lock() {
            Ok(kernel) => Some(kernel),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

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
pub(crate) enum Ran<R> {
    /// Its answer.
    Answered(R),
    /// The answer to the message of this number is where answers are, or will be.
    Sent(u64),
}

impl Port {
    /// Takes the right to run a kernel that is known to be brief. Whoever has it gives it back soon: another one who asks,
    /// or the worker on its way to sleep, and to give up would only wake it again.
    #[inline]
    fn take_wheel(&self) -> Option<MutexGuard<'_, Option<Kernel>>> {
        // Before the right: the worker that has it is not to be disturbed.
        let wheel = self.wheel.get().filter(|_| self.brief.load(Ordering::Relaxed))?;
        wheel.try_take().or_else(|| poll_while_worthwhile(|| wheel.try_take()))
    }

    /// Runs the kernel with a message, and reads its answer. None if it was not sent, because somebody else runs the kernel
    /// or it is better left to its worker.
    #[inline]
    pub(crate) fn call<R>(
        &self,
        message: &mut Outgoing<'_>,
        read: impl FnOnce(&Header, &[u8], Option<Attachment>) -> R,
    ) -> Option<Ran<R>> {
        let mut slot = self.take_wheel()?;
        let kernel = slot.as_mut().filter(|kernel| kernel.is_brief())?;
        if self.depth() != (0, 0) {
            return None;
        }
        let number = self.claim(message.head.high).ok()?;
        let (ran, done) = if kernel.is_next(number, &message.head) {
            let (id, answer) = kernel.call(number, message, read);
            (answer.map_or(Ran::Sent(id), Ran::Answered), kernel.is_done())
        } else {
            let id = self.put(number, message);
            (Ran::Sent(id), kernel.run_until(id, MOST))
        };
        drop(slot);
        if !done {
            self.work.ring();
        }
        Some(ran)
    }

    /// Sends a message, with `inject`, which does not ring, and runs the kernel until it is handled. Gives the message's
    /// number. None if it was not sent, because somebody else runs the kernel or it is better left to its worker.
    #[inline]
    pub(crate) fn send_and_run(&self, inject: impl FnOnce() -> Result<u64, Refusal>) -> Option<u64> {
        let mut slot = self.take_wheel()?;
        let kernel = slot.as_mut().filter(|kernel| kernel.is_brief())?;
        if self.depth() != (0, 0) {
            return None;
        }
        let id = inject().ok()?;
        let done = kernel.run_until(id, MOST);
        drop(slot);
        if !done {
            self.work.ring();
        }
        Some(id)
    }
}
