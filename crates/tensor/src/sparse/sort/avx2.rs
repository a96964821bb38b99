//! Short lines that are sorted in vectors of eight: those that fit into two of them by a network of exchanges, others by rank.

use std::arch::x86_64::*;

use super::{RANKED, SHORT, index, lines::each_line, value};

/// The most that can be across.
pub(super) const ACROSS: usize = RANKED;
/// Entries that two vectors hold.
const TWO: usize = 16;

/// Sorts every line into `indices` and `values`.
///
/// # Safety
/// As [`super::SortLines`] says; the processor has AVX2, and indices are below [`ACROSS`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn sort_lines(ends: &[u32], packed: &mut [u64], indices: *mut u32, values: *mut f32) {
    // SAFETY: there is memory behind each line, and room behind its indices and values.
    unsafe {
        each_line(ends, packed, indices, values, |line, n, indices, values| match n {
            ..=TWO => by_exchanges(line, n, indices, values),
            _ => by_rank(line, n, indices, values),
        });
    }
}

/// Where entries came from, at the end of their keys.
const PLACE: i32 = SHORT.ilog2() as i32;

/// The upper halves of eight entries, in order, and the lower ones.
///
/// # Safety
/// There are eight entries.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn halves(entries: *const u64) -> (__m256i, __m256i) {
    // SAFETY: there are as many.
    let (low, high) = unsafe { (_mm256_loadu_ps(entries.cast()), _mm256_loadu_ps(entries.add(4).cast())) };
    let uppers = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(low, high));
    let lowers = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
    let in_order = |halves| _mm256_castpd_si256(_mm256_permute4x64_pd::<0b11_01_10_00>(halves));
    (in_order(uppers), in_order(lowers))
}

/// Keys of the entries from the `first` on of a line that has `n`: an index and the place that it came from, so no two are
/// equal. Those of entries that are not there come behind all others.
#[inline]
#[target_feature(enable = "avx2")]
fn keys(index: __m256i, first: usize, n: usize) -> __m256i {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let place = _mm256_add_epi32(lanes, _mm256_set1_epi32(first as i32));
    let absent = _mm256_cmpgt_epi32(place, _mm256_set1_epi32(n as i32 - 1));
    let present = _mm256_or_si256(_mm256_slli_epi32::<PLACE>(index), place);
    _mm256_blendv_epi8(present, _mm256_set1_epi32(i32::MAX), absent)
}

/// Both halves of a step of the network: pairs of lanes are exchanged if the first is larger, which is the one that is not in
/// the mask.
macro_rules! exchange {
    ($keys:expr, $partners:expr, $mask:literal) => {
        let partners = $partners;
        $keys = _mm256_blend_epi32::<$mask>(_mm256_min_epi32($keys, partners), _mm256_max_epi32($keys, partners));
    };
}

/// Sorts up to sixteen entries in two vectors: each by itself, then both (Batcher's bitonic network).
///
/// # Safety
/// At `line` there are `n` entries and memory for sixteen; there is room for sixteen indices and values, and indices are
/// below [`ACROSS`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn by_exchanges(line: &[u64], n: usize, indices: *mut u32, values: *mut f32) {
    assert!(line.len() >= TWO);
    let mirrored = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    // SAFETY: there are as many.
    let (low, high) = unsafe { (halves(line.as_ptr()), halves(line.as_ptr().add(8))) };
    let (mut a, mut b) = (keys(low.0, 0, n), keys(high.0, 8, n));
    for keys in [&mut a, &mut b] {
        exchange!(*keys, _mm256_shuffle_epi32::<0b10_11_00_01>(*keys), 0b1010_1010);
        exchange!(*keys, _mm256_shuffle_epi32::<0b00_01_10_11>(*keys), 0b1100_1100);
        exchange!(*keys, _mm256_shuffle_epi32::<0b10_11_00_01>(*keys), 0b1010_1010);
        exchange!(*keys, _mm256_permutevar8x32_epi32(*keys, mirrored), 0b1111_0000);
        exchange!(*keys, _mm256_shuffle_epi32::<0b01_00_11_10>(*keys), 0b1100_1100);
        exchange!(*keys, _mm256_shuffle_epi32::<0b10_11_00_01>(*keys), 0b1010_1010);
    }
    let partners = _mm256_permutevar8x32_epi32(b, mirrored);
    (a, b) = (_mm256_min_epi32(a, partners), _mm256_max_epi32(a, partners));
    for (i, keys) in [&mut a, &mut b].into_iter().enumerate() {
        exchange!(*keys, _mm256_permute4x64_epi64::<0b01_00_11_10>(*keys), 0b1111_0000);
        exchange!(*keys, _mm256_shuffle_epi32::<0b01_00_11_10>(*keys), 0b1100_1100);
        exchange!(*keys, _mm256_shuffle_epi32::<0b10_11_00_01>(*keys), 0b1010_1010);
        // Of a key's place the last three bits count here, and the one before says in which of both vectors it is.
        let of_low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(low.1, *keys));
        let of_high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(high.1, *keys));
        let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(*keys));
        let value = _mm256_blendv_ps(of_low, of_high, upper);
        // SAFETY: there is room for two vectors.
        unsafe {
            _mm256_storeu_si256(indices.add(8 * i).cast(), _mm256_srli_epi32::<PLACE>(*keys));
            _mm256_storeu_ps(values.add(8 * i), value);
        }
    }
}

