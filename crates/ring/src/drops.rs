//! Dropping many values, any of which may panic.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Drops every value that `next` yields exactly once. A value whose drop panics does not keep the others; the first
/// panic goes on when all are gone, unless the thread is panicking already.
pub(crate) fn drop_all<T>(mut next: impl FnMut() -> Option<T>) {
    let mut first = None;
    while let Some(value) = next() {
        if !std::mem::needs_drop::<T>() {
            continue;
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            first.get_or_insert(panic);
        }
    }
    if let Some(panic) = first
        && !std::thread::panicking()
    {
        resume_unwind(panic);
    }
}
