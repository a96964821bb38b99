//! Convolutions through Fourier transforms: input and kernel are transformed, the channels of every frequency multiplied
//! and added up, and the sums transformed back. The transforms are as long as the input with its padding: what wraps around
//! is where there is no output.

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, CpuKernel, KernelSpec};
use num_complex::Complex32;
use pulp::{Simd, WithSimd};

use super::{AXES, Geometry, LONGEST};
use crate::{
    DType, Norm, Result, Tensor,
    cpu::{pieces, worth_threads},
    ops::{BLOCK, Family, grid, wgsl},
    simd::arch,
};

/// Frequencies that are added up at a time: they stay in the nearest cache.
const AT_ONCE: usize = 512;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    batch: u32,
    groups: u32,
    channels: u32,
    filters: u32,
    frequencies: u32,
    /// The channels that a launch adds up.
    start: u32,
    end: u32,
}

pub(super) const KERNELS: usize = 2;
const FIRST: usize = 0;
const FURTHER: usize = 1;

pub(super) fn spec(number: usize) -> KernelSpec {
    let (name, access, value) = match number {
        FIRST => ("conv_spectral", Access::Overwrite, "sum"),
        _ => ("conv_spectral_further", Access::ReadWrite, "out[id] + sum"),
    };
    let spec = KernelSpec::new(name)
        .params::<Params>()
        .block(BLOCK)
        .binding::<Complex32>("x", Access::Read)
        .binding::<Complex32>("weight", Access::Read)
        .binding::<Complex32>("out", access)
        .wgsl(wgsl(include_str!("spectral.wgsl"), &[("{VALUE}", value)]));
    if number == FIRST { spec.cpu(products()) } else { spec }
}

fn products() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let (x, weight) = (launch.input::<Complex32>(0), launch.input::<Complex32>(1));
        let n = params.frequencies as usize;
        let (channels, filters) = (params.channels as usize, params.filters as usize);
        let planes = (params.batch * params.groups) as usize * filters;
        let out = &mut launch.output::<Complex32>(2)[..planes * n];
        let parallel = worth_threads(launch.threads(), (out.len() * channels) as f64);
        let arch = arch();
        pieces(launch.threads(), parallel, out, n, |plane, out| {
            let (place, filter) = (plane / filters, plane % filters);
            let group = place % params.groups as usize;
            let x = &x[place * channels * n..][..channels * n];
            let weight = &weight[(group * filters + filter) * channels * n..][..channels * n];
            arch.dispatch(Sums { x, weight, out });
        });
    })
}

/// One plane of frequencies.
struct Sums<'a> {
    x: &'a [Complex32],
    weight: &'a [Complex32],
    out: &'a mut [Complex32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let n = self.out.len();
        for (block, out) in self.out.chunks_mut(AT_ONCE).enumerate() {
            out.fill(Complex32::ZERO);
            let start = block * AT_ONCE;
            for (x, weight) in self.x.chunks_exact(n).zip(self.weight.chunks_exact(n)) {
                let (x, weight) = (&x[start..start + out.len()], &weight[start..start + out.len()]);
                for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
                    // With the conjugate, since the kernel is not turned around.
                    out.re += x.re * w.re + x.im * w.im;
                    out.im += x.im * w.re - x.re * w.im;
                }
            }
        }
    }
}

/// A length that is not shorter and has small factors only.
fn length(at_least: usize) -> usize {
    let smooth = |n: &usize| {
        let rest = [2, 3, 5].into_iter().fold(*n, |mut rest, factor| {
            while rest.is_multiple_of(factor) {
                rest /= factor;
            }
            rest
        });
        rest == 1
    };
    (at_least..).find(smooth).unwrap_or(at_least)
}

/// A kernel's elements as far apart as the dilation says, with zeros between.
fn dilated(weight: &Tensor, g: &Geometry) -> Result<Tensor> {
    let mut weight = weight.clone();
    for axis in 0..g.axes {
        let apart = g.dilation[AXES - g.axes + axis];
        if apart == 1 {
            continue;
        }
        let (at, shape) = (axis + 2, weight.shape().to_vec());
        let (outer, inner): (usize, usize) = (shape[..at].iter().product(), shape[at + 1..].iter().product());
        let spread =
            weight.reshape(&[outer, shape[at], 1, inner])?.pad(&[(0, 0), (0, 0), (0, apart - 1), (0, 0)], 0.0f32)?;
        let mut longer = shape;
        longer[at] *= apart;
        let extent = longer[at] - apart + 1;
        weight = spread.reshape(&longer)?.slice(at as isize, ..extent)?;
    }
    Ok(weight)
}

/// `first` is the family's number of the first kernel here.
pub(super) fn run(first: usize, g: &Geometry, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let tensors = x.tensors();
    let real = AXES - g.axes..AXES;
    let lengths: Vec<usize> = real.clone().map(|axis| length(g.input[axis] + 2 * g.padding[axis])).collect();
    let last = lengths.last().copied().unwrap_or(1);
    let axes: Vec<isize> = (0..g.axes).map(|axis| axis as isize + 2).collect();
    let around = |before: &dyn Fn(usize) -> usize, len: &dyn Fn(usize) -> usize| {
        let spatial = (0..g.axes).map(|axis| (before(axis), lengths[axis] - len(axis) - before(axis)));
        [(0, 0), (0, 0)].into_iter().chain(spatial).collect::<Vec<_>>()
    };
    let padding = |axis: usize| g.padding[AXES - g.axes + axis];
    let padded = x.pad(&around(&padding, &|axis| x.shape()[axis + 2]), 0.0f32)?;
    let kernel = dilated(weight, g)?;
    let kernel = kernel.pad(&around(&|_| 0, &|axis| kernel.shape()[axis + 2]), 0.0f32)?;
    let (x, kernel) =
        (padded.rfftn(&axes, Norm::Backward)?.contiguous()?, kernel.rfftn(&axes, Norm::Backward)?.contiguous()?);
    let mut shape = x.shaped();
    shape.set(1, g.groups * g.filters);
    let sums = tensors.output(DType::Complex, shape)?;
    if let (Some(from), Some(by), Some(to)) = (x.buffer(), kernel.buffer(), sums.buffer()) {
        let longest = if tensors.is_bounded() { LONGEST } else { g.channels };
        for start in (0..g.channels).step_by(longest) {
            let params = Params {
                batch: g.batch as u32,
                groups: g.groups as u32,
                channels: g.channels as u32,
                filters: g.filters as u32,
                frequencies: x.shape()[2..].iter().product::<usize>() as u32,
                start: start as u32,
                end: g.channels.min(start + longest) as u32,
            };
            let number = first + if start == 0 { FIRST } else { FURTHER };
            let launch = tensors.kernel(Family::Conv, number)?.launch().bind(from).bind(by).bind(to);
            tensors.enqueue(launch.params(&params).grid(grid(sums.elements())))?;
        }
    }
    let mut y = sums.irfftn(&axes, last, Norm::Backward)?;
    for axis in real {
        let (end, at) = ((g.output[axis] - 1) * g.stride[axis] + 1, axis + 2 + g.axes - AXES);
        y = y.slice_step(at as isize, ..end, g.stride[axis] as isize)?;
    }
    match bias {
        Some(bias) => {
            let mut shape = vec![1; g.axes + 1];
            shape[0] = g.groups * g.filters;
            y.add(&bias.reshape(&shape)?)
        }
        None => y.contiguous(),
    }
}
