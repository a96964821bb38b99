//! What can be asked of a device.

use std::fmt;

use bytes::Bytes;

use crate::{
    Error, Result,
    backend::Limits,
    kernel::Launch,
    marker::{Marker, Signal},
    memory::{BufferSlice, View},
    road::Bearable,
};

/// Moves bytes into a buffer. Made by [`crate::Buffer::write`].
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let write = device.allocate(8)?.write(2, &b"abc"[..]);
/// assert_eq!((write.to.range(), &*write.data), (2..5, &b"abc"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Write {
    /// Where to.
    pub to: BufferSlice,
    /// What.
    pub data: Bytes,
}

/// Reads a range of a buffer. Made by [`crate::Buffer::read`].
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let read = device.allocate(8)?.read(2..);
/// assert_eq!(read.from.range(), 2..8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Read {
    /// What from.
    pub from: BufferSlice,
}

/// Copies from one place to another. Made by [`crate::Buffer::copy_to`].
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let (from, to) = (device.allocate(8)?, device.allocate(8)?);
/// let copy = from.copy_to(..4, &to, 1);
/// assert_eq!((copy.from.range(), copy.to.range()), (0..4, 1..5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Copy {
    /// Where from.
    pub from: BufferSlice,
    /// Where to, as long as `from`.
    pub to: BufferSlice,
}

/// Sets bytes to one value. Made by [`crate::Buffer::fill`].
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let fill = device.allocate(8)?.fill(6.., 0xff);
/// assert_eq!((fill.to.range(), fill.value), (6..8, 0xff));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Fill {
    /// Where.
    pub to: BufferSlice,
    /// What every byte becomes.
    pub value: u8,
}

/// Finishes when everything before it on the stream has, and brings the first error that nobody waited for.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let stream = device.stream()?;
/// let panics = millrace::KernelSpec::new("panics").cpu(millrace::CpuKernel::per_group(|_| panic!("oh")));
/// drop(stream.submit(device.kernel(&panics)?.launch())?); // nobody looks
/// assert!(matches!(stream.synchronize(), Err(millrace::Error::Panicked(_))));
/// assert!(stream.synchronize().is_ok(), "it is told once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Synchronize;

/// Waits on this stream until another has reached a marker. Made by [`Marker::wait`].
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let (marker, signal) = millrace::Marker::new();
/// let (first, second) = (device.stream()?, device.stream()?);
/// let mut waiting = second.submit(marker.wait())?;
/// assert!(waiting.try_wait().is_none());
/// first.submit(signal)?;
/// waiting.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct WaitFor(pub(crate) Marker);

/// One command. Its payload is shared with whoever made it, never copied on the way.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// use millrace::{Command, CommandKind};
/// let buffer = device.allocate(64)?;
/// let command = Command::from(buffer.write(0, vec![0; 64]));
/// assert_eq!(command.duplicate()?.kind(), CommandKind::Write);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Command {
    /// Bytes into a buffer.
    Write(Write),
    /// Bytes out of a buffer.
    Read(Read),
    /// Bytes from buffer to buffer.
    Copy(Copy),
    /// One byte many times.
    Fill(Fill),
    /// A kernel.
    Launch(Launch),
    /// The end of all before it.
    Synchronize,
    /// Lets those go on who wait for the marker.
    Mark(Signal),
    /// Waits for a marker.
    WaitFor(Marker),
}

/// The sort of a [`Command`], for events.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Command, CommandKind};
/// assert_eq!(Command::from(device.allocate(1)?.fill(.., 0)).kind(), CommandKind::Fill);
/// assert_eq!(Command::from(millrace::Synchronize).kind(), CommandKind::Synchronize);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommandKind {
    /// Bytes into a buffer.
    Write,
    /// Bytes out of a buffer.
    Read,
    /// Bytes from buffer to buffer.
    Copy,
    /// One byte many times.
    Fill,
    /// A kernel.
    Launch,
    /// The end of all before it.
    Synchronize,
    /// Lets those go on who wait for the marker.
    Mark,
    /// Waits for a marker.
    WaitFor,
}

impl Command {
    /// Its sort.
    pub fn kind(&self) -> CommandKind {
        match self {
            Self::Write(_) => CommandKind::Write,
            Self::Read(_) => CommandKind::Read,
            Self::Copy(_) => CommandKind::Copy,
            Self::Fill(_) => CommandKind::Fill,
            Self::Launch(_) => CommandKind::Launch,
            Self::Synchronize => CommandKind::Synchronize,
            Self::Mark(_) => CommandKind::Mark,
            Self::WaitFor(_) => CommandKind::WaitFor,
        }
    }

    /// Checks everything that can be checked before it runs.
    #[inline]
    pub(crate) fn check(&self, device: u64, limits: &Limits) -> Result<()> {
        match self {
            Self::Write(write) => write.check(device),
            Self::Read(read) => read.from.check(device, false),
            Self::Fill(fill) => fill.to.check(device, true),
            Self::Copy(copy) => copy.check(device),
            Self::Launch(launch) => launch.check(device, limits),
            Self::Synchronize | Self::Mark(_) | Self::WaitFor(_) => Ok(()),
        }
    }

