//! Lines that are sorted in registers.

use std::arch::x86_64::*;

use super::{
    SHORT, index,
    lines::{each_line, unpack},
};

/// Entries that a register holds.
const LANES: usize = 16;
/// The most that can be across: four bits of a key say where it came from.
pub(super) const ACROSS: usize = 1 << 28;

/// Sorts every line into `indices` and `values`.
///
/// # Safety
/// As [`super::SortLines`] says; the processor has AVX-512, and indices are below [`ACROSS`].
#[target_feature(enable = "avx512f,popcnt")]
pub(super) unsafe fn sort_lines(ends: &[u32], packed: &mut [u64], indices: *mut u32, values: *mut f32) {
    // SAFETY: there is room for each line.
    unsafe {
        each_line(ends, packed, indices, values, |line, n, indices, values| {
            let line = &mut line[..n];
            if n <= LANES {
                in_a_register(line, indices, values);
            } else {
                by_rank(line);
                unpack(line, indices, values);
            }
        });
    }
}

/// Both halves of a step of the network: pairs of lanes are exchanged if the first is larger, which is the one that is not in
/// the mask.
macro_rules! exchange {
    ($keys:ident, $partners:expr, $mask:literal) => {
        let partners = $partners;
        $keys = _mm512_mask_max_epu32(_mm512_min_epu32($keys, partners), $mask, $keys, partners);
    };
}

/// Sorts up to sixteen entries. A key is an index and the lane it came from, so that
/// equal ones stay in their order, and values can follow.
///
/// # Safety
/// There is room for as many indices and values.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn in_a_register(line: &[u64], indices: *mut u32, values: *mut f32) {
    assert!(line.len() <= LANES);
    let mask = ((1u32 << line.len()) - 1) as u16;
    let (lanes, mirrored) = (
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
    );
    let halves_mirrored = _mm512_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    // SAFETY: the mask has a bit for every entry; others are not touched.
    let (low, high) = unsafe {
        let (low, high) = (line.as_ptr().cast(), line.as_ptr().wrapping_add(8).cast());
        (_mm512_maskz_loadu_epi64(mask as u8, low), _mm512_maskz_loadu_epi64((mask >> 8) as u8, high))
    };
    let (index, value) = (_mm512_permutex2var_epi32(low, odd, high), _mm512_permutex2var_epi32(low, even, high));
    let keys = _mm512_or_si512(_mm512_slli_epi32::<4>(index), lanes);
    // Lanes without an entry go to the end: no key is this, as an entry in the last lane leaves no lane free.
    let mut keys = _mm512_mask_mov_epi32(_mm512_set1_epi32(-1), mask, keys);
    exchange!(keys, _mm512_shuffle_epi32::<0b10_11_00_01>(keys), 0xaaaa);
    exchange!(keys, _mm512_shuffle_epi32::<0b00_01_10_11>(keys), 0xcccc);
    exchange!(keys, _mm512_shuffle_epi32::<0b10_11_00_01>(keys), 0xaaaa);
    exchange!(keys, _mm512_permutexvar_epi32(halves_mirrored, keys), 0xf0f0);
    exchange!(keys, _mm512_shuffle_epi32::<0b01_00_11_10>(keys), 0xcccc);
    exchange!(keys, _mm512_shuffle_epi32::<0b10_11_00_01>(keys), 0xaaaa);
    exchange!(keys, _mm512_permutexvar_epi32(mirrored, keys), 0xff00);
    exchange!(keys, _mm512_shuffle_i64x2::<0b10_11_00_01>(keys, keys), 0xf0f0);
    exchange!(keys, _mm512_shuffle_epi32::<0b01_00_11_10>(keys), 0xcccc);
    exchange!(keys, _mm512_shuffle_epi32::<0b10_11_00_01>(keys), 0xaaaa);
    // Of a key only the lane counts here.
    let (index, value) = (_mm512_srli_epi32::<4>(keys), _mm512_permutexvar_epi32(keys, value));
    // SAFETY: there is room for the entries of the mask; others are not touched.
    unsafe {
        _mm512_mask_storeu_epi32(indices.cast(), mask, index);
        _mm512_mask_storeu_epi32(values.cast(), mask, value);
    }
}

/// Puts every entry of 32 where it belongs: behind all that are smaller, and those that are equal and come before it.
#[inline]
#[target_feature(enable = "avx512f,popcnt")]
fn by_rank(line: &mut [u64]) {
    let n = line.len();
    assert!(n <= SHORT);
    let mut old = [0u64; SHORT];
    old[..n].copy_from_slice(line);
    let present = ((1u64 << n) - 1) as u32;
    let mut own = [0u32; SHORT];
    own.iter_mut().zip(&old).for_each(|(own, &entry)| *own = index(entry));
    // SAFETY: both halves are inside.
    let keys = unsafe { [_mm512_loadu_epi32(own.as_ptr().cast()), _mm512_loadu_epi32(own[LANES..].as_ptr().cast())] };
    for (i, &entry) in old[..n].iter().enumerate() {
        let key = _mm512_set1_epi32(own[i] as i32);
        let both = |low: u16, high: u16| u32::from(low) | u32::from(high) << LANES;
        let smaller = both(_mm512_cmplt_epu32_mask(keys[0], key), _mm512_cmplt_epu32_mask(keys[1], key));
        let equal = both(_mm512_cmpeq_epu32_mask(keys[0], key), _mm512_cmpeq_epu32_mask(keys[1], key));
        let before = equal & ((1u32 << i) - 1);
        line[((smaller & present).count_ones() + before.count_ones()) as usize] = entry;
    }
}
