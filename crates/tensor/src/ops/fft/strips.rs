//! Lines that are neighbours, to rows and back: transpositions, in tiles of a cache line by a cache line.

/// Elements of a tile's side: a cache line of complex numbers.
const TILE: usize = 8;

/// Brings lines into rows that are `pitch` apart.
///
/// # Safety
/// All elements of all lines are inside the memory that `from` is of, and nobody writes them.
pub(super) unsafe fn gather<T: Copy>(
    from: *const T,
    line: isize,
    step: isize,
    lines: usize,
    n: usize,
    rows: &mut [T],
    pitch: usize,
) {
    assert!(lines == 0 || (lines - 1) * pitch + n <= rows.len(), "rows have room for all lines");
    let to = rows.as_mut_ptr();
    if step == 1 {
        for l in 0..lines {
            // SAFETY: a line that the caller vouches for goes to a row that was just found to be inside; rows are borrowed
            // mutably, so they overlap with nothing.
            unsafe { std::ptr::copy_nonoverlapping(from.offset(l as isize * line), to.add(l * pitch), n) };
        }
        return;
    }
    // SAFETY: elements that the caller vouches for go to places that were just found to be inside.
    let each =
        |l: usize, i: usize| unsafe { *to.add(l * pitch + i) = *from.offset(l as isize * line + i as isize * step) };
    #[cfg(target_arch = "x86_64")]
    if line == 1 && avx::fits::<T>() {
        let (tiled, whole) = (lines / TILE * TILE, n / TILE * TILE);
        // SAFETY: as above, for elements of eight bytes, whole tiles of them; and the processor can.
        unsafe { avx::from_columns(from.cast(), step, to.cast(), pitch as isize, tiled, whole) };
        (0..tiled).for_each(|l| (whole..n).for_each(|i| each(l, i)));
        return (tiled..lines).for_each(|l| (0..n).for_each(|i| each(l, i)));
    }
    tiles(lines, n, each);
}

/// The other way round.
///
/// # Safety
/// All elements of all lines are inside the memory that `to` is of, and nobody else reads or writes them.
pub(super) unsafe fn scatter<T: Copy>(
    rows: &[T],
    pitch: usize,
    to: *mut T,
    line: isize,
    step: isize,
    lines: usize,
    n: usize,
) {
    assert!(lines == 0 || (lines - 1) * pitch + n <= rows.len(), "rows have all lines");
    let from = rows.as_ptr();
    // SAFETY: as above, the other way round.
    let each =
        |l: usize, i: usize| unsafe { *to.offset(l as isize * line + i as isize * step) = *from.add(l * pitch + i) };
    #[cfg(target_arch = "x86_64")]
    if line == 1 && avx::fits::<T>() {
        let (tiled, whole) = (lines / TILE * TILE, n / TILE * TILE);
        // SAFETY: as above.
        unsafe { avx::to_columns(from.cast(), pitch as isize, to.cast(), step, tiled, whole) };
        (0..tiled).for_each(|l| (whole..n).for_each(|i| each(l, i)));
        return (tiled..lines).for_each(|l| (0..n).for_each(|i| each(l, i)));
    }
    tiles(lines, n, each);
}

/// Calls `each` for all elements of all lines, some elements of all lines at a time.
#[inline(always)]
fn tiles(lines: usize, n: usize, each: impl Fn(usize, usize)) {
    let whole = n / TILE * TILE;
    let mut start = 0;
    while start < whole {
        for line in 0..lines {
            for i in 0..TILE {
                each(line, start + i);
            }
        }
        start += TILE;
    }
    for line in 0..lines {
        for i in whole..n {
            each(line, i);
        }
    }
}

