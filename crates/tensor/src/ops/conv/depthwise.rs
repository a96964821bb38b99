//! The direct algorithm on the CPU for groups of one channel, step by step: every filter reads its channel where it lies,
//! some rows at a time. What is outside of a row is masked, and a row that is outside is a row of zeros.

use pulp::{MemMask, Simd, WithSimd};

use super::Geometry;

/// Whether it can.
pub(super) fn applies(g: &Geometry) -> bool {
    g.channels == 1 && g.stride == [1; 3] && g.kernel[0] == 1 && g.output[0] == 1 && g.padding[0] == 0
}

/// Elements of a row of zeros.
pub(super) fn zeros(g: &Geometry) -> usize {
    g.input[2]
}

/// One filter of one image.
pub(super) struct Plane<'a> {
    pub(super) geometry: &'a Geometry,
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) bias: f32,
    /// A row of zeros, as long as a row of the input.
    pub(super) zeros: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl WithSimd for Plane<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let [_, height, width] = self.geometry.output;
        let narrow = width <= S::F32_LANES;
        let step = if narrow { 8 } else { 4 };
        let mut row = 0;
        while row < height {
            if row + step > height {
                self.rows::<S, 1, 2>(simd, row);
                row += 1;
            } else {
                if narrow { self.rows::<S, 8, 1>(simd, row) } else { self.rows::<S, 4, 2>(simd, row) }
                row += step;
            }
        }
    }
}

impl Plane<'_> {
    /// `ROWS` rows of the output from `first` on.
    #[inline(always)]
    fn rows<S: Simd, const ROWS: usize, const VECTORS: usize>(&mut self, simd: S, first: usize) {
        let g = self.geometry;
        let ([_, height, width], [_, rows, across]) = (g.input, g.output);
        let [_, down, along] = g.kernel;
        assert!(first + ROWS <= rows && self.out.len() == rows * across, "the rows exist");
        assert!(self.x.len() == height * width && self.zeros.len() >= width && self.weight.len() == down * along);
        let lanes = S::F32_LANES;
        for start in (0..across).step_by(lanes * VECTORS) {
            let mut sums = [[simd.splat_f32s(self.bias); VECTORS]; ROWS];
            for kh in 0..down {
                let mut from = [self.zeros.as_ptr(); ROWS];
                for (row, from) in from.iter_mut().enumerate() {
                    let place = (first + row + kh * g.dilation[1]).checked_sub(g.padding[1]);
                    if let Some(place) = place.filter(|&place| place < height) {
                        *from = self.x[place * width..].as_ptr();
                    }
                }
                for kw in 0..along {
                    let by = simd.splat_f32s(self.weight[kh * along + kw]);
                    // Where the first lane of the first vector is in a row, which may be before or behind it.
                    let at = (start + kw * g.dilation[2]) as isize - g.padding[2] as isize;
                    for vector in 0..VECTORS {
                        let at = at + (vector * lanes) as isize;
                        let inside = |lane: isize| lane.clamp(0, lanes as isize) as u32;
                        let mask = simd.mask_between_m32s(inside(-at), inside(width as isize - at));
                        let mask = MemMask::new(mask.mask());
                        for row in 0..ROWS {
                            // SAFETY: lanes of the mask are inside of a row of the input, or of zeros, which is as long.
                            let seen = unsafe { simd.mask_load_ptr_f32s(mask, from[row].wrapping_offset(at)) };
                            sums[row][vector] = simd.mul_add_f32s(by, seen, sums[row][vector]);
                        }
                    }
                }
            }
            for vector in 0..VECTORS {
                let at = start + vector * lanes;
                let mask = MemMask::new(simd.mask_between_m32s(0, across.saturating_sub(at).min(lanes) as u32).mask());
                for row in 0..ROWS {
                    let to = self.out.as_mut_ptr().wrapping_add((first + row) * across + at);
                    // SAFETY: lanes of the mask are inside of a row of the output that exists.
                    unsafe { simd.mask_store_ptr_f32s(mask, to, sums[row][vector]) };
                }
            }
        }
    }
}
