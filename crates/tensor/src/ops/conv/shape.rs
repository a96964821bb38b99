//! The sizes of a convolution, and every check of them.

use super::{Conv, PerAxis};
use crate::{DType, Error, Result, Tensor, layout::Shape, ops::together};

/// Axes that a kernel slides along, at most. Those that are missing are in front and have length one.
pub(crate) const AXES: usize = 3;

/// All sizes of one convolution. Those per axis are of depth, height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Channels of the input and filters, of one group.
    pub(crate) channels: usize,
    pub(crate) filters: usize,
    /// Axes that there really are.
    pub(crate) axes: usize,
    pub(crate) input: [usize; AXES],
    pub(crate) kernel: [usize; AXES],
    pub(crate) output: [usize; AXES],
    pub(crate) stride: [usize; AXES],
    pub(crate) padding: [usize; AXES],
    pub(crate) dilation: [usize; AXES],
}

const RANKS: &str = "do not convolve: the first is batch, channels and one to three axes, the second filters, channels of \
                     a group and as many axes";
const CHANNELS: &str = "do not convolve: groups have to divide channels and filters, and the second axes have to fit";
const TRANSPOSED: &str = "do not convolve: groups have to divide the channels, and the second shape begins with them";
const KERNEL: &str = "do not convolve: the kernel with its dilation is larger than the input with its padding";

/// Sizes that say all of a convolution: batch, groups, channels, filters, how many axes, and the rest for each of them.
pub(crate) const SIZES: usize = 5 + 5 * AXES;

impl Geometry {
    /// All that makes it what it is.
    pub(crate) fn sizes(&self) -> [usize; SIZES] {
        let mut sizes = [0; SIZES];
        sizes[..5].copy_from_slice(&[self.batch, self.groups, self.channels, self.filters, self.axes]);
        let per_axis = [self.input, self.kernel, self.stride, self.padding, self.dilation];
        sizes[5..].copy_from_slice(per_axis.as_flattened());
        sizes
    }

    /// Checks operands and settings.
    pub(crate) fn new(op: &'static str, x: &Tensor, weight: &Tensor, conv: &Conv) -> Result<Self> {
        operands(op, x, weight)?;
        Self::of(op, x.shape(), weight.shape(), conv)
    }

    /// Checks shapes and settings.
    pub(crate) fn of(op: &'static str, from: &[usize], to: &[usize], conv: &Conv) -> Result<Self> {
        let axes = checked(op, from, to, conv)?;
        let groups = conv.groups;
        let fits = from[1].is_multiple_of(groups) && to[0].is_multiple_of(groups) && from[1] / groups == to[1];
        if !fits {
            return Err(mismatch(op, from, to, CHANNELS));
        }
        conv.output_padding.check(op, "output padding", axes, |n| n == 0, "is for transposed convolutions")?;
        let mut geometry = Self {
            batch: from[0],
            groups,
            channels: to[1],
            filters: to[0] / groups,
            axes,
            input: spatial(from, 1),
            kernel: spatial(to, 1),
            output: [1; AXES],
            stride: conv.stride.spread(axes, 1),
            padding: conv.padding.spread(axes, 0),
            dilation: conv.dilation.spread(axes, 1),
        };
        for axis in 0..AXES {
            let padded = bounded(op, geometry.padding[axis].checked_mul(2), geometry.input[axis])?;
            let extent = geometry.extent(op, axis)?;
            let last = padded.checked_sub(extent).ok_or_else(|| mismatch(op, from, to, KERNEL))?;
            geometry.output[axis] = last / geometry.stride[axis] + 1;
        }
        Ok(geometry)
    }

    /// The convolution whose transpose takes `x`: its output is what `x` is, and its input is the result.
    pub(crate) fn transposed(op: &'static str, x: &Tensor, weight: &Tensor, conv: &Conv) -> Result<Self> {
        operands(op, x, weight)?;
        let (from, to) = (x.shape(), weight.shape());
        let axes = checked(op, from, to, conv)?;
        if !from[1].is_multiple_of(conv.groups) || from[1] != to[0] {
            return Err(mismatch(op, from, to, TRANSPOSED));
        }
        let mut geometry = Self {
            batch: from[0],
            groups: conv.groups,
            channels: to[1],
            filters: to[0] / conv.groups,
            axes,
            input: [1; AXES],
            kernel: spatial(to, 1),
            output: spatial(from, 1),
            stride: conv.stride.spread(axes, 1),
            padding: conv.padding.spread(axes, 0),
            dilation: conv.dilation.spread(axes, 1),
        };
        let more = conv.output_padding.spread(axes, 0);
        for (axis, &more) in more.iter().enumerate() {
            let why = "has to be smaller than the stride or the dilation";
            if more > 0 && more >= geometry.stride[axis].max(geometry.dilation[axis]) {
                return Err(conv.output_padding.refused(op, "output padding", why));
            }
            let steps = (geometry.output[axis] - 1).checked_mul(geometry.stride[axis]);
            let whole = bounded(op, steps, geometry.extent(op, axis)?)?;
            let whole = bounded(op, Some(whole), more)?;
            let why = "do not convolve: the padding takes away all of the result";
            let twice = geometry.padding[axis].saturating_mul(2);
            let left = whole.checked_sub(twice).filter(|&left| left > 0);
            geometry.input[axis] = left.ok_or_else(|| mismatch(op, from, to, why))?;
        }
        Ok(geometry)
    }

