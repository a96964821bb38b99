//! Buffers and what is in them.
//!
//! A [`Buffer`] is a counted handle. Its memory is shared with the views that reads return: as long as a view is held,
//! a command that would write gets fresh memory first, so a view never changes and nothing ever waits for a view.
//!
//! Buffers are not cleared when they come back to the pool. Instead each remembers which range of it was written in
//! its present life; whoever reads beyond makes it zero first ([`Storage::undefined`]).

use std::{
    any::Any,
    fmt,
    ops::{Deref, Range, RangeBounds},
    sync::{
        Arc, RwLock,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use millrace_ring::{Keep, Kept};

use crate::{
    Error, Result,
    command::{Copy, Fill, Read, Write},
    pool::{Class, PoolCore, Reservation},
};

/// Memory of a device, as its backend keeps it.
///
/// `crates/cpu/src/block.rs` has two, memory of the system and adopted bytes; [`Storage`] shows how one is reached.
pub trait Block: Send + Sync + Any {
    /// The bytes, where the host can read them in place.
    fn host(&self) -> Option<&[u8]>;
    /// The bytes, where the host can write them in place.
    fn host_mut(&mut self) -> Option<&mut [u8]>;
}

impl dyn Block {
    /// The block as the backend that made it knows it.
    ///
    /// ```
    /// use millrace_core::Block;
    /// struct Paper(Vec<u8>);
    /// impl Block for Paper {
    ///     fn host(&self) -> Option<&[u8]> {
    ///         Some(&self.0)
    ///     }
    ///     fn host_mut(&mut self) -> Option<&mut [u8]> {
    ///         Some(&mut self.0)
    ///     }
    /// }
    /// let block: Box<dyn Block> = Box::new(Paper(vec![1, 2]));
    /// assert_eq!(block.downcast::<Paper>().unwrap().0, [1, 2]);
    /// ```
    pub fn downcast<T: Block>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A block together with the budget it takes.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let buffer = device.allocate(4)?;
/// let mut storage = buffer.storage().write().unwrap();
/// let memory = storage.memory_mut().expect("no view shares it");
/// memory.block_mut().host_mut().expect("the CPU's memory is the host's")[0] = 7;
/// assert_eq!(memory.block().host().unwrap()[..4], [7, 0, 0, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Memory {
    block: Box<dyn Block>,
    _reserved: Reservation,
}

impl Memory {
    pub(crate) fn new(block: Box<dyn Block>, reserved: Reservation) -> Self {
        Self { block, _reserved: reserved }
    }

    /// The backend's block.
    pub fn block(&self) -> &dyn Block {
        &*self.block
    }

    /// The backend's block, to be changed.
    pub fn block_mut(&mut self) -> &mut dyn Block {
        &mut *self.block
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

/// What a buffer holds: for backends, which lock it while they run a command.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// drop(device.allocate(100)?);
/// let buffer = device.allocate(100)?; // the same memory in another life
/// let mut storage = buffer.storage().write().unwrap();
/// assert!(!buffer.is_fresh(&storage));
/// buffer.refresh(&mut storage);
/// assert_eq!(storage.defined(), 0..0, "what it held is nobody's business");
/// storage.define(&(10..20));
/// assert_eq!(storage.undefined(&(0..30)), [0..10, 20..30]);
/// assert_eq!(storage.gap(&(40..50)), 20..40);
/// assert!(storage.memory().block().host().is_some(), "the CPU's memory is the host's");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Storage {
    memory: Arc<Memory>,
    /// Bytes that were written in the life `generation`, or that are zero because the memory is new.
    defined: Range<usize>,
    generation: u32,
}

impl Storage {
    /// The memory, perhaps shared with views.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The memory, if no view shares it.
    pub fn memory_mut(&mut self) -> Option<&mut Memory> {
        Arc::get_mut(&mut self.memory)
    }

    /// Puts other memory in place; views keep the old. `defined` says what the new one holds of this buffer.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// let view = stream.run(buffer.read(..))?; // shares the memory from now on
    /// let mut storage = buffer.storage().write().unwrap();
    /// assert!(storage.memory_mut().is_none());
    /// storage.replace(buffer.new_memory()?, 0..buffer.len());
    /// assert!(storage.memory_mut().is_some(), "the view keeps the old one");
    /// # drop(view);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace(&mut self, memory: Arc<Memory>, defined: Range<usize>) {
        (self.memory, self.defined) = (memory, defined);
    }

    /// The part of the buffer that holds something.
    pub fn defined(&self) -> Range<usize> {
        self.defined.clone()
    }

    /// The parts of `range` that were never written and have to be made zero before anyone reads them.
    pub fn undefined(&self, range: &Range<usize>) -> [Range<usize>; 2] {
        let known = &self.defined;
        if known.is_empty() {
            return [range.clone(), 0..0];
        }
        let before = range.start..range.end.min(known.start);
        let after = range.start.max(known.end)..range.end;
        [before, after].map(|r| if r.is_empty() { 0..0 } else { r })
    }

    /// Notes that `range` was written. What lies between it and the rest that is defined must have been made zero:
    /// [`Self::gap`] says what that is.
    pub fn define(&mut self, range: &Range<usize>) {
        if range.is_empty() {
            return; // it would define what lies between
        }
        self.defined = if self.defined.is_empty() {
            range.clone()
        } else {
            self.defined.start.min(range.start)..self.defined.end.max(range.end)
        };
    }

    /// What lies between `range` and the part that is defined.
    pub fn gap(&self, range: &Range<usize>) -> Range<usize> {
        let known = &self.defined;
        if known.is_empty() || range.is_empty() {
            0..0
        } else if range.end < known.start {
            range.end..known.start
        } else if known.end < range.start {
            known.end..range.start
        } else {
            0..0
        }
    }
}

/// The part of a buffer that outlives its handles, in the pool.
pub(crate) struct BufferInner {
    pub(crate) pool: Arc<PoolCore>,
    /// The size class it returns to; none if it was made from bytes.
    pub(crate) class: Option<Class>,
    pub(crate) index: u32,
    /// Counts lives. Changed under the pool's lock, while no handle exists.
    pub(crate) generation: AtomicU32,
    /// Bytes that this life's owner asked for; zero while no handle exists. Changed under the pool's lock.
    pub(crate) len: AtomicUsize,
    storage: RwLock<Storage>,
}

impl BufferInner {
    pub(crate) fn new(
        pool: Arc<PoolCore>,
        class: Option<Class>,
        (index, generation): (u32, u32),
        len: usize,
        memory: Arc<Memory>,
        defined: Range<usize>,
    ) -> Self {
        Self {
            pool,
            class,
            index,
            generation: AtomicU32::new(generation),
            len: AtomicUsize::new(len),
            storage: RwLock::new(Storage { memory, defined, generation }),
        }
    }

    /// The last handle is gone, or going. Under the pool's lock.
    #[inline(always)]
    pub(crate) fn end_life(&self) {
        self.len.store(0, Ordering::Relaxed);
        self.generation.store(self.generation.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Keep for BufferInner {
    /// There is no other handle, and new ones are made from handles or under the pool's lock.
    #[inline(always)]
    fn keep(last: Arc<Self>) {
        PoolCore::give_back(last);
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        self.pool.forget(self);
    }
}

/// An integer that names a buffer, for messages and tables. It keeps nothing alive: [`crate::Device::buffer`] answers
/// with the buffer, or with [`Error::StaleHandle`] once that is gone.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let buffer = device.allocate(8)?;
/// let id = buffer.id();
/// assert!(device.buffer(id)?.same_as(&buffer));
/// drop(buffer);
/// assert!(matches!(device.buffer(id), Err(millrace::Error::StaleHandle { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufferId {
    /// Which device.
    pub device: u64,
    /// Which place in the device's table.
    pub index: u32,
    /// Which life of that place.
    pub generation: u32,
}

/// Memory on a device. Clones are handles of the same memory; with the last one it returns to the pool.
///
/// Never-written bytes read as zero.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let stream = device.stream()?;
/// let buffer = device.allocate(10)?;
/// stream.submit(buffer.write(2, &b"abc"[..]))?;
/// stream.submit(buffer.fill(8.., b'!'))?;
/// assert_eq!(&*stream.run(buffer.read(..))?, b"\0\0abc\0\0\0!!");
/// assert_eq!((buffer.len(), buffer.is_read_only()), (10, false));
/// assert!(buffer.same_as(&buffer.clone()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Buffer {
    inner: Kept<BufferInner>,
}

impl Buffer {
    #[inline(always)]
    pub(crate) fn from_inner(inner: Arc<BufferInner>) -> Self {
        Self { inner: Kept::new(inner) }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Arc<BufferInner> {
        &self.inner
    }

    /// Bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.inner().len.load(Ordering::Relaxed)
    }

    /// The integer that names this buffer.
    pub fn id(&self) -> BufferId {
        let inner = self.inner();
        BufferId {
            device: inner.pool.device(),
            index: inner.index,
            generation: inner.generation.load(Ordering::Relaxed),
        }
    }

    /// Whether it shares its memory with bytes of the host and cannot be written.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// assert!(device.adopt(&b"shared"[..])?.is_read_only());
    /// assert!(!device.allocate(6)?.is_read_only());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_read_only(&self) -> bool {
        self.inner().class.is_none()
    }

    /// Whether both are handles of the same memory.
    #[inline]
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.inner(), other.inner())
    }

    /// A part of it, for a launch or a copy.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let buffer = device.allocate(10)?;
    /// assert_eq!((buffer.slice(..4).range(), buffer.slice(4..).range()), (0..4, 4..10));
    /// assert!(buffer.slice(3..3).is_empty() && buffer.slice(..).buffer().same_as(&buffer));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> BufferSlice {
        BufferSlice::new(self, range)
    }

    /// The command that writes `data` at `offset`. The bytes are moved, not copied, on their way to the device.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// let bytes = bytes::Bytes::from(vec![1, 2]);
    /// let write = buffer.write(1, bytes.clone());
    /// assert_eq!(write.data.as_ptr(), bytes.as_ptr(), "not copied");
    /// stream.run(write)?;
    /// assert_eq!(&*stream.run(buffer.read(..))?, [0, 1, 2, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, offset: usize, data: impl Into<Bytes>) -> Write {
        let data = data.into();
        let to = BufferSlice { buffer: self.clone(), offset, len: data.len() };
        Write { to, data }
    }

    /// The command that reads a range.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.run(buffer.write(0, &b"mill"[..]))?;
    /// assert_eq!(&*stream.run(buffer.read(1..3))?, b"il");
    /// assert!(stream.run(buffer.read(3..5)).is_err(), "it has four bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(&self, range: impl RangeBounds<usize>) -> Read {
        Read { from: self.slice(range) }
    }

    /// The command that sets every byte of a range to `value`.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.run(buffer.fill(1..3, 0xff))?;
    /// assert_eq!(&*stream.run(buffer.read(..))?, [0, 0xff, 0xff, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fill(&self, range: impl RangeBounds<usize>, value: u8) -> Fill {
        Fill { to: self.slice(range), value }
    }

    /// The command that copies a range to `offset` of another buffer, or of this one.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// let other = device.allocate(6)?;
    /// stream.run(buffer.write(0, &b"mill"[..]))?;
    /// stream.run(buffer.copy_to(1.., &other, 2))?;
    /// assert_eq!(&*stream.run(other.read(..))?, b"\0\0ill\0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn copy_to(&self, range: impl RangeBounds<usize>, to: &Buffer, offset: usize) -> Copy {
        let from = self.slice(range);
        let to = BufferSlice { buffer: to.clone(), offset, len: from.len };
        Copy { from, to }
    }

    /// For backends: what it holds, ready for this life of the buffer. Lock several in the order of
    /// [`Self::lock_order`].
    pub fn storage(&self) -> &RwLock<Storage> {
        &self.inner().storage
    }

    /// For backends: makes `range` defined, to be read and written, or, with `overwrite`, to be written whole. Says
    /// which bytes have to be made zero before that.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// drop(device.allocate(100)?);
    /// let buffer = device.allocate(100)?; // holds what its last life left there
    /// let mut storage = buffer.storage().write().unwrap();
    /// assert_eq!(buffer.prepare(&mut storage, &(0..10), true), [0..0, 0..0, 0..0], "it is about to be written");
    /// assert_eq!(buffer.prepare(&mut storage, &(5..20), false), [0..0, 10..20, 0..0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(&self, storage: &mut Storage, range: &Range<usize>, overwrite: bool) -> [Range<usize>; 3] {
        self.refresh(storage);
        let known = storage.defined();
        if known.start <= range.start && range.end <= known.end {
            return [0..0, 0..0, 0..0]; // the usual case
        }
        let [before, after] = if overwrite { [0..0, 0..0] } else { storage.undefined(range) };
        let gap = storage.gap(range);
        storage.define(range);
        [before, after, gap]
    }

    /// For backends: takes note that the storage may be of an earlier life.
    pub fn refresh(&self, storage: &mut Storage) {
        let generation = self.inner().generation.load(Ordering::Relaxed);
        if storage.generation != generation {
            storage.generation = generation;
            storage.defined = 0..0;
        }
    }

    /// For backends: whether [`Self::refresh`] would change something.
    pub fn is_fresh(&self, storage: &Storage) -> bool {
        storage.generation == self.inner().generation.load(Ordering::Relaxed)
    }

    /// For backends: new memory of this buffer's size, all zero, to put in the place of memory that a view holds.
    pub fn new_memory(&self) -> Result<Arc<Memory>> {
        let inner = self.inner();
        let class = inner.class.ok_or(Error::ReadOnly)?;
        PoolCore::new_memory(&inner.pool, class, self.len())
    }

    /// For backends: buffers that are locked together are locked in this order.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut buffers = [device.allocate(4)?, device.allocate(4)?];
    /// buffers.sort_by_key(millrace::Buffer::lock_order);
    /// let _locked = buffers.each_ref().map(|buffer| buffer.storage().write().unwrap());
    /// assert_ne!(buffers[0].lock_order(), buffers[1].lock_order());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_order(&self) -> usize {
        Arc::as_ptr(self.inner()) as usize
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("id", &self.id()).field("len", &self.len()).finish()
    }
}

