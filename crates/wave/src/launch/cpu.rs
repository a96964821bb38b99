//! The kernels on the CPU device.
//!
//! Threads take slabs of planes. A slab is done in strips of rows through all of its planes, so that the planes below and
//! above a row are still in the cache when it is their turn.

use std::sync::{Mutex, PoisonError};

use millrace::{CpuKernel, Launched, Threads};
use pulp::{Arch, Simd, WithSimd};

use super::{Injection, Step};
use crate::cells::Grid;

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
    let (plane, planes) = (params.grid.plane as usize, params.grid.size[2] as usize);
    let cells = params.grid.size.iter().map(|&n| f64::from(n)).product::<f64>();
    let threads = launch.threads();
    let parallel = threads.count() > 1 && cells * COST > WORTH_WAKING;
    let thickness = if parallel { planes.div_ceil(SLABS * threads.count()) } else { planes };
    let arch = Arch::new();
    let inner = &mut before[plane..plane * (planes + 1)];
    slabs(threads, inner, plane * thickness, |slab, before| {
        arch.dispatch(Slab { grid: &params.grid, now, kinds, before, first: slab * thickness + 1 });
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
    grid: &'a Grid,
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
        let Self { grid, now, kinds, before, first } = self;
        let [pitch, plane, lead] = [grid.pitch, grid.plane, grid.lead].map(|n| n as usize);
        let [nx, ny, _] = grid.size.map(|n| n as usize);
        let rows = (STRIP / pitch).max(1);
        for strip in (1..=ny).step_by(rows) {
            for (n, out) in before.chunks_exact_mut(plane).enumerate() {
                for y in strip..(strip + rows).min(ny + 1) {
                    let start = y * pitch + lead;
                    grid.step_row(simd, [y, first + n], now, kinds, &mut out[start..start + nx]);
                }
            }
        }
    }
}
