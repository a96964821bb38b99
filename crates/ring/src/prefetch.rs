//! Fetching a cache line before it is needed.

/// Brings the line that `place` is on to this core, to be written. For memory that another core used last and that
/// this one is going to write soon: a hint, which changes nothing but time.
#[inline(always)]
pub(crate) fn to_write<T>(place: *const T) {
    // By hand: the compiler has an intrinsic, which fetches for reading only unless it may assume a newer processor. On
    // those that lack the instruction it does nothing.
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch accesses nothing, at whatever address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) place, options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = place;
}
