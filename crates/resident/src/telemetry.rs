//! What can be seen of a kernel: what it did, and its state between two messages.

use crate::{Moment, Status};

/// What a kernel did so far, and how it is.
///
/// ```
/// # use millrace_resident::*;
/// # struct Nothing;
/// # impl Handler for Nothing {
/// #     type Message = (); type Reply = (); type State = ();
/// #     fn state(&self) {}
/// #     fn handle(&mut self, _: &mut (), _: &(), _: &mut Scope<'_, ()>) {}
/// # }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// let kernel = device.launch(Nothing, LaunchOptions::default())?;
/// kernel.ask(())?;
/// let telemetry = kernel.telemetry();
/// assert_eq!((telemetry.handled, telemetry.failed, telemetry.status), (1, 0, Status::Active));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Telemetry {
    /// How it is.
    pub status: Status,
    /// Whether its handler runs right now.
    pub busy: bool,
    /// Messages handled.
    pub handled: u64,
    /// Messages that could not be read or whose handler panicked.
    pub failed: u64,
    /// Messages that it sent, to the host or to other kernels.
    pub sent: u64,
    /// Messages that it sent to kernels that had no room, or had ended.
    pub dropped: u64,
    /// The clock of the last message.
    pub clock: Moment,
    /// Times it went on after a panic.
    pub restarts: u32,
    /// Checkpoints made.
    pub checkpoints: u32,
    /// Times it went to sleep.
    pub rests: u32,
    /// Messages that wait: urgent ones, and others.
    pub waiting: (u32, u32),
}

/// A kernel's state between two messages.
///
/// ```
/// # use millrace_resident::*;
/// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
/// # struct Sum;
/// # impl Handler for Sum {
/// #     type Message = Number; type Reply = (); type State = Number;
/// #     fn state(&self) -> Number { Number { value: 0 } }
/// #     fn handle(&mut self, sum: &mut Number, n: &Number, _: &mut Scope<'_, ()>) { sum.value += n.value }
/// # }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// let sum = device.launch(Sum, LaunchOptions::default())?;
/// sum.ask(Number { value: 7 })?;
/// let checkpoint = sum.checkpoint()?;
/// assert_eq!((checkpoint.state.value, checkpoint.handled), (7, 1));
/// let again = device.launch(Sum, LaunchOptions::default().restore(&checkpoint.state))?;
/// assert_eq!(again.checkpoint()?.state.value, 7);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Checkpoint<S> {
    /// The state.
    pub state: S,
    /// Messages that had been handled.
    pub handled: u64,
    /// The kernel's clock.
    pub clock: Moment,
}
