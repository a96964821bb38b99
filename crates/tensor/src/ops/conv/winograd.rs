//! Winograd's minimal filtering, F(4×4, 3×3), as Lavin and Gray have it ("Fast algorithms for convolutional neural
//! networks", 2015): a tile of 6×6 inputs and a kernel are transformed, multiplied element by element, and transformed
//! back into 4×4 outputs, with 36 multiplications instead of 144. Over all channels, each of the 36 is a product of
//! matrices.
//!
//! On the CPU weights are transformed in a launch of their own, and everything else is done in the cache for some rows of
//! tiles at a time; see `winograd_cpu.rs`. On other devices inputs, products and outputs are launches too.

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, KernelSpec};

use super::{Geometry, winograd_cpu};
use crate::{
    DType, Result, Tensor,
    layout::Shape,
    ops::{BLOCK, Family, grid, wgsl},
};

/// Outputs of a tile along an axis,
pub(super) const TILE: usize = 4;
/// inputs,
pub(super) const SEEN: usize = 6;
/// and elements of a transform.
pub(super) const ALL: usize = SEEN * SEEN;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(super) batch: u32,
    pub(super) channels: u32,
    pub(super) filters: u32,
    pub(super) input: [u32; 2],
    pub(super) output: [u32; 2],
    pub(super) padding: [u32; 2],
    /// Tiles down and across.
    pub(super) tiles: [u32; 2],
    pub(super) x: u32,
    pub(super) bias: u32,
    pub(super) has_bias: u32,
}

impl Params {
    fn new(g: &Geometry, x: &Tensor, bias: Option<&Tensor>) -> Self {
        let last_two = |sizes: [usize; 3]| [sizes[1] as u32, sizes[2] as u32];
        Self {
            batch: g.batch as u32,
            channels: g.channels as u32,
            filters: g.filters as u32,
            input: last_two(g.input),
            output: last_two(g.output),
            padding: last_two(g.padding),
            tiles: last_two(g.output.map(|len| len.div_ceil(TILE))),
            x: x.layout().offset as u32,
            bias: bias.map_or(0, |bias| bias.layout().offset as u32),
            has_bias: u32::from(bias.is_some()),
        }
    }
}

/// The kernels, from `first` on in the family's numbers: weights, inputs, outputs, and all but the weights on the CPU.
pub(super) const KERNELS: usize = 4;
const WEIGHTS: usize = 0;
const INPUTS: usize = 1;
const OUTPUTS: usize = 2;
const TILES: usize = 3;

pub(super) fn spec(number: usize) -> KernelSpec {
    let source = |code: &str| wgsl(&format!("{}{code}", include_str!("winograd.wgsl")), &[]);
    let spec = |name: &'static str| KernelSpec::new(name).params::<Params>().block(BLOCK);
    let reads = |spec: KernelSpec, name: &'static str| spec.binding::<f32>(name, Access::Read);
    let writes = |spec: KernelSpec| spec.binding::<f32>("out", Access::Overwrite);
    match number {
        WEIGHTS => writes(reads(spec("winograd_weights"), "weight"))
            .cpu(winograd_cpu::weights())
            .wgsl(source(include_str!("winograd_weights.wgsl"))),
        INPUTS => writes(reads(spec("winograd_inputs"), "x")).wgsl(source(include_str!("winograd_inputs.wgsl"))),
        OUTPUTS => writes(reads(reads(spec("winograd_outputs"), "products"), "bias"))
            .wgsl(source(include_str!("winograd_outputs.wgsl"))),
        _ => writes(reads(reads(reads(spec("winograd"), "x"), "weight"), "bias")).cpu(winograd_cpu::tiles()),
    }
}

/// What it cannot do.
pub(super) fn refusal(g: &Geometry) -> Option<&'static str> {
    let fits = g.axes == 2 && g.groups == 1 && g.kernel == [1, 3, 3] && g.stride == [1; 3] && g.dilation == [1; 3];
    (!fits).then_some("takes two axes, a kernel of 3 by 3, stride and dilation one, and one group")
}

/// `first` is the family's number of the first kernel here.
pub(super) fn run(first: usize, g: &Geometry, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (op, tensors) = ("conv", x.tensors());
    let out = tensors.output(DType::F32, g.shape(op)?)?;
    let kernel = |number: usize| tensors.kernel(Family::Conv, first + number);
    let mut params = Params::new(g, weight, None);
    let transformed = tensors.output(DType::F32, Shape::new(op, &[ALL, g.filters, g.channels])?)?;
    let (Some(from), Some(by), Some(kernels)) = (x.buffer(), weight.buffer(), transformed.buffer()) else {
        return Ok(out);
    };
    let Some(to) = out.buffer() else { return Ok(out) };
    let launch = kernel(WEIGHTS)?.launch().bind(by).bind(kernels);
    tensors.enqueue(launch.params(&params).grid(grid(g.filters * g.channels)))?;
    params = Params::new(g, x, bias);
    let on = bias.and_then(Tensor::buffer).unwrap_or(by);
    if !tensors.is_bounded() {
        let launch = kernel(TILES)?.launch().bind(from).bind(kernels).bind(on).bind(to);
        tensors.enqueue(launch.params(&params).grid(1))?;
        return Ok(out);
    }
    let tiles = g.batch * params.tiles.iter().product::<u32>() as usize;
    let inputs = tensors.output(DType::F32, Shape::new(op, &[ALL, g.channels, tiles])?)?;
    if let Some(buffer) = inputs.buffer() {
        let launch = kernel(INPUTS)?.launch().bind(from).bind(buffer);
        tensors.enqueue(launch.params(&params).grid(grid(g.channels * tiles)))?;
    }
    let products = transformed.matmul(&inputs)?;
    if let Some(buffer) = products.buffer() {
        let launch = kernel(OUTPUTS)?.launch().bind(buffer).bind(on).bind(to);
        tensors.enqueue(launch.params(&params).grid(grid(g.filters * tiles)))?;
    }
    Ok(out)
}