/// A range of a buffer. Whether it is inside the buffer is checked when the command is submitted.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let buffer = device.allocate(100)?;
/// let slice = buffer.slice(10..20);
/// assert_eq!((slice.range(), slice.len()), (10..20, 10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct BufferSlice {
    pub(crate) buffer: Buffer,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl BufferSlice {
    fn new(buffer: &Buffer, range: impl RangeBounds<usize>) -> Self {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let offset = match range.start_bound() {
            Included(&start) => start,
            Excluded(&start) => start.saturating_add(1),
            Unbounded => 0,
        };
        let end = match range.end_bound() {
            Included(&end) => end.saturating_add(1),
            Excluded(&end) => end,
            Unbounded => buffer.len(),
        };
        // A range that ends before it starts must not pass for an empty one.
        let len = if end < offset { usize::MAX } else { end - offset };
        Self { buffer: buffer.clone(), offset, len }
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// First and last byte, the last exclusive.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checks that it lies inside a buffer of `device`.
    #[inline]
    pub(crate) fn check(&self, device: u64, written: bool) -> Result<()> {
        let inner = self.buffer.inner();
        if inner.pool.device() != device {
            return Err(Error::WrongDevice { what: "buffer" });
        }
        let size = self.buffer.len();
        if self.offset.checked_add(self.len).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset: self.offset as u64, len: self.len as u64, size: size as u64 });
        }
        if written && inner.class.is_none() {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }
}

