//! How a kernel is launched, and how it can be.

use std::{fmt, sync::Arc};

use millrace_core::{Dim3, Priority};

use crate::{Error, Message, Result};

/// The largest capacity of a ring.
///
/// ```
/// assert_eq!(millrace_resident::MAX_CAPACITY, 1 << 20);
/// ```
pub const MAX_CAPACITY: usize = 1 << 20;

/// Urgent messages in a row after which a normal one that waits gets its turn.
///
/// ```
/// assert_eq!(millrace_resident::STARVATION_BOUND, 8);
/// ```
pub const STARVATION_BOUND: u32 = 8;

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $variant:ident = $value:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[doc = $doc])* $variant = $value,)*
        }

        impl $name {
            /// All there are.
            pub const ALL: [Self; [$($value),*].len()] = [$(Self::$variant),*];

            /// In words.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// What a word of the control block means.
            pub fn from_word(word: u32) -> Option<Self> {
                match word {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

words! {
    /// How a kernel is. Launched → active ⇄ paused → draining → terminated, or failed.
    ///
    /// ```
    /// use millrace_resident::Status;
    /// assert!(!Status::Draining.is_ended() && Status::Failed.is_ended());
    /// assert_eq!(Status::from_word(Status::Active as u32), Some(Status::Active));
    /// assert_eq!(Status::ALL.map(Status::name)[..2], ["launched", "active"]);
    /// ```
    Status {
        /// It is there and takes messages, and handles none until it is activated.
        Launched = 1, "launched";
        /// It handles messages.
        Active = 2, "active";
        /// It takes messages, and handles none until it is activated.
        Paused = 3, "paused";
        /// It handles what was sent before, and takes no more.
        Draining = 4, "draining";
        /// It has ended as it was told to.
        Terminated = 5, "terminated";
        /// Its handler failed, and its restart policy allows no further start.
        Failed = 6, "failed";
    }
}

impl Status {
    /// Whether it will never handle another message.
    ///
    /// ```
    /// use millrace_resident::Status;
    /// let ended: Vec<_> = Status::ALL.into_iter().filter(|status| status.is_ended()).collect();
    /// assert_eq!(ended, [Status::Terminated, Status::Failed]);
    /// ```
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Terminated | Self::Failed)
    }
}

words! {
    /// What the host tells a kernel, as a word of the control block.
    ///
    /// ```
    /// use millrace_resident::Command;
    /// assert_eq!(Command::Drain.name(), "drain");
    /// assert!(Command::ALL.into_iter().all(|command| Command::from_word(command as u32) == Some(command)));
    /// ```
    Command {
        /// Wait to be activated.
        Wait = 0, "wait";
        /// Handle messages.
        Activate = 1, "activate";
        /// Handle none until it is activated again.
        Pause = 2, "pause";
        /// Handle what was sent, then end.
        Drain = 3, "drain";
        /// End.
        Terminate = 4, "terminate";
    }
}

/// How a kernel's worker waits for messages.
///
/// On the CPU this is for kernels with a thread of their own: all with [`Spin`](Self::Spin) or of high priority, and as many
/// others as there are cores, the first, except those of low priority. The rest share some threads, which wait as
/// [`Adaptive`](Self::Adaptive) says, whatever their kernels were launched with. On a GPU one program serves all kernels of a
/// device; it stays awake as long as the most wakeful of them wants, and in [batches](crate::Residency::Batched) it always
/// rests when there is nothing to do.
///
/// ```
/// use millrace_resident::{LaunchOptions, WaitPolicy};
/// let options = LaunchOptions::default().wait(WaitPolicy::Sleep);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// It polls for about as long as a wake-up would cost, then sleeps.
    #[default]
    Adaptive,
    /// It never sleeps: the shortest answer after an idle time, for a core of its own.
    Spin,
    /// It sleeps at once: the least processor time.
    Sleep,
}

/// What happens when the handler panics.
///
/// ```
/// use millrace_resident::{LaunchOptions, RestartPolicy};
/// let options = LaunchOptions::default().restart(RestartPolicy::UpTo(3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RestartPolicy {
    /// The kernel fails.
    #[default]
    Never,
    /// It goes on with the next message, its state as it was at the last checkpoint or at the start; so many times.
    UpTo(u32),
}

/// How a kernel may live on a GPU. On the CPU it makes no difference.
///
/// ```
/// use millrace_resident::{LaunchOptions, Residency};
/// let options = LaunchOptions::default().residency(Residency::Batched);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Residency {
    /// By leases where the device can, or else in batches.
    #[default]
    Auto,
    /// In batches, also where leases would be possible.
    Batched,
}

/// How a kernel lives.
///
/// ```
/// use millrace_resident::Mode;
/// assert_ne!(Mode::Leases, Mode::Batched);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// On threads of the process.
    Threads,
    /// On the device, which polls for messages in memory that it shares with the host.
    Leases,
    /// Its state is on the device; messages are carried there in batches, one dispatch each.
    Batched,
}

