//! Eight lanes.

use std::arch::x86_64::*;

use super::{
    Factors, Range, rows,
    x86::{AHEAD, LANES, RUNS_AHEAD, rows_in_blocks, short_rows},
};

/// The most blocks that are taken for scattered before one is looked at again.
const SCATTERED: usize = 1024;

#[target_feature(enable = "avx2,fma")]
pub(super) fn rows_times_vector(range: &Range<'_>, factors: Factors<'_>, out: &mut [f32]) -> f32 {
    let four = |from, ends: &_, out: &mut _| {
        let bounds = short_rows(from, ends, factors.indices.len());
        bounds.and_then(|bounds| four_runs(factors, bounds)).map(|sums| *out = sums).is_some()
    };
    let from = range.entry.min(factors.indices.len());
    let from =
        rows_in_blocks(from, range.ends, out, SCATTERED, four, |from, ends, out| scattered(from, ends, factors, out));
    let rest = factors.only(from, range.end.max(from));
    // SAFETY: all of its indices are inside.
    if rest.are_inside() { unsafe { long(rest) } } else { rest.dot() }
}

/// Rows of any kind.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
pub(super) fn scattered(from: usize, ends: &[u32], factors: Factors<'_>, out: &mut [f32]) -> usize {
    let entries = factors.indices.len();
    let last = ends.iter().fold(0, |last, &end| last.max(end)) as usize;
    if factors.only(from, last.clamp(from, entries)).are_inside() {
        // SAFETY: all rows lie among these, whatever their ends are, and all of their indices are inside.
        rows(from, ends, factors, out, |row| unsafe { dot(row) })
    } else {
        rows(from, ends, factors, out, |row| row.dot())
    }
}

impl Factors<'_> {
    /// Whether all indices are those of elements.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn are_inside(self) -> bool {
        self.indices.iter().fold(0, |highest, &index| highest.max(index)) < self.x.len().min(u32::MAX as usize) as u32
    }
}

/// Four rows of one to sixteen entries each, between these bounds, if the entries of each lie behind one another.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn four_runs(factors: Factors<'_>, bounds: [usize; 5]) -> Option<[f32; 4]> {
    let mut firsts = [0; 4];
    for (row, first) in firsts.iter_mut().enumerate() {
        *first = factors.only(bounds[row], bounds[row + 1]).run()?;
    }
    factors.only(bounds[0], bounds[4]).ask_ahead(RUNS_AHEAD);
    factors.ask_for_element(bounds[0] + RUNS_AHEAD / 2);
    // Not by `map`, which has no such vectors: it would hand them over in memory.
    let row = |row: usize| {
        let of_row = bounds[row]..bounds[row + 1];
        products(&factors.x[firsts[row]..firsts[row] + of_row.len()], &factors.values[of_row])
    };
    let halves = _mm256_hadd_ps(_mm256_hadd_ps(row(0), row(1)), _mm256_hadd_ps(row(2), row(3)));
    let both = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
    let mut four = [0.0; 4];
    // SAFETY: there is room for four.
    unsafe { _mm_storeu_ps(four.as_mut_ptr(), both) };
    Some(four)
}

/// Masks of none to all of eight lanes: the last so many of the first half are where the mask begins.
static FIRST_LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// One to sixteen values times as many elements of a vector.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn products(x: &[f32], values: &[f32]) -> __m256 {
    assert!(values.len() == x.len() && (1..=LANES).contains(&x.len()));
    let few = x.len().min(8);
    // SAFETY: a mask begins at most eight lanes into its table, and has a lane for every element of these slices that is
    // loaded with it; others are not touched.
    unsafe {
        let mask = |lanes: usize| _mm256_loadu_si256(FIRST_LANES.as_ptr().add(8 - lanes).cast());
        let load = |from: &[f32], at: usize, lanes| _mm256_maskload_ps(from.as_ptr().add(at), mask(lanes));
        let products = _mm256_mul_ps(load(values, 0, few), load(x, 0, few));
        if x.len() == few {
            return products;
        }
        _mm256_fmadd_ps(load(values, 8, x.len() - 8), load(x, 8, x.len() - 8), products)
    }
}

/// One row.
///
/// # Safety
/// All indices are inside of the vector.
#[inline(always)]
unsafe fn dot(row: Factors<'_>) -> f32 {
    if row.indices.len() > LANES {
        // SAFETY: as the caller vouches.
        return unsafe { long(row) };
    }
    row.ask_for(AHEAD);
    // SAFETY: as above.
    unsafe { each(row) }
}

/// One row of many entries: loaded if it is a run. Not a part of the loop over rows, most of which are short.
///
/// # Safety
/// All indices are inside of the vector.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn long(row: Factors<'_>) -> f32 {
    if let Some(first) = row.run() {
        return dot_run(row.values, &row.x[first..]);
    }
    // SAFETY: as the caller vouches.
    unsafe { each(row) }
}

/// One row, entry by entry, in four sums. Processors of this kind take longer to gather eight elements than to load them one by
/// one, and masks for the rest of a short row cost more than its entries.
///
/// # Safety
/// All indices are inside of the vector.
#[inline(always)]
unsafe fn each(row: Factors<'_>) -> f32 {
    // SAFETY: as the caller vouches.
    let at = |index: u32| unsafe { *row.x.get_unchecked(index as usize) };
    let ((fours, rest), (of_fours, of_rest)) = (row.indices.as_chunks::<4>(), row.values.as_chunks::<4>());
    let mut sums = [0f32; 4];
    for (indices, values) in fours.iter().zip(of_fours) {
        for lane in 0..4 {
            sums[lane] = values[lane].mul_add(at(indices[lane]), sums[lane]);
        }
    }
    for (&index, &value) in rest.iter().zip(of_rest) {
        sums[0] = value.mul_add(at(index), sums[0]);
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// All of `values` times the first elements of `x`, of which there are as many.
#[target_feature(enable = "avx2,fma")]
fn dot_run(values: &[f32], x: &[f32]) -> f32 {
    let mut sums = [[0f32; 8]; 2];
    let (whole, rest) = values.as_chunks::<LANES>();
    let (x_whole, x_rest) = x[..values.len()].as_chunks::<LANES>();
    for (values, x) in whole.iter().zip(x_whole) {
        for lane in 0..LANES {
            let sum = &mut sums[lane / 8][lane % 8];
            *sum = values[lane].mul_add(x[lane], *sum);
        }
    }
    let rest: f32 = rest.iter().zip(x_rest).map(|(value, x)| value * x).sum();
    sums.as_flattened().iter().sum::<f32>() + rest
}