    /// Bytes that it moves between host and device.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Write(write) => write.data.len() as u64,
            Self::Read(read) => read.from.len as u64,
            _ => 0,
        }
    }

    /// Whether a caller with such limits may run it on its own thread.
    #[inline]
    pub(crate) fn is_within(&self, limit: &Bearable) -> bool {
        match self {
            Self::Write(write) => write.to.len <= limit.bytes,
            Self::Read(_) | Self::Synchronize | Self::Mark(_) => true,
            Self::Copy(copy) => copy.to.len <= limit.bytes,
            Self::Fill(fill) => fill.to.len <= limit.bytes,
            Self::Launch(launch) => launch.is_within(limit.time),
            Self::WaitFor(marker) => marker.is_decided(),
        }
    }

    /// The same command for another stream: buffers and payload are shared. Of a marker's command, every duplicate has
    /// to be reached before the marker is.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let bytes = bytes::Bytes::from(vec![1, 2, 3]);
    /// let write = millrace::Command::from(device.allocate(3)?.write(0, bytes.clone()));
    /// let millrace::Command::Write(copy) = write.duplicate()? else { unreachable!() };
    /// assert_eq!(copy.data.as_ptr(), bytes.as_ptr(), "the payload is shared");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn duplicate(&self) -> Result<Self> {
        Ok(match self {
            Self::Write(write) => Self::Write(write.clone()),
            Self::Read(read) => Self::Read(read.clone()),
            Self::Copy(copy) => Self::Copy(copy.clone()),
            Self::Fill(fill) => Self::Fill(fill.clone()),
            Self::Launch(launch) => Self::Launch(launch.duplicate()?),
            Self::Synchronize => Self::Synchronize,
            Self::Mark(signal) => Self::Mark(signal.duplicate()),
            Self::WaitFor(marker) => Self::WaitFor(marker.clone()),
        })
    }
}

impl Write {
    fn check(&self, device: u64) -> Result<()> {
        self.to.check(device, true)?;
        if self.data.len() != self.to.len {
            let (offset, len) = (self.to.offset as u64, self.data.len() as u64);
            return Err(Error::OutOfRange { offset, len, size: self.to.len as u64 });
        }
        Ok(())
    }
}

impl Copy {
    fn check(&self, device: u64) -> Result<()> {
        self.from.check(device, false)?;
        self.to.check(device, true)?;
        if self.from.len != self.to.len {
            let (offset, len) = (self.to.offset as u64, self.to.len as u64);
            return Err(Error::OutOfRange { offset, len, size: self.from.len as u64 });
        }
        Ok(())
    }
}

/// What a command brings back.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// use millrace::{Command, Output};
/// let commands: [Command; 2] = [buffer.fill(.., 3).into(), buffer.read(..).into()];
/// let [done, read] = commands.map(|command| stream.run(command));
/// assert!(matches!(done?, Output::Done));
/// assert!(matches!(read?, Output::View(bytes) if *bytes == [3; 4]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Output {
    /// It is done.
    Done,
    /// The bytes that were read.
    View(View),
}

/// Something that can be submitted, and what its ticket gives.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Answer, Buffer, Command, Output, Request, Result, View};
///
/// /// Asks for the number in the first bytes of a buffer.
/// struct First(Buffer);
/// struct Number(u32);
///
/// impl From<First> for Command {
///     fn from(first: First) -> Self {
///         first.0.read(..4).into()
///     }
/// }
/// impl Request for First {
///     type Answer = Number;
/// }
/// impl Answer for Number {
///     fn from_output(output: Output) -> Result<Self> {
///         View::from_output(output).map(|bytes| Self(bytes.to::<u32>()[0]))
///     }
/// }
/// let (stream, buffer) = (device.stream()?, device.allocate(8)?);
/// stream.run(buffer.fill(.., 1))?;
/// assert_eq!(stream.run(First(buffer))?.0, 0x0101_0101);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Request: Into<Command> {
    /// What comes back.
    type Answer: Answer;
}

/// What a ticket can give.
///
/// [`Request`] shows one.
pub trait Answer: Sized + Send + 'static {
    /// For tickets: picks it out of what the device brought.
    fn from_output(output: Output) -> Result<Self>;
}

impl Answer for () {
    fn from_output(_: Output) -> Result<Self> {
        Ok(())
    }
}

impl Answer for Output {
    fn from_output(output: Output) -> Result<Self> {
        Ok(output)
    }
}

impl Answer for View {
    fn from_output(output: Output) -> Result<Self> {
        match output {
            Output::View(view) => Ok(view),
            Output::Done => Err(Error::Invalid("the device answered a read without bytes".into())),
        }
    }
}

macro_rules! requests {
    ($($name:ty => $answer:ty, $into:expr;)+) => {$(
        impl From<$name> for Command {
            #[inline]
            fn from(request: $name) -> Self {
                #[allow(clippy::redundant_closure_call, reason = "one shape for all")]
                ($into)(request)
            }
        }
        impl Request for $name {
            type Answer = $answer;
        }
    )+};
}
requests! {
    Write => (), Command::Write;
    Read => View, Command::Read;
    Copy => (), Command::Copy;
    Fill => (), Command::Fill;
    Launch => (), Command::Launch;
    Signal => (), Command::Mark;
    Synchronize => (), |_| Command::Synchronize;
    WaitFor => (), |wait: WaitFor| Command::WaitFor(wait.0);
}

impl Request for Command {
    type Answer = Output;
}

/// A command that was not accepted, and why. It is handed back whole.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// let rejected = stream.submit(buffer.write(2, vec![1, 2, 3])).unwrap_err();
/// assert_eq!(rejected.to_string(), "offset 2 and length 3 are not inside a buffer of 4 bytes");
/// let millrace::Command::Write(write) = rejected.command else { unreachable!() };
/// assert_eq!(write.data, vec![1, 2, 3], "and the bytes are back");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rejected {
    /// Why.
    pub error: Error,
    /// What was to be submitted.
    pub command: Command,
}

impl From<Box<Rejected>> for Error {
    fn from(rejected: Box<Rejected>) -> Self {
        rejected.error
    }
}

impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} was rejected: {}", self.command.kind(), self.error)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Rejected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