/// How a kernel lives on its device, and why in this way.
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
/// assert_eq!(kernel.residency().mode, Mode::Threads);
/// assert_eq!(kernel.residency().to_string(), "threads: the device is the processor");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InUse {
    /// How.
    pub mode: Mode,
    /// Why.
    pub why: Arc<str>,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Threads => "threads",
            Mode::Leases => "leases",
            Mode::Batched => "batched",
        };
        write!(f, "{mode}: {}", self.why)
    }
}

/// A state to start with.
#[derive(Debug, Clone)]
pub(crate) struct Restored {
    pub(crate) id: u32,
    pub(crate) bytes: Arc<[u8]>,
}

/// How a kernel is launched.
///
/// ```
/// use millrace_core::Priority;
/// use millrace_resident::{LaunchOptions, RestartPolicy, WaitPolicy};
/// let options = LaunchOptions::default()
///     .inbound(1024)
///     .outbound(64)
///     .priority(Priority::High)
///     .wait(WaitPolicy::Adaptive)
///     .restart(RestartPolicy::UpTo(2))
///     .checkpoint_every(1000)
///     .inactive();
/// ```
#[derive(Debug, Clone)]
pub struct LaunchOptions {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) inbound: usize,
    pub(crate) outbound: usize,
    pub(crate) payload: usize,
    pub(crate) priority: Priority,
    pub(crate) wait: WaitPolicy,
    pub(crate) restart: RestartPolicy,
    pub(crate) active: bool,
    pub(crate) checkpoint_every: Option<u64>,
    pub(crate) restored: Option<Restored>,
    pub(crate) residency: Residency,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            grid: Dim3::ONE,
            block: Dim3::ONE,
            inbound: 128,
            outbound: 128,
            payload: 0,
            priority: Priority::Normal,
            wait: WaitPolicy::default(),
            restart: RestartPolicy::default(),
            active: true,
            checkpoint_every: None,
            restored: None,
            residency: Residency::default(),
        }
    }
}

