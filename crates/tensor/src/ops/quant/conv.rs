//! Convolution in eight bits: patches of the input, woven, times the weights.

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, KernelSpec};

use super::{
    BLOCK, Factors, Family, MULTIPLY, Multiplied, PANEL, Sides, UNFOLD, by_first, by_first_sums, check_depth, cpu, grid,
    multiply, sums_of_woven, uniform, wgsl,
};
use crate::{
    DType, Error, Quantized, Result, Tensor,
    layout::Shape,
    ops::create,
    quant::{
        Invalid,
        quantized::{columns, words},
    },
};

/// Axes that a kernel moves along, at most.
const AXES: usize = 3;

/// How patches are taken out of an input.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Unfolded {
    pub(super) batch: u32,
    pub(super) groups: u32,
    /// Channels of a group.
    pub(super) channels: u32,
    /// Numbers of a patch, and its words.
    pub(super) depth: u32,
    pub(super) steps: u32,
    /// Patches.
    pub(super) n: u32,
    /// Words of a line of the input.
    pub(super) words: u32,
    /// What padding is: the number that stands for zero.
    pub(super) zero: i32,
    pub(super) input: [u32; AXES],
    pub(super) kernel: [u32; AXES],
    pub(super) stride: [u32; AXES],
    pub(super) padding: [u32; AXES],
    pub(super) dilation: [u32; AXES],
    pub(super) output: [u32; AXES],
}

pub(super) fn unfold() -> KernelSpec {
    KernelSpec::new("quant_unfold")
        .params::<Unfolded>()
        .block(BLOCK)
        .binding::<u32>("data", Access::Read)
        .binding::<u32>("out", Access::Overwrite)
        .cpu(cpu::unfold())
        .wgsl(wgsl(include_str!("unfold.wgsl"), &[]))
}

/// The shapes of a convolution, checked. One axis and two are three of which the first have length one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConvShape {
    batch: usize,
    groups: usize,
    /// Channels of a group, in and out.
    channels: usize,
    filters: usize,
    input: [usize; AXES],
    kernel: [usize; AXES],
    stride: [usize; AXES],
    padding: [usize; AXES],
    dilation: [usize; AXES],
    output: [usize; AXES],
}

/// How a kernel moves.
#[derive(Debug, Clone, Copy)]
struct Moves<'a> {
    stride: &'a [usize],
    padding: &'a [usize],
    dilation: &'a [usize],
    groups: usize,
}

impl ConvShape {
    fn new(x: &[usize], weight: &[usize], moves: Moves<'_>) -> Result<Self> {
        let why = "do not convolve: both have one to three axes after batch or filters and channels, and a filter has the \
                   channels of its group";
        let mismatch = || Error::Shapes { op: "conv", left: x.into(), right: weight.into(), why };
        let (&[batch, channels, ref input @ ..], &[filters, depth, ref kernel @ ..]) = (x, weight) else {
            return Err(mismatch());
        };
        let axes = input.len();
        if !(1..=AXES).contains(&axes) || kernel.len() != axes {
            return Err(mismatch());
        }
        let Moves { stride, padding, dilation, groups } = moves;
        for (what, list) in [("strides", stride), ("paddings", padding), ("dilations", dilation)] {
            if list.len() != axes {
                return Err(Invalid::Length { what, given: list.len(), expected: axes }.into());
            }
        }
        for count in [channels, filters] {
            if groups == 0 || !count.is_multiple_of(groups) {
                return Err(Invalid::Groups { groups, channels: count }.into());
            }
        }
        if channels / groups != depth {
            return Err(mismatch());
        }
        let mut shape = Self {
            batch,
            groups,
            channels: depth,
            filters: filters / groups,
            input: [1; AXES],
            kernel: [1; AXES],
            stride: [1; AXES],
            padding: [0; AXES],
            dilation: [1; AXES],
            output: [1; AXES],
        };
        for axis in 0..axes {
            for (what, value) in [("stride", stride[axis]), ("dilation", dilation[axis]), ("kernel size", kernel[axis])] {
                if value == 0 {
                    return Err(Invalid::Zero { what, axis }.into());
                }
            }
            let covered = (kernel[axis] - 1).saturating_mul(dilation[axis]).saturating_add(1);
            let padded = padding[axis].saturating_mul(2).saturating_add(input[axis]);
            // Beyond this nothing could be counted.
            if covered > padded || padded > i32::MAX as usize {
                return Err(Invalid::Kernel { kernel: covered, input: padded, axis }.into());
            }
            let at = AXES - axes + axis;
            (shape.input[at], shape.kernel[at]) = (input[axis], kernel[axis]);
            // A stride past the input is taken once, like one that just passes it.
            shape.stride[at] = stride[axis].min(padded);
            (shape.padding[at], shape.dilation[at]) = (padding[axis], dilation[axis].min(padded));
            shape.output[at] = (padded - covered) / stride[axis] + 1;
        }
        Ok(shape)
    }

