//! Sixteen lanes.

use std::arch::x86_64::*;

use super::{
    Factors, Range, avx2, rows,
    x86::{AHEAD, LANES, RUNS_AHEAD, are_even, rows_in_blocks, short_rows},
};

/// The most blocks that are taken for scattered before one is looked at again.
const SCATTERED: usize = 256;

#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) fn rows_times_vector(range: &Range<'_>, factors: Factors<'_>, out: &mut [f32], gather: bool) -> f32 {
    let sixteen = |from, ends: &_, out: &mut _| sixteen_runs(factors, from, ends, out);
    let from = range.entry.min(factors.indices.len());
    let from = rows_in_blocks(from, range.ends, out, SCATTERED, sixteen, |from, ends, out| {
        // Where lengths change, a loop over a row's entries ends by surprise, which is dearer than any gather.
        let loads = !gather && are_even(ends);
        if loads { avx2::scattered(from, ends, factors, out) } else { gathered(from, ends, factors, out) }
    });
    dot(factors.only(from, range.end.max(from)))
}

/// Rows of any kind. Not a part of the loop over those that are alike, which has no registers to spare.
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn gathered(from: usize, ends: &[u32], factors: Factors<'_>, out: &mut [f32]) -> usize {
    let four = |from, ends: &_, out: &mut _| {
        let bounds = short_rows(from, ends, factors.indices.len());
        bounds.map(|bounds| *out = four_rows(factors, bounds)).is_some()
    };
    rows_in_blocks(from, ends, out, 1, four, |from, ends, out| rows(from, ends, factors, out, |row| dot(row)))
}

/// Sixteen rows of one to sixteen entries each, if the entries of each lie behind one another; otherwise nothing is done. Gathering
/// where all of them begin and end takes less time than to load and to compare for each row, also where gathers are slow.
#[inline]
#[target_feature(enable = "avx512f")]
fn sixteen_runs(factors: Factors<'_>, from: usize, ends: &[u32; LANES], out: &mut [f32; LANES]) -> bool {
    let Factors { indices, values, x } = factors;
    let last = ends[LANES - 1] as usize;
    // If rows are short as well, their lengths add up to the way from here to there, and no end lies outside of it.
    if last > indices.len() || last.wrapping_sub(from) > LANES * LANES {
        return false;
    }
    let one = _mm512_set1_epi32(1);
    // SAFETY: there are as many as a vector has lanes.
    let ends_of_rows = unsafe { _mm512_loadu_epi32(ends.as_ptr().cast()) };
    let starts = _mm512_alignr_epi32::<15>(ends_of_rows, _mm512_set1_epi32(from as i32));
    let lengths = _mm512_sub_epi32(ends_of_rows, starts);
    let lengths_less_one = _mm512_sub_epi32(lengths, one);
    if _mm512_cmplt_epu32_mask(lengths_less_one, _mm512_set1_epi32(LANES as i32)) != 0xffff {
        return false;
    }
    factors.only(from, last).ask_ahead(RUNS_AHEAD);
    factors.ask_for_element(from + RUNS_AHEAD / 2);
    let starts_here = _mm512_sub_epi32(starts, _mm512_set1_epi32(from as i32));
    // SAFETY: rows are not empty, begin here or later, and end at `last` or before, which is inside.
    let (firsts, lasts) = unsafe {
        let here = indices.as_ptr().add(from).cast();
        let firsts = _mm512_i32gather_epi32::<4>(starts_here, here);
        (firsts, _mm512_i32gather_epi32::<4>(_mm512_add_epi32(starts_here, lengths_less_one), here))
    };
    let inside = _mm512_cmplt_epu32_mask(lasts, _mm512_set1_epi32(x.len().min(u32::MAX as usize) as i32));
    let runs = _mm512_cmpeq_epi32_mask(_mm512_sub_epi32(lasts, firsts), lengths_less_one);
    if inside & runs & _mm512_cmple_epu32_mask(firsts, lasts) != 0xffff {
        return false;
    }
    let masks = lanes(_mm512_sub_epi32(_mm512_sllv_epi32(one, lengths), one));
    let firsts = lanes(firsts);
    let row = |row: usize| {
        let (mask, start) = (masks[row] as u16, if row == 0 { from } else { ends[row - 1] as usize });
        // SAFETY: the mask has a bit for every entry of the row, and others are not touched. Entries are inside, and so is what
        // they belong to, from the first to the last.
        unsafe {
            let values = _mm512_maskz_loadu_ps(mask, values.as_ptr().add(start));
            _mm512_mul_ps(values, _mm512_maskz_loadu_ps(mask, x.as_ptr().add(firsts[row] as usize)))
        }
    };
    let of_four = |first: usize| sums_of_quarters(row(first), row(first + 1), row(first + 2), row(first + 3));
    let (a, b, c, d) = (of_four(0), of_four(4), of_four(8), of_four(12));
    let sums = sums_of_pairs(sums_of_pairs(a, b), sums_of_pairs(c, d));
    // SAFETY: there is room for sixteen.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sums) };
    true
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes(vector: __m512i) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    // SAFETY: there is room for sixteen.
    unsafe { _mm512_storeu_epi32(lanes.as_mut_ptr().cast(), vector) };
    lanes
}

