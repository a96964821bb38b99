//! The memory pool of one device context.
//!
//! Free buffers wait in a list per size class; taking one and giving it back is a push or pop under one short lock,
//! without an allocation and without clearing anything. Classes are four to the octave, so at most a fifth of a block
//! is beyond what was asked for. Every byte that the pool holds, for buffers, free blocks and blocks that only a view
//! still holds, is under the budget. Contexts do not share blocks, and new blocks come zeroed from the system: that is
//! why no buffer can show another context's bytes.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use millrace_ring::{BriefGuard, BriefLock, put_behind};

use crate::{
    Error, Result,
    memory::{Block, Buffer, BufferId, BufferInner, Memory},
    profile::MemoryTrace,
};

/// The smallest block, and what every size is rounded up to first.
const SMALLEST: usize = 256;
/// The largest buffer: beyond it no device of today could help.
const LARGEST: usize = 1 << 40;

/// A size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u8);

const CLASSES: usize = 4 * (LARGEST.ilog2() - SMALLEST.ilog2()) as usize + 1;

impl Class {
    /// The smallest class that holds `bytes`, which must not be beyond the largest.
    #[inline]
    fn of(bytes: usize) -> Self {
        if bytes <= SMALLEST {
            return Self(0);
        }
        let octave = (bytes - 1).ilog2(); // 2^octave < bytes <= 2^(octave + 1)
        let quarter = ((bytes - 1) >> (octave - 2)) & 3; // which quarter of it
        Self((4 * (octave - SMALLEST.ilog2()) as usize + quarter + 1) as u8)
    }

    /// Bytes of a block.
    fn bytes(self) -> usize {
        match self.0 as usize {
            0 => SMALLEST,
            n => (SMALLEST << ((n - 1) / 4)) / 4 * (5 + (n - 1) % 4),
        }
    }
}

/// Where a pool's blocks come from.
///
/// [`Direct`](crate::Direct) shows one that has none.
pub trait BlockSource: Send + Sync + 'static {
    /// New memory, all zero.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>>;
    /// A block that reads from the bytes in place.
    fn adopt(&self, bytes: Bytes) -> Result<Box<dyn Block>>;
}

/// The pool's accounts, exact at the moment of the call.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// drop(device.allocate(1000)?);
/// drop(device.allocate(1000)?);
/// let memory = device.memory();
/// assert_eq!((memory.in_use, memory.misses, memory.hits), (0, 1, 1));
/// assert_eq!(device.trim(0), memory.reserved);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Bytes of the blocks that live buffers use.
    pub in_use: u64,
    /// Buffers alive.
    pub buffers: u64,
    /// The most that was ever in use.
    pub in_use_peak: u64,
    /// Bytes the pool holds: in use, free, or held by a view alone.
    pub reserved: u64,
    /// The most that was ever reserved.
    pub reserved_peak: u64,
    /// What may be reserved.
    pub budget: u64,
    /// Allocations that a free block served.
    pub hits: u64,
    /// Allocations that needed a new block.
    pub misses: u64,
    /// Bytes of host memory that buffers share without owning it.
    pub adopted: u64,
}

/// The free buffers of a class.
struct Shelf {
    /// The one that came back last. A thread that takes and gives back in turns finds it here, without having to look
    /// how many there are.
    first: Option<Arc<BufferInner>>,
    /// The others; none is empty.
    more: Vec<Option<Arc<BufferInner>>>,
    /// Bytes of a block: the class knows, but would have to compute it.
    bytes: u64,
}

struct State {
    shelves: [Shelf; CLASSES],
    /// Every buffer by its index, free ones included.
    table: Vec<Weak<BufferInner>>,
    /// Places of the table that are free, and the generation that is next there: no handle of old names a new buffer.
    vacant: Vec<(u32, u32)>,
    in_use: u64,
    in_use_peak: u64,
    hits: u64,
    misses: u64,
    /// Buffers that came back, of all that were hits or misses.
    returned: u64,
    adopted: u64,
    closed: bool,
    /// While a profile is on.
    trace: Option<Box<MemoryTrace>>,
    /// Neither of the two.
    usual: bool,
}