    /// Numbers of a patch.
    fn depth(&self) -> usize {
        self.channels * self.kernel.iter().product::<usize>()
    }

    fn patches(&self) -> Result<usize> {
        Ok(Shape::new("conv", &self.output)?.elements())
    }
}

impl Quantized {
    /// A convolution (a cross-correlation, as everywhere in this field) in one, two or three dimensions, in `f32`.
    ///
    /// The input has the axes batch, channels, and those that the kernel moves along; the weights have output channels,
    /// channels of a group, and the kernel's. Steps, padding on both sides and dilation are given per axis. Padding is what
    /// stands for zero. The input has one scale; the weights may have one per output channel, along axis 0.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, quant::Parameters};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let one = Parameters::new(vec![1.0], vec![0], None)?;
    /// let x = tensors.quantized(&[1, 2, 3, 4], &[1, 1, 4], &one)?;
    /// let weight = tensors.quantized(&[1, 0, -1], &[1, 1, 3], &one)?;
    /// let y = x.conv(&weight, &[1], &[1], &[1], 1)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-2.0, -2.0, -2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conv(
        &self,
        weight: &Self,
        stride: &[usize],
        padding: &[usize],
        dilation: &[usize],
        groups: usize,
    ) -> Result<Tensor> {
        let (op, tensors) = ("conv", self.tensors());
        if !tensors.is(weight.tensors()) {
            return Err(Error::Strangers { op });
        }
        let conv = ConvShape::new(self.shape(), weight.shape(), Moves { stride, padding, dilation, groups })?;
        if let Some(axis) = self.parameters().axis() {
            return Err(Invalid::Axis { op, axis: axis as usize, shape: self.shape().into() }.into());
        }
        (1..weight.rank()).try_for_each(|axis| uniform(op, weight, axis))?;
        let (depth, n) = (conv.depth(), conv.patches()?);
        check_depth(op, depth, weight, self)?;
        let mut shape: Shape = [conv.batch, conv.filters * groups].into_iter().collect();
        conv.output[AXES + 2 - self.rank()..].iter().for_each(|&length| shape.push(length));
        let shape = Shape::new(op, &shape)?;
        let (Some(a), Some(forms)) = (by_first(weight)?, self.forms()) else {
            return create::full(tensors, shape, DType::F32, 0);
        };
        let (batch, steps) = (conv.batch * groups, words(depth));
        let lanes = n.next_multiple_of(PANEL);
        let all = Shape::new(op, &[batch, lanes, steps])?.elements();
        let numbers = |list: [usize; AXES]| list.map(|n| n as u32);
        let unfolded = Unfolded {
            batch: conv.batch as u32,
            groups: groups as u32,
            channels: conv.channels as u32,
            depth: depth as u32,
            steps: steps as u32,
            n: n as u32,
            words: words(columns(&self.shaped())) as u32,
            zero: self.parameters().zero_points().first().copied().unwrap_or(0),
            input: numbers(conv.input),
            kernel: numbers(conv.kernel),
            stride: numbers(conv.stride),
            padding: numbers(conv.padding),
            dilation: numbers(conv.dilation),
            output: numbers(conv.output),
        };
        let b = tensors.device().allocate(4 * all)?;
        let launch = tensors.kernel(Family::Quant, UNFOLD)?.launch().bind(&forms.lines).bind(&b);
        tensors.enqueue(launch.params(&unfolded).grid(grid(all)))?;
        let sides = Sides { left: weight.parameters(), right: self.parameters() };
        let params = Multiplied {
            m: conv.filters as u32,
            n: n as u32,
            depth: depth as u32,
            steps: steps as u32,
            batch: batch as u32,
            groups: groups as u32,
            a_channels: weight.parameters().scales().len() as u32,
            a_inner: 1,
            ..sides.params()
        };
        let a_sums = match sides.needs_row_sums(tensors) {
            true => Some(by_first_sums(weight, &a, params.m * params.groups, params.depth)?),
            false => None,
        };
        let b_sums = match sides.needs_column_sums() {
            true => Some(sums_of_woven(tensors, &b, &params)?),
            false => None,
        };
        multiply(tensors, MULTIPLY, &params, &sides, &Factors { a: &a, b: &b, a_sums, b_sums }, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_are_missing_have_length_one() {
        let moves = Moves { stride: &[2], padding: &[1], dilation: &[3], groups: 2 };
        let shape = ConvShape::new(&[4, 6, 20], &[8, 3, 5], moves).unwrap();
        assert_eq!((shape.input, shape.kernel, shape.output), ([1, 1, 20], [1, 1, 5], [1, 1, 5]));
        assert_eq!((shape.filters, shape.depth()), (4, 15));
    }

    #[test]
    fn parameters_of_patches_fit_every_device() {
        assert!(size_of::<Unfolded>() <= millrace_core::MAX_PARAMS);
    }
}
