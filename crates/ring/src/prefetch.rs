//! Fetching cache lines before they are needed.

/// How many slots ahead the ends of a ring fetch: enough for a line to come from another core meanwhile.
pub(crate) const AHEAD: usize = 8;

/// Slots up to this size are fetched ahead.
const LARGEST: usize = 256;

const LINE: usize = 64;

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

/// Brings the line that `place` is on to this core, to be read.
#[inline(always)]
fn to_read<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch accesses nothing, at whatever address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = place;
}

/// Brings a slot to this core, to be written.
#[inline(always)]
pub(crate) fn slot_to_write<S>(slot: *const S) {
    each_line(slot, to_write);
}

/// Brings a slot to this core, to be read.
#[inline(always)]
pub(crate) fn slot_to_read<S>(slot: *const S) {
    each_line(slot, to_read);
}

#[inline(always)]
fn each_line<S>(slot: *const S, fetch: impl Fn(*const u8)) {
    if size_of::<S>() > LARGEST {
        return; // a message that large takes so long that its lines come by themselves
    }
    let slot = slot.cast::<u8>();
    (0..size_of::<S>()).step_by(LINE).for_each(|offset| fetch(slot.wrapping_add(offset)));
    // Slots need not begin with a line.
    fetch(slot.wrapping_add(size_of::<S>().saturating_sub(1)));
}
