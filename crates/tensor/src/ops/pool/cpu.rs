//! Windows on the CPU, a row of them at a time: for every element of a window, one pass over the row.

use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::Params;
use crate::{
    cpu::{PIECE, pieces, worth_threads},
    math,
    simd::arch,
};

/// What is done with the elements of a window.
trait Fold: 'static {
    const START: f32;
    /// Whether the result is divided by how many there are.
    const DIVIDED: bool;
    fn step(result: f32, x: f32) -> f32;
}

struct Largest;

impl Fold for Largest {
    const START: f32 = f32::NEG_INFINITY;
    const DIVIDED: bool = false;

    #[inline(always)]
    fn step(result: f32, x: f32) -> f32 {
        math::max(result, x)
    }
}

struct Mean;

impl Fold for Mean {
    const START: f32 = 0.0;
    const DIVIDED: bool = true;

    #[inline(always)]
    fn step(result: f32, x: f32) -> f32 {
        result + x
    }
}

pub(crate) fn largest() -> CpuKernel {
    CpuKernel::whole(run::<Largest>)
}

pub(crate) fn mean() -> CpuKernel {
    CpuKernel::whole(run::<Mean>)
}

fn run<F: Fold>(launch: &mut Launched<'_>) {
    let params = launch.params::<Params>();
    let plane = params.input.iter().product::<u32>() as usize;
    let positions = params.output.iter().product::<u32>() as usize;
    let planes = params.planes as usize;
    let x = &launch.input::<f32>(0)[params.x as usize..][..planes * plane];
    let out = &mut launch.output::<f32>(1)[..planes * positions];
    let taps = params.window.iter().product::<u32>() as usize;
    let parallel = worth_threads(launch.threads(), (out.len() * taps) as f64 * 0.2);
    let per_piece = (PIECE / positions).clamp(1, planes.div_ceil(4 * launch.threads().count()));
    let arch = arch();
    pieces(launch.threads(), parallel, out, per_piece * positions, |piece, out| {
        let first = piece * per_piece * plane;
        let x = &x[first..first + out.len() / positions * plane];
        arch.dispatch(Planes::<F> { params: &params, x, out, plane, positions, fold: std::marker::PhantomData });
    });
}

/// Some planes.
struct Planes<'a, F> {
    params: &'a Params,
    x: &'a [f32],
    out: &'a mut [f32],
    plane: usize,
    positions: usize,
    fold: std::marker::PhantomData<F>,
}

impl<F: Fold> WithSimd for Planes<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let width = self.params.output[2] as usize;
        for (x, out) in self.x.chunks_exact(self.plane).zip(self.out.chunks_exact_mut(self.positions)) {
            for (at, out) in out.chunks_exact_mut(width).enumerate() {
                let (d, h) = (at as u32 / self.params.output[1], at as u32 % self.params.output[1]);
                row::<F>(self.params, x, d, h, out);
            }
        }
    }
}

/// The part of a window along an axis that is inside the input.
#[inline(always)]
fn inside(params: &Params, axis: usize, at: u32) -> (u32, u32) {
    let first = at * params.stride[axis];
    let last = (first + params.window[axis]).min(params.input[axis] + params.padding[axis]);
    (first.saturating_sub(params.padding[axis]), last - params.padding[axis])
}

/// One row of windows.
#[inline(always)]
fn row<F: Fold>(params: &Params, x: &[f32], d: u32, h: u32, out: &mut [f32]) {
    let (depth, height) = (inside(params, 0, d), inside(params, 1, h));
    let (rows, width) = (params.input[1] as usize, params.input[2] as usize);
    let (step, padding) = (params.stride[2] as usize, params.padding[2] as usize);
    out.fill(F::START);
    for d in depth.0..depth.1 {
        for h in height.0..height.1 {
            let from = &x[(d as usize * rows + h as usize) * width..][..width];
            for k in 0..params.window[2] as usize {
                // Window i begins at i * step - padding.
                let start = padding.saturating_sub(k).div_ceil(step).min(out.len());
                let end = (width + padding).saturating_sub(k).div_ceil(step).clamp(start, out.len());
                let from = from.get((start * step + k).saturating_sub(padding)..).unwrap_or_default();
                let to = &mut out[start..end];
                if step == 1 {
                    to.iter_mut().zip(from).for_each(|(to, x)| *to = F::step(*to, *x));
                } else {
                    to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, x)| *to = F::step(*to, *x));
                }
            }
        }
    }
    if F::DIVIDED {
        let across = (depth.1 - depth.0) * (height.1 - height.0);
        for (w, out) in out.iter_mut().enumerate() {
            let along = inside(params, 2, w as u32);
            let there = across * (along.1 - along.0);
            let count = if params.counted != 0 { params.window.iter().product() } else { there };
            *out /= count as f32;
        }
    }
}