pub(crate) struct PoolCore {
    device: u64,
    budget: u64,
    source: Arc<dyn BlockSource>,
    state: BriefLock<State>,
    reserved: AtomicU64,
    reserved_peak: AtomicU64,
}

/// Budget that a block takes, given back when the block is gone.
pub(crate) struct Reservation {
    /// None for what is not under the budget.
    pool: Option<Arc<PoolCore>>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl PoolCore {
    pub(crate) fn new(device: u64, budget: u64, source: Arc<dyn BlockSource>) -> Arc<Self> {
        let shelf = |n| Shelf { first: None, more: Vec::new(), bytes: Class(n as u8).bytes() as u64 };
        let state = State {
            shelves: std::array::from_fn(shelf),
            table: Vec::new(),
            vacant: Vec::new(),
            in_use: 0,
            in_use_peak: 0,
            hits: 0,
            misses: 0,
            returned: 0,
            adopted: 0,
            closed: false,
            trace: None,
            usual: true,
        };
        Arc::new(Self {
            device,
            budget,
            source,
            state: BriefLock::new(state),
            reserved: AtomicU64::new(0),
            reserved_peak: AtomicU64::new(0),
        })
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    fn lock(&self) -> BriefGuard<'_, State> {
        self.state.lock()
    }

    /// Takes `bytes` of the budget, if they are left.
    fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let bytes = bytes as u64;
        let more = |now: u64| now.checked_add(bytes).filter(|&sum| sum <= self.budget);
        let before = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        self.reserved_peak.fetch_max(before + bytes, Ordering::Relaxed);
        Some(Reservation { pool: Some(self.clone()), bytes })
    }

    /// New memory of a class, all zero. Free blocks make room for it if the budget is used up.
    pub(crate) fn new_memory(this: &Arc<Self>, class: Class, requested: usize) -> Result<Arc<Memory>> {
        let mut reservation = this.reserve(class.bytes());
        if reservation.is_none() {
            this.trim(0);
            reservation = this.reserve(class.bytes());
        }
        let out_of_memory =
            || Error::OutOfMemory { requested: requested as u64, in_use: this.lock().in_use, budget: this.budget };
        let reservation = reservation.ok_or_else(out_of_memory)?;
        Ok(Arc::new(Memory::new(this.source.allocate(class.bytes())?, reservation)))
    }

    #[inline]
    pub(crate) fn allocate(this: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        if bytes == 0 || bytes > LARGEST {
            return Err(Self::no_size(bytes));
        }
        let class = Class::of(bytes);
        // The usual case stands alone: then it needs no room for what the others keep meanwhile.
        let usual = this.state.pass().filter(|state| state.usual).and_then(|mut state| state.take(class, bytes));
        let inner = match usual {
            Some(inner) => inner,
            None => Self::allocate_slowly(this, class, bytes)?,
        };
        Ok(Buffer::from_inner(inner))
    }

    #[cold]
    fn no_size(bytes: usize) -> Error {
        match bytes {
            0 => Error::ZeroSize,
            _ => Error::TooLarge { requested: bytes as u64, limit: LARGEST as u64 },
        }
    }

    #[cold]
    fn allocate_slowly(this: &Arc<Self>, class: Class, bytes: usize) -> Result<Arc<BufferInner>> {
        let mut state = this.lock();
        if let Some(inner) = state.take(class, bytes) {
            state.note();
            return Ok(inner);
        }
        drop(state);
        let memory = Self::new_memory(this, class, bytes)?;
        let mut state = this.lock();
        state.misses += 1;
        state.in_use += class.bytes() as u64;
        state.in_use_peak = state.in_use_peak.max(state.in_use);
        state.note();
        Ok(Self::enter(this, &mut state, Some(class), bytes, memory, class.bytes()))
    }

