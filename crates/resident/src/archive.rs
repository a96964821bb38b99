//! Messages of any size: archives, made by `rkyv`, always validated before they are read.
//!
//! An archive is built in the slot, if it fits, and read there. One that does not fit moves to memory beside the ring
//! while it is being built, and only its handle travels.

use std::{marker::PhantomData, ops::Deref, sync::Arc, time::Instant};

use millrace_core::{Device, Priority};
use rkyv::{
    Portable, Serialize,
    api::high::{HighSerializer, HighValidator, access, to_bytes_in_with_alloc},
    bytecheck::CheckBytes,
    rancor,
    ser::writer::{Positional, Writer},
    util::AlignedVec,
};

use crate::{
    Command, Error, LaunchOptions, Message, Region, Result, Scope, Status, Telemetry,
    asked::{Asked, failure, look_for_any},
    engine::Plan,
    handler::{Behaviour, Emission, Outbox, check_kind, scope},
    header::Header,
    layout::{RegionLayout, flags},
    port::{Attachment, Head, Place, posted},
    resident::{Base, lifecycle, restored},
    scratch::{Scratch, Space},
    slots::Refusal,
};

/// What can be archived: everything that derives `rkyv`'s `Archive` and `Serialize`.
///
/// ```
/// use millrace_resident::{Archivable, rkyv};
/// #[derive(rkyv::Archive, rkyv::Serialize)]
/// # #[rkyv(crate = millrace_resident::rkyv)]
/// struct Document { name: String, values: Vec<f32> }
/// fn is_archivable<T: Archivable>() {}
/// is_archivable::<Document>();
/// ```
pub trait Archivable:
    rkyv::Archive<Archived: Portable + Sync + for<'a> CheckBytes<HighValidator<'a, rancor::Error>>>
    + for<'a> Serialize<HighSerializer<Target, Scratch<'a>, rancor::Error>>
    + Send
    + 'static
{
}

impl<T> Archivable for T where
    T: rkyv::Archive<Archived: Portable + Sync + for<'a> CheckBytes<HighValidator<'a, rancor::Error>>>
        + for<'a> Serialize<HighSerializer<Target, Scratch<'a>, rancor::Error>>
        + Send
        + 'static
{
}

/// Where an archive is written: into a slot, or beside it once it is too large.
#[derive(Debug)]
#[doc(hidden)]
pub struct Target {
    place: Place,
    written: usize,
    beside: Option<AlignedVec>,
}

impl Target {
    fn new(place: Place) -> Self {
        Self { place, written: 0, beside: None }
    }

    /// Bytes in the slot, and what is beside it.
    fn finish(self) -> (usize, Option<Attachment>) {
        match self.beside {
            Some(bytes) => (0, Some(Attachment::Archive(Arc::new(bytes)))),
            None => (self.written, None),
        }
    }
}

impl Positional for Target {
    #[inline]
    fn pos(&self) -> usize {
        self.beside.as_ref().map_or(self.written, AlignedVec::len)
    }
}

impl<E> Writer<E> for Target {
    // An archive is written in many small pieces, half of them empty.
    #[inline(always)]
    fn write(&mut self, bytes: &[u8]) -> Result<(), E> {
        if bytes.len() > self.place.room - self.written {
            self.write_beside(bytes);
            return Ok(());
        }
        // SAFETY: whoever made the target owns the place, and there is room.
        unsafe { copy(bytes.as_ptr(), self.place.start.add(self.written), bytes.len()) };
        self.written += bytes.len();
        Ok(())
    }
}

impl Target {
    /// Writes what does not fit into the place, from which everything moves.
    #[cold]
    fn write_beside(&mut self, bytes: &[u8]) {
        let beside = self.beside.get_or_insert_with(|| {
            let mut beside = AlignedVec::with_capacity((self.written + bytes.len()).next_power_of_two());
            // SAFETY: that much of the place was written.
            beside.extend_from_slice(unsafe { std::slice::from_raw_parts(self.place.start, self.written) });
            beside
        });
        beside.extend_from_slice(bytes);
        self.place.room = self.written;
    }
}

