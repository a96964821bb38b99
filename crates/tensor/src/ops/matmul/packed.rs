//! Products of large matrices: both factors are cut into pieces that fit into a cache each, and copied there in the order in
//! which a tile of the result, kept in registers, needs them. After Goto and van de Geijn, *Anatomy of high-performance matrix
//! multiplication* (2008). All threads share one copy of the right factor's piece and have blocks of rows of their own, so
//! nothing is copied twice; where the left factor is small it is read where it lies.

#![allow(clippy::needless_range_loop, reason = "loops over registers, which have to be unrolled")]

use millrace_core::Threads;
use pulp::{Arch, Simd, WithSimd};

use crate::cpu::{Target, scratch::Scratch, stream::prefetch_at};

/// Rows of a tile; it has two vectors of columns. Twelve sums, two vectors of the right factor and one number of the left
/// one are what sixteen registers hold.
const ROWS: usize = 6;
/// Elements of the common axis that are gone through at once: a tile's columns of so many rows stay in the first cache.
const DEPTH: usize = 256;
/// Rows of the left factor that are gone through at once, at most: with that depth they stay in the second cache.
const BLOCK: usize = 144;
/// Columns at once, at most: they stay in the last cache.
const WIDTH: usize = 4096;
/// Columns that are copied at once: a multiple of every tile's.
const STRIP: usize = 64;
/// Elements of a left factor that is read where it lies, at most.
const NEAR: usize = 1 << 18;
/// Steps of the common axis that are written out.
const STEPS: usize = 4;
/// Floats of a cache line, which copies begin with, and the most that a tile has.
const LINE: usize = 16;
const TILE: usize = ROWS * 32;

/// A factor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Factor<'a> {
    /// From its first element on.
    pub(super) of: &'a [f32],
    pub(super) row: usize,
    pub(super) column: usize,
}

impl<'a> Factor<'a> {
    /// From a row and a column on.
    fn from(self, row: usize, column: usize) -> Self {
        Self { of: &self.of[row * self.row + column * self.column..], ..self }
    }

    /// Whether so many rows and columns are inside of it.
    fn has(&self, rows: usize, columns: usize) -> bool {
        (rows - 1) * self.row + (columns - 1) * self.column < self.of.len()
    }
}

/// A product of an m×k and a k×n matrix, none of them zero.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: Factor<'a>,
    pub(super) b: Factor<'a>,
    pub(super) out: &'a Target<'a, f32>,
    /// Where the result begins in it, whose rows are next to each other.
    pub(super) first: usize,
    /// Whether the product is added to what is there.
    pub(super) adds: bool,
}

impl Packed<'_> {
    /// Whether a product is worth copying its factors, and this the way to do it: measured with vectors of eight floats. Where
    /// there are more and wider registers the library's tiles are larger.
    pub(super) fn pays(m: usize, n: usize, k: usize) -> bool {
        crate::Simd::in_use() == crate::Simd::Avx2 && m >= 2 * ROWS && n >= STRIP / 2 && k >= 2 * LINE
    }

    /// Multiplies, on these threads or on the calling one.
    ///
    /// # Safety
    /// The `m * n` elements of the output from `first` on are inside of it, and nobody else reads or writes them meanwhile.
    pub(super) unsafe fn multiply(self, arch: Arch, threads: Option<&dyn Threads>, scratch: &Scratch) {
        let Self { m, n, k, a, b, .. } = self;
        assert!(a.has(m, k) && b.has(k, n), "the factors are inside of their buffers");
        let each = |tasks: usize, task: &(dyn Fn(u64) + Sync)| match threads {
            Some(threads) => threads.for_each(tasks as u64, task),
            None => (0..tasks as u64).for_each(task),
        };
        // As many blocks for every thread, and four if they are small: one that was held up does not hold up all.
        let threads = threads.map_or(1, Threads::count);
        let fewest = if threads > 1 { 4 * threads } else { 1 };
        let blocks = m.div_ceil(BLOCK).max(fewest).next_multiple_of(threads);
        // Tiles are shared out evenly: a block more or less of twenty tiles would be twentieths of the time.
        let tiles = m.div_ceil(ROWS);
        let start = |block: usize| (block * tiles / blocks * ROWS).min(m);
        let near = a.column == 1 && m * k <= NEAR;
        let copied = if near { 1 } else { tiles.div_ceil(blocks) } * ROWS;
        let strips = n.min(WIDTH).div_ceil(STRIP);
        scratch.with(strips * STRIP * DEPTH.min(k) + LINE, |strip| {
            let strip = Target::new(aligned(strip));
            for column in (0..n).step_by(WIDTH) {
                let width = WIDTH.min(n - column);
                for top in (0..k).step_by(DEPTH) {
                    let depth = DEPTH.min(k - top);
                    let b = b.from(top, column);
                    each(width.div_ceil(STRIP), &|number| {
                        let start = number as usize * STRIP;
                        // SAFETY: every strip has a part of its own.
                        let to = unsafe { strip.part(start * depth, STRIP * depth) };
                        arch.dispatch(Strip { from: b.from(0, start), depth, width: STRIP.min(width - start), to });
                    });
                    each(blocks, &|number| {
                        let (row, end) = (start(number as usize), start(number as usize + 1));
                        if row == end {
                            return;
                        }
                        scratch.with(copied * depth + LINE, |left| {
                            let (a, rows) = (a.from(row, top), end - row);
                            let b = strip.start().cast_const();
                            let first = self.first + row * n + column;
                            let adds = self.adds || top > 0;
                            let (out, out_row, left) = (self.out.start().wrapping_add(first), n, aligned(left));
                            // What is promised of this is so: `b` has all strips of this width and depth, which nobody
                            // writes any more, and the block's rows of the result are nobody else's.
                            arch.dispatch(Block { rows, width, depth, a, near, left, b, out, out_row, adds });
                        });
                    });
                }
            }
        });
    }
}

