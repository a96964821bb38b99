//! Stores that go past the caches.
//!
//! An output that is larger than the caches is not read again before it has left them. Written past them, its lines
//! need not be fetched first, which saves a third to a half of the traffic.

use bytemuck::Pod;

/// Bytes from which on an output is written past the caches.
pub(crate) const STREAMED_FROM: usize = 8 << 20;

/// Elements before the first that begins a cache line; all of them if none does.
#[inline(always)]
pub(crate) fn before_line<T>(x: &[T]) -> usize {
    x.as_ptr().align_offset(64).min(x.len())
}

/// Copies whole cache lines past the caches where the processor can, in registers of so many bytes.
#[inline(always)]
pub(crate) fn store<T: Pod, const B: usize>(to: &mut [T; B], from: &[T; B], register: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        assert!(register != 64 || std::arch::is_x86_feature_detected!("avx512f"), "no such registers");
        assert!(to.as_ptr().addr().is_multiple_of(64) && size_of_val(to).is_multiple_of(64), "no whole lines");
        let (target, source) = (to.as_mut_ptr().cast::<u8>(), from.as_ptr().cast::<u8>());
        for line in (0..size_of_val(from)).step_by(64) {
            if register == 64 {
                // SAFETY: `line + 64` is inside of both, `target` is aligned to 64, and the processor has the registers.
                unsafe { store_line(target.add(line), source.add(line)) };
                continue;
            }
            for at in (line..line + 64).step_by(16) {
                // SAFETY: `at + 16` is at most `line + 64`, which is inside of both; `target` is aligned to 64, so that the
                // store is aligned to 16; these instructions belong to every x86-64 processor.
                unsafe { _mm_stream_si128(target.add(at).cast(), _mm_loadu_si128(source.add(at).cast())) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = register;
        to.copy_from_slice(from);
    }
}

/// Copies a cache line in one register: a line that is written at once is never written in parts.
///
/// # Safety
/// 64 bytes can be read and, aligned, be written.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn store_line(to: *mut u8, from: *const u8) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    // SAFETY: by contract.
    unsafe { _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast())) };
}

/// Makes streamed stores visible to other threads before whatever comes next.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: belongs to every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// How far ahead of itself a long loop asks for what it reads: a page, where the processor itself stops looking ahead.
pub(crate) const AHEAD: usize = 4096;

/// Whether a loop that only reads should ask ahead. Processors whose registers are whole cache lines read ahead well enough, and
/// asking takes an eighth of what they could read.
#[inline]
pub(crate) fn asks_ahead() -> bool {
    #[cfg(target_arch = "x86_64")]
    return !std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Asks for what is going to be read soon.
#[inline(always)]
pub(crate) fn prefetch<T>(x: &[T]) {
    prefetch_behind(x, 0);
}

/// Asks for as much as a slice has, so many bytes behind it, whatever is there.
#[inline(always)]
pub(crate) fn prefetch_behind<T>(x: &[T], bytes: usize) {
    for line in (0..size_of_val(x)).step_by(64) {
        prefetch_at(x.as_ptr().wrapping_byte_add(bytes + line));
    }
}

/// Asks for a cache line, whatever is there.
#[inline(always)]
pub(crate) fn prefetch_at<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: belongs to every x86-64 processor, and reads nothing: any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