/// Copies bytes; few of them without a call.
///
/// # Safety
/// All of them are valid, in both places, which do not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: by the caller's word, as each piece is inside.
    unsafe {
        let piece = |size: usize, at: usize| std::ptr::copy_nonoverlapping(from.add(at), to.add(at), size);
        // Pieces from both ends, which may overlap.
        match bytes {
            0 => {}
            1..4 => (0..bytes).for_each(|at| piece(1, at)),
            4..8 => [0, bytes - 4].iter().for_each(|&at| piece(4, at)),
            8..16 => [0, bytes - 8].iter().for_each(|&at| piece(8, at)),
            16..=32 => [0, bytes - 16].iter().for_each(|&at| piece(16, at)),
            33..=64 => [0, 16, bytes - 32, bytes - 16].iter().for_each(|&at| piece(16, at)),
            _ => std::ptr::copy_nonoverlapping(from, to, bytes),
        }
    }
}

/// Bytes up to which an archive for other kernels is copied into the slot of each.
const COPIED: usize = 256;

/// No memory at all: everything goes beside.
const NOWHERE: Place = Place { start: std::ptr::NonNull::dangling().as_ptr(), room: 0 };

pub(crate) fn corrupt(error: &rancor::Error) -> Error {
    Error::Corrupt(error.to_string().into())
}

/// Tells types of archives apart.
pub(crate) fn kind_of<T>() -> u32 {
    crate::layout::type_id(std::any::type_name::<T>(), &[])
}

/// Archives a value: in a place if it fits there.
#[inline]
fn archived<T: Archivable>(value: &T, place: Place) -> Result<Target> {
    let mut space = Space::new();
    let made = to_bytes_in_with_alloc(value, Target::new(place), Scratch::over(&mut space));
    made.map_err(|error: rancor::Error| corrupt(&error))
}

/// Whether the bytes are an archive of the type: every byte that matters is looked at.
#[inline]
pub(crate) fn checked<T: Archivable>(bytes: &[u8]) -> Result<&T::Archived> {
    access::<T::Archived, rancor::Error>(bytes).map_err(|error| corrupt(&error))
}

/// An archive that was received: validated, and read where it is.
///
/// ```
/// use millrace_resident::Archive;
/// let archive = Archive::new(&vec![1u32, 2, 3])?;
/// assert_eq!(archive[1], 2);
/// assert!(Archive::<Vec<u32>>::from_bytes(&archive.bytes()[1..]).is_err());
/// # Ok::<(), millrace_resident::Error>(())
/// ```
#[derive(Debug)]
pub struct Archive<T> {
    /// Was validated.
    bytes: Arc<AlignedVec>,
    of: PhantomData<fn() -> T>,
}

impl<T: Archivable> Archive<T> {
    /// Archives a value.
    pub fn new(value: &T) -> Result<Self> {
        let target = archived(value, NOWHERE)?;
        Ok(Self { bytes: Arc::new(target.beside.unwrap_or_default()), of: PhantomData })
    }

    /// An archive from bytes, which are copied and validated.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut copy = AlignedVec::with_capacity(bytes.len());
        copy.extend_from_slice(bytes);
        Self::adopt(Arc::new(copy))
    }

    fn adopt(bytes: Arc<AlignedVec>) -> Result<Self> {
        checked::<T>(&bytes)?;
        Ok(Self { bytes, of: PhantomData })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn into_shared(self) -> Arc<AlignedVec> {
        self.bytes
    }

    /// Its bytes, moved if nobody else has them.
    pub(crate) fn into_bytes(self) -> AlignedVec {
        Arc::try_unwrap(self.bytes).unwrap_or_else(|shared| {
            let mut copy = AlignedVec::with_capacity(shared.len());
            copy.extend_from_slice(&shared);
            copy
        })
    }
}

impl<T: Archivable> Deref for Archive<T> {
    type Target = T::Archived;

    #[inline]
    fn deref(&self) -> &T::Archived {
        // SAFETY: the bytes were validated, or written by `rkyv`, and nobody changes them.
        unsafe { rkyv::access_unchecked(&self.bytes) }
    }
}

