//! What a kernel does with a message.

use std::{collections::VecDeque, num::NonZeroU64};

use millrace_core::Priority;

use crate::{
    Error, Message, Moment, Result,
    header::Header,
    layout::flags,
    port::{Attachment, Place, Port},
};

/// A kernel: its state, and what it does with a message. The same definition works on every device for which it has
/// code: Rust for the CPU, WGSL for GPUs.
///
/// ```
/// use millrace_resident::{Handler, Launch, LaunchOptions, Message, Scope};
///
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Add { amount: u32 }
///
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Total { value: u32 }
///
/// struct Counter;
///
/// impl Handler for Counter {
///     type Message = Add;
///     type Reply = Total;
///     type State = Total;
///     const WGSL: Option<&'static str> = Some("
///         (*state).value += message.amount;
///         return Total((*state).value);
///     ");
///     fn state(&self) -> Total {
///         Total { value: 100 }
///     }
///     fn handle(&mut self, state: &mut Total, message: &Add, _: &mut Scope<'_, Total>) -> Total {
///         state.value += message.amount;
///         *state
///     }
/// }
///
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// let device = runtime.open("cpu")?;
/// let counter = device.launch(Counter, LaunchOptions::default())?;
/// assert_eq!(counter.ask(Add { amount: 1 })?.value, 101);
/// assert_eq!(counter.ask(Add { amount: 2 })?.value, 103);
/// # Ok::<(), millrace_resident::Error>(())
/// ```
pub trait Handler: Send + 'static {
    /// What it is sent.
    type Message: Message;
    /// What it answers. With `()`, only those who ask get an answer, and it is empty.
    type Reply: Message;
    /// What it remembers from message to message: this is what checkpoints hold, and what lies in a GPU's memory.
    type State: Message;

    /// For GPUs: the body of `fn handle(state: ptr<function, State>, message: Message) -> Reply`, with the types under
    /// their own names. Without a reply it returns nothing. It has no [`Scope`]; the words of its
    /// [`memory`](Self::memory) it gets with `load(at: u32) -> u32` and changes with `store(at: u32, value: u32)`. Beyond
    /// the end there are zeros, and what is stored is dropped.
    const WGSL: Option<&'static str> = None;

    /// The state to start with, and to go on with after a failure if there is no checkpoint.
    fn state(&self) -> Self::State;

    /// Memory besides the state, as many words as it needs, and what is in them at the start. The handler works on them
    /// where they lie: the state is copied for every message on a GPU, this is not. It is no part of checkpoints, so a
    /// kernel that has any makes none by itself, and after a restart it is as at the start.
    ///
    /// No message changes it twice. One whose handler makes more turns in its loops than a GPU's driver lets it fails:
    /// whoever asked gets an error, the state is as before the message, and these words hold what the handler had stored
    /// by then. A message that could not be read has changed nothing.
    ///
    /// ```
    /// use millrace_resident::{Handler, Launch, LaunchOptions, Message, Scope};
    ///
    /// #[derive(Clone, Copy, Message)]
    /// #[repr(C)]
    /// struct Swap { at: u32, value: u32 }
    ///
    /// /// A table of a size that is known when the program runs.
    /// struct Table(usize);
    ///
    /// impl Handler for Table {
    ///     type Message = Swap;
    ///     type Reply = Swap;
    ///     type State = ();
    ///     const WGSL: Option<&'static str> = Some("
    ///         let old = load(message.at);
    ///         store(message.at, message.value);
    ///         return Swap(message.at, old);
    ///     ");
    ///     fn state(&self) {}
    ///     fn memory(&self) -> Vec<u32> {
    ///         vec![7; self.0]
    ///     }
    ///     fn handle(&mut self, _: &mut (), message: &Swap, scope: &mut Scope<'_, Swap>) -> Swap {
    ///         let old = scope.memory().get_mut(message.at as usize).map(|word| std::mem::replace(word, message.value));
    ///         Swap { at: message.at, value: old.unwrap_or(0) }
    ///     }
    /// }
    ///
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// let device = runtime.open("cpu")?;
    /// let table = device.launch(Table(1000), LaunchOptions::default())?;
    /// assert_eq!(table.ask(Swap { at: 999, value: 1 })?.value, 7);
    /// assert_eq!(table.ask(Swap { at: 999, value: 2 })?.value, 1);
    /// assert_eq!(table.ask(Swap { at: 1000, value: 2 })?.value, 0);
    /// # Ok::<(), millrace_resident::Error>(())
    /// ```
    fn memory(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Handles a message. What `self` holds stays with this kernel, and is not part of checkpoints.
    fn handle(
        &mut self,
        state: &mut Self::State,
        message: &Self::Message,
        scope: &mut Scope<'_, Self::Reply>,
    ) -> Self::Reply;

    /// The handler panicked and is about to go on: puts in order what `self` holds.
    fn restarted(&mut self) {}
}

/// A message that waits to be sent on.
#[derive(Debug)]
pub(crate) struct Emission {
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) attachment: Option<Attachment>,
}

