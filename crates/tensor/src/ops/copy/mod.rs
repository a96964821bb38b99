//! The same elements elsewhere: in order, or with something around them.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace_core::KernelSpec;

use super::{Family, create, grid, kernel, wgsl};
use crate::{
    DType, Error, Result, Tensor,
    check::Call,
    layout::{MAX_RANK, Shape, WALKED, merge},
};

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CopyParams {
    n: u32,
    rank: u32,
    offset: u32,
    shape: [u32; MAX_RANK],
    strides: [i32; MAX_RANK],
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct PadParams {
    n: u32,
    rank: u32,
    offset: u32,
    /// What is around, as bits.
    value: [u32; 2],
    /// Lengths of the output's axes,
    shape: [u32; WALKED],
    /// how much of each is before the input,
    before: [u32; WALKED],
    /// and how much is the input.
    inside: [u32; WALKED],
    strides: [i32; WALKED],
}

const COPY: usize = 0;
const PAD: usize = 1;
/// Each once for elements of four bytes, and once for those of eight.
pub(crate) const KERNELS: usize = 4;

pub(crate) fn spec(number: usize) -> KernelSpec {
    let complex = number >= 2;
    let (of, word, value) = match complex {
        false => ("", "u32", "params.value[0]"),
        true => ("_complex", "vec2<u32>", "vec2<u32>(params.value[0], params.value[1])"),
    };
    let names = [("{WORD}", word), ("{VALUE}", value)];
    if number % 2 == COPY {
        let code = if complex { cpu::copy::<[u32; 2]>() } else { cpu::copy::<u32>() };
        let source = wgsl(include_str!("copy.wgsl"), &names);
        kernel::<CopyParams>(format!("copy{of}"), &["x"]).cpu(code).wgsl(source)
    } else {
        let code = if complex { cpu::pad::<[u32; 2]>(|value| value) } else { cpu::pad::<u32>(|[value, _]| value) };
        let source = wgsl(include_str!("pad.wgsl"), &names);
        kernel::<PadParams>(format!("pad{of}"), &["x"]).cpu(code).wgsl(source)
    }
}

/// The kernel for a tensor's element type.
fn number(kernel: usize, x: &Tensor) -> usize {
    kernel + 2 * usize::from(x.dtype() == DType::Complex)
}

/// The elements in order without gaps, in a buffer of their own.
pub(crate) fn copy(x: &Tensor) -> Result<Tensor> {
    let out = x.tensors().output(x.dtype(), x.shaped())?;
    let (Some(source), Some(target)) = (x.buffer(), out.buffer()) else { return Ok(out) };
    let layout = x.layout();
    let (rank, dims, [strides]) = merge(&layout.shape, [&layout.strides]);
    let n = x.elements();
    let params = CopyParams {
        n: n as u32,
        rank: rank as u32,
        offset: layout.offset as u32,
        shape: dims.map(|dim| dim as u32),
        strides: strides.map(|stride| stride as i32),
    };
    let launch = x.tensors().kernel(Family::Copy, number(COPY, x))?.launch().bind(source).bind(target);
    x.tensors().enqueue(launch.params(&params).grid(grid(n)))?;
    x.tensors().watch(|| Call::Copy, &[x], &out);
    Ok(out)
}

/// See [`Tensor::pad`].
pub(crate) fn pad(x: &Tensor, around: &[(usize, usize)], value: u64) -> Result<Tensor> {
    let (op, from) = ("pad", x.shaped());
    if around.len() != from.len() {
        return Err(Error::Rank { op, rank: around.len(), limit: from.len() });
    }
    let mut padded = [0; MAX_RANK];
    for (axis, (&dim, &(before, behind))) in from.iter().zip(around).enumerate() {
        let sum = dim.checked_add(before).and_then(|sum| sum.checked_add(behind));
        padded[axis] = sum.ok_or(Error::TooLarge { op, elements: usize::MAX })?;
    }
    let shape = Shape::new(op, &padded[..from.len()])?;
    let Some(source) = x.buffer() else {
        return create::full(x.tensors(), shape, x.dtype(), value);
    };
    let params = match PadParams::new(x, around, &shape, value) {
        Some(params) => params,
        // In order, more axes lie behind one another.
        None if !x.is_contiguous() => return pad(&copy(x)?, around, value),
        None => return Err(Error::Rank { op, rank: from.len(), limit: WALKED }),
    };
    let out = x.tensors().output(x.dtype(), shape)?;
    if let Some(target) = out.buffer() {
        let launch = x.tensors().kernel(Family::Copy, number(PAD, x))?.launch().bind(source).bind(target);
        x.tensors().enqueue(launch.params(&params).grid(grid(shape.elements())))?;
    }
    x.tensors().watch(|| Call::Pad { around: around.to_vec(), value }, &[x], &out);
    Ok(out)
}

impl PadParams {
    /// Merges axes with nothing around them into the axis before, where the input allows. None if too many are left.
    fn new(x: &Tensor, around: &[(usize, usize)], shape: &Shape, value: u64) -> Option<Self> {
        let layout = x.layout();
        let mut params = Self::zeroed();
        (params.n, params.offset) = (shape.elements() as u32, layout.offset as u32);
        params.value = [value as u32, (value >> 32) as u32];
        let mut rank = 0;
        for (axis, &(before, behind)) in around.iter().enumerate() {
            let (inside, stride) = (layout.shape[axis], layout.strides[axis] as i32);
            let behind_last = rank > 0 && params.strides[rank - 1] == stride * inside as i32;
            if before + behind == 0 && rank > 0 && (behind_last || inside == 1) {
                let (last, factor) = (rank - 1, inside as u32);
                params.shape[last] *= factor;
                params.before[last] *= factor;
                params.inside[last] *= factor;
                if inside != 1 {
                    params.strides[last] = stride;
                }
                continue;
            }
            if rank == WALKED {
                return None;
            }
            params.shape[rank] = shape[axis] as u32;
            params.before[rank] = before as u32;
            params.inside[rank] = inside as u32;
            params.strides[rank] = stride;
            rank += 1;
        }
        if rank == 0 {
            (params.shape[0], params.inside[0], params.strides[0], rank) = (1, 1, 1, 1);
        }
        params.rank = rank as u32;
        Some(params)
    }
}
