//! What rows have in common whatever the width of vectors is.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::Factors;

/// The most entries of a short row.
pub(super) const LANES: usize = 16;

/// How many entries ahead those of runs are asked for. The processor does so by itself, but not early enough for rows of which each
/// takes a nanosecond;
pub(super) const RUNS_AHEAD: usize = 2048;
/// and others, which take longer.
pub(super) const AHEAD: usize = 512;

impl Factors<'_> {
    /// Where in the vector the elements are, if there are entries and they lie behind one another.
    #[inline(always)]
    pub(super) fn run(self) -> Option<usize> {
        let (first, last) = (*self.indices.first()? as usize, *self.indices.last()? as usize);
        (last < self.x.len() && last.wrapping_sub(first) == self.indices.len() - 1).then_some(first)
    }

    /// Asks for as many entries, those that come so many after these.
    #[inline(always)]
    pub(super) fn ask_ahead(self, ahead: usize) {
        (0..self.indices.len()).step_by(LANES).for_each(|at| self.ask_for(at + ahead));
    }

    /// Asks for a line of the entries.
    #[inline(always)]
    pub(super) fn ask_for(self, at: usize) {
        // SAFETY: hints, which touch nothing, wherever they point.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(self.indices.as_ptr().wrapping_add(at).cast());
            _mm_prefetch::<_MM_HINT_T0>(self.values.as_ptr().wrapping_add(at).cast());
        }
    }

    /// Asks for the element that an entry belongs to. Where it lies is not known before its index has come, so memory would be
    /// waited for twice; so one asks for the elements of entries that were themselves asked for long enough ago.
    #[inline(always)]
    pub(super) fn ask_for_element(self, at: usize) {
        if let Some(&index) = self.indices.get(at) {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.x.as_ptr().wrapping_add(index as usize).cast()) };
        }
    }
}

/// Goes through whole rows, the first from an entry on, and says where the last one ends: `N` at a time by `block`, which says
/// whether it has done them, and the rest by `others`. After each time that it has not, twice as many go to `others` at once, up to
/// so many blocks: where some rows are not of a kind, those near them mostly are not either.
#[inline(always)]
pub(super) fn rows_in_blocks<const N: usize>(
    from: usize,
    ends: &[u32],
    out: &mut [f32],
    longest: usize,
    block: impl Fn(usize, &[u32; N], &mut [f32; N]) -> bool,
    others: impl Fn(usize, &[u32], &mut [f32]) -> usize,
) -> usize {
    let (mut from, mut done, mut stretch) = (from, 0, 1);
    while let Some(of_block) = ends[done..].first_chunk::<N>()
        && let Some(sums) = out[done..].first_chunk_mut::<N>()
    {
        if block(from, of_block, sums) {
            from = of_block[N - 1] as usize;
            (done, stretch) = (done + N, 1);
        } else {
            let rows = done..ends.len().min(done + stretch * N);
            from = others(from, &ends[rows.clone()], &mut out[rows.clone()]);
            (done, stretch) = (rows.end, longest.min(2 * stretch));
        }
    }
    others(from, &ends[done..], &mut out[done..])
}

/// Where the first of some rows begins and where all end, if each has one to sixteen entries, and all of these are there.
#[inline(always)]
pub(super) fn short_rows(from: usize, ends: &[u32; 4], entries: usize) -> Option<[usize; 5]> {
    let bounds = [from, ends[0] as usize, ends[1] as usize, ends[2] as usize, ends[3] as usize];
    let short = bounds.windows(2).all(|row| row[1].wrapping_sub(row[0]).wrapping_sub(1) < LANES);
    (short && bounds[4] <= entries).then_some(bounds)
}

/// Whether most of some rows have as many entries as the one before, so that a processor knows when the end of each comes.
pub(super) fn are_even(ends: &[u32]) -> bool {
    let lengths_differ = |ends: &[u32]| ends[2].wrapping_sub(ends[1]) != ends[1].wrapping_sub(ends[0]);
    4 * ends.windows(3).filter(|ends| lengths_differ(ends)).count() <= ends.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_even_if_few_lengths_change() {
        let ends = |length: fn(u32) -> u32| -> Vec<u32> {
            (0..100).scan(0, |end, row| Some(std::mem::replace(end, *end + length(row)))).collect()
        };
        assert!(are_even(&ends(|_| 10)) && are_even(&ends(|row| if row % 20 == 0 { 7 } else { 10 })));
        assert!(!are_even(&ends(|row| 5 + row * 7 % 11)));
    }
}
