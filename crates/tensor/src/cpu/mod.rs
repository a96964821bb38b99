//! What the CPU code of all operations stands on: elements in order whatever their strides, pieces of an output for
//! every thread, and loops that are compiled for every vector width.
//!
//! An operation says what it does with one element, in a function without branches that is always inlined; the loop
//! around it is compiled once per instruction set, and the one for this processor is chosen when it runs.

pub(crate) mod map;
pub(crate) mod scratch;
pub(crate) mod source;
pub(crate) mod stream;

use std::sync::{Mutex, PoisonError};

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
    let rest = Mutex::new(out.chunks_mut(piece).enumerate());
    threads.for_each(count as u64, &|_| {
        let next = rest.lock().unwrap_or_else(PoisonError::into_inner).next();
        if let Some((n, piece)) = next {
            each(n, piece);
        }
    });
}
