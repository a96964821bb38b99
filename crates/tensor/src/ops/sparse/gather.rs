//! Rows of a sparse matrix times a vector, with the widest instructions there are.
//!
//! Indices within a row rise, so their first and last say whether they lie behind one another: then the vector is loaded,
//! and gathered if not, which is worth an instruction of its own only with AVX-512. Short rows are added up four at a time;
//! with AVX2 if all of them are such runs, which is looked for where some rows of a piece are. An index that is not inside the
//! vector adds nothing; a matrix has none, but what a device's buffers hold is nothing that memory safety may depend on. With
//! AVX2 all indices of other pieces are looked at first, which costs less than looking at each when it is used.

use super::cpu::Range;
use crate::Simd;

/// The instructions in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Only made where the processor has AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Only made where the processor has AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Scalar,
}

impl Level {
    /// What may be used, best first.
    fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let vectors = [
            (Simd::in_use() >= Simd::Avx512).then_some(Self::Avx512),
            (Simd::in_use() >= Simd::Avx2).then_some(Self::Avx2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let vectors = [None];
        vectors.into_iter().flatten().chain([Self::Scalar])
    }

    /// The best there is.
    pub(super) fn new() -> Self {
        Self::all().next().unwrap_or(Self::Scalar)
    }
}

/// Fills in the rows that end in a piece; what is left of the next one is returned.
pub(super) fn rows_times_vector(
    level: Level,
    range: &Range<'_>,
    indices: &[u32],
    values: &[f32],
    x: &[f32],
    out: &mut [f32],
) -> f32 {
    match level {
        // SAFETY: the level is only made where the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { x86::rows_avx512(range, indices, values, x, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { x86::rows_avx2(range, indices, values, x, out) },
        Level::Scalar => rows(range, indices, values, x, out, dot_scalar),
    }
}

/// Goes through the rows of a piece.
#[inline(always)]
fn rows(
    range: &Range<'_>,
    indices: &[u32],
    values: &[f32],
    x: &[f32],
    out: &mut [f32],
    dot: impl Fn(&[u32], &[f32], &[f32]) -> f32,
) -> f32 {
    let mut from = range.entry.min(indices.len());
    for (end, out) in range.ends.iter().zip(out) {
        let end = (*end as usize).min(indices.len()).max(from);
        *out = dot(&indices[from..end], &values[from..end], x);
        from = end;
    }
    let end = range.end.max(from);
    dot(&indices[from..end], &values[from..end], x)
}

#[inline(always)]
fn dot_scalar(indices: &[u32], values: &[f32], x: &[f32]) -> f32 {
    let at = |index: u32| x.get(index as usize).copied().unwrap_or(0.0);
    let mut sums = [0f32; 4];
    let (fours, of_fours) = (indices.chunks_exact(4), values.chunks_exact(4));
    let rest = fours.remainder().iter().zip(of_fours.remainder());
    let rest: f32 = rest.map(|(&index, &value)| value * at(index)).sum();
    for (indices, values) in fours.zip(of_fours) {
        for lane in 0..4 {
            sums[lane] += values[lane] * at(indices[lane]);
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Range, dot_scalar, rows};

    /// As many lanes as are left, if they lie behind one another in `x`: from where.
    #[inline(always)]
    fn run_of(indices: &[u32], x: &[f32]) -> Option<usize> {
        let (first, last) = (indices[0] as usize, indices[indices.len() - 1] as usize);
        (last < x.len() && last.wrapping_sub(first) == indices.len() - 1).then_some(first)
    }

    /// How many entries ahead they are asked for. The processor does so by itself, but not early enough for rows of which each
    /// takes a few nanoseconds.
    const AHEAD: usize = 512;

    /// Asks for the entries that come some time after these.
    #[inline(always)]
    fn ask_ahead(indices: *const u32, values: *const f32) {
        // SAFETY: a hint, which touches nothing, wherever it points.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(indices.wrapping_add(AHEAD).cast());
            _mm_prefetch::<_MM_HINT_T0>(values.wrapping_add(AHEAD).cast());
        }
    }

    /// Four short rows at a time, as far as `four` likes them, others one by one.
    #[inline(always)]
    fn rows_in_fours(
        range: &Range<'_>,
        (indices, values): (&[u32], &[f32]),
        x: &[f32],
        out: &mut [f32],
        four: impl Fn((&[u32], &[f32]), [usize; 4], &[f32]) -> Option<[f32; 4]>,
        dot: impl Fn(&[u32], &[f32], &[f32]) -> f32,
    ) -> f32 {
        let mut from = range.entry.min(indices.len());
        let (fours, rest) = range.ends.as_chunks::<4>();
        let (out_fours, out_rest) = out.split_at_mut(4 * fours.len());
        for (ends, out) in fours.iter().zip(out_fours.as_chunks_mut::<4>().0) {
            let starts = [from, ends[0] as usize, ends[1] as usize, ends[2] as usize];
            let lengths = [0, 1, 2, 3].map(|row| (ends[row] as usize).wrapping_sub(starts[row]));
            let last = ends[3] as usize;
            if lengths.iter().all(|length| length.wrapping_sub(1) < LANES)
                && last <= indices.len()
                && let Some(sums) = four((&indices[from..last], &values[from..last]), lengths, x)
            {
                *out = sums;
                from = last;
            } else {
                let piece = Range { entry: from, ends, end: from };
                from = ends.iter().fold(from, |from, &end| (end as usize).min(indices.len()).max(from));
                rows(&piece, indices, values, x, out, &dot);
            }
        }
        let rest = Range { entry: from, ends: rest, end: range.end };
        rows(&rest, indices, values, x, out_rest, dot)
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn rows_avx512(range: &Range<'_>, indices: &[u32], values: &[f32], x: &[f32], out: &mut [f32]) -> f32 {
        let four = |entries: (&[u32], &[f32]), lengths, x: &[f32]| Some(four_rows_avx512(entries, lengths, x));
        rows_in_fours(range, (indices, values), x, out, four, |indices, values, x| dot_avx512(indices, values, x))
    }

    /// The most entries of a short row.
    const LANES: usize = 16;

    /// Four rows of one to sixteen entries each, which are all of these: their sums are added up together.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn four_rows_avx512((indices, values): (&[u32], &[f32]), lengths: [usize; 4], x: &[f32]) -> [f32; 4] {
        for (indices, values) in indices.chunks(LANES).zip(values.chunks(LANES)) {
            ask_ahead(indices.as_ptr(), values.as_ptr());
        }
        let mut from = 0;
        // Not by `map`, which has no such vectors: it would hand them over in memory.
        let mut next = |length: usize| {
            let of_row = from..from + length;
            from = of_row.end;
            products_avx512(&indices[of_row.clone()], &values[of_row], x)
        };
        let (a, b, c, d) = (next(lengths[0]), next(lengths[1]), next(lengths[2]), next(lengths[3]));
        // Pairs of a and b next to one another, then all four, in each quarter; then the quarters.
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        let (low, high) = (_mm512_shuffle_ps::<0b01_00_01_00>(ab, cd), _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd));
        let all = _mm512_add_ps(low, high);
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(all)));
        let half = _mm256_add_ps(_mm512_castps512_ps256(all), upper);
        let sums = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
        let mut four = [0.0; 4];
        // SAFETY: there is room for four.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), sums) };
        four
    }

    /// One to sixteen entries times the elements of `x` that they belong to.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn products_avx512(indices: &[u32], values: &[f32], x: &[f32]) -> __m512 {
        assert!(indices.len() == values.len() && (1..=LANES).contains(&indices.len()));
        let limit = _mm512_set1_epi32(x.len().min(i32::MAX as usize) as i32);
        let mask = 0xffff_u16 >> (LANES - indices.len());
        // SAFETY: the mask has a bit for every element of these slices, and others are not touched. A run is inside of `x`; a
        // gathered index is below its length, and fits into 31 bits.
        unsafe {
            let values = _mm512_maskz_loadu_ps(mask, values.as_ptr());
            let x = match run_of(indices, x) {
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
    fn dot_avx512(indices: &[u32], values: &[f32], x: &[f32]) -> f32 {
        assert_eq!(indices.len(), values.len());
        let mut sum = _mm512_setzero_ps();
        for (indices, values) in indices.chunks(LANES).zip(values.chunks(LANES)) {
            ask_ahead(indices.as_ptr(), values.as_ptr());
            sum = _mm512_add_ps(products_avx512(indices, values, x), sum);
        }
        _mm512_reduce_add_ps(sum)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn rows_avx2(range: &Range<'_>, indices: &[u32], values: &[f32], x: &[f32], out: &mut [f32]) -> f32 {
        if has_runs(range, indices, x) {
            let four = |entries: (&[u32], &[f32]), lengths, x: &[f32]| four_runs_avx2(entries, lengths, x);
            return rows_in_fours(range, (indices, values), x, out, four, |indices, values, x| {
                run_or_each(indices, values, x)
            });
        }
        let first = range.entry.min(indices.len());
        let last = range.ends.iter().fold(0, |last, &end| last.max(end)) as usize;
        let of_piece = &indices[first..last.max(range.end).clamp(first, indices.len())];
        let inside = x.len().min(u32::MAX as usize) as u32;
        if of_piece.iter().fold(0, |highest, &index| highest.max(index)) < inside {
            // SAFETY: all rows lie in this piece, whatever their ends are, and all of its indices are inside.
            rows(range, indices, values, x, out, |indices, values, x| unsafe { each_avx2(indices, values, x) })
        } else {
            rows(range, indices, values, x, out, dot_scalar)
        }
    }

    /// Rows that are looked at to know what most are like.
    const SAMPLE: usize = 8;

    /// Whether most of some rows are runs.
    #[inline]
    fn has_runs(range: &Range<'_>, indices: &[u32], x: &[f32]) -> bool {
        let ends = range.ends;
        let first = (range.entry, ends.first().map_or(range.end, |&end| end as usize));
        let others =
            ends.windows(2).step_by((ends.len() / SAMPLE).max(1)).map(|ends| (ends[0] as usize, ends[1] as usize));
        let (mut runs, mut seen) = (0, 0);
        for row in [first].into_iter().chain(others).filter_map(|(from, to)| indices.get(from..to)) {
            if row.len() > 1 {
                seen += 1;
                runs += usize::from(run_of(row, x).is_some());
            }
        }
        2 * runs > seen
    }

    /// Four rows of one to sixteen entries each, which are all of these, if the entries of each lie behind one another.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn four_runs_avx2((indices, values): (&[u32], &[f32]), lengths: [usize; 4], x: &[f32]) -> Option<[f32; 4]> {
        let (mut from, mut firsts) = (0, [0; 4]);
        for (first, length) in firsts.iter_mut().zip(lengths) {
            *first = run_of(&indices[from..from + length], x)?;
            from += length;
        }
        for (indices, values) in indices.chunks(LANES).zip(values.chunks(LANES)) {
            ask_ahead(indices.as_ptr(), values.as_ptr());
        }
        let mut from = 0;
        let mut next = |row: usize| {
            let (start, length) = (from, lengths[row]);
            from += length;
            run_avx2(&values[start..from], &x[firsts[row]..firsts[row] + length])
        };
        let (a, b, c, d) = (next(0), next(1), next(2), next(3));
        let halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let both = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
        let mut four = [0.0; 4];
        // SAFETY: there is room for four.
        unsafe { _mm_storeu_ps(four.as_mut_ptr(), both) };
        Some(four)
    }

    /// Masks of none to all of eight lanes: the last so many of the first half are where the mask begins.
    static FIRST_LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    /// One to sixteen values times as many elements of `x`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn run_avx2(values: &[f32], x: &[f32]) -> __m256 {
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

    /// One row: loaded if it is a run.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn run_or_each(indices: &[u32], values: &[f32], x: &[f32]) -> f32 {
        match indices.first().and_then(|_| run_of(indices, x)) {
            Some(first) => dot_run_avx2(values, &x[first..]),
            None => dot_scalar(indices, values, x),
        }
    }

    /// One row, entry by entry, in four sums. Processors of this kind take longer to gather eight elements than to load them
    /// one by one, and masks for the rest of a short row cost more than its entries.
    ///
    /// # Safety
    /// All indices are inside of `x`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn each_avx2(indices: &[u32], values: &[f32], x: &[f32]) -> f32 {
        assert_eq!(indices.len(), values.len());
        ask_ahead(indices.as_ptr(), values.as_ptr());
        // SAFETY: as the caller vouches.
        let at = |index: u32| unsafe { *x.get_unchecked(index as usize) };
        let mut sums = [0f32; 4];
        let ((fours, rest), (of_fours, of_rest)) = (indices.as_chunks::<4>(), values.as_chunks::<4>());
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
    fn dot_run_avx2(values: &[f32], x: &[f32]) -> f32 {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_agree_on_runs_gaps_and_indices_that_are_not_there() {
        let x: Vec<f32> = (0..200).map(|i| (i * i % 37) as f32 - 11.0).collect();
        let lengths = [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 40, 100];
        for (step, outside) in [(1, 0), (2, 0), (1, 3), (7, 1)] {
            let (mut indices, mut values, mut ends) = (Vec::new(), Vec::new(), Vec::new());
            for (row, &length) in lengths.iter().enumerate() {
                indices.extend((0..length).map(|i| (row as u32 + i * step) % 200));
                values.extend((0..length).map(|i| i as f32 * 0.5 - 3.0));
                ends.push(indices.len() as u32);
            }
            let last = indices.len();
            indices[last - outside..].fill(u32::MAX - 5);
            let range = Range { entry: 0, ends: &ends[..lengths.len() - 1], end: last };
            let results: Vec<_> = Level::all()
                .map(|level| {
                    let mut out = vec![f32::NAN; range.ends.len()];
                    let carry = rows_times_vector(level, &range, &indices, &values, &x, &mut out);
                    out.push(carry);
                    out
                })
                .collect();
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "step {step}: {results:?}");
        }
    }
}
