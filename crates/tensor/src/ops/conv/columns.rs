//! Im2col on the CPU: a tile of columns is made in the cache and multiplied at once. The columns of a kernel of one element
//! are the input itself.

use gemm::{Parallelism, gemm};
use millrace_core::{CpuKernel, Launched};

use super::{Geometry, Params};
use crate::cpu::{Target, scratch::Scratch, worth_threads};

/// Nanoseconds per multiplication on one thread, roughly.
const COST: f64 = 0.02;
/// Elements of a tile of columns: they stay in the second cache.
const TILE: usize = 128 * 1024;
/// Tiles are a multiple of so many columns: what the inner loops work on.
const UNIT: usize = 64;

pub(crate) fn kernel() -> CpuKernel {
    let scratch = Scratch::default();
    CpuKernel::whole(move |launch| run(launch, &scratch))
}

fn run(launch: &mut Launched<'_>, scratch: &Scratch) {
    let params = launch.params::<Params>();
    let g = params.geometry();
    let (plane, positions, depth) = (g.plane(), g.positions(), g.depth());
    let x = &launch.input::<f32>(0)[params.x as usize..][..g.batch * g.groups * g.channels * plane];
    let weight = &launch.input::<f32>(1)[params.weight as usize..][..g.groups * g.filters * depth];
    let bias = (params.has_bias != 0).then(|| &launch.input::<f32>(2)[params.bias as usize..][..g.groups * g.filters]);
    let out = &mut launch.output::<f32>(3)[..g.batch * g.groups * g.filters * positions];
    let threads = launch.threads();
    let parallel = worth_threads(threads, (out.len() * depth) as f64 * COST);
    let images = g.batch * g.groups;
    // As many columns as the cache holds; and as many tiles as there are threads.
    let most = if g.is_pointwise() { positions } else { (TILE / depth).max(1) };
    let parts = if parallel { threads.count().div_ceil(images) } else { 1 };
    let tile = positions.div_ceil(parts).min(most).next_multiple_of(UNIT).min(positions);
    let tiles = positions.div_ceil(tile);
    let target = Target::new(out);
    let task = |number: u64| {
        let (place, start) = (number as usize / tiles, number as usize % tiles * tile);
        let (group, count) = (place % g.groups, tile.min(positions - start));
        let x = &x[place * g.channels * plane..][..g.channels * plane];
        let weight = &weight[group * g.filters * depth..][..g.filters * depth];
        let first = place * g.filters * positions + start;
        if let Some(bias) = bias {
            for (filter, &value) in bias[group * g.filters..][..g.filters].iter().enumerate() {
                // SAFETY: this filter's part of the task's columns, which nobody else has.
                let row = unsafe { target.part(first + filter * positions, count) };
                row.fill(value);
            }
        }
        let multiply = |columns: &[f32], stride: usize| {
            assert!((depth - 1) * stride + count <= columns.len(), "the columns are inside of their memory");
            // SAFETY: the weights are filters by depth, row by row; the assertion puts the last column of the last row
            // inside of its slice; `first` and all filters from there are inside of the output, and tasks have columns
            // of their own.
            unsafe {
                #[rustfmt::skip]
                gemm(
                    g.filters, count, depth,
                    target.start().add(first), 1, positions as isize, bias.is_some(),
                    weight.as_ptr(), 1, depth as isize,
                    columns.as_ptr(), 1, stride as isize,
                    1.0, 1.0, false, false, false, Parallelism::None,
                );
            }
        };
        if g.is_pointwise() {
            multiply(&x[start..], plane);
        } else {
            scratch.with(depth * count, |columns| {
                fill(&g, x, start, columns, count);
                multiply(columns, count);
            });
        }
    };
    let tasks = (images * tiles) as u64;
    if parallel { threads.for_each(tasks, &task) } else { (0..tasks).for_each(task) }
}

/// Makes `count` columns from position `start` on: a row for every element of a kernel.
fn fill(g: &Geometry, x: &[f32], start: usize, columns: &mut [f32], count: usize) {
    let ([depth, height, width], [_, rows, across]) = (g.input, g.output);
    let taps = g.taps();
    for (k, row) in columns.chunks_exact_mut(count).enumerate() {
        let (channel, tap) = (&x[k / taps * g.plane()..][..g.plane()], k % taps);
        let [kd, kh, kw] = [tap / (g.kernel[1] * g.kernel[2]), tap / g.kernel[2] % g.kernel[1], tap % g.kernel[2]];
        let source = |axis: usize, at: usize, k: usize, len: usize| {
            let place = (at * g.stride[axis] + k * g.dilation[axis]).checked_sub(g.padding[axis])?;
            (place < len).then_some(place)
        };
        let (mut at, mut rest) = (start, row);
        while !rest.is_empty() {
            let (line, w) = (at / across, at % across);
            let (now, later) = rest.split_at_mut((across - w).min(rest.len()));
            let (d, h) = (source(0, line / rows, kd, depth), source(1, line % rows, kh, height));
            match (d, h) {
                (Some(d), Some(h)) => {
                    let from = &channel[(d * height + h) * width..][..width];
                    let place = kw * g.dilation[2];
                    slide(from, now, w * g.stride[2] + place, g.stride[2], g.padding[2]);
                }
                _ => now.fill(0.0),
            }
            (at, rest) = (at + now.len(), later);
        }
    }
}

/// Element i of `to` is element `first + i * step - padding` of `from`, or zero.
fn slide(from: &[f32], to: &mut [f32], first: usize, step: usize, padding: usize) {
    let start = padding.saturating_sub(first).div_ceil(step).min(to.len());
    let end = (from.len() + padding).saturating_sub(first).div_ceil(step).clamp(start, to.len());
    to[..start].fill(0.0);
    to[end..].fill(0.0);
    let to = &mut to[start..end];
    let from = from.get((first + start * step).saturating_sub(padding)..).unwrap_or_default();
    match step {
        1 => to.copy_from_slice(&from[..to.len()]),
        _ => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, from)| *to = *from),
    }
}
