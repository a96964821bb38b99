//! One step of a row of cells on a processor, in vectors as wide as it has them. Every operation is done in the order of
//! the reference, so that all engines agree in every bit.

use bytemuck::{Pod, Zeroable};
use pulp::Simd;

use crate::{
    Room,
    layout::{Layout, OPEN, PLAIN, SOLID, WALLS},
};

/// Cells of a row that are looked at one by one are done so many at a time.
const BLOCK: usize = 16;

/// What is the same for all cells, as kernels get it.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Grid {
    pub(crate) size: [u32; 3],
    pub(crate) pitch: u32,
    pub(crate) plane: u32,
    pub(crate) lead: u32,
    pub(crate) courant_squared: f32,
    pub(crate) absorption: f32,
}

impl Grid {
    pub(crate) fn of(room: &Room, layout: &Layout) -> Self {
        Self {
            size: layout.size,
            pitch: layout.pitch as u32,
            plane: layout.plane as u32,
            lead: layout.lead as u32,
            courant_squared: room.courant_squared(),
            absorption: room.absorption(),
        }
    }

    /// The new pressures of the cells of row `y` of plane `z`, counted with the margin, from those `now` and those before,
    /// which are in `out`.
    #[inline(always)]
    pub(crate) fn step_row<S: Simd>(&self, simd: S, [y, z]: [usize; 2], now: &[f32], kinds: &[u8], out: &mut [f32]) {
        let [pitch, plane, lead] = [self.pitch, self.plane, self.lead].map(|n| n as usize);
        let [nx, ny, nz] = self.size.map(|n| n as usize);
        // Behind an absorbing wall is what is before it.
        let mirrors = self.absorption > 0.0;
        let sides = |at: usize, step: usize, n: usize, of: usize| {
            let (below, above) = (at - step, at + step);
            (if mirrors && n == 1 { above } else { below }, if mirrors && n == of { below } else { above })
        };
        let start = z * plane + y * pitch + lead;
        let ((y_below, y_above), (z_below, z_above)) = (sides(start, pitch, y, ny), sides(start, plane, z, nz));
        let row = Row {
            here: &now[start - 1..start + nx + 1],
            y_below: &now[y_below..y_below + nx],
            y_above: &now[y_above..y_above + nx],
            z_below: &now[z_below..z_below + nx],
            z_above: &now[z_above..z_above + nx],
            kinds: &kinds[start..start + nx],
            factor: self.courant_squared,
            absorption: self.absorption,
        };
        if kinds[start - 1] & PLAIN == 0 { row.any(out) } else { row.plain(simd, out) }
    }
}

/// A row of cells and what is around it. Rows with an obstacle, or at a wall, look at the kind of every cell.
struct Row<'a> {
    /// The row, with a cell of margin at both ends.
    here: &'a [f32],
    y_below: &'a [f32],
    y_above: &'a [f32],
    z_below: &'a [f32],
    z_above: &'a [f32],
    kinds: &'a [u8],
    /// λ²
    factor: f32,
    absorption: f32,
}