/// A kernel whose messages and answers are archives: they may hold vectors, strings, maps. Runs on the CPU.
///
/// ```
/// use millrace_resident::{ArchivedHandler, Launch, LaunchOptions, Scope, rkyv};
///
/// struct Sort;
///
/// impl ArchivedHandler for Sort {
///     type Message = Vec<u32>;
///     type Reply = Vec<u32>;
///     type State = ();
///     fn state(&self) {}
///     fn handle(&mut self, _: &mut (), list: &rkyv::vec::ArchivedVec<rkyv::rend::u32_le>, _: &mut Scope<'_, Vec<u32>>)
///     -> Vec<u32> {
///         let mut list: Vec<u32> = list.iter().map(|n| n.to_native()).collect();
///         list.sort();
///         list
///     }
/// }
///
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// let sort = device.launch_archived(Sort, LaunchOptions::default().payload(256))?;
/// assert_eq!(*sort.ask(&vec![3, 1, 2])?, [1, 2, 3]);
/// # Ok::<(), millrace_resident::Error>(())
/// ```
pub trait ArchivedHandler: Send + 'static {
    /// What it is sent.
    type Message: Archivable;
    /// What it answers.
    type Reply: Archivable;
    /// What it remembers, and what checkpoints hold.
    type State: Message;

    /// The state to start with.
    fn state(&self) -> Self::State;

    /// Handles a message, which was validated and is read where it is.
    fn handle(
        &mut self,
        state: &mut Self::State,
        message: &<Self::Message as rkyv::Archive>::Archived,
        scope: &mut Scope<'_, Self::Reply>,
    ) -> Self::Reply;

    /// The handler panicked and is about to go on: puts in order what `self` holds.
    fn restarted(&mut self) {}
}

struct Archives<H: ArchivedHandler> {
    handler: H,
    state: H::State,
    first: H::State,
    message: u32,
    reply: u32,
}

impl<H: ArchivedHandler> Behaviour for Archives<H> {
    fn handle(
        &mut self,
        header: &Header,
        bytes: &[u8],
        attachment: Option<&Attachment>,
        outbox: &mut Outbox<'_>,
    ) -> Result<()> {
        check_kind(header, bytes, self.message)?;
        let bytes = match attachment {
            Some(Attachment::Archive(archive)) => archive,
            _ if header.flags & flags::ATTACHED != 0 => return Err(Error::NoPayload),
            _ => bytes,
        };
        let message = checked::<H::Message>(bytes)?;
        let encode = |message: &H::Reply| {
            let target = archived(message, NOWHERE)?;
            Ok(Emission { kind: kind_of::<H::Reply>(), bytes: Vec::new(), attachment: target.finish().1 })
        };
        let reply = {
            let mut scope = scope(header, attachment, outbox, &mut [], encode);
            self.handler.handle(&mut self.state, message, &mut scope)
        };
        // What goes to other kernels is shared by all of them, unless it is too small for that to be worthwhile.
        let most = if outbox.is_in_place() { usize::MAX } else { COPIED };
        outbox.answer_with(self.reply, |place| {
            let place = Place { room: place.room.min(most), ..place };
            Ok(archived(&reply, place)?.finish())
        })
    }

    fn answers(&self) -> bool {
        true
    }

    fn state(&self) -> &[u8] {
        self.state.as_bytes()
    }

    fn restart(&mut self, state: Option<&[u8]>) {
        self.state = state.and_then(|bytes| H::State::read_from(bytes).ok()).unwrap_or(self.first);
        self.handler.restarted();
    }
}

/// A kernel of archives that lives on a device: as [`crate::Resident`], with messages by reference.
pub struct ArchivedResident<H: ArchivedHandler> {
    pub(crate) base: Base,
    pub(crate) message: u32,
    pub(crate) handler: PhantomData<fn(H)>,
}

lifecycle!(<H: ArchivedHandler> for ArchivedResident<H>);

/// A handler of archives without its types.
pub(crate) fn plan<'a, H: ArchivedHandler>(state: &'a [u8], options: &'a LaunchOptions) -> Plan<'a> {
    Plan {
        handler: std::any::type_name::<H>(),
        wgsl: None,
        types: None,
        state,
        memory: &[],
        layout: RegionLayout::new(options.inbound, options.outbound, options.payload, options.payload),
        options,
    }
}

