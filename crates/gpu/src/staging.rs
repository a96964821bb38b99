//! Memory through which bytes get to a device and back, used again and again.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_core::{Error, Result};

use crate::{
    device::{Shared, guarded},
    submission::{LANDED, awake},
};

/// The smallest piece; small transfers of one batch share it.
const CHUNK: u64 = 256 << 10;
/// Bytes of each kind that wait for their next use. More is given back to the system.
const KEPT: u64 = 128 << 20;
/// Where transfers start inside a piece: what mappings and copies need, and more than any number type does.
const ALIGN: u64 = 64;

/// Pieces that wait for their next use, by size.
struct Free<T> {
    pieces: Vec<(u64, T)>,
    bytes: u64,
}

impl<T> Default for Free<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), bytes: 0 }
    }
}

impl<T> Free<T> {
    /// The size of a piece that holds so many bytes.
    fn size_of(bytes: u64) -> u64 {
        // Pieces are four to the octave, so that large ones waste little.
        let step = (bytes.max(CHUNK).next_power_of_two() / 8).max(CHUNK);
        bytes.max(1).next_multiple_of(step)
    }

    fn take(&mut self, size: u64) -> Option<T> {
        let place = self.pieces.iter().rposition(|(piece, _)| *piece == size)?;
        self.bytes -= size;
        Some(self.pieces.swap_remove(place).1)
    }

    /// Keeps a piece, or hands back what has to go for it.
    fn put(&mut self, size: u64, piece: T) -> Vec<(u64, T)> {
        self.pieces.push((size, piece));
        self.bytes += size;
        let mut gone = Vec::new();
        while self.bytes > KEPT {
            let (size, piece) = self.pieces.remove(0);
            self.bytes -= size;
            gone.push((size, piece));
        }
        gone
    }
}

/// Gives back to the system what waits; says how many bytes that were.
fn trim<T>(free: &Mutex<Free<T>>) -> u64 {
    let gone = std::mem::take(&mut *lock(free));
    gone.bytes // what it has is dropped here, outside the lock
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new piece; upload memory is mapped.
fn new(device: &wgpu::Device, label: &str, size: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
    let mapped_at_creation = usage.contains(wgpu::BufferUsages::MAP_WRITE);
    let descriptor = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation };
    guarded(device, || device.create_buffer(&descriptor)).map_err(|_| Error::SystemMemory(size))
}

/// Upload memory that is mapped and waits.
#[derive(Default)]
pub(crate) struct Uploads {
    free: Mutex<Free<wgpu::Buffer>>,
}

/// A piece of upload memory while a batch is recorded.
pub(crate) struct Upload {
    pub(crate) buffer: wgpu::Buffer,
    view: wgpu::BufferViewMut,
    used: u64,
}

impl Uploads {
    pub(crate) fn trim(&self) -> u64 {
        trim(&self.free)
    }

    /// A piece with room for so many bytes.
    pub(crate) fn take(&self, device: &wgpu::Device, bytes: u64) -> Result<Upload> {
        let size = Free::<()>::size_of(bytes);
        let kept = lock(&self.free).take(size);
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let buffer = kept.map_or_else(|| new(device, "upload", size, usage), Ok)?;
        let view = buffer.get_mapped_range_mut(..).map_err(|_| Error::SystemMemory(bytes))?;
        Ok(Upload { buffer, view, used: 0 })
    }
}

impl Upload {
    /// Writes bytes behind those that were written before; says where, or nothing if there is no room.
    pub(crate) fn write(&mut self, data: &[u8]) -> Option<u64> {
        let (start, end) = (self.used, self.used + data.len() as u64);
        if end > self.buffer.size() {
            return None;
        }
        self.view.slice(start as usize..end as usize).copy_from_slice(data);
        self.used = end.next_multiple_of(ALIGN);
        Some(start)
    }

    /// Before the batch is submitted: hands the piece to the device.
    pub(crate) fn close(self) -> wgpu::Buffer {
        let Self { buffer, view, .. } = self;
        drop(view);
        buffer.unmap();
        buffer
    }
}

impl Uploads {
    /// After the batch was submitted: takes the piece back as soon as the device has read it.
    pub(crate) fn take_back(self: &Arc<Self>, buffer: wgpu::Buffer) {
        let (home, piece) = (Arc::downgrade(self), buffer.clone());
        buffer.map_async(wgpu::MapMode::Write, .., move |mapped| {
            if mapped.is_ok()
                && let Some(home) = home.upgrade()
            {
                let gone = lock(&home.free).put(piece.size(), piece);
                drop(gone); // outside the lock
            }
        });
    }
}

/// Readback memory that is not mapped and waits.
#[derive(Default)]
pub(crate) struct Downloads {
    free: Mutex<Free<wgpu::Buffer>>,
}

