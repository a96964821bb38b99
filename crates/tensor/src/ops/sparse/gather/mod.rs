//! Rows of a sparse matrix times a vector, with the widest instructions there are.
//!
//! Indices within a row rise, so their first and last say whether they lie behind one another: then the vector is loaded, and
//! short rows of that kind are added up many at a time. Elsewhere elements are loaded one by one, or gathered where the
//! processor does that fast. An index that is not inside the vector adds nothing; a matrix has none, but what a device's buffers
//! hold is nothing that memory safety may depend on. Before elements are loaded one by one all indices are looked at, which
//! costs less than looking at each when it is used.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use super::cpu::Range;
use crate::Simd;

/// Entries of a matrix, of which there are as many indices as values, and the vector that they are multiplied with.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub(super) indices: &'a [u32],
    pub(super) values: &'a [f32],
    pub(super) x: &'a [f32],
}

/// The instructions in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Only made where the processor has AVX-512, AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx512 {
        /// Whether scattered elements are gathered, and not loaded one by one.
        gather: bool,
    },
    /// Only made where the processor has AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Scalar,
}

impl Level {
    /// What may be used, best first.
    fn all() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let vectors = {
            let gather = gathers_fast();
            [
                (Simd::in_use() >= Simd::Avx512).then_some(Self::Avx512 { gather }),
                (Simd::in_use() >= Simd::Avx512).then_some(Self::Avx512 { gather: !gather }),
                (Simd::in_use() >= Simd::Avx2).then_some(Self::Avx2),
            ]
        };
        #[cfg(not(target_arch = "x86_64"))]
        let vectors = [None];
        vectors.into_iter().flatten().chain([Self::Scalar])
    }

    /// The best there is.
    pub(super) fn new() -> Self {
        Self::all().next().unwrap_or(Self::Scalar)
    }
}

/// Whether a gather takes less time than as many loads. AMD's processors make one of dozens of steps: on a Zen 5, rows of ten
/// scattered entries take 1.5 times as long with it.
#[cfg(target_arch = "x86_64")]
fn gathers_fast() -> bool {
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| {
        let vendor = std::arch::x86_64::__cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat();
        name != b"AuthenticAMD" && name != b"HygonGenuine"
    })
}

/// Fills in the rows that end in a piece; what is left of the next one is returned.
pub(super) fn rows_times_vector(level: Level, range: &Range<'_>, factors: Factors<'_>, out: &mut [f32]) -> f32 {
    match level {
        // SAFETY: the level is only made where the processor has these instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 { gather } => unsafe { avx512::rows_times_vector(range, factors, out, gather) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2::rows_times_vector(range, factors, out) },
        Level::Scalar => {
            let from = rows(range.entry, range.ends, factors, out, |row| row.dot());
            factors.only(from, range.end.max(from)).dot()
        }
    }
}

/// Goes through whole rows, the first from an entry on, and says where the last one ends: `dot` is the product of one.
#[inline(always)]
fn rows(from: usize, ends: &[u32], factors: Factors<'_>, out: &mut [f32], dot: impl Fn(Factors<'_>) -> f32) -> usize {
    let entries = factors.indices.len();
    let mut from = from.min(entries);
    for (end, out) in ends.iter().zip(out) {
        let end = (*end as usize).min(entries).max(from);
        *out = dot(factors.only(from, end));
        from = end;
    }
    from
}