impl<H: ArchivedHandler> ArchivedResident<H> {
    pub(crate) fn launch(device: &Device, handler: H, options: &LaunchOptions) -> Result<Self> {
        options.check()?;
        let first = restored(options)?.unwrap_or_else(|| handler.state());
        let plan = plan::<H>(first.as_bytes(), options);
        let (message, reply) = (kind_of::<H::Message>(), kind_of::<H::Reply>());
        let behaviour = Archives { handler, state: first, first, message, reply };
        let base = Base::launch(device, &plan, Box::new(behaviour))?;
        Ok(Self::over(base))
    }

    /// The handle of a kernel that lives.
    pub(crate) fn over(base: Base) -> Self {
        Self { base, message: kind_of::<H::Message>(), handler: PhantomData }
    }

    /// Builds the archive in a slot. If it cannot be made, `failed` says why.
    fn inject(
        &self,
        message: &H::Message,
        priority: Priority,
        flags: u32,
        quietly: bool,
        failed: &mut Option<Error>,
    ) -> Result<u64, Refusal> {
        let high = priority == Priority::High;
        let clock = self.base.port.stamp(high);
        let head = Head { high, kind: self.message, flags, clock, buffer: (0, 0), quietly };
        self.base.port.inject_with(&head, |place| match archived(message, place) {
            Ok(target) => Some(target.finish()),
            Err(error) => {
                *failed = Some(error);
                None
            }
        })
    }

    fn inject_blocking(
        &self,
        message: &H::Message,
        priority: Priority,
        flags: u32,
        deadline: Option<Instant>,
    ) -> Result<u64> {
        let mut failed = None;
        let id =
            self.base.port.send_blocking(deadline, || self.inject(message, priority, flags, false, &mut failed))?;
        failed.map_or(Ok(id), Err)
    }

    async fn inject_async(&self, message: &H::Message, flags: u32) -> Result<u64> {
        let mut failed = None;
        let inject = || self.inject(message, Priority::Normal, flags, false, &mut failed);
        let id = self.base.port.send_async(inject).await?;
        failed.map_or(Ok(id), Err)
    }

    /// Sends a message if there is room.
    pub fn try_send(&self, message: &H::Message) -> Result<()> {
        self.try_send_with(message, Priority::Normal)
    }

    /// [`Self::try_send`]; a high message overtakes those that wait, except that after eight in a row a normal one has
    /// its turn. For messages, low is the same as normal.
    pub fn try_send_with(&self, message: &H::Message, priority: Priority) -> Result<()> {
        let mut failed = None;
        let sent = self.inject(message, priority, posted(priority), false, &mut failed);
        sent.map_err(|refusal| self.base.refusal(refusal))?;
        failed.map_or(Ok(()), Err)
    }

    /// Sends a message, waiting for room for as long as the kernel makes progress.
    ///
    /// On the CPU, whoever asks soon after what it sends, every time, runs both itself, as [`Self::ask`] says. What it does not
    /// ask for after all is handled by the kernel's own thread, within a millisecond or so.
    pub fn send(&self, message: &H::Message) -> Result<()> {
        self.send_with(message, Priority::Normal)
    }

    /// [`Self::send`] with a priority, as in [`Self::try_send_with`].
    pub fn send_with(&self, message: &H::Message, priority: Priority) -> Result<()> {
        self.inject_blocking(message, priority, posted(priority), None).map(drop)
    }

    /// Sends a message, waiting for room until the deadline.
    pub fn send_deadline(&self, message: &H::Message, deadline: Instant) -> Result<()> {
        self.inject_blocking(message, Priority::Normal, flags::WILLING, Some(deadline)).map(drop)
    }

    /// Sends a message when there is room.
    pub async fn send_async(&self, message: &H::Message) -> Result<()> {
        self.inject_async(message, 0).await.map(drop)
    }

    /// [`Self::send_async`] until the deadline.
    pub async fn send_async_deadline(&self, message: &H::Message, deadline: Instant) -> Result<()> {
        self.base.by(deadline, self.send_async(message)).await
    }

    /// Sends a message and waits for its answer, for as long as the kernel makes progress. May run the handler on this
    /// thread, as [`Resident::ask`](crate::Resident::ask) does.
    pub fn ask(&self, message: &H::Message) -> Result<Archive<H::Reply>> {
        self.ask_until(message, Priority::Normal, None)
    }