/// Puts every entry of up to [`SHORT`] where it belongs: behind all that have smaller keys. As many steps are done as a line
/// can have entries, since guessing wrong how many it has costs more: what is not there goes to the place behind all others.
///
/// # Safety
/// At `line` there are `n` entries and memory for [`SHORT`]; there is room for one more than `n` indices and values, and
/// indices are below [`ACROSS`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn by_rank(line: &[u64], n: usize, indices: *mut u32, values: *mut f32) {
    const VECTORS: usize = SHORT / 8;
    let line = &line[..SHORT];
    let mut own = [[0i32; 8]; VECTORS];
    let mut all = [_mm256_setzero_si256(); VECTORS];
    for (v, (vector, own)) in all.iter_mut().zip(&mut own).enumerate() {
        // SAFETY: there are as many, and it is as long as a vector.
        unsafe {
            *vector = keys(halves(line.as_ptr().add(8 * v)).0, 8 * v, n);
            _mm256_storeu_si256(own.as_mut_ptr().cast(), *vector);
        }
    }
    // Each smaller key adds one to a rank.
    let mut ranks = [_mm256_setzero_si256(); VECTORS];
    for &key in own.as_flattened() {
        let key = _mm256_set1_epi32(key);
        for (rank, keys) in ranks.iter_mut().zip(&all) {
            *rank = _mm256_sub_epi32(*rank, _mm256_cmpgt_epi32(*keys, key));
        }
    }
    let mut places = [[0u32; 8]; VECTORS];
    for (place, rank) in places.iter_mut().zip(ranks) {
        // SAFETY: it is as long as a vector.
        unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), rank) };
    }
    for (&entry, &place) in line.iter().zip(places.as_flattened()) {
        // SAFETY: keys that are there differ, so their ranks are the numbers below `n`, each once; others have `n`.
        unsafe {
            indices.add(place as usize).write(index(entry));
            values.add(place as usize).write(value(entry));
        }
    }
}

/// For each set of lanes the numbers of those that are in it, one byte each.
static CHOSEN: [u64; 256] = {
    let mut chosen = [0; 256];
    let mut set = 0;
    while set < 256 {
        let (mut lane, mut at) = (0, 0);
        while lane < 8 {
            if set >> lane & 1 == 1 {
                chosen[set] |= lane << (8 * at);
                at += 1;
            }
            lane += 1;
        }
        set += 1;
    }
    chosen
};

/// Notes the numbers and lines of entries whose lines are the `count` from `first` on. Says how many were looked at, which is
/// all but less than eight, and how many noted.
///
/// # Safety
/// The processor has AVX2. There is room for what is noted and eight more.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn note(
    lines: &[u32],
    first: u32,
    count: u32,
    numbers: &mut [u32],
    own: &mut [u32],
) -> (usize, usize) {
    let (eights, _) = lines.as_chunks::<8>();
    if count == 0 {
        return (8 * eights.len(), 0);
    }
    let (first, most) = (_mm256_set1_epi32(first as i32), _mm256_set1_epi32((count - 1) as i32));
    let mut number = _mm256_setzero_si256();
    let mut at = 0;
    for eight in eights {
        // SAFETY: it is as long as a vector.
        let line = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
        let from_first = _mm256_sub_epi32(line, first);
        let in_range = _mm256_cmpeq_epi32(_mm256_min_epu32(from_first, most), from_first);
        let set = _mm256_movemask_ps(_mm256_castsi256_ps(in_range)) as u32;
        let lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(CHOSEN[set as usize] as i64));
        // SAFETY: there is room for a vector more than is noted.
        unsafe {
            let chosen = _mm256_permutevar8x32_epi32(line, lanes);
            _mm256_storeu_si256(own.as_mut_ptr().add(at).cast(), chosen);
            _mm256_storeu_si256(numbers.as_mut_ptr().add(at).cast(), _mm256_add_epi32(number, lanes));
        }
        at += set.count_ones() as usize;
        number = _mm256_add_epi32(number, _mm256_set1_epi32(8));
    }
    (8 * eights.len(), at)
}