/// In each quarter the sums of that quarter of `a`, `b`, `c` and `d`.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_quarters(a: __m512, b: __m512, c: __m512, d: __m512) -> __m512 {
    // Pairs of a and b next to one another, then all four.
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let (low, high) = (_mm512_shuffle_ps::<0b01_00_01_00>(ab, cd), _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd));
    _mm512_add_ps(low, high)
}

/// The sums of the first two quarters of `a` and of its last two, and then those of `b`.
#[inline]
#[target_feature(enable = "avx512f")]
fn sums_of_pairs(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
}

/// Four rows of one to sixteen entries each, between these bounds: their sums are added up together.
#[inline]
#[target_feature(enable = "avx512f")]
fn four_rows(factors: Factors<'_>, bounds: [usize; 5]) -> [f32; 4] {
    factors.only(bounds[0], bounds[4]).ask_ahead(AHEAD);
    // Not by `map`, which has no such vectors: it would hand them over in memory.
    let row = |row: usize| products(factors.only(bounds[row], bounds[row + 1]));
    let all = sums_of_quarters(row(0), row(1), row(2), row(3));
    let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(all)));
    let half = _mm256_add_ps(_mm512_castps512_ps256(all), upper);
    let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
    let mut four = [0.0; 4];
    // SAFETY: there is room for four.
    unsafe { _mm_storeu_ps(four.as_mut_ptr(), sums) };
    four
}

/// One to sixteen entries times the elements of the vector that they belong to.
#[inline]
#[target_feature(enable = "avx512f")]
fn products(entries: Factors<'_>) -> __m512 {
    let Factors { indices, values, x } = entries;
    assert!(indices.len() == values.len() && (1..=LANES).contains(&indices.len()));
    let limit = _mm512_set1_epi32(x.len().min(i32::MAX as usize) as i32);
    let mask = 0xffff_u16 >> (LANES - indices.len());
    // SAFETY: the mask has a bit for every element of these slices, and others are not touched. A run is inside of `x`; a
    // gathered index is below its length, and fits into 31 bits.
    unsafe {
        let values = _mm512_maskz_loadu_ps(mask, values.as_ptr());
        let x = match entries.run() {
            Some(first) => _mm512_maskz_loadu_ps(mask, x.as_ptr().add(first)),
            None => {
                let indices = _mm512_maskz_loadu_epi32(mask, indices.as_ptr().cast());
                let inside = _mm512_mask_cmplt_epu32_mask(mask, indices, limit);
                _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), inside, indices, x.as_ptr())
            }
        };
        _mm512_mul_ps(values, x)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn dot(row: Factors<'_>) -> f32 {
    let mut sum = _mm512_setzero_ps();
    for (indices, values) in row.indices.chunks(LANES).zip(row.values.chunks(LANES)) {
        let line = Factors { indices, values, x: row.x };
        line.ask_for(AHEAD);
        sum = _mm512_add_ps(products(line), sum);
    }
    _mm512_reduce_add_ps(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simd;

    #[test]
    fn sixteen_short_runs_are_done_at_once_and_other_blocks_are_left_alone() {
        if Simd::in_use() < Simd::Avx512 {
            return;
        }
        let ends: [u32; LANES] = std::array::from_fn(|row| 10 * (row as u32 + 1));
        let runs: Vec<u32> = (0..160).map(|i| i / 10 + i % 10).collect();
        let (values, x) = ([2.0; 160], [1.0; 25]);
        let done = |indices: &[u32], x: &[f32], ends: &[u32; LANES]| {
            let mut out = [f32::NAN; LANES];
            // SAFETY: the processor has these instructions.
            let done = unsafe { sixteen_runs(Factors { indices, values: &values, x }, 0, ends, &mut out) };
            assert!(out.iter().all(|sum| if done { *sum == 20.0 } else { sum.is_nan() }), "{out:?}");
            done
        };
        assert!(done(&runs, &x, &ends));
        // The last row ends at element 24; a row has a gap; a row is empty, and the one after it too long.
        assert!(!done(&runs, &x[..24], &ends));
        let mut gap = runs.clone();
        gap[79] += 1;
        assert!(!done(&gap, &x, &ends));
        let mut uneven = ends;
        uneven[7] = 70;
        assert!(!done(&runs, &x, &uneven));
    }
}
