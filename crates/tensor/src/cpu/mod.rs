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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytemuck::Zeroable;
    use millrace_core::{Argument, Arguments, CpuKernel, Launched};

    use super::*;
    use crate::ops::{Family, Walk, spec};

    /// Threads that count how often they are woken.
    struct Counted {
        count: usize,
        all: bool,
        woken: AtomicUsize,
    }

    impl Threads for Counted {
        fn count(&self) -> usize {
            self.count
        }

        fn all_wanted(&self) -> bool {
            self.all
        }

        fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            (0..n).for_each(each);
        }
    }

    /// How often the threads are woken for the first unary operation on so many elements.
    fn woken(n: usize, count: usize, all: bool) -> usize {
        let device = millrace::runtime().open("cpu").unwrap();
        let spec = spec(Family::Unary, 0);
        let mut walk = Walk::zeroed();
        (walk.n, walk.rank, walk.shape[0], walk.strides[0][0]) = (n as u32, 1, n as u32, 1);
        let (input, mut output) = (vec![1.5f32; n], vec![0.0f32; n]);
        let kernel = device.kernel(&spec).unwrap();
        let launch = kernel.launch().params(&walk);
        let mut arguments = Arguments::new();
        arguments.push(Argument::Input(bytemuck::cast_slice(&input)));
        arguments.push(Argument::Output(bytemuck::cast_slice_mut(&mut output)));
        let threads = Counted { count, all, woken: AtomicUsize::new(0) };
        let Some(CpuKernel::Whole(code)) = spec.cpu_code() else { panic!("it is called once") };
        code(&mut Launched::new(launch.body(), arguments, &threads));
        assert!(output.iter().all(|&x| x == -1.5), "{n} elements");
        threads.woken.into_inner()
    }

    #[test]
    fn a_small_operation_stays_on_one_thread_and_a_large_one_does_not() {
        assert_eq!(woken(PIECE + 1, 4, false), 0, "two pieces that are done before anybody is awake");
        assert_eq!(woken(1 << 21, 4, false), 1);
        assert_eq!(woken(1 << 21, 1, false), 0, "there is nobody to wake");
        assert_eq!(woken(PIECE + 1, 4, true), 1, "somebody wants all of them");
        assert_eq!(woken(PIECE, 4, true), 0, "a single piece is nobody else's");
    }
}
