//! Products whose elements are few and long, above all those with vectors: every element is a dot product, which is
//! shared out.
//!
//! On the CPU one launch does all of it. On other devices a thread adds up a part of an element, and a sum over the parts
//! follows.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, Buffer, KernelSpec};

use super::{DOTS, DOTS_BRIEF, FEW, LONGEST, Params, spread};
use crate::{
    DType, Result, Tensor, Tensors,
    layout::{Shape, WALKED},
    ops::{BLOCK, Family, grid, reduce, wgsl},
};

/// Products that a thread of a GPU adds up in one go, if no other work is left for others.
const SHORT: usize = 256;
/// Elements of a result between matrices that are few for a GPU,
const FEW_RESULTS: usize = 256;
/// and of one with a vector: as many threads keep it busy.
const THREADS: usize = 1 << 16;
/// Steps of the common axis from which on the CPU takes rows that lie in order one by one.
const ROW: usize = 64;

/// The parameters of `dots.wgsl`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Dots {
    /// Elements of the result,
    outputs: u32,
    /// rows and columns of each of its matrices,
    m: u32,
    n: u32,
    /// and products that are added up for each.
    k: u32,
    /// Sums per element; 1 on a CPU.
    chunks: u32,
    /// Whether neighbouring threads work on neighbouring elements, rather than on neighbouring parts of one.
    across: u32,
    /// Whether the left factor is the right one here.
    swapped: u32,
    a_offset: u32,
    b_offset: u32,
    a_row: i32,
    a_column: i32,
    b_row: i32,
    b_column: i32,
    /// Axes of the batch.
    rank: u32,
    shape: [u32; WALKED],
    a_strides: [i32; WALKED],
    b_strides: [i32; WALKED],
}

impl Dots {
    /// A product as this, if it is one. A matrix times a column is the row times the matrix on its side: what is left of
    /// it is a vector on the left.
    pub(super) fn of(params: &Params, k: usize, batch: usize, bounded: bool) -> Option<Self> {
        let mut dots = Self {
            outputs: params.m * params.n * batch as u32,
            m: params.m,
            n: params.n,
            k: k as u32,
            chunks: 1,
            across: 0,
            swapped: u32::from(params.n == 1),
            a_offset: params.a_offset,
            b_offset: params.b_offset,
            a_row: params.a_row,
            a_column: params.a_column,
            b_row: params.b_row,
            b_column: params.b_column,
            rank: params.rank,
            shape: params.shape,
            a_strides: params.a_strides,
            b_strides: params.b_strides,
        };
        if dots.swapped == 1 {
            (dots.m, dots.n) = (1, dots.m);
            (dots.a_offset, dots.b_offset) = (params.b_offset, params.a_offset);
            (dots.a_row, dots.a_column) = (params.b_column, params.b_row);
            (dots.b_row, dots.b_column) = (params.a_column, params.a_row);
            (dots.a_strides, dots.b_strides) = (params.b_strides, params.a_strides);
        }
        let outputs = dots.outputs as usize;
        let is_one = if bounded {
            let few = if dots.m == 1 { THREADS / 4 } else { FEW_RESULTS };
            k > SHORT && outputs <= few
        } else {
            dots.m == 1 && (dots.n == 1 || dots.in_order() || dots.b_column == 1)
        };
        if bounded {
            // As many threads as each has products, unless that is more than a GPU needs.
            let chunks = k.isqrt().min(THREADS / outputs.max(1)).max(k.div_ceil(LONGEST));
            dots.chunks = if chunks > BLOCK as usize { chunks.next_multiple_of(BLOCK as usize) } else { chunks } as u32;
            dots.across = u32::from(dots.n > 1 && dots.b_column == 1);
        }
        is_one.then_some(dots)
    }

    /// Multiplies.
    pub(super) fn multiply(
        &self,
        a: &Buffer,
        b: &Buffer,
        tensors: &Tensors,
        shape: Shape,
        way: usize,
    ) -> Result<Tensor> {
        let (outputs, chunks) = (self.outputs as usize, self.chunks as usize);
        let (to, axis) = match (chunks, self.across) {
            (1, _) => (shape, 0),
            (_, 1) => ([chunks, outputs].into_iter().collect(), 0),
            _ => ([outputs, chunks].into_iter().collect(), 1),
        };
        let out = tensors.output(DType::F32, to)?;
        let Some(target) = out.buffer() else { return Ok(out) };
        let brief = !tensors.is_bounded() && outputs * self.k as usize <= FEW;
        let kernel = tensors.kernel(Family::Matmul, if brief { DOTS_BRIEF } else { DOTS })?;
        let [left, right] = if self.swapped == 1 { [b, a] } else { [a, b] };
        let launch = kernel.launch().bind(left).bind(right).bind(target).params(self);
        tensors.enqueue(launch.grid(grid(outputs * chunks)).spread(spread(way)))?;
        if chunks == 1 { Ok(out) } else { reduce::sum_along(&out, axis)?.reshape(&shape) }
    }

    /// Whether an element's products lie in order in the right factor, and are enough to be taken so.
    fn in_order(&self) -> bool {
        self.b_row == 1 && self.k as usize >= ROW
    }
}

pub(super) fn spec(brief: bool) -> KernelSpec {
    let spec = KernelSpec::new(if brief { "matmul_dots_brief" } else { "matmul_dots" })
        .params::<Dots>()
        .block(BLOCK)
        .binding::<f32>("a", Access::Read)
        .binding::<f32>("b", Access::Read)
        .binding::<f32>("out", Access::Overwrite)
        .cpu(cpu::kernel());
    if brief { spec } else { spec.wgsl(wgsl(include_str!("dots.wgsl"), &[])) }
}