/// Tiles of elements of eight bytes, in registers.
#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::*;

    use super::TILE;

    /// Whether elements have eight bytes, and the processor has the instructions.
    pub(super) fn fits<T>() -> bool {
        size_of::<T>() == 8 && crate::Simd::in_use() >= crate::Simd::Avx2
    }

    /// Rows of columns: column `l` of lines that are `step` apart becomes row `l`, for whole tiles.
    ///
    /// # Safety
    /// Of `n` lines the first `lines` elements can be read, of `lines` rows the first `n` can be written, both numbers
    /// are multiples of a tile, and the processor has AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn from_columns(
        from: *const f64,
        step: isize,
        to: *mut f64,
        pitch: isize,
        lines: usize,
        n: usize,
    ) {
        for i in (0..n as isize).step_by(TILE) {
            for l in (0..lines as isize).step_by(TILE) {
                // SAFETY: a tile inside of what the caller vouches for.
                unsafe { tile(from.offset(i * step + l), step, to.offset(l * pitch + i), pitch) };
            }
        }
    }

    /// The other way round; lines of memory are finished one tile of them after the other.
    ///
    /// # Safety
    /// Of `lines` rows the first `n` elements can be read, of `n` lines the first `lines` can be written, both numbers are
    /// multiples of a tile, and the processor has AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn to_columns(from: *const f64, pitch: isize, to: *mut f64, step: isize, lines: usize, n: usize) {
        for i in (0..n as isize).step_by(TILE) {
            for l in (0..lines as isize).step_by(TILE) {
                // SAFETY: a tile inside of what the caller vouches for.
                unsafe { tile(from.offset(l * pitch + i), pitch, to.offset(i * step + l), step) };
            }
        }
    }

    /// Eight rows by eight columns: four quarters.
    ///
    /// # Safety
    /// Eight elements of eight rows can be read and written; the processor has AVX.
    #[inline]
    #[target_feature(enable = "avx")]
    unsafe fn tile(from: *const f64, step: isize, to: *mut f64, pitch: isize) {
        for (row, column) in [(0, 0), (4, 0), (0, 4), (4, 4)] {
            // SAFETY: four elements of four rows, inside of the eight. Loads and stores need no alignment, and moving bits
            // as if they were `f64` changes none.
            unsafe {
                let (from, to) = (from.offset(row * step + column), to.offset(column * pitch + row));
                let (a, b) = (_mm256_loadu_pd(from), _mm256_loadu_pd(from.offset(step)));
                let (c, d) = (_mm256_loadu_pd(from.offset(2 * step)), _mm256_loadu_pd(from.offset(3 * step)));
                let (even, odd) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
                let (even2, odd2) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
                _mm256_storeu_pd(to, _mm256_permute2f128_pd::<0x20>(even, even2));
                _mm256_storeu_pd(to.offset(pitch), _mm256_permute2f128_pd::<0x20>(odd, odd2));
                _mm256_storeu_pd(to.offset(2 * pitch), _mm256_permute2f128_pd::<0x31>(even, even2));
                _mm256_storeu_pd(to.offset(3 * pitch), _mm256_permute2f128_pd::<0x31>(odd, odd2));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back<T: Copy + PartialEq + std::fmt::Debug + Default>(make: fn(usize) -> T) {
        let cases = [
            (3, 20, 1, 3),
            (5, 8, 8, 1),
            (4, 17, -1, 4),
            (1, 5, 0, -2),
            (17, 19, 1, 23),
            (8, 16, 1, -9),
            (9, 7, 1, 10),
        ];
        for (lines, n, line, step) in cases {
            let memory: Vec<T> = (0..1000).map(make).collect();
            let at = |l: usize, i: usize| (500 + l as isize * line + i as isize * step) as usize;
            let pitch = n + 2;
            let mut rows = vec![T::default(); lines * pitch];
            // SAFETY: every `at` is inside of `memory`, which the comparison below would notice too.
            unsafe { gather(memory.as_ptr().add(500), line, step, lines, n, &mut rows, pitch) };
            let mut back = vec![T::default(); 1000];
            // SAFETY: as above.
            unsafe { scatter(&rows, pitch, back.as_mut_ptr().add(500), line, step, lines, n) };
            for (l, i) in (0..lines).flat_map(|l| (0..n).map(move |i| (l, i))) {
                assert_eq!(rows[l * pitch + i], make(at(l, i)));
                assert_eq!(back[at(l, i)], make(at(l, i)));
            }
            let touched = back.iter().filter(|x| **x != T::default()).count();
            assert_eq!(touched, lines * n, "nothing else was written");
        }
    }

    #[test]
    fn strips_of_every_width_and_step_are_gathered_and_scattered() {
        there_and_back(|i| i as u32 + 1);
        there_and_back(|i| [i as u32 + 1, !i as u32]);
    }
}