/// Where a handler's answers go: to the place that is free for one, or beside it.
pub(crate) struct Outbox<'a> {
    pub(crate) port: &'a Port,
    /// Where the answer goes if it goes to the host, and nothing before it.
    pub(crate) place: Option<Place>,
    pub(crate) answer: Option<Answer>,
    /// What of the answer does not fit into its slot.
    pub(crate) beside: Option<Attachment>,
    /// The answer's bytes, if it goes elsewhere.
    pub(crate) scratch: &'a mut Vec<u8>,
    pub(crate) emissions: &'a mut VecDeque<Emission>,
    /// The handler wants no answer to be sent on.
    pub(crate) silent: bool,
}

/// An answer that was written: its type, its length, and whether it lies in its place and nothing has to be sent before it. One
/// word, because it is handed on while it is on its way to memory: what was written in parts and is read as one has to arrive there
/// first.
#[derive(Clone, Copy)]
pub(crate) struct Answer(NonZeroU64);

impl Answer {
    const IN_PLACE: u64 = 1 << 62;
    const LONGEST: usize = (1 << 30) - 1;

    #[inline(always)]
    fn new(kind: u32, length: usize, in_place: bool) -> Self {
        /// Set in all of them.
        const THERE: NonZeroU64 = match NonZeroU64::new(1 << 63) {
            Some(there) => there,
            None => NonZeroU64::MAX,
        };
        assert!(length <= Self::LONGEST, "an answer of {length} bytes");
        Self(THERE | u64::from(kind) | (length as u64) << 32 | if in_place { Self::IN_PLACE } else { 0 })
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> u32 {
        self.0.get() as u32
    }

    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        (self.0.get() >> 32) as u32 & Self::LONGEST as u32
    }

    #[inline(always)]
    pub(crate) fn is_in_place(self) -> bool {
        self.0.get() & Self::IN_PLACE != 0
    }
}

impl Outbox<'_> {
    /// Writes the answer.
    #[inline(always)]
    pub(crate) fn answer(&mut self, kind: u32, bytes: &[u8]) -> Result<()> {
        self.answer_with(kind, |place| {
            assert!(bytes.len() <= place.room, "the layout was made for larger answers");
            // SAFETY: the place is ours to write, and there is room.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.start, bytes.len()) };
            Ok((bytes.len(), None))
        })
    }

    /// Whether the answer can be built in its place.
    pub(crate) fn is_in_place(&self) -> bool {
        self.place.is_some() && self.emissions.is_empty()
    }

    /// Lets `write` build the answer: in its place, or where it waits for those that have to be sent before it.
    #[inline(always)]
    pub(crate) fn answer_with(
        &mut self,
        kind: u32,
        write: impl FnOnce(Place) -> Result<(usize, Option<Attachment>)>,
    ) -> Result<()> {
        let in_place = self.place.filter(|_| self.emissions.is_empty());
        let place = in_place.unwrap_or_else(|| {
            let room = self.port.layout.out_payload();
            self.scratch.clear();
            self.scratch.reserve(room);
            Place { start: self.scratch.as_mut_ptr(), room }
        });
        let (length, attachment) = write(place)?;
        if in_place.is_none() {
            assert!(length <= self.scratch.capacity());
            // SAFETY: that much was written, and there is room for it.
            unsafe { self.scratch.set_len(length) };
        }
        self.answer = Some(Answer::new(kind, length, in_place.is_some()));
        if attachment.is_some() {
            self.beside = attachment;
        }
        Ok(())
    }
}

/// What a handler knows about the message besides the message, and what else it can do.
///
/// ```
/// # use millrace_resident::*;
/// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
/// struct Countdown;
/// impl Handler for Countdown {
///     type Message = Number;
///     type Reply = Number;
///     type State = ();
///     fn state(&self) {}
///     fn handle(&mut self, _: &mut (), from: &Number, scope: &mut Scope<'_, Number>) -> Number {
///         for value in (1..=from.value).rev() {
///             scope.emit(&Number { value });
///         }
///         Number { value: 0 }
///     }
/// }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// let countdown = device.launch(Countdown, LaunchOptions::default())?;
/// countdown.send(Number { value: 2 })?;
/// let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
/// assert_eq!([countdown.receive(soon)?.value, countdown.receive(soon)?.value, countdown.receive(soon)?.value], [2, 1, 0]);
/// # Ok::<(), Error>(())
/// ```
pub struct Scope<'a, R> {
    header: &'a Header,
    attachment: Option<&'a Attachment>,
    emissions: &'a mut VecDeque<Emission>,
    silent: &'a mut bool,
    memory: &'a mut [u32],
    encode: fn(&R) -> Result<Emission>,
}

