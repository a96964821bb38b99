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
    fn with_simd<S: Simd>(self, _: S) {
        let Self { params, now, kinds, before, first } = self;
        let (pitch, plane) = (params.pitch as usize, params.plane as usize);
        let [nx, ny, _] = params.size.map(|n| n as usize);
        let rows = (STRIP / pitch).max(1);
        for strip in (1..=ny).step_by(rows) {
            for (n, out) in before.chunks_exact_mut(plane).enumerate() {
                for y in strip..(strip + rows).min(ny + 1) {
                    let start = (first + n) * plane + y * pitch;
                    let row = |at: usize| &now[at + 1..at + 1 + nx];
                    let around = Around {
                        here: &now[start..start + nx + 2],
                        sides: [row(start - pitch), row(start + pitch), row(start - plane), row(start + plane)],
                    };
                    let kinds = &kinds[start..start + 1 + nx];
                    around.step(params, kinds, &mut out[y * pitch + 1..y * pitch + 1 + nx]);
                }
            }
        }
    }
}

/// A row of cells and what is beside it.
struct Around<'a> {
    /// The row, with a cell of margin at both ends.
    here: &'a [f32],
    /// The rows below and above along y, and below and above along z.
    sides: [&'a [f32]; 4],
}

impl Around<'_> {
    /// Steps a row. The first of the kinds is the margin's.
    #[inline(always)]
    fn step(&self, params: &Step, kinds: &[u8], out: &mut [f32]) {
        let (flags, kinds) = (kinds[0], &kinds[1..]);
        let end = out.len();
        if flags & PLAIN == 0 {
            return self.any(0, params, kinds, out);
        }
        self.any(0, params, &kinds[..1], &mut out[..1]);
        if end > 1 {
            self.plain(params, &mut out[1..end - 1]);
            self.any(end - 1, params, &kinds[end - 1..], &mut out[end - 1..]);
        }
    }

    /// Cells from the second on, all of whose neighbours are open.
    #[inline(always)]
    fn plain(&self, params: &Step, out: &mut [f32]) {
        let n = out.len();
        // The lengths are known to be the same, so that the loop needs no checks.
        let [left, here, right] = [1, 2, 3].map(|at| &self.here[at..at + n]);
        let [y_below, y_above, z_below, z_above] = self.sides.map(|side| &side[1..1 + n]);
        for i in 0..n {
            let sum = (left[i] + right[i]) + (y_below[i] + y_above[i]) + (z_below[i] + z_above[i]);
            let laplacian = sum - 6.0 * here[i];
            out[i] = 2.0 * here[i] - out[i] + params.courant_squared * laplacian;
        }
    }

    /// Cells of any kind, from number `first` of the row on.
    #[inline(always)]
    fn any(&self, first: usize, params: &Step, kinds: &[u8], out: &mut [f32]) {
        let n = out.len();
        let [left, here, right] = [0, 1, 2].map(|at| &self.here[first + at..first + at + n]);
        let [y_below, y_above, z_below, z_above] = self.sides.map(|side| &side[first..first + n]);
        let kinds = &kinds[..n];
        for i in 0..n {
            let sum = (left[i] + right[i]) + (y_below[i] + y_above[i]) + (z_below[i] + z_above[i]);
            let laplacian = sum - f32::from(kinds[i] & OPEN) * here[i];
            let unhindered = 2.0 * here[i] - out[i] + params.courant_squared * laplacian;
            let w = params.absorption * f32::from(kinds[i] >> WALLS & OPEN);
            let pressure = (unhindered + w * out[i]) / (1.0 + w);
            out[i] = if kinds[i] & SOLID == 0 { pressure } else { 0.0 };
        }
    }
}