    pub(crate) fn adopt(this: &Arc<Self>, bytes: Bytes) -> Result<Buffer> {
        let len = bytes.len();
        if len == 0 {
            return Err(Error::ZeroSize);
        }
        let memory = Memory::new(this.source.adopt(bytes)?, Reservation { pool: None, bytes: 0 });
        let mut state = this.lock();
        state.adopted += len as u64;
        Ok(Buffer::from_inner(Self::enter(this, &mut state, None, len, Arc::new(memory), len)))
    }

    /// Puts a new buffer into the table.
    fn enter(
        this: &Arc<Self>,
        state: &mut State,
        class: Option<Class>,
        len: usize,
        memory: Arc<Memory>,
        defined: usize,
    ) -> Arc<BufferInner> {
        let place = state.vacant.pop().unwrap_or_else(|| {
            state.table.push(Weak::new());
            (state.table.len() as u32 - 1, 0)
        });
        let inner = Arc::new(BufferInner::new(this.clone(), class, place, len, memory, 0..defined));
        state.table[place.0 as usize] = Arc::downgrade(&inner);
        inner
    }

    /// The last handle is going: the buffer's life ends, its memory waits for the next.
    #[inline(always)]
    pub(crate) fn give_back(inner: Arc<BufferInner>) {
        // The usual case stands alone, as above.
        let left = put_behind(
            inner,
            |inner| inner.pool.state.pass(),
            |state, inner| {
                let usual = state.usual && Arc::strong_count(inner) == 1;
                inner.class.filter(|_| usual).and_then(|class| state.shelve(class, inner))
            },
        );
        if let Some(inner) = left {
            Self::give_back_slowly(inner);
        }
    }

    #[cold]
    fn give_back_slowly(inner: Arc<BufferInner>) {
        let unwanted = put_behind(
            inner,
            |inner| Some(inner.pool.lock()),
            |state, inner| {
                if Arc::strong_count(inner) > 1 {
                    return None; // somebody found it by its id a moment ago
                }
                state.retire(inner);
                inner.class.filter(|_| !state.closed).map(|class| state.shelves[class.0 as usize].place())
            },
        );
        drop(unwanted); // it takes the lock if it is the last
    }

    /// A buffer is gone for good: nobody wanted its memory back, or its last two handles went at the same moment.
    pub(crate) fn forget(&self, inner: &BufferInner) {
        let mut state = self.lock();
        if inner.len.load(Ordering::Relaxed) > 0 {
            state.retire(inner);
        }
        state.table[inner.index as usize] = Weak::new();
        state.vacant.push((inner.index, inner.generation.load(Ordering::Relaxed)));
    }

    pub(crate) fn find(&self, id: BufferId) -> Result<Buffer> {
        if id.device != self.device {
            return Err(Error::WrongDevice { what: "buffer" });
        }
        let stale = Error::StaleHandle { index: id.index, generation: id.generation };
        let state = self.lock();
        let inner = state.table.get(id.index as usize).and_then(Weak::upgrade).ok_or_else(|| stale.clone())?;
        let live = inner.generation.load(Ordering::Relaxed) == id.generation && inner.len.load(Ordering::Relaxed) > 0;
        drop(state); // a stale one is dropped without the lock
        if live { Ok(Buffer::from_inner(inner)) } else { Err(stale) }
    }

    /// Frees blocks that no buffer uses until at most `keep` bytes of them are left; says how many bytes that gave.
    pub(crate) fn trim(&self, keep: u64) -> u64 {
        let mut gone = Vec::new();
        let mut state = self.lock();
        let mut free: u64 = state.shelves.iter().map(|shelf| shelf.len() * shelf.bytes).sum();
        let before = free;
        'large_first: for shelf in state.shelves.iter_mut().rev() {
            while free > keep {
                let Some(inner) = shelf.take() else { continue 'large_first };
                free -= shelf.bytes;
                gone.push(inner);
            }
        }
        drop(state);
        drop(gone); // outside the lock, which their drop takes
        before - free
    }

