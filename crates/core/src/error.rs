//! What can go wrong, in classes that say what to do about it.

use std::{sync::Arc, time::Duration};

use thiserror::Error;

/// The answer of every fallible call.
///
/// ```
/// fn half(n: u32) -> millrace_core::Result<u32> {
///     if n % 2 == 0 { Ok(n / 2) } else { Err(millrace_core::Error::Invalid(format!("{n} is odd").into())) }
/// }
/// assert_eq!(half(6), Ok(3));
/// assert_eq!(half(7).unwrap_err().to_string(), "7 is odd");
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What to do about an [`enum@Error`].
///
/// ```
/// use millrace_core::{Class, Error};
/// assert_eq!(Error::QueueFull { capacity: 8 }.class(), Class::Retry);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Nothing is wrong with the request: the same call may succeed later.
    Retry,
    /// Something is used up; free some of it or raise the limit.
    Resource,
    /// The request itself is wrong and will never succeed.
    Caller,
    /// The command or the device failed.
    Fatal,
}

/// Everything a device can answer instead of a result.
///
/// ```
/// use millrace::{Class, DeviceOptions, Error};
/// let device = millrace::runtime().open_with("cpu", DeviceOptions::default().budget(1024))?;
/// let error = device.allocate(5000).unwrap_err();
/// assert_eq!(error, Error::OutOfMemory { requested: 5000, in_use: 0, budget: 1024 });
/// assert_eq!(error.to_string(), "out of memory: requested 5000 bytes, 0 in use of a budget of 1024");
/// assert_eq!(error.class(), Class::Resource);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The stream's queue has no room right now.
    #[error("the stream's queue is full ({capacity} commands)")]
    QueueFull {
        /// How many commands the queue holds.
        capacity: usize,
    },
    /// The deadline passed before the command was finished.
    #[error("the deadline passed before the command was finished")]
    Deadline,
    /// Nothing moved on the stream for the device's timeout.
    #[error("no progress on the stream for {0:?}")]
    Stalled(Duration),
    /// The command was cancelled before it started.
    #[error("the command was cancelled before it started")]
    Cancelled,
    /// The device was told to abort before the command started.
    #[error("the device was aborted before the command started")]
    Aborted,
    /// The device takes no more commands.
    #[error("the device is shut down")]
    Closed,
    /// The kernel, or something the command owned, panicked.
    #[error("the command panicked: {0}")]
    Panicked(Arc<str>),
    /// What a command waited for will never happen: the marker's own command failed or was dropped.
    #[error("the marker was dropped before its stream reached it")]
    MarkerBroken,
    /// The device hangs or is gone.
    #[error("the device is lost: {0}; open a fresh one with recover()")]
    DeviceLost(Arc<str>),
    /// The driver refused or failed the command.
    #[error("the device refused the command: {0}")]
    Device(Arc<str>),
    /// Too many tickets are held at once.
    #[error("{0} commands are in flight or hold an unread ticket, which is the limit; drop or await some tickets")]
    TooManyTickets(usize),

    /// The budget does not cover the request.
    #[error("out of memory: requested {requested} bytes, {in_use} in use of a budget of {budget}")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes that live buffers hold.
        in_use: u64,
        /// Bytes the pool may hold in all.
        budget: u64,
    },
    /// The system refused memory within the budget.
    #[error("the system refused {0} bytes")]
    SystemMemory(u64),
    /// Worker threads could not be started.
    #[error("cannot start a worker thread: {0}")]
    Thread(Arc<str>),

    /// A buffer needs at least one byte.
    #[error("a buffer of zero bytes cannot be allocated")]
    ZeroSize,
    /// No device could hold this.
    #[error("a buffer of {requested} bytes is beyond the limit of {limit}")]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
        /// The largest size there is.
        limit: u64,
    },
    /// The handle names something of another device.
    #[error("the {what} belongs to another device")]
    WrongDevice {
        /// Buffer or kernel.
        what: &'static str,
    },
    /// The handle names something that is gone.
    #[error("buffer {index} of generation {generation} is gone")]
    StaleHandle {
        /// The handle's place.
        index: u32,
        /// The generation the handle was made in.
        generation: u32,
    },
    /// The range is not inside the buffer.
    #[error("offset {offset} and length {len} are not inside a buffer of {size} bytes")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Bytes from there.
        len: u64,
        /// Bytes of the buffer.
        size: u64,
    },
    /// The offset or length does not fit the element type.
    #[error("{value} is not a multiple of {align}, as the element type needs")]
    Misaligned {
        /// Offset, length or address.
        value: u64,
        /// What it has to be a multiple of.
        align: u64,
    },
    /// The buffer was made from bytes that others read.
    #[error("the buffer is read-only: it shares its memory with the bytes it was made from")]
    ReadOnly,
    /// The launch does not bind what the kernel declares.
    #[error("kernel {kernel} takes {expected} bindings, the launch has {given}")]
    Bindings {
        /// The kernel's name.
        kernel: Arc<str>,
        /// Declared.
        expected: usize,
        /// Bound.
        given: usize,
    },
    /// What is bound is smaller than the kernel's code needs, or larger than the device can bind.
    #[error(
        "binding {binding} of kernel {kernel} gets {given} bytes; its code needs {least}, and the device binds at most {most}"
    )]
    BindingSize {
        /// The kernel's name.
        kernel: Arc<str>,
        /// The binding's position.
        binding: usize,
        /// Bytes bound.
        given: u64,
        /// Bytes that the code needs, as far as they can be told from it.
        least: u64,
        /// Bytes that this device can bind.
        most: u64,
    },
    /// One buffer is bound twice, and one of the two is written.
    #[error("bindings {first} and {second} are the same buffer, and at least one of them is written")]
    Aliased {
        /// The first binding's position.
        first: usize,
        /// The second binding's position.
        second: usize,
    },
    /// The parameters are not as long as the kernel declares.
    #[error("kernel {kernel} takes {expected} bytes of parameters, the launch has {given}")]
    Parameters {
        /// The kernel's name.
        kernel: Arc<str>,
        /// Declared.
        expected: usize,
        /// Passed.
        given: usize,
    },
    /// No groups, or more than the device can launch.
    #[error("a launch of {groups:?} groups of {block:?} threads is outside of the device's limits")]
    Geometry {
        /// Groups in each direction.
        groups: [u32; 3],
        /// Threads of a group in each direction.
        block: [u32; 3],
    },
    /// The kernel has no implementation for this kind of device.
    #[error("kernel {kernel} has no implementation for a {device} device")]
    NoImplementation {
        /// The kernel's name.
        kernel: Arc<str>,
        /// The kind of device.
        device: &'static str,
    },
    /// The kernel's code does not compile.
    #[error("kernel {kernel} does not compile:\n{message}")]
    Compile {
        /// The kernel's name.
        kernel: Arc<str>,
        /// What the compiler says, with the line.
        message: Arc<str>,
    },
    /// A specification that no launch could satisfy.
    #[error("{0}")]
    Invalid(Arc<str>),
    /// There is no device by that name.
    #[error("no device {wanted:?}: {known}")]
    NoSuchDevice {
        /// What was asked for.
        wanted: Arc<str>,
        /// What there is, and why the rest is not.
        known: Arc<str>,
    },
}

