//! A kernel's memory, whoever allocated it.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    any::Any,
    fmt,
    ptr::NonNull,
};

use crate::{
    Error, Result,
    layout::{ControlBlock, HEADER, MAGIC, RegionLayout, TELEMETRY_AT, TelemetryBlock},
    slots::{Slots, Words},
    sync::{AtomicU32, Ordering},
};

/// Memory that host and kernel share, made of words.
///
/// On the CPU it is memory of the process, on a GPU it is memory of the device that is mapped into the process: the
/// region keeps alive whoever allocated it, and knows nothing else about it.
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
/// let region = kernel.region();
/// assert_eq!(region.len(), kernel.region_layout().words());
/// assert!(!region.is_empty() && region.as_ptr().addr().is_multiple_of(128));
/// # Ok::<(), Error>(())
/// ```
pub struct Region {
    start: NonNull<u32>,
    words: usize,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is reached word by word with atomics, or by the side whose turn it is with a slot; the owner is both.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Memory of the process.
struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is memory, and freed once.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout and is not used any more.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl Region {
    /// Zeroed memory of the process.
    ///
    /// ```
    /// let region = millrace_resident::Region::host(1000)?;
    /// assert_eq!(region.len(), 1000);
    /// assert!(millrace_resident::Region::host(usize::MAX).is_err());
    /// # Ok::<(), millrace_resident::Error>(())
    /// ```
    pub fn host(words: usize) -> Result<Self> {
        let bytes = words.saturating_mul(4).max(128);
        let refused = || Error::Device(millrace_core::Error::SystemMemory(bytes as u64));
        let layout = Layout::from_size_align(bytes, 128).map_err(|_| refused())?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        let owner = Box::new(HostMemory { start, layout });
        Ok(Self { start: start.cast(), words, _owner: owner })
    }

    /// Memory that somebody else allocated.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use millrace_resident::Region;
    /// #[repr(align(128))]
    /// struct Words([u32; 64]);
    /// let memory = NonNull::from(Box::leak(Box::new(Words([0; 64]))));
    /// // SAFETY: it is aligned, is never freed, and nobody else knows of it.
    /// let region = unsafe { Region::from_raw(memory.cast(), 64, Box::new(())) };
    /// assert_eq!((region.len(), region.as_ptr()), (64, memory.cast().as_ptr()));
    /// ```
    ///
    /// # Safety
    /// `start` is aligned to 128 and points to `words` words that stay readable and writable until `owner` is dropped,
    /// and that nobody accesses but with atomics of 32 bits, except for the device that runs the kernel.
    pub unsafe fn from_raw(start: NonNull<u32>, words: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, words, _owner: owner }
    }

    /// Words.
    pub fn len(&self) -> usize {
        self.words
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// The first word.
    pub fn as_ptr(&self) -> *mut u32 {
        self.start.as_ptr()
    }

    /// Writes the control block and makes all slots free.
    pub(crate) fn initialize(&self, layout: &RegionLayout, rings: &Rings) -> Result<()> {
        if self.words < layout.words() || !(self.start.as_ptr() as usize).is_multiple_of(128) {
            let text = format!("a region of {} words cannot hold {}", self.words, layout.words());
            return Err(Error::Invalid(text.into()));
        }
        for index in 0..layout.high_first() {
            self.word(index).store(0, Ordering::Relaxed);
        }
        for ring in [&rings.high, &rings.normal, &rings.out] {
            ring.initialize(self);
        }
        let control = self.control();
        let set = |word: &AtomicU32, value: usize| word.store(value as u32, Ordering::Relaxed);
        set(&control.high_first, layout.high_first());
        set(&control.normal_first, layout.normal_first());
        set(&control.out_first, layout.out_first());
        set(&control.in_stride, layout.in_stride);
        set(&control.out_stride, layout.out_stride);
        set(&control.in_mask, layout.inbound as usize - 1);
        set(&control.out_mask, layout.outbound as usize - 1);
        set(&control.starvation_bound, crate::STARVATION_BOUND as usize);
        control.magic.store(MAGIC, Ordering::Release);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn control(&self) -> &ControlBlock {
        // SAFETY: `initialize` looked that the region is aligned and large enough; the block is made of atomics.
        unsafe { self.start.cast().as_ref() }
    }

    #[inline(always)]
    pub(crate) fn telemetry(&self) -> &TelemetryBlock {
        // SAFETY: as above.
        unsafe { self.start.byte_add(TELEMETRY_AT).cast().as_ref() }
    }

    /// Where the message of a slot begins. The slot is at a word index that [`Slots::at`] gave.
    #[inline(always)]
    pub(crate) fn payload(&self, slot: usize) -> *mut u8 {
        debug_assert!(slot + HEADER / 4 < self.words);
        // SAFETY: a slot is inside the region, and larger than its header.
        unsafe { self.start.as_ptr().add(slot).byte_add(HEADER).cast() }
    }
}

impl Words for Region {
    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index < self.words);
        // SAFETY: indices come from a layout that `initialize` compared with the region's size.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(index)) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("words", &self.words).finish_non_exhaustive()
    }
}

/// The rings of a region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rings {
    pub(crate) high: Slots,
    pub(crate) normal: Slots,
    pub(crate) out: Slots,
}

impl Rings {
    pub(crate) fn new(layout: &RegionLayout) -> Self {
        let ring = |first, stride, slots: u32| Slots { first, stride, mask: slots - 1 };
        Self {
            high: ring(layout.high_first(), layout.in_stride, layout.inbound),
            normal: ring(layout.normal_first(), layout.in_stride, layout.inbound),
            out: ring(layout.out_first(), layout.out_stride, layout.outbound),
        }
    }
}
