//! Convolution in eight bits: patches of the input, woven, times the weights.

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, KernelSpec};

use super::{
    BLOCK, Factors, Family, MULTIPLY, Multiplied, PANEL, Sides, UNFOLD, by_first, by_first_sums, check_depth, cpu,
    grid, multiply, sums_of_woven, uniform,
    watch::{Shown, watch},
    wgsl,
};
use crate::{
    Algorithm, Conv, DType, Error, Quantized, Result, Tensor,
    check::{Call, Scales},
    layout::Shape,
    ops::{
        conv::{AXES, Geometry},
        create,
    },
    quant::{
        Invalid,
        quantized::{columns, words},
    },
};

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

impl Quantized {
    /// A convolution (a cross-correlation, as everywhere in this field) in one, two or three dimensions, in `f32`.
    ///
    /// The input has the axes batch, channels, and those that the kernel moves along; the weights have output channels,
    /// channels of a group, and the kernel's. Padding is what stands for zero. The input has one scale; the weights may have
    /// one per output channel, along axis 0. It is done as [`Algorithm::Im2col`], whatever the size.
    ///
    /// ```
    /// use millrace::tensor::{Conv, Tensors, quant::Parameters};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let one = Parameters::new(vec![1.0], vec![0], None)?;
    /// let x = tensors.quantized(&[1, 2, 3, 4], &[1, 1, 4], &one)?;
    /// let weight = tensors.quantized(&[1, 0, -1], &[1, 1, 3], &one)?;
    /// let y = x.conv(&weight, &Conv::new().padding(1))?;
    /// assert_eq!(y.to_vec::<f32>()?, [-2.0, -2.0, -2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conv(&self, weight: &Self, conv: &Conv) -> Result<Tensor> {
        let (op, tensors) = ("conv", self.tensors());
        if !tensors.is(weight.tensors()) {
            return Err(Error::Strangers { op });
        }
        if let Some(algorithm) = conv.forced().filter(|&algorithm| algorithm != Algorithm::Im2col) {
            let why = "does not convolve numbers in eight bits; that is a product of matrices, as im2col is";
            return Err(Error::Algorithm { op, algorithm: algorithm.name(), why });
        }
        let settings = conv;
        let conv = Geometry::of(op, self.shape(), weight.shape(), settings)?;
        let groups = conv.groups;
        if let Some(axis) = self.parameters().axis() {
            return Err(Invalid::Axis { op, axis: axis as usize, shape: self.shape().into() }.into());
        }
        (1..weight.rank()).try_for_each(|axis| uniform(op, weight, axis))?;
        let (depth, n) = (conv.depth(), Shape::new(op, &conv.output)?.elements());
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
        let out = multiply(tensors, MULTIPLY, &params, &sides, &Factors { a: &a, b: &b, a_sums, b_sums }, shape)?;
        let scales = || (Scales::of(self.parameters()), Scales::of(weight.parameters()));
        let call = || Call::EightBitConv { scales: scales(), conv: settings.clone() };
        watch(tensors, call, &[Shown::EightBits(self), Shown::EightBits(weight)], &Shown::Numbers(&out));
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_patches_fit_every_device() {
        assert!(size_of::<Unfolded>() <= millrace_core::MAX_PARAMS);
    }
}