impl Error {
    /// What to do about it.
    ///
    /// ```
    /// use millrace_core::{Class, Error};
    /// let again = |error: &Error| error.class() == Class::Retry;
    /// assert!(again(&Error::Deadline) && !again(&Error::ZeroSize));
    /// ```
    pub fn class(&self) -> Class {
        match self {
            Self::QueueFull { .. } | Self::Deadline | Self::Stalled(_) | Self::Cancelled => Class::Retry,
            Self::OutOfMemory { .. } | Self::SystemMemory(_) | Self::Thread(_) | Self::TooManyTickets(_) => {
                Class::Resource
            }
            Self::Aborted
            | Self::Closed
            | Self::Panicked(_)
            | Self::MarkerBroken
            | Self::DeviceLost(_)
            | Self::Device(_) => Class::Fatal,
            Self::ZeroSize
            | Self::TooLarge { .. }
            | Self::WrongDevice { .. }
            | Self::StaleHandle { .. }
            | Self::OutOfRange { .. }
            | Self::BindingSize { .. }
            | Self::Misaligned { .. }
            | Self::ReadOnly
            | Self::Bindings { .. }
            | Self::Aliased { .. }
            | Self::Parameters { .. }
            | Self::Geometry { .. }
            | Self::NoImplementation { .. }
            | Self::Compile { .. }
            | Self::Invalid(_)
            | Self::NoSuchDevice { .. } => Class::Caller,
        }
    }

    /// A panic's message, as far as it has one.
    ///
    /// ```
    /// use millrace_core::Error;
    /// let panic = std::panic::catch_unwind(|| panic!("oh")).unwrap_err();
    /// assert_eq!(Error::from_panic(&*panic), Error::Panicked("oh".into()));
    /// ```
    pub fn from_panic(panic: &(dyn std::any::Any + Send)) -> Self {
        let message = panic
            .downcast_ref::<&str>()
            .map(|s| Arc::from(*s))
            .or_else(|| panic.downcast_ref::<String>().map(|s| Arc::from(s.as_str())))
            .unwrap_or_else(|| Arc::from("a panic without a message"));
        Self::Panicked(message)
    }
}