impl LaunchOptions {
    /// Groups that the kernel runs as: one, which need not be said. A kernel handles one message after the other, on one
    /// thread of its device, so on every device a launch with more is refused; what is to use a whole GPU is a
    /// [kernel](millrace_core::Device::kernel) that is launched anew each time.
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
    /// let spread = device.launch(Nothing, LaunchOptions::default().grid(2));
    /// assert!(matches!(spread, Err(Error::Unsupported { .. })));
    /// assert!(device.launch(Nothing, LaunchOptions::default().grid(1)).is_ok());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn grid(mut self, grid: impl Into<Dim3>) -> Self {
        self.grid = grid.into();
        self
    }

    /// Threads of a group: one, as there is one [group](Self::grid).
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
    /// let wide = device.launch(Nothing, LaunchOptions::default().block([8, 8]));
    /// assert!(matches!(wide, Err(Error::Unsupported { .. })));
    /// assert!(device.launch(Nothing, LaunchOptions::default().block([1, 1])).is_ok());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn block(mut self, block: impl Into<Dim3>) -> Self {
        self.block = block.into();
        self
    }

    /// Messages that can wait for the kernel, urgent and normal ones each; rounded up to a power of two.
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
    /// let kernel = device.launch(Nothing, LaunchOptions::default().inbound(3).inactive())?;
    /// (0..4).try_for_each(|_| kernel.try_send(()))?; // three are four
    /// assert_eq!(kernel.try_send(()).unwrap_err().error, Error::Full { capacity: 4 });
    /// # Ok::<(), Error>(())
    /// ```
    pub fn inbound(mut self, messages: usize) -> Self {
        self.inbound = messages;
        self
    }

    /// Answers that can wait for the host; rounded up to a power of two.
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
    /// let kernel = device.launch(Nothing, LaunchOptions::default().outbound(60))?;
    /// assert_eq!(kernel.region_layout().outbound, 64);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn outbound(mut self, messages: usize) -> Self {
        self.outbound = messages;
        self
    }

    /// Bytes of message that fit into a slot, at least. Those of a fixed size always fit; archives that are larger
    /// travel beside the slot.
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
    /// let kernel = device.launch(Nothing, LaunchOptions::default().payload(1000))?;
    /// assert!(kernel.region_layout().in_payload() >= 1000);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }

    /// How urgent the kernel is among others of its device. On the CPU an urgent kernel always has a worker of its own,
    /// a low one never.
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
    /// let urgent = LaunchOptions::default().priority(millrace_core::Priority::High);
    /// let kernel = device.launch(Nothing, urgent)?;
    /// assert_eq!(kernel.ask(()), Ok(()));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// How its worker waits for messages; [`WaitPolicy`] says which kernels that is for.
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
    /// let kernel = device.launch(Nothing, LaunchOptions::default().wait(WaitPolicy::Sleep))?;
    /// assert_eq!(kernel.ask(()), Ok(()), "it is woken");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn wait(mut self, policy: WaitPolicy) -> Self {
        self.wait = policy;
        self
    }

    /// What happens when the handler panics.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
    /// # struct Sum;
    /// # impl Handler for Sum {
    /// #     type Message = Number; type Reply = Number; type State = Number;
    /// #     fn state(&self) -> Number { Number { value: 0 } }
    /// #     fn handle(&mut self, sum: &mut Number, n: &Number, _: &mut Scope<'_, Number>) -> Number {
    /// #         assert!(n.value < 100, "too much");
    /// #         sum.value += n.value;
    /// #         *sum
    /// #     }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// // This handler adds up what it gets, and panics at 100 or more.
    /// let sum = device.launch(Sum, LaunchOptions::default().restart(RestartPolicy::UpTo(1)))?;
    /// assert_eq!(sum.ask(Number { value: 5 })?.value, 5);
    /// assert_eq!(sum.ask(Number { value: 100 }).err(), Some(Error::Panicked("too much".into())));
    /// assert_eq!(sum.ask(Number { value: 7 })?.value, 7, "it began anew");
    /// assert_eq!(sum.telemetry().restarts, 1);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.restart = policy;
        self
    }

    /// Starts it launched, not active: it handles nothing before [`crate::Resident::activate`].
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
    /// let kernel = device.launch(Nothing, LaunchOptions::default().inactive())?;
    /// assert_eq!(kernel.status(), Status::Launched);
    /// kernel.send(())?; // it waits
    /// kernel.activate()?;
    /// kernel.ask(())?;
    /// assert_eq!(kernel.telemetry().handled, 2);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn inactive(mut self) -> Self {
        self.active = false;
        self
    }

    /// Keeps a copy of the state after every so many messages, for restarts, and on a GPU for
    /// [`crate::Resident::recover`].
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
    /// # struct Sum;
    /// # impl Handler for Sum {
    /// #     type Message = Number; type Reply = Number; type State = Number;
    /// #     fn state(&self) -> Number { Number { value: 0 } }
    /// #     fn handle(&mut self, sum: &mut Number, n: &Number, _: &mut Scope<'_, Number>) -> Number {
    /// #         assert!(n.value < 100, "too much");
    /// #         sum.value += n.value;
    /// #         *sum
    /// #     }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// let sum = device.launch(Sum, LaunchOptions::default().checkpoint_every(2))?;
    /// for value in 1..=3 {
    ///     sum.ask(Number { value })?;
    /// }
    /// let kept = sum.last_checkpoint().expect("one was made")?;
    /// assert_eq!((kept.handled, kept.state.value), (2, 3));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn checkpoint_every(mut self, messages: u64) -> Self {
        self.checkpoint_every = Some(messages);
        self
    }

    /// Starts with this state instead of the handler's.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
    /// # struct Sum;
    /// # impl Handler for Sum {
    /// #     type Message = Number; type Reply = Number; type State = Number;
    /// #     fn state(&self) -> Number { Number { value: 0 } }
    /// #     fn handle(&mut self, sum: &mut Number, n: &Number, _: &mut Scope<'_, Number>) -> Number {
    /// #         assert!(n.value < 100, "too much");
    /// #         sum.value += n.value;
    /// #         *sum
    /// #     }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// let sum = device.launch(Sum, LaunchOptions::default().restore(&Number { value: 40 }))?;
    /// assert_eq!(sum.ask(Number { value: 2 })?.value, 42);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn restore<S: Message>(mut self, state: &S) -> Self {
        self.restored = Some(Restored { id: S::TYPE, bytes: state.as_bytes().into() });
        self
    }

    /// How it may live on a GPU.
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
    /// let kernel = device.launch(Nothing, LaunchOptions::default().residency(Residency::Batched))?;
    /// assert_eq!(kernel.residency().mode, Mode::Threads, "this is the CPU");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn residency(mut self, residency: Residency) -> Self {
        self.residency = residency;
        self
    }

    /// What no device could do.
    pub(crate) fn check(&self) -> Result<()> {
        for (name, capacity) in [("inbound", self.inbound), ("outbound", self.outbound)] {
            if !(1..=MAX_CAPACITY).contains(&capacity) {
                let text = format!("an {name} ring holds between 1 and {MAX_CAPACITY} messages, not {capacity}");
                return Err(Error::Invalid(text.into()));
            }
        }
        const LARGEST: usize = 1 << 20;
        if self.payload > LARGEST {
            let text = format!("a slot holds at most {LARGEST} bytes of message, not {}", self.payload);
            return Err(Error::Invalid(text.into()));
        }
        if self.checkpoint_every == Some(0) {
            return Err(Error::Invalid("a checkpoint is made after at least one message".into()));
        }
        if self.grid.volume() == 0 || self.block.volume() == 0 {
            return Err(Error::Invalid("grid and block are at least one in every direction".into()));
        }
        Ok(())
    }
}