impl<R> Scope<'_, R> {
    /// The message's number.
    pub fn id(&self) -> u64 {
        self.header.id
    }

    /// When it was sent.
    pub fn sent(&self) -> Moment {
        self.header.clock
    }

    /// How urgent it was.
    pub fn priority(&self) -> Priority {
        if self.header.flags & flags::PRIORITY == 0 { Priority::High } else { Priority::Normal }
    }

    /// Whether its sender waits for the answer.
    pub fn is_ask(&self) -> bool {
        self.header.is_ask()
    }

    /// The bytes of the buffer that was sent with it.
    pub fn payload(&self) -> Option<&[u8]> {
        match self.attachment {
            Some(Attachment::View(view)) => Some(view),
            _ => None,
        }
    }

    /// The kernel's [memory](Handler::memory).
    pub fn memory(&mut self) -> &mut [u32] {
        self.memory
    }

    /// Sends a message besides the answer: to the kernels that this one is linked to, or else to whoever receives. If
    /// there is no room it is kept, and the kernel handles no further message until it is sent.
    pub fn emit(&mut self, message: &R) {
        match (self.encode)(message) {
            Ok(emission) => self.emissions.push_back(emission),
            Err(error) => tracing::warn!(%error, "a message could not be archived and was not sent"),
        }
    }

    /// Sends no answer to this message. One who asked gets it all the same.
    pub fn no_reply(&mut self) {
        *self.silent = true;
    }
}

impl<R> std::fmt::Debug for Scope<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope").field("header", &self.header).finish_non_exhaustive()
    }
}

/// A handler as the kernel's loop sees it.
pub(crate) trait Behaviour: Send {
    /// Reads the message, runs the handler, writes the answer.
    fn handle(
        &mut self,
        header: &Header,
        bytes: &[u8],
        attachment: Option<&Attachment>,
        outbox: &mut Outbox<'_>,
    ) -> Result<()>;
    /// Whether messages that nobody asked with are answered, too.
    fn answers(&self) -> bool;
    /// The state's bytes.
    fn state(&self) -> &[u8];
    /// Takes another state, or the first one.
    fn restart(&mut self, state: Option<&[u8]>);
}

/// What a plain handler does.
pub(crate) struct Plain<H: Handler> {
    handler: H,
    state: H::State,
    first: H::State,
    memory: Vec<u32>,
}

impl<H: Handler> Plain<H> {
    pub(crate) fn new(handler: H, first: H::State, memory: Vec<u32>) -> Self {
        Self { handler, state: first, first, memory }
    }
}

/// What can be said about a message before it is read.
#[inline(always)]
pub(crate) fn check_kind(header: &Header, bytes: &[u8], expected: u32) -> Result<()> {
    if header.kind != expected {
        return Err(Error::WrongType { expected, found: header.kind });
    }
    if header.length as usize != bytes.len() {
        return Err(Error::WrongLength { expected: bytes.len(), found: header.length as usize });
    }
    Ok(())
}

impl<H: Handler> Behaviour for Plain<H> {
    #[inline]
    fn handle(
        &mut self,
        header: &Header,
        bytes: &[u8],
        attachment: Option<&Attachment>,
        outbox: &mut Outbox<'_>,
    ) -> Result<()> {
        check_kind(header, bytes, H::Message::TYPE)?;
        let message = H::Message::from_bytes(bytes)?;
        if header.flags & flags::ATTACHED != 0 && attachment.is_none() {
            return Err(Error::NoPayload);
        }
        let encode = |message: &H::Reply| {
            let (kind, bytes) = (H::Reply::TYPE, message.as_bytes().to_vec());
            Ok(Emission { kind, bytes, attachment: None })
        };
        let reply = {
            let mut scope = scope(header, attachment, outbox, &mut self.memory, encode);
            self.handler.handle(&mut self.state, message, &mut scope)
        };
        outbox.answer(H::Reply::TYPE, reply.as_bytes())
    }

    fn answers(&self) -> bool {
        H::Reply::TYPE != <() as Message>::TYPE
    }

    fn state(&self) -> &[u8] {
        self.state.as_bytes()
    }

    fn restart(&mut self, state: Option<&[u8]>) {
        self.state = state.and_then(|bytes| H::State::read_from(bytes).ok()).unwrap_or(self.first);
        if !self.memory.is_empty() {
            self.memory = self.handler.memory();
        }
        self.handler.restarted();
    }
}

/// A scope over a shorter borrow of the outbox.
pub(crate) fn scope<'a, R>(
    header: &'a Header,
    attachment: Option<&'a Attachment>,
    outbox: &'a mut Outbox<'_>,
    memory: &'a mut [u32],
    encode: fn(&R) -> Result<Emission>,
) -> Scope<'a, R> {
    Scope { header, attachment, emissions: outbox.emissions, silent: &mut outbox.silent, memory, encode }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_it_was_made_of() {
        for kind in [0, 1, 0x8000_0001, u32::MAX] {
            for length in [0, 1, 8192, Answer::LONGEST] {
                for in_place in [false, true] {
                    let answer = Answer::new(kind, length, in_place);
                    let made_of = (answer.kind(), answer.length() as usize, answer.is_in_place());
                    assert_eq!(made_of, (kind, length, in_place));
                }
            }
        }
        assert!(std::panic::catch_unwind(|| Answer::new(1, Answer::LONGEST + 1, true)).is_err());
    }
}
