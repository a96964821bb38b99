//! Short lines that are sorted by rank, in vectors of eight.

use std::arch::x86_64::*;

use super::{RANKED, SHORT, index, value, vectors::each_line};

/// The most that can be across.
pub(super) const ACROSS: usize = RANKED;
/// Lines of up to so many entries are sorted in two vectors.
const TWO: usize = 16;

/// Sorts every line into `indices` and `values`.
///
/// # Safety
/// As [`super::vectors::SortLines`] says; indices are below [`ACROSS`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn sort_lines(pointers: &[u32], packed: &mut [u64], indices: *mut u32, values: *mut f32) {
    // SAFETY: for each line there is room for it and one more, and memory behind it: other lines, or what is behind all of them.
    unsafe {
        each_line(pointers, packed, indices, values, |line, indices, values| match line.len() {
            n @ ..=TWO => by_rank::<{ TWO / 8 }>(line.as_ptr(), n, indices, values),
            n => by_rank::<{ SHORT / 8 }>(line.as_ptr(), n, indices, values),
        });
    }
}

/// Puts every entry where it belongs: behind all that are smaller, and those that are equal and come before it. A key is an
/// index and the place that it came from, so no two are equal. As many steps are done as a line can have entries, since
/// guessing wrong how many it has costs more: what is not there goes to the place behind all others, and the next line over it.
///
/// # Safety
/// At `line` there are `n` entries, at most eight times `VECTORS`, and memory for that many; there is room for one more than `n`
/// indices and values, and indices are below [`ACROSS`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn by_rank<const VECTORS: usize>(line: *const u64, n: usize, indices: *mut u32, values: *mut f32) {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mut own = [[0i32; 8]; VECTORS];
    let mut keys = [_mm256_setzero_si256(); VECTORS];
    for (v, (key, own)) in keys.iter_mut().zip(&mut own).enumerate() {
        // SAFETY: there is memory for all of them.
        let (low, high) = unsafe {
            let at = line.add(8 * v);
            (_mm256_loadu_ps(at.cast()), _mm256_loadu_ps(at.add(4).cast()))
        };
        // The upper halves of all eight, in order.
        let uppers = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(low, high));
        let index = _mm256_castpd_si256(_mm256_permute4x64_pd::<0b11_01_10_00>(uppers));
        let lane = _mm256_add_epi32(lanes, _mm256_set1_epi32(8 * v as i32));
        let absent = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(n as i32 - 1));
        let present = _mm256_or_si256(_mm256_slli_epi32::<{ SHORT.ilog2() as i32 }>(index), lane);
        *key = _mm256_blendv_epi8(present, _mm256_set1_epi32(i32::MAX), absent);
        // SAFETY: it is as long as a vector.
        unsafe { _mm256_storeu_si256(own.as_mut_ptr().cast(), *key) };
    }
    // Each smaller key adds one to a rank.
    let mut ranks = [_mm256_setzero_si256(); VECTORS];
    for &key in own.as_flattened() {
        let key = _mm256_set1_epi32(key);
        for (rank, keys) in ranks.iter_mut().zip(&keys) {
            *rank = _mm256_sub_epi32(*rank, _mm256_cmpgt_epi32(*keys, key));
        }
    }
    let mut places = [[0u32; 8]; VECTORS];
    for (place, rank) in places.iter_mut().zip(ranks) {
        // SAFETY: it is as long as a vector.
        unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), rank) };
    }
    for (i, &place) in places.as_flattened().iter().enumerate() {
        // SAFETY: keys that are there differ, so their ranks are the numbers below `n`, each once; others have `n`.
        unsafe {
            let entry = line.add(i).read();
            indices.add(place as usize).write(index(entry));
            values.add(place as usize).write(value(entry));
        }
    }
}
