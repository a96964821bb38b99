//! Products that are over before a library has arranged its factors: they are read where they lie, and a tile of the
//! result stays in registers. A single row has kernels of its own, since it goes through the other factor only once.

#![allow(clippy::needless_range_loop, reason = "loops over registers, which have to be unrolled")]

use pulp::{Arch, MemMask, Simd, WithSimd};

use crate::cpu::stream::prefetch_at;

/// Rows of the right factor that a single row is multiplied with at a time.
const DEEP: usize = 8;

/// A product whose right factor and result have their columns next to each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Small {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) a: *const f32,
    pub(super) a_row: usize,
    pub(super) a_column: usize,
    pub(super) b: *const f32,
    pub(super) b_row: usize,
    pub(super) out: *mut f32,
    pub(super) out_row: usize,
}

/// A product that somebody answers for.
struct Task(Small);

impl WithSimd for Task {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self(small) = self;
        // SAFETY: whoever made the task has promised it.
        unsafe {
            match small.m {
                1 => small.row(simd),
                _ if S::REGISTER_COUNT >= 32 => small.tiles::<S, 8>(simd),
                _ => small.tiles::<S, 4>(simd),
            }
        }
    }
}

impl Small {
    /// Multiplies.
    ///
    /// # Safety
    /// All elements of both factors can be read, and those of the result can be written, by nobody else meanwhile.
    #[inline]
    pub(super) unsafe fn multiply(self, arch: Arch) {
        arch.dispatch(Task(self));
    }