    /// [`Self::ask`] with a priority, as in [`Self::try_send_with`].
    pub fn ask_with(&self, message: &H::Message, priority: Priority) -> Result<Archive<H::Reply>> {
        self.ask_until(message, priority, None)
    }

    /// Sends a message and waits for its answer until the deadline.
    pub fn ask_deadline(&self, message: &H::Message, deadline: Instant) -> Result<Archive<H::Reply>> {
        self.ask_until(message, Priority::Normal, Some(deadline))
    }

    fn ask_until(
        &self,
        message: &H::Message,
        priority: Priority,
        deadline: Option<Instant>,
    ) -> Result<Archive<H::Reply>> {
        let mut failed = None;
        let flags = flags::ASK | if deadline.is_none() { flags::WILLING } else { 0 };
        let inject = || self.inject(message, priority, flags, true, &mut failed);
        let sent =
            if deadline.is_none() { self.base.port.send_and_run(priority == Priority::High, inject) } else { None };
        if let Some(error) = failed {
            return Err(error);
        }
        let id = match sent {
            Some(id) => id,
            None => self.inject_blocking(message, priority, flags, deadline)?,
        };
        let mut asked = Asked::new(&self.base.port, id);
        self.base.port.wait_for_mail(deadline, || asked.look(&decode::<H::Reply>))?;
        asked.answer()
    }

    /// [`Self::ask`] for tasks.
    pub async fn ask_async(&self, message: &H::Message) -> Result<Archive<H::Reply>> {
        let id = self.inject_async(message, flags::ASK).await?;
        let mut asked = Asked::new(&self.base.port, id);
        self.base.port.await_mail(|| asked.look(&decode::<H::Reply>)).await;
        asked.answer()
    }

    /// [`Self::ask_async`] until the deadline.
    pub async fn ask_async_deadline(&self, message: &H::Message, deadline: Instant) -> Result<Archive<H::Reply>> {
        self.base.by(deadline, self.ask_async(message)).await
    }

    /// The next answer to a message that was sent: waits until the deadline.
    pub fn receive(&self, deadline: Instant) -> Result<Archive<H::Reply>> {
        let port = &self.base.port;
        port.wait_for_mail(Some(deadline), || look_for_any(port, &decode::<H::Reply>)).flatten()
    }

    /// [`Self::receive`], if it is there.
    pub fn try_receive(&self) -> Option<Result<Archive<H::Reply>>> {
        look_for_any(&self.base.port, &decode::<H::Reply>)
    }

    /// [`Self::receive`] for tasks.
    pub async fn receive_async(&self) -> Result<Archive<H::Reply>> {
        let port = &self.base.port;
        port.await_mail(|| look_for_any(port, &decode::<H::Reply>)).await
    }

    /// [`Self::receive_async`] until the deadline.
    pub async fn receive_async_deadline(&self, deadline: Instant) -> Result<Archive<H::Reply>> {
        self.base.by(deadline, self.receive_async()).await
    }
}

/// Reads an answer: beside the slot in place, from the slot with a copy, which frees the slot.
fn decode<T: Archivable>(header: &Header, bytes: &[u8], attachment: Option<Attachment>) -> Result<Archive<T>> {
    failure(header, attachment.as_ref())?;
    check_kind(header, bytes, kind_of::<T>())?;
    match attachment {
        Some(Attachment::Archive(archive)) => Archive::adopt(archive),
        _ if header.flags & flags::ATTACHED != 0 => Err(Error::NoPayload),
        _ => Archive::from_bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn every_length_is_copied_whole_and_nothing_beside_it() {
        let from: Vec<u8> = (0..9000u32).map(|n| (n % 251) as u8 + 1).collect();
        let mut to = vec![0; 9000];
        for bytes in (0..300).chain(8100..8300) {
            for start in [1, 2, 8, 17, 30, 63] {
                to.fill(0);
                // SAFETY: both are longer, and they are two.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr().add(start), bytes) };
                let (end, is_zero) = (start + bytes, |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0));
                assert_eq!(to[start..end], from[..bytes]);
                assert!(is_zero(&to[..start]) && is_zero(&to[end..]), "{bytes} from {start} on");
            }
        }
    }
}