/// From the first whole cache line on.
fn aligned(x: &mut [f32]) -> &mut [f32] {
    let skip = x.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE).min(x.len());
    &mut x[skip..]
}

/// Copies a strip of the right factor: panels of a tile's columns, each row by row, the last filled up with zeros.
struct Strip<'a> {
    from: Factor<'a>,
    depth: usize,
    width: usize,
    to: &'a mut [f32],
}

impl WithSimd for Strip<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { from, depth, width, to } = self;
        let tile = 2 * S::F32_LANES;
        for (start, panel) in (0..width).step_by(tile).zip(to.chunks_exact_mut(tile * depth)) {
            let (here, panel) = (tile.min(width - start), panel.chunks_exact_mut(tile));
            for (row, line) in panel.enumerate() {
                let source = &from.of[row * from.row + start * from.column..];
                if here == tile && from.column == 1 {
                    line.copy_from_slice(&source[..tile]);
                } else {
                    for (column, to) in line.iter_mut().enumerate() {
                        *to = if column < here { source[column * from.column] } else { 0.0 };
                    }
                }
            }
        }
    }
}

/// Some rows of the result, for one piece of the common axis. Whoever makes one promises that `b` is what [`Strip`] made of
/// `depth` rows of the right factor and `width` columns, and that `out` is as many rows of `width` columns that nobody else
/// has; `left` has room for the rows that are copied.
struct Block<'a> {
    rows: usize,
    width: usize,
    depth: usize,
    a: Factor<'a>,
    /// The left factor is read where it lies.
    near: bool,
    left: &'a mut [f32],
    b: *const f32,
    out: *mut f32,
    out_row: usize,
    adds: bool,
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { rows, width, depth, a, near, left, b, out, out_row, adds } = self;
        assert!(a.has(rows, depth), "the rows are inside of their factor");
        // What is not read where it lies is copied: tiles of rows, column by column, the last filled up with zeros.
        let in_place = if near { rows / ROWS * ROWS } else { 0 };
        for (row, tile) in (in_place..rows).step_by(ROWS).zip(left.chunks_exact_mut(ROWS * depth)) {
            let here = ROWS.min(rows - row);
            for (at, to) in tile.chunks_exact_mut(ROWS).enumerate() {
                for r in 0..ROWS {
                    to[r] = if r < here { a.of[(row + r) * a.row + at * a.column] } else { 0.0 };
                }
            }
        }
        assert!(left.len() >= (rows - in_place).next_multiple_of(ROWS) * depth, "all of them were");
        let columns = 2 * S::F32_LANES;
        for column in (0..width).step_by(columns) {
            let across = columns.min(width - column);
            for row in (0..rows).step_by(ROWS) {
                let down = ROWS.min(rows - row);
                // SAFETY: the panel begins `column` columns of `depth` elements from the start; of the left factor, the rows
                // are inside, as asserted, or were copied; the tile is inside of the result, or, if not all of its columns
                // are there, of as much memory as the largest has.
                unsafe {
                    let (a, a_row, step) = if row < in_place {
                        (a.of.as_ptr().add(row * a.row), a.row, 1)
                    } else {
                        (left.as_ptr().add((row - in_place) * depth), 1, ROWS)
                    };
                    let (a, b) = (Rows { at: a, row: a_row, step }, b.add(column * depth));
                    let to = out.add(row * out_row + column);
                    if across == columns {
                        match down {
                            ROWS if step == 1 => {
                                tile::<S, ROWS>(simd, depth, Rows { step: 1, ..a }, b, to, out_row, adds)
                            }
                            ROWS => {
                                tile::<S, ROWS>(simd, depth, Rows { row: 1, step: ROWS, ..a }, b, to, out_row, adds)
                            }
                            5 => tile::<S, 5>(simd, depth, a, b, to, out_row, adds),
                            4 => tile::<S, 4>(simd, depth, a, b, to, out_row, adds),
                            3 => tile::<S, 3>(simd, depth, a, b, to, out_row, adds),
                            2 => tile::<S, 2>(simd, depth, a, b, to, out_row, adds),
                            _ => tile::<S, 1>(simd, depth, a, b, to, out_row, adds),
                        }
                        continue;
                    }
                    let mut rest = [0.0; TILE];
                    tile::<S, ROWS>(simd, depth, a, b, rest.as_mut_ptr(), columns, false);
                    for r in 0..down {
                        for c in 0..across {
                            let (to, sum) = (to.add(r * out_row + c), rest[r * columns + c]);
                            *to = if adds { *to + sum } else { sum };
                        }
                    }
                }
            }
        }
    }
}

