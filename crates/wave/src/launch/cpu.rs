//! The kernels on the CPU device.
//!
//! Threads take slabs of planes. A slab is done in strips of rows through all of its planes, so that the planes below and
//! above a row are still in the cache when it is their turn. The inner loop goes along x and is compiled for every vector
//! width; rows with an obstacle, or at a wall, look at the kind of every cell.

use std::sync::{Mutex, PoisonError};

use millrace::{CpuKernel, Launched, Threads};
use pulp::{Arch, Simd, WithSimd};

use super::{Injection, Step};
use crate::layout::{OPEN, PLAIN, SOLID, WALLS};

/// Words of a strip in one plane; three planes of it, and what is written, stay in the second-level cache.
const STRIP: usize = 16 * 1024;
/// Cells of a row that are looked at one by one are done so many at a time.
const BLOCK: usize = 16;
/// Slabs for every thread: one that is held up does not hold up all.
const SLABS: usize = 4;
/// Nanoseconds for a cell on one thread, roughly,
const COST: f64 = 0.3;
/// and what waking the others has to be worth.
const WORTH_WAKING: f64 = 100_000.0;

pub(super) fn inject() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let Injection { cell, amount } = launch.params();
        for field in [0, 1] {
            launch.output::<f32>(field)[cell as usize] += amount;
        }
    })
}

pub(super) fn step() -> CpuKernel {
    CpuKernel::whole(run)
}

fn run(launch: &mut Launched<'_>) {
    let params = launch.params::<Step>();
    let (now, kinds) = (launch.input::<f32>(0), bytemuck::cast_slice(launch.input::<u32>(2)));
    let before = launch.output::<f32>(1);
    let (plane, planes) = (params.plane as usize, params.size[2] as usize);
    let cells = params.size.iter().map(|&n| f64::from(n)).product::<f64>();
    let threads = launch.threads();
    let parallel = threads.count() > 1 && cells * COST > WORTH_WAKING;
    let thickness = if parallel { planes.div_ceil(SLABS * threads.count()) } else { planes };
    let arch = Arch::new();
    let inner = &mut before[plane..plane * (planes + 1)];
    slabs(threads, inner, plane * thickness, |slab, before| {
        arch.dispatch(Slab { params: &params, now, kinds, before, first: slab * thickness + 1 });
    });
    let sources = params.cells.iter().zip(params.gains).take(params.sources as usize);
    sources.for_each(|(&cell, gain)| before[cell as usize] += gain);
}

/// Calls `each` with the number of every slab and the slab itself, on several threads if there are several.
fn slabs(threads: &dyn Threads, field: &mut [f32], words: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
    let count = field.len().div_ceil(words);
    let slabs = field.chunks_mut(words).enumerate();
    if count < 2 {
        return slabs.for_each(|(n, slab)| each(n, slab));
    }
    let rest = Mutex::new(slabs);
    threads.for_each(count as u64, &|_| {
        let next = rest.lock().unwrap_or_else(PoisonError::into_inner).next();
        if let Some((n, slab)) = next {
            each(n, slab);
        }
    });
}

/// Some whole planes of the field that is written.
struct Slab<'a> {
    params: &'a Step,
    now: &'a [f32],
    kinds: &'a [u8],
    before: &'a mut [f32],
    /// The first plane's number in the whole field.
    first: usize,
}

impl WithSimd for Slab<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { params, now, kinds, before, first } = self;
        let [pitch, plane, lead] = [params.pitch, params.plane, params.lead].map(|n| n as usize);
        let [nx, ny, nz] = params.size.map(|n| n as usize);
        let rows = (STRIP / pitch).max(1);
        // Behind an absorbing wall is what is before it.
        let mirrors = params.absorption > 0.0;
        let sides = |at: usize, step: usize, n: usize, of: usize| {
            let (below, above) = (at - step, at + step);
            (if mirrors && n == 1 { above } else { below }, if mirrors && n == of { below } else { above })
        };
        for strip in (1..=ny).step_by(rows) {
            for (n, out) in before.chunks_exact_mut(plane).enumerate() {
                for y in strip..(strip + rows).min(ny + 1) {
                    let z = first + n;
                    let start = z * plane + y * pitch + lead;
                    let ((y_below, y_above), (z_below, z_above)) =
                        (sides(start, pitch, y, ny), sides(start, plane, z, nz));
                    let row = Row {
                        here: &now[start - 1..start + nx + 1],
                        y_below: &now[y_below..y_below + nx],
                        y_above: &now[y_above..y_above + nx],
                        z_below: &now[z_below..z_below + nx],
                        z_above: &now[z_above..z_above + nx],
                        kinds: &kinds[start..start + nx],
                        factor: params.courant_squared,
                        absorption: params.absorption,
                    };
                    let out = &mut out[y * pitch + lead..y * pitch + lead + nx];
                    if kinds[start - 1] & PLAIN == 0 { row.any(out) } else { row.plain(simd, out) }
                }
            }
        }
    }
}

/// A row of cells and what is around it.
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