impl From<&Buffer> for BufferSlice {
    fn from(buffer: &Buffer) -> Self {
        buffer.slice(..)
    }
}

/// Bytes read from a buffer, in place where the device allows. They never change, whatever is done to the buffer.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let (stream, buffer) = (device.stream()?, device.allocate(8)?);
/// stream.run(buffer.write(0, [1u8, 0, 0, 0, 2, 0, 0, 0].to_vec()))?;
/// let view = stream.run(buffer.read(..))?;
/// stream.run(buffer.fill(.., 0))?;
/// assert_eq!(view.to::<[u8; 4]>(), [[1, 0, 0, 0], [2, 0, 0, 0]], "a view does not change");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct View {
    bytes: ViewOf,
    start: usize,
    len: usize,
}

#[derive(Clone)]
enum ViewOf {
    /// A buffer's own memory.
    Memory(Arc<Memory>),
    /// Bytes that were brought from the device.
    Fetched(Bytes),
}

impl View {
    /// For backends: a range of memory that the host can read.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let buffer = device.adopt(&b"mill"[..])?;
    /// let memory = buffer.storage().read().unwrap().memory().clone();
    /// assert_eq!(&*millrace::View::new(memory.clone(), 1..3).unwrap(), b"il");
    /// assert!(millrace::View::new(memory, 1..5).is_none(), "there are four bytes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(memory: Arc<Memory>, range: Range<usize>) -> Option<Self> {
        memory.block().host()?.get(range.clone())?;
        Some(Self { bytes: ViewOf::Memory(memory), start: range.start, len: range.len() })
    }

    /// For backends: bytes that were brought from the device.
    ///
    /// ```
    /// let bytes = bytes::Bytes::from(vec![1, 2, 3]);
    /// let view = millrace_core::View::fetched(bytes.clone());
    /// assert_eq!((&*view, view.as_ptr()), (&[1, 2, 3][..], bytes.as_ptr()));
    /// ```
    pub fn fetched(bytes: Bytes) -> Self {
        let len = bytes.len();
        Self { bytes: ViewOf::Fetched(bytes), start: 0, len }
    }

    /// The bytes as numbers.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.run(buffer.write(0, 1.5f32.to_ne_bytes().to_vec()))?;
    /// assert_eq!(stream.run(buffer.read(..))?.to::<f32>(), [1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If the length is not a multiple of the number's size, or the start is not aligned to it.
    pub fn to<T: bytemuck::AnyBitPattern>(&self) -> &[T] {
        bytemuck::cast_slice(self)
    }

    /// The same bytes as [`Bytes`], without copying them.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// let view = stream.run(buffer.read(..))?;
    /// let place = view.as_ptr();
    /// let bytes = view.into_bytes();
    /// assert_eq!((bytes.as_ptr(), bytes.len()), (place, 4), "not copied");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = match &self.bytes {
            ViewOf::Memory(memory) => memory.block().host().unwrap_or_default(), // `new` looked that there are some
            ViewOf::Fetched(bytes) => bytes,
        };
        &bytes[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("len", &self.len).finish_non_exhaustive()
    }
}
