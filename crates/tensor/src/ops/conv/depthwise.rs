//! The direct algorithm on the CPU for groups of one channel, step by step: every filter reads its channel where it lies,
//! some rows at a time. What is outside of a row is masked, and a row that is outside is a row of zeros. Vectors that are
//! inside as a whole have no mask: some processors take much longer to store with one.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use pulp::{MemMask, Simd, WithSimd};

use super::Geometry;

/// Elements of a row of a kernel, at most.
const ALONG: usize = 32;

/// Whether it can.
pub(super) fn applies(g: &Geometry) -> bool {
    let flat = g.kernel[0] == 1 && g.input[0] == 1 && g.padding[0] == 0;
    flat && g.channels == 1 && g.stride == [1; 3] && g.kernel[2] <= ALONG
}

/// One filter of one image.
pub(super) struct Plane<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) bias: f32,
    /// As long as a row of the input.
    pub(super) zeros: &'a [f32],
    /// Room for the place of every row that a kernel sees.
    pub(super) rows: &'a mut Vec<*const f32>,
    pub(super) out: &'a mut [f32],
}

impl WithSimd for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let g = self.geometry;
        let ([_, height, width], [_, down, across]) = (g.input, g.output);
        assert!(self.x.len() == height * width && self.zeros.len() >= width, "rows of the input exist");
        assert!(self.out.len() == down * across && self.weight.len() == g.taps(), "rows of the output exist");
        self.rows.clear();
        for row in 0..down + (g.kernel[1] - 1) * g.dilation[1] {
            let place = row.checked_sub(g.padding[1]).filter(|&place| place < height);
            self.rows.push(place.map_or(self.zeros, |place| &self.x[place * width..]).as_ptr());
        }
        let mut plane = self;
        let mut start = 0;
        while start < across {
            if across - start <= S::F32_LANES {
                plane.block::<S, 8, 1>(simd, start as isize);
                start += S::F32_LANES;
            } else {
                plane.block::<S, 4, 2>(simd, start as isize);
                start += 2 * S::F32_LANES;
            }
        }
    }
}

/// Which lanes of a vector are there.
#[derive(Clone, Copy)]
enum Lanes<S: Simd> {
    All,
    Some(MemMask<S::m32s>),
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn between(simd: S, from: isize, to: isize) -> Self {
        let lanes = S::F32_LANES as isize;
        let (from, to) = (from.clamp(0, lanes), to.clamp(0, lanes));
        if (from, to) == (0, lanes) {
            return Self::All;
        }
        Self::Some(MemMask::new(simd.mask_between_m32s(from as u32, to as u32).mask()))
    }

    /// # Safety
    /// Those that are there can be read.
    #[inline(always)]
    unsafe fn load(self, simd: S, from: *const f32) -> S::f32s {
        // SAFETY: by the caller's word.
        unsafe {
            match self {
                Self::All => from.cast::<S::f32s>().read_unaligned(),
                Self::Some(mask) => simd.mask_load_ptr_f32s(mask, from),
            }
        }
    }

    /// # Safety
    /// Those that are there can be written.
    #[inline(always)]
    unsafe fn store(self, simd: S, to: *mut f32, values: S::f32s) {
        // SAFETY: by the caller's word.
        unsafe {
            match self {
                Self::All => to.cast::<S::f32s>().write_unaligned(values),
                Self::Some(mask) => simd.mask_store_ptr_f32s(mask, to, values),
            }
        }
    }
}

impl Plane<'_> {
    /// `VECTORS` vectors of columns, from the first row to the last.
    #[inline(always)]
    fn block<S: Simd, const ROWS: usize, const VECTORS: usize>(&mut self, simd: S, start: isize) {
        let g = self.geometry;
        let (lanes, [_, down, across]) = (S::F32_LANES as isize, g.output);
        // Lanes that are inside of a row, for every element of a kernel's row and every vector.
        let mut seen = [[Lanes::All; VECTORS]; ALONG];
        let mut inside = [Lanes::All; VECTORS];
        for vector in 0..VECTORS {
            let first = start + vector as isize * lanes;
            inside[vector] = Lanes::between(simd, 0, across as isize - first);
            for kw in 0..g.kernel[2] {
                let at = first + (kw * g.dilation[2]) as isize - g.padding[2] as isize;
                seen[kw][vector] = Lanes::between(simd, -at, g.input[2] as isize - at);
            }
        }
        let mut row = 0;
        while row + ROWS <= down {
            self.tile::<S, ROWS, VECTORS>(simd, row, start, &seen, &inside);
            row += ROWS;
        }
        while row < down {
            self.tile::<S, 1, VECTORS>(simd, row, start, &seen, &inside);
            row += 1;
        }
    }

    /// Some rows of some vectors.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        first: usize,
        start: isize,
        lanes: &[[Lanes<S>; VECTORS]; ALONG],
        inside: &[Lanes<S>; VECTORS],
    ) {
        let g = self.geometry;
        let mut sums = [[simd.splat_f32s(self.bias); VECTORS]; ROWS];
        let mut weights = self.weight.iter();
        for kh in 0..g.kernel[1] {
            let rows = &self.rows[first + kh * g.dilation[1]..][..ROWS];
            let mut at = start - g.padding[2] as isize;
            for lanes in &lanes[..g.kernel[2]] {
                let Some(&weight) = weights.next() else { return };
                let by = simd.splat_f32s(weight);
                for vector in 0..VECTORS {
                    for row in 0..ROWS {
                        let from = rows[row].wrapping_offset(at + (vector * S::F32_LANES) as isize);
                        // SAFETY: these lanes are inside of a row of the input, or of zeros, which is as long.
                        let seen = unsafe { lanes[vector].load(simd, from) };
                        sums[row][vector] = simd.mul_add_f32s(by, seen, sums[row][vector]);
                    }
                }
                at += g.dilation[2] as isize;
            }
        }
        for vector in 0..VECTORS {
            for row in 0..ROWS {
                let at = ((first + row) * g.output[2]) as isize + start + (vector * S::F32_LANES) as isize;
                // SAFETY: these lanes are inside of a row of the output that exists.
                unsafe { inside[vector].store(simd, self.out.as_mut_ptr().wrapping_offset(at), sums[row][vector]) };
            }
        }
    }
}