/// Rows of the left factor.
#[derive(Clone, Copy)]
struct Rows {
    at: *const f32,
    row: usize,
    step: usize,
}

/// A tile of the result.
///
/// # Safety
/// `a` has `R` rows, `row` apart, of `depth` elements, `step` apart; `b` has `depth` times two vectors one behind the other;
/// `out` has `R` rows of two vectors, `out_row` apart, that nobody else has.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize>(
    simd: S,
    depth: usize,
    Rows { at: mut a, row, step }: Rows,
    mut b: *const f32,
    out: *mut f32,
    out_row: usize,
    adds: bool,
) {
    for r in 0..R {
        prefetch_at(out.wrapping_add(r * out_row));
        prefetch_at(out.wrapping_add(r * out_row + 2 * S::F32_LANES - 1));
    }
    let mut sums = [[simd.splat_f32s(0.0); 2]; R];
    // SAFETY: each step is one of `depth`, and the rows are those of the contract.
    unsafe {
        for steps in [STEPS, 1] {
            let turns = if steps == STEPS { depth / STEPS } else { depth % STEPS };
            for _ in 0..turns {
                for s in 0..steps {
                    let right = b.add(2 * s * S::F32_LANES);
                    let right = [right, right.add(S::F32_LANES)].map(|at| at.cast::<S::f32s>().read_unaligned());
                    for r in 0..R {
                        let left = simd.splat_f32s(*a.add(r * row + s * step));
                        for v in 0..2 {
                            sums[r][v] = simd.mul_add_f32s(left, right[v], sums[r][v]);
                        }
                    }
                }
                a = a.wrapping_add(steps * step);
                b = b.wrapping_add(2 * steps * S::F32_LANES);
            }
        }
        for r in 0..R {
            for v in 0..2 {
                let to = out.add(r * out_row + v * S::F32_LANES).cast::<S::f32s>();
                let sum = if adds { simd.add_f32s(to.read_unaligned(), sums[r][v]) } else { sums[r][v] };
                to.write_unaligned(sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::arch_of;

    #[test]
    fn every_shape_and_every_width_of_vectors_gives_the_product() {
        let number = |i: usize| ((i * 37 + 11) % 8) as f32 - 3.0; // sums of their products are exact
        let scratch = Scratch::default();
        let shapes = [
            (1, 1, 1),
            (6, 16, 4),
            (7, 17, 5),
            (13, 33, 258),
            (150, 70, 9),
            (5, 300, 31),
            (290, 40, 520),
            (40, 4100, 3),
        ];
        for arch in crate::Simd::all().into_iter().filter_map(arch_of) {
            for (m, n, k) in shapes {
                for (turned, adds) in [(false, false), (true, false), (false, true)] {
                    let (a, b): (Vec<f32>, Vec<f32>) =
                        ((0..m * k).map(number).collect(), (0..k * n).map(number).collect());
                    let strides = |rows, columns| if turned { (1, rows) } else { (columns, 1) };
                    let ((a_row, a_column), (b_row, b_column)) = (strides(m, k), strides(k, n));
                    let mut out = vec![0.5; m * n + 2];
                    let target = Target::new(&mut out);
                    let (left, right) = (
                        Factor { of: &a, row: a_row, column: a_column },
                        Factor { of: &b, row: b_row, column: b_column },
                    );
                    let packed = Packed { m, n, k, a: left, b: right, out: &target, first: 1, adds };
                    // SAFETY: the output has one element more on either side.
                    unsafe { packed.multiply(arch, None, &scratch) };
                    assert_eq!([out[0], out[m * n + 1]], [0.5; 2], "{m}x{k}x{n} stays inside");
                    for (at, &got) in out[1..=m * n].iter().enumerate() {
                        let (i, j) = (at / n, at % n);
                        let sum: f32 = (0..k).map(|p| a[i * a_row + p * a_column] * b[p * b_row + j * b_column]).sum();
                        assert_eq!(got, sum + if adds { 0.5 } else { 0.0 }, "{m}x{k}x{n} at {i}, {j}");
                    }
                }
            }
        }
    }
}