    /// Notes from now on how much is in use.
    pub(crate) fn begin_trace(&self, trace: MemoryTrace) {
        let mut trace = Box::new(trace);
        let mut state = self.lock();
        trace.note(state.in_use);
        state.trace = Some(trace);
        state.usual = false;
    }

    pub(crate) fn end_trace(&self) -> Option<MemoryTrace> {
        let mut state = self.lock();
        state.usual = !state.closed;
        state.trace.take().map(|trace| *trace)
    }

    /// Frees what is free, now and from now on.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        (state.closed, state.usual) = (true, false);
        drop(state);
        self.trim(0);
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let state = self.lock();
        PoolStats {
            in_use: state.in_use,
            buffers: state.hits + state.misses - state.returned,
            in_use_peak: state.in_use_peak,
            reserved: self.reserved.load(Ordering::Relaxed),
            reserved_peak: self.reserved_peak.load(Ordering::Relaxed),
            budget: self.budget,
            hits: state.hits,
            misses: state.misses,
            adopted: state.adopted,
        }
    }
}

impl Shelf {
    #[inline(always)]
    fn take(&mut self) -> Option<Arc<BufferInner>> {
        self.first.take().or_else(|| self.more.pop().flatten())
    }

    /// Where to put one.
    #[inline(always)]
    fn place(&mut self) -> &mut Option<Arc<BufferInner>> {
        if self.first.is_some() {
            self.shift();
        }
        &mut self.first
    }

    #[inline(never)]
    fn shift(&mut self) {
        self.more.push(self.first.take());
    }

    fn len(&self) -> u64 {
        self.more.len() as u64 + u64::from(self.first.is_some())
    }
}

impl State {
    /// A free buffer of a class for whoever asked for `bytes`, if there is one.
    #[inline(always)]
    fn take(&mut self, class: Class, bytes: usize) -> Option<Arc<BufferInner>> {
        let shelf = self.shelves.get_mut(class.0 as usize)?;
        let inner = shelf.take()?;
        inner.len.store(bytes, Ordering::Relaxed);
        self.hits += 1;
        self.in_use += shelf.bytes;
        if self.in_use > self.in_use_peak {
            self.in_use_peak = self.in_use;
        }
        Some(inner)
    }

    fn note(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.note(self.in_use);
        }
    }

    /// Ends the life of a buffer of a class: handles of it are stale from now on. Says where the next one waits.
    #[inline(always)]
    fn shelve(&mut self, class: Class, inner: &BufferInner) -> Option<&mut Option<Arc<BufferInner>>> {
        let shelf = self.shelves.get_mut(class.0 as usize)?;
        inner.end_life();
        self.returned += 1;
        self.in_use -= shelf.bytes;
        Some(shelf.place())
    }

    /// Ends the life of any buffer.
    fn retire(&mut self, inner: &BufferInner) {
        match inner.class {
            Some(class) => {
                self.shelve(class, inner);
                self.note();
            }
            None => {
                self.adopted -= inner.len.load(Ordering::Relaxed) as u64;
                inner.end_life();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_tight_and_ordered() {
        let mut last = 0;
        for n in 0..CLASSES {
            let bytes = Class(n as u8).bytes();
            assert!(bytes > last, "class {n} is not larger than the one before");
            assert_eq!(Class::of(bytes), Class(n as u8));
            assert_eq!(Class::of(last + 1), Class(n as u8));
            assert!(last == 0 || bytes <= last + last / 4 + 1, "class {n} is more than a quarter above the one before");
            last = bytes;
        }
        assert_eq!(last, LARGEST);
    }
}
