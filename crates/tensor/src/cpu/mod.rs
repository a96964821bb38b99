//! What the CPU code of all operations stands on: elements in order whatever their strides, pieces of an output for
//! every thread, and loops that are compiled for every vector width.
//!
//! An operation says what it does with one element, in a function without branches that is always inlined; the loop
//! around it is compiled once per instruction set, and the one for this processor is chosen when it runs.

pub(crate) mod map;
pub(crate) mod scratch;
pub(crate) mod source;
pub(crate) mod stream;

use std::marker::PhantomData;

use millrace_core::Threads;

/// Elements that are worked on at a time: they stay in the nearest cache.
pub(crate) const BLOCK: usize = 1024;
/// Elements of a thread's piece of a large array.
pub(crate) const PIECE: usize = 64 * 1024;
/// What waking other threads costs, in nanoseconds of work that it has to be worth.
const WORTH_WAKING: f64 = 50_000.0;

/// Whether work of so many nanoseconds is worth several threads.
pub(crate) fn worth_threads(threads: &dyn Threads, nanoseconds: f64) -> bool {
    threads.count() > 1 && (nanoseconds > WORTH_WAKING || threads.all_wanted())
}

/// Calls `each` with the number of every piece and the piece itself, on several threads if that is worth it.
pub(crate) fn pieces<T: Send>(
    threads: &dyn Threads,
    parallel: bool,
    out: &mut [T],
    piece: usize,
    each: impl Fn(usize, &mut [T]) + Sync,
) {
    let count = out.len().div_ceil(piece);
    if !parallel || count < 2 {
        return out.chunks_mut(piece).enumerate().for_each(|(n, piece)| each(n, piece));
    }
    let out = Target::new(out);
    threads.for_each(count as u64, &|n| {
        let first = n as usize * piece;
        // SAFETY: every number comes once, and its piece is nobody else's.
        each(n as usize, unsafe { out.part(first, piece.min(out.len - first)) });
    });
}

/// An output of which every task writes parts of its own.
pub(crate) struct Target<'a, T> {
    start: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: whoever asks for a part promises that no other thread has it; the memory is borrowed for all of them.
unsafe impl<T: Send> Send for Target<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Target<'_, T> {}

impl<'a, T> Target<'a, T> {
    pub(crate) fn new(out: &'a mut [T]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), borrowed: PhantomData }
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// `len` elements from `first` on.
    ///
    /// # Safety
    /// Nobody else has one of them until the part is gone.
    #[allow(clippy::mut_from_ref, reason = "parts are disjoint by contract")]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, first: usize, len: usize) -> &mut [T] {
        assert!(first <= self.len && len <= self.len - first, "a part is inside of its output");
        // SAFETY: inside of memory that is borrowed for `'a`; by contract nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}