    /// What a kernel covers along an axis.
    fn extent(&self, op: &'static str, axis: usize) -> Result<usize> {
        bounded(op, (self.kernel[axis] - 1).checked_mul(self.dilation[axis]), 1)
    }

    /// Elements of a kernel, for one channel.
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Products that an element of the output is the sum of.
    pub(crate) fn depth(&self) -> usize {
        self.channels * self.taps()
    }

    /// Elements of one channel of the output.
    pub(crate) fn positions(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements of one channel of the input.
    pub(crate) fn plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Whether the columns are the input itself.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.taps() == 1 && self.stride == [1; AXES] && self.padding == [0; AXES]
    }

    /// The shape of the result.
    pub(crate) fn shape(&self, op: &'static str) -> Result<Shape> {
        shape(op, self.batch, self.groups * self.filters, &self.output[AXES - self.axes..])
    }

    /// The shape of the transposed convolution's result.
    pub(crate) fn transposed_shape(&self, op: &'static str) -> Result<Shape> {
        shape(op, self.batch, self.groups * self.channels, &self.input[AXES - self.axes..])
    }
}

fn shape(op: &'static str, batch: usize, channels: usize, spatial: &[usize]) -> Result<Shape> {
    Shape::new(op, &[&[batch, channels], spatial].concat())
}

/// What both kinds of convolution need of their operands,
fn operands(op: &'static str, x: &Tensor, weight: &Tensor) -> Result<()> {
    for given in [x.dtype(), weight.dtype()] {
        if given != DType::F32 {
            return Err(Error::DType { op, given, takes: "f32" });
        }
    }
    together(op, x, weight)
}

/// and of shapes and settings. Says how many axes the kernel slides along.
fn checked(op: &'static str, from: &[usize], to: &[usize], conv: &Conv) -> Result<usize> {
    let axes = match from.len() {
        rank @ 3..=5 if rank == to.len() => rank - 2,
        _ => return Err(mismatch(op, from, to, RANKS)),
    };
    // A batch may be empty; nothing else.
    let zero = |shape: &[usize], first: usize| (first..shape.len()).find(|&axis| shape[axis] == 0);
    for (shape, axis) in [(from, zero(from, 1)), (to, zero(to, 0))] {
        if let Some(axis) = axis {
            return Err(Error::Axis { op, axis: axis as isize, shape: shape.into(), why: "has length zero" });
        }
    }
    if conv.groups == 0 {
        return Err(Error::Setting { op, name: "groups", value: "0".into(), why: "have to be at least one" });
    }
    conv.stride.check(op, "stride", axes, |n| n > 0, "has to be at least one")?;
    conv.dilation.check(op, "dilation", axes, |n| n > 0, "has to be at least one")?;
    conv.padding.check(op, "padding", axes, |_| true, "")?;
    conv.output_padding.check(op, "output padding", axes, |_| true, "")?;
    Ok(axes)
}

fn mismatch(op: &'static str, from: &[usize], to: &[usize], why: &'static str) -> Error {
    Error::Shapes { op, left: from.into(), right: to.into(), why }
}

/// A sum that fits into what devices count with.
fn bounded(op: &'static str, a: Option<usize>, b: usize) -> Result<usize> {
    let sum = a.and_then(|a| a.checked_add(b));
    sum.filter(|&sum| sum <= i32::MAX as usize).ok_or(Error::TooLarge { op, elements: sum.unwrap_or(usize::MAX) })
}

/// The axes of a shape behind the first two, with those that are missing in front.
pub(crate) fn spatial(shape: &[usize], missing: usize) -> [usize; AXES] {
    let (axes, mut all) = (shape.len() - 2, [missing; AXES]);
    all[AXES - axes..].copy_from_slice(&shape[2..]);
    all
}

impl PerAxis {
    /// Checks how many numbers there are, and each of them.
    pub(crate) fn check(
        &self,
        op: &'static str,
        name: &'static str,
        axes: usize,
        is_fine: impl Fn(usize) -> bool,
        why: &'static str,
    ) -> Result<()> {
        if self.0.len() != 1 && self.0.len() != axes {
            return Err(self.refused(op, name, "has to be one number, or one for each axis behind the channels"));
        }
        if self.0.iter().all(|&n| is_fine(n)) { Ok(()) } else { Err(self.refused(op, name, why)) }
    }

    pub(crate) fn refused(&self, op: &'static str, name: &'static str, why: &'static str) -> Error {
        Error::Setting { op, name, value: format!("{:?}", self.0).into(), why }
    }

    /// A number for every axis; `missing` for those in front that are not there.
    pub(crate) fn spread(&self, axes: usize, missing: usize) -> [usize; AXES] {
        let mut all = [missing; AXES];
        for (axis, to) in all[AXES - axes..].iter_mut().enumerate() {
            *to = if self.0.len() == 1 { self.0[0] } else { self.0[axis] };
        }
        all
    }
}
