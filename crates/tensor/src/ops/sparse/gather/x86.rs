//! What rows have in common whatever the width of vectors is.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::{Factors, Range};

/// The most entries of a short row.
pub(super) const LANES: usize = 16;

/// How many entries ahead they are asked for. The processor does so by itself, but not early enough for rows of which each
/// takes a few nanoseconds.
const AHEAD: usize = 2048;

impl Factors<'_> {
    /// Where in the vector the elements are, if there are entries and they lie behind one another.
    #[inline(always)]
    pub(super) fn run(self) -> Option<usize> {
        let (first, last) = (*self.indices.first()? as usize, *self.indices.last()? as usize);
        (last < self.x.len() && last.wrapping_sub(first) == self.indices.len() - 1).then_some(first)
    }

    /// Asks for as many entries, those that come some time after these.
    #[inline(always)]
    pub(super) fn ask_ahead(self) {
        (0..self.indices.len()).step_by(LANES).for_each(|at| self.ask_line_ahead(at));
    }

    /// Asks for a line of the entries that come some time after the one there.
    #[inline(always)]
    pub(super) fn ask_line_ahead(self, at: usize) {
        // SAFETY: hints, which touch nothing, wherever they point.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(self.indices.as_ptr().wrapping_add(at + AHEAD).cast());
            _mm_prefetch::<_MM_HINT_T0>(self.values.as_ptr().wrapping_add(at + AHEAD).cast());
        }
    }

    /// Asks for the element that an entry belongs to which comes some time after the one there, and which was asked for itself
    /// long enough ago. Where an element lies is not known before its index has come, so memory would be waited for twice.
    #[inline(always)]
    pub(super) fn ask_element_ahead(self, at: usize) {
        if let Some(&index) = self.indices.get(at + AHEAD / 2) {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.x.as_ptr().wrapping_add(index as usize).cast()) };
        }
    }
}

/// The most blocks that are left to `others` before `block` is asked again.
const STRETCH: usize = 256;

/// The rows of a piece, `N` at a time by `block`, which says whether it has done them, and the rest by `others`. After each time
/// that it has not, twice as many go to `others` at once: where some rows are not of a kind, those near them mostly are not either.
#[inline(always)]
pub(super) fn rows_in_blocks<const N: usize>(
    range: &Range<'_>,
    factors: Factors<'_>,
    out: &mut [f32],
    block: impl Fn(usize, &[u32; N], &mut [f32; N]) -> bool,
    others: impl Fn(&Range<'_>, &mut [f32]) -> f32,
) -> f32 {
    let entries = factors.indices.len();
    let (mut from, mut done, mut stretch) = (range.entry.min(entries), 0, 1);
    while let Some(ends) = range.ends[done..].first_chunk::<N>()
        && let Some(sums) = out[done..].first_chunk_mut::<N>()
    {
        if block(from, ends, sums) {
            from = ends[N - 1] as usize;
            (done, stretch) = (done + N, 1);
            continue;
        }
        let rows = done..range.ends.len().min(done + stretch * N);
        let ends = &range.ends[rows.clone()];
        // No entries of a row that ends elsewhere.
        others(&Range { entry: from, ends, end: 0 }, &mut out[rows.clone()]);
        from = ends.iter().fold(from, |from, &end| (end as usize).min(entries).max(from));
        (done, stretch) = (rows.end, STRETCH.min(2 * stretch));
    }
    others(&Range { entry: from, ends: &range.ends[done..], end: range.end }, &mut out[done..])
}

/// Where the first of some rows begins and where all end, if they have one to sixteen entries each, all of which are there.
#[inline(always)]
pub(super) fn short_rows(from: usize, ends: &[u32; 4], entries: usize) -> Option<[usize; 5]> {
    let bounds = [from, ends[0] as usize, ends[1] as usize, ends[2] as usize, ends[3] as usize];
    let short = bounds.windows(2).all(|row| row[1].wrapping_sub(row[0]).wrapping_sub(1) < LANES);
    (short && bounds[4] <= entries).then_some(bounds)
}