impl Row<'_> {
    /// A row of which all but the first and the last cell have nothing special.
    #[inline(always)]
    fn plain<S: Simd>(&self, simd: S, out: &mut [f32]) {
        let n = out.len();
        let (first, last) = (self.one(0, out[0]), self.one(n - 1, out[n - 1]));
        let (left, left_rest) = S::as_simd_f32s(&self.here[..n]);
        let (here, here_rest) = S::as_simd_f32s(&self.here[1..1 + n]);
        let (right, right_rest) = S::as_simd_f32s(&self.here[2..2 + n]);
        let (y_below, y_below_rest) = S::as_simd_f32s(self.y_below);
        let (y_above, y_above_rest) = S::as_simd_f32s(self.y_above);
        let (z_below, z_below_rest) = S::as_simd_f32s(self.z_below);
        let (z_above, z_above_rest) = S::as_simd_f32s(self.z_above);
        let (vectors, rest) = S::as_mut_simd_f32s(out);
        let (two, six, factor) = (simd.splat_f32s(2.0), simd.splat_f32s(6.0), simd.splat_f32s(self.factor));
        let new = |along_x, along_y, along_z, here, before| {
            let sum = simd.add_f32s(simd.add_f32s(along_x, along_y), along_z);
            let laplacian = simd.sub_f32s(sum, simd.mul_f32s(six, here));
            simd.add_f32s(simd.sub_f32s(simd.mul_f32s(two, here), before), simd.mul_f32s(factor, laplacian))
        };
        let count = vectors.len();
        // The lengths are known to be the same, so that the loop needs no checks.
        let (left, here, right) = (&left[..count], &here[..count], &right[..count]);
        let (y_below, y_above) = (&y_below[..count], &y_above[..count]);
        let (z_below, z_above) = (&z_below[..count], &z_above[..count]);
        for i in 0..count {
            let along_x = simd.add_f32s(left[i], right[i]);
            let along_y = simd.add_f32s(y_below[i], y_above[i]);
            let along_z = simd.add_f32s(z_below[i], z_above[i]);
            vectors[i] = new(along_x, along_y, along_z, here[i], vectors[i]);
        }
        if !rest.is_empty() {
            let load = |rest| simd.partial_load_f32s(rest);
            let along_x = simd.add_f32s(load(left_rest), load(right_rest));
            let along_y = simd.add_f32s(load(y_below_rest), load(y_above_rest));
            let along_z = simd.add_f32s(load(z_below_rest), load(z_above_rest));
            let new = new(along_x, along_y, along_z, load(here_rest), load(rest));
            simd.partial_store_f32s(rest, new);
        }
        (out[n - 1], out[0]) = (last, first);
    }

    /// A row of cells of any kind.
    #[inline(always)]
    fn any(&self, out: &mut [f32]) {
        let n = out.len();
        let last = self.one(n - 1, out[n - 1]);
        let first = self.one(0, out[0]);
        let mut done = 0;
        // A constant number of cells, and a result that can be none of the inputs: so it becomes vectors.
        while done + BLOCK <= n {
            let mut result = [0.0; BLOCK];
            let here = &self.here[done..done + BLOCK + 2];
            let (y_below, y_above) = (&self.y_below[done..done + BLOCK], &self.y_above[done..done + BLOCK]);
            let (z_below, z_above) = (&self.z_below[done..done + BLOCK], &self.z_above[done..done + BLOCK]);
            let kinds = &self.kinds[done..done + BLOCK];
            let before = &out[done..done + BLOCK];
            for i in 0..BLOCK {
                let sum = (here[i] + here[i + 2]) + (y_below[i] + y_above[i]) + (z_below[i] + z_above[i]);
                result[i] = pressure(here[i + 1], before[i], sum, kinds[i], self.factor, self.absorption);
            }
            out[done..done + BLOCK].copy_from_slice(&result);
            done += BLOCK;
        }
        for (at, out) in out.iter_mut().enumerate().skip(done) {
            *out = self.one(at, *out);
        }
        (out[n - 1], out[0]) = (last, first);
    }

    /// The new pressure of one cell, also of the first and the last.
    #[inline(always)]
    fn one(&self, at: usize, before: f32) -> f32 {
        let (mut left, mut right) = (self.here[at], self.here[at + 2]);
        if self.absorption > 0.0 {
            let (is_first, is_last) = (at == 0, at + 3 == self.here.len());
            (left, right) = (if is_first { right } else { left }, if is_last { left } else { right });
        }
        let sum = (left + right) + (self.y_below[at] + self.y_above[at]) + (self.z_below[at] + self.z_above[at]);
        pressure(self.here[at + 1], before, sum, self.kinds[at], self.factor, self.absorption)
    }
}

/// The new pressure of a cell: of its own now and before, of those around it, and of what it is.
#[inline(always)]
fn pressure(now: f32, before: f32, sum: f32, kind: u8, factor: f32, absorption: f32) -> f32 {
    let laplacian = sum - f32::from(kind & OPEN) * now;
    let unhindered = 2.0 * now - before + factor * laplacian;
    let w = absorption * f32::from(kind >> WALLS & OPEN);
    let new = (unhindered + w * before) / (1.0 + w);
    if kind & SOLID == 0 { new } else { 0.0 }
}