    /// Tiles of up to `ROWS` rows and three vectors of columns.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const ROWS: usize>(self, simd: S) {
        let mut column = 0;
        while column < self.n {
            let left = self.n - column;
            // Two and two rather than three and one.
            let vectors = match left.div_ceil(S::F32_LANES) {
                4 => 2,
                n => n.min(3),
            };
            let width = left.min(vectors * S::F32_LANES);
            let last = (width - (vectors - 1) * S::F32_LANES) as u32;
            let last = mask(simd, last);
            // SAFETY: as for the whole.
            unsafe {
                match vectors {
                    3 => self.columns::<S, ROWS, 3>(simd, column, last),
                    2 => self.columns::<S, ROWS, 2>(simd, column, last),
                    _ => self.columns::<S, ROWS, 1>(simd, column, last),
                }
            }
            column += width;
        }
    }

    /// All rows of some columns.
    #[inline(always)]
    unsafe fn columns<S: Simd, const ROWS: usize, const VECTORS: usize>(
        self,
        simd: S,
        column: usize,
        last: MemMask<S::m32s>,
    ) {
        let mut row = 0;
        // SAFETY: as for the whole: the rows of each tile are among those that are left.
        unsafe {
            while row + ROWS <= self.m {
                self.tile::<S, ROWS, VECTORS>(simd, row, column, last);
                row += ROWS;
            }
            let left = self.m - row;
            if left & 4 != 0 {
                self.tile::<S, 4, VECTORS>(simd, row, column, last);
                row += 4;
            }
            if left & 2 != 0 {
                self.tile::<S, 2, VECTORS>(simd, row, column, last);
                row += 2;
            }
            if left & 1 != 0 {
                self.tile::<S, 1, VECTORS>(simd, row, column, last);
            }
        }
    }

    /// Some rows of some columns, of which the last vector is masked.
    #[inline(always)]
    unsafe fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
        self,
        simd: S,
        row: usize,
        column: usize,
        last: MemMask<S::m32s>,
    ) {
        // SAFETY: rows and columns are inside of the product; what a mask leaves out is neither read nor written.
        unsafe {
            let mut a = self.a.add(row * self.a_row);
            let mut b = self.b.add(column);
            let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
            for _ in 0..self.k {
                let mut right = [simd.splat_f32s(0.0); VECTORS];
                for v in 0..VECTORS {
                    let at = b.add(v * S::F32_LANES);
                    right[v] = if v + 1 < VECTORS {
                        at.cast::<S::f32s>().read_unaligned()
                    } else {
                        simd.mask_load_ptr_f32s(last, at)
                    };
                }
                for r in 0..ROWS {
                    let left = simd.splat_f32s(*a.add(r * self.a_row));
                    for v in 0..VECTORS {
                        sums[r][v] = simd.mul_add_f32s(left, right[v], sums[r][v]);
                    }
                }
                a = a.wrapping_add(self.a_column);
                b = b.wrapping_add(self.b_row);
            }
            let out = self.out.add(row * self.out_row + column);
            for r in 0..ROWS {
                for v in 0..VECTORS {
                    let at = out.add(r * self.out_row + v * S::F32_LANES);
                    if v + 1 < VECTORS {
                        at.cast::<S::f32s>().write_unaligned(sums[r][v]);
                    } else {
                        simd.mask_store_ptr_f32s(last, at, sums[r][v]);
                    }
                }
            }
        }
    }

    /// The product of a single row: goes through the right factor as it lies, some rows at a time, and asks ahead for the
    /// next ones.
    #[inline(always)]
    unsafe fn row<S: Simd>(self, simd: S) {
        // SAFETY: the ranges are inside of the product.
        unsafe {
            let mut done = 0;
            while done < self.k {
                let rows = (self.k - done).min(DEEP);
                let mut left = [simd.splat_f32s(0.0); DEEP];
                let mut right = [self.b.add(done * self.b_row); DEEP];
                for r in 0..rows {
                    left[r] = simd.splat_f32s(*self.a.add((done + r) * self.a_column));
                    right[r] = right[r].add(r * self.b_row);
                }
                if rows == DEEP {
                    self.rows::<S, DEEP>(simd, done == 0, &left, &right);
                } else {
                    for r in 0..rows {
                        self.rows::<S, 1>(simd, done == 0 && r == 0, &[left[r]], &[right[r]]);
                    }
                }
                done += rows;
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<S: Simd, const ROWS: usize>(
        self,
        simd: S,
        first: bool,
        left: &[S::f32s; ROWS],
        right: &[*const f32; ROWS],
    ) {
        let whole = self.n / S::F32_LANES * S::F32_LANES;
        let (rest, ahead) = (mask(simd, (self.n - whole) as u32), ROWS * self.b_row);
        let zero = simd.splat_f32s(0.0);
        // SAFETY: columns are inside of the product; what the mask leaves out is neither read nor written.
        unsafe {
            for column in (0..whole).step_by(S::F32_LANES) {
                let to = self.out.add(column).cast::<S::f32s>();
                let mut sums = [if first { zero } else { to.read_unaligned() }, zero];
                for r in 0..ROWS {
                    let from = right[r].add(column);
                    prefetch_at(from.wrapping_add(ahead));
                    sums[r % 2] = simd.mul_add_f32s(left[r], from.cast::<S::f32s>().read_unaligned(), sums[r % 2]);
                }
                to.write_unaligned(simd.add_f32s(sums[0], sums[1]));
            }
            if whole < self.n {
                let to = self.out.add(whole);
                let mut sum = if first { zero } else { simd.mask_load_ptr_f32s(rest, to) };
                for r in 0..ROWS {
                    sum = simd.mul_add_f32s(left[r], simd.mask_load_ptr_f32s(rest, right[r].add(whole)), sum);
                }
                simd.mask_store_ptr_f32s(rest, to, sum);
            }
        }
    }
}

/// The first so many lanes. As a mask that is data: those that are made for good come with functions to call.
#[inline(always)]
fn mask<S: Simd>(simd: S, lanes: u32) -> MemMask<S::m32s> {
    MemMask::new(simd.mask_between_m32s(0, lanes).mask())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::arch_of;

    #[test]
    fn every_shape_and_every_width_of_vectors_gives_the_product() {
        let number = |i: usize| ((i * 37 + 11) % 64) as f32 - 31.0; // sums of their products are exact
        for arch in crate::Simd::all().into_iter().filter_map(arch_of) {
            for (m, n, k) in
                [(1, 1, 1), (1, 70, 9), (1, 16, 8), (2, 15, 3), (5, 33, 4), (15, 64, 7), (16, 16, 16), (23, 49, 8)]
            {
                // The left factor is turned, the others have something between their rows.
                let (a_row, a_column, b_row, out_row) = (1, m, n + 3, n + 2);
                let a: Vec<f32> = (0..m * k).map(number).collect();
                let b: Vec<f32> = (0..k * b_row).map(number).collect();
                let mut out = vec![0.5; m * out_row];
                let small = Small {
                    m,
                    n,
                    k,
                    a: a.as_ptr(),
                    a_row,
                    a_column,
                    b: b.as_ptr(),
                    b_row,
                    out: out.as_mut_ptr(),
                    out_row,
                };
                // SAFETY: the vectors have as many elements as rows of these lengths need.
                unsafe { small.multiply(arch) };
                for (at, &got) in out.iter().enumerate() {
                    let (i, j) = (at / out_row, at % out_row);
                    let sum = || (0..k).map(|p| a[i * a_row + p * a_column] * b[p * b_row + j]).sum::<f32>();
                    assert_eq!(got, if j < n { sum() } else { 0.5 }, "{m}x{k}x{n} at {i}, {j}");
                }
            }
        }
    }
}