impl Factors<'_> {
    /// Some of the entries.
    #[inline(always)]
    fn only(self, from: usize, to: usize) -> Self {
        Self { indices: &self.indices[from..to], values: &self.values[from..to], x: self.x }
    }

    /// The product, in four sums.
    #[inline(always)]
    fn dot(self) -> f32 {
        let at = |index: u32| self.x.get(index as usize).copied().unwrap_or(0.0);
        let mut sums = [0f32; 4];
        let ((fours, rest), (of_fours, of_rest)) = (self.indices.as_chunks::<4>(), self.values.as_chunks::<4>());
        let rest: f32 = rest.iter().zip(of_rest).map(|(&index, &value)| value * at(index)).sum();
        for (indices, values) in fours.iter().zip(of_fours) {
            for lane in 0..4 {
                sums[lane] += values[lane] * at(indices[lane]);
            }
        }
        (sums[0] + sums[1]) + (sums[2] + sums[3]) + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What all levels make of a piece, the first row that begins at `entry`.
    fn by_all(entry: usize, ends: &[u32], end: usize, factors: Factors<'_>) -> Vec<Vec<f32>> {
        let each = |level| {
            let mut out = vec![f32::NAN; ends.len()];
            let carry = rows_times_vector(level, &Range { entry, ends, end }, factors, &mut out);
            out.push(carry);
            out
        };
        Level::all().map(each).collect()
    }

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
            let factors = Factors { indices: &indices, values: &values, x: &x };
            let results = by_all(0, &ends[..lengths.len() - 1], last, factors);
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "step {step}: {results:?}");
        }
    }

    /// Numbers below `n`, always the same.
    fn random() -> impl FnMut(usize) -> usize {
        let mut state = 1u64;
        move |n| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        }
    }

    #[test]
    fn rows_are_sums_of_their_products_however_many_are_runs() {
        let x: Vec<f32> = (0..64).map(|i| (i % 7) as f32 - 3.0).collect();
        let mut random = random();
        for case in 0..2000 {
            // One row in so many is not a short run; in some cases all rows are as long.
            let (rows, rare) = (random(90), [1, 4, 100, 1000][case % 4]);
            let even = (case % 3 == 0).then(|| 1 + random(20));
            let (mut indices, mut ends): (Vec<u32>, Vec<u32>) = (vec![7; random(3)], Vec::new());
            let entry = indices.len();
            for _ in 0..=rows {
                let kind = if random(rare) == 0 { random(5) } else { 9 };
                let length = even.unwrap_or_else(|| if kind == 0 { random(60) } else { 1 + random(16) });
                match kind {
                    1 => indices.extend((0..length).map(|i| (random(3) + 3 * i) as u32)),
                    2 if even.is_none() => {} // nothing in this row
                    // A run that comes round to the first element, and one that ends where there are no more.
                    3 => indices.extend((0..length as u32).map(|i| (u32::MAX - 4).wrapping_add(i))),
                    4 => indices.extend((0..length as u32).map(|i| 60 + i)),
                    _ => {
                        let first = random(65 - length);
                        indices.extend((first..first + length).map(|i| i as u32));
                    }
                }
                ends.push(indices.len() as u32);
            }
            let values: Vec<f32> = (0..indices.len()).map(|_| random(9) as f32 - 4.0).collect();
            let product = |i: usize| values[i] * x.get(indices[i] as usize).copied().unwrap_or(0.0);
            let starts = [entry as u32].into_iter().chain(ends.iter().copied());
            let want: Vec<f32> =
                starts.zip(&ends).map(|(from, &to)| (from as usize..to as usize).map(product).sum()).collect();
            let factors = Factors { indices: &indices, values: &values, x: &x };
            for (level, found) in Level::all().zip(by_all(entry, &ends[..rows], indices.len(), factors)) {
                assert_eq!(found, want, "case {case}, {level:?}: ends {ends:?}, indices {indices:?}");
            }
        }
    }

    #[test]
    fn ends_that_fall_or_lie_beyond_the_entries_touch_nothing_that_is_not_there() {
        let mut random = random();
        let x: Vec<f32> = (0..40).map(|i| i as f32).collect();
        for case in 0..2000 {
            let entries = 1 + random(300);
            let indices: Vec<u32> = (0..entries).map(|i| (i % 37) as u32).collect();
            let values = vec![1.0; entries];
            let mut ends: Vec<u32> = (1..=50).map(|i| 5 * i).collect();
            for _ in 0..random(4) {
                let at = random(50);
                ends[at] = [0, u32::MAX, u32::MAX - 15, random(400) as u32, ends[at].wrapping_sub(1 << 31)][random(5)];
            }
            let results =
                by_all(random(entries), &ends, entries, Factors { indices: &indices, values: &values, x: &x });
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "case {case}: {ends:?}: {results:?}");
        }
    }
}