/// A piece of readback memory: with its batch, and then with the views of what was read.
pub(crate) struct Download {
    pub(crate) buffer: wgpu::Buffer,
    used: Mutex<u64>,
    mapped: Arc<Mapped>,
    home: Weak<Downloads>,
}

impl Downloads {
    pub(crate) fn trim(&self) -> u64 {
        trim(&self.free)
    }

    /// A piece with room for so many bytes.
    pub(crate) fn take(self: &Arc<Self>, device: &wgpu::Device, bytes: u64) -> Result<Download> {
        let size = Free::<()>::size_of(bytes);
        let kept = lock(&self.free).take(size);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let buffer = kept.map_or_else(|| new(device, "download", size, usage), Ok)?;
        Ok(Download { buffer, used: Mutex::new(0), mapped: Arc::default(), home: Arc::downgrade(self) })
    }
}

impl Download {
    /// Room for so many bytes; says where, or nothing if there is none.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<u64> {
        let mut used = lock(&self.used);
        let start = *used;
        if start + bytes > self.buffer.size() {
            return None;
        }
        *used = (start + bytes).next_multiple_of(ALIGN);
        Some(start)
    }

    /// After the batch was submitted: lets the host see it as soon as the device has written it.
    pub(crate) fn map(&self) {
        self.buffer.map_async(wgpu::MapMode::Read, .., self.mapped.setter());
    }

    /// After the batch has run: the bytes of a range that starts where [`Self::reserve`] said, without copying them.
    pub(crate) fn bytes(self: &Arc<Self>, shared: &Shared, range: Range<u64>, within: Range<usize>) -> Option<Bytes> {
        if !self.mapped.comes(shared, LANDED) {
            return None;
        }
        let view = self.buffer.get_mapped_range(range).ok()?;
        Some(Bytes::from_owner(Seen { view, _piece: self.clone() }).slice(within))
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if !self.mapped.is_there() {
            return; // the device may still be writing to it
        }
        self.buffer.unmap();
        if let Some(home) = self.home.upgrade() {
            let gone = lock(&home.free).put(self.buffer.size(), self.buffer.clone());
            drop(gone); // outside the lock
        }
    }
}

/// What came of mapping a buffer.
#[derive(Default)]
pub(crate) struct Mapped(AtomicU8);

impl Mapped {
    const THERE: u8 = 1;
    const REFUSED: u8 = 2;
    /// For `map_async`.
    pub(crate) fn setter(self: &Arc<Self>) -> impl FnOnce(Result<(), wgpu::BufferAsyncError>) + Send + 'static {
        let mapped = self.clone();
        move |result| mapped.0.store(if result.is_ok() { Self::THERE } else { Self::REFUSED }, Ordering::Release)
    }

    fn is_there(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::THERE
    }

    /// Of a buffer that nothing uses any more: whether it can be mapped, which is known soon. Another thread that polls may have
    /// yet to say so; it is waited for that long.
    pub(crate) fn comes(&self, shared: &Shared, patience: Duration) -> bool {
        let known = || self.0.load(Ordering::Acquire) != 0;
        let look = || {
            Ok(known() || {
                shared.poll_if_nobody_does();
                known()
            })
        };
        matches!(awake(Instant::now() + patience, look), Ok(true)) && self.is_there()
    }
}

/// Readback memory that somebody looks at.
struct Seen {
    /// Before the piece, which is unmapped when it goes.
    view: wgpu::BufferView,
    _piece: Arc<Download>,
}

impl AsRef<[u8]> for Seen {
    fn as_ref(&self) -> &[u8] {
        &self.view
    }
}

/// Host memory for bytes that were read in place, aligned for any number type.
#[derive(Default)]
pub(crate) struct Fetches {
    free: Mutex<Free<Vec<u128>>>,
}

struct Fetched {
    memory: Vec<u128>,
    len: usize,
    home: Weak<Fetches>,
}

impl Fetches {
    pub(crate) fn trim(&self) -> u64 {
        trim(&self.free)
    }

    /// A copy of the bytes.
    pub(crate) fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        let len = bytes.len();
        let small = len < CHUNK as usize;
        let size = if small { len as u64 } else { Free::<()>::size_of(len as u64) };
        let kept = if small { None } else { lock(&self.free).take(size) };
        let mut memory = kept.unwrap_or_else(|| vec![0; (size as usize).div_ceil(size_of::<u128>())]);
        bytemuck::cast_slice_mut(&mut memory)[..len].copy_from_slice(bytes);
        let home = if small { Weak::new() } else { Arc::downgrade(self) };
        Bytes::from_owner(Fetched { memory, len, home })
    }
}

impl AsRef<[u8]> for Fetched {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[..self.len]
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            let size = Free::<()>::size_of(self.len as u64);
            let gone = lock(&home.free).put(size, std::mem::take(&mut self.memory));
            drop(gone); // outside the lock
        }
    }
}
