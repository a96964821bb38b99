//! Normalization: with the mean and variance that are known of every channel, or with those of the elements themselves.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace_core::KernelSpec;

use super::{Family, Rows, grid, kernel, together, together_in_a_group, wgsl};
use crate::{DType, Error, Result, Tensor, check::Call, layout::MAX_RANK};

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    n: u32,
    /// Channels, or rows;
    channels: u32,
    /// elements of a channel of one image, or of a row.
    length: u32,
    epsilon: f32,
    x: u32,
    mean: u32,
    variance: u32,
    weight: u32,
    bias: u32,
    has_weight: u32,
    has_bias: u32,
}

const BATCH: usize = 0;
/// A thread, or on a GPU a group, does a row.
const LAYER: usize = 1;
const LAYER_GROUP: usize = 2;
pub(crate) const KERNELS: usize = 3;

pub(crate) fn spec(number: usize) -> KernelSpec {
    let params = include_str!("params.wgsl");
    let source = |code: &str| wgsl(&format!("{params}{code}"), &[]);
    match number {
        BATCH => kernel::<Params>("batch_norm".to_owned(), &["x", "weight", "bias", "mean", "variance"])
            .cpu(cpu::batch())
            .wgsl(source(include_str!("batch.wgsl"))),
        LAYER => kernel::<Params>("layer_norm".to_owned(), &["x", "weight", "bias"])
            .cpu(cpu::layer())
            .wgsl(source(include_str!("layer.wgsl"))),
        _ => {
            let sums = ["sum", "squares"].map(|name| together_in_a_group(name, "a + b")).concat();
            kernel::<Params>("layer_norm_group".to_owned(), &["x", "weight", "bias"])
                .cpu(cpu::layer())
                .wgsl(source(&format!("{sums}{}", include_str!("group.wgsl"))))
        }
    }
}

/// Checks the tensor that is normalized and what is added to a variance.
fn checked(op: &'static str, x: &Tensor, epsilon: f32) -> Result<()> {
    if x.dtype() != DType::F32 {
        return Err(Error::DType { op, given: x.dtype(), takes: "f32" });
    }
    if !(epsilon >= 0.0 && epsilon.is_finite()) {
        let value = epsilon.to_string().into();
        return Err(Error::Setting { op, name: "epsilon", value, why: "has to be finite and not negative" });
    }
    Ok(())
}

/// Checks an operand that goes with `x` and has the given shape, and packs it.
fn operand(op: &'static str, x: &Tensor, given: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if given.dtype() != DType::F32 {
        return Err(Error::DType { op, given: given.dtype(), takes: "f32" });
    }
    together(op, x, given)?;
    if given.shape() != shape {
        let why = "differ; the first is what every operand of a normalization has";
        return Err(Error::Shapes { op, left: shape.into(), right: given.shape().into(), why });
    }
    given.contiguous()
}

fn offset(t: Option<&Tensor>) -> u32 {
    t.map_or(0, |t| t.layout().offset as u32)
}

impl Tensor {
    /// Every channel, which is the second axis, less its mean and divided by its standard deviation, both of which are
    /// given; then multiplied with its weight, and its bias added. `epsilon` is added to the variance.
    ///
    /// ```
    /// use millrace::tensor::Tensors;
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[1.0f32, 3.0, 10.0, 30.0], &[1, 2, 2])?;
    /// let (mean, variance) = (tensors.from_slice(&[2.0f32, 20.0], &[2])?, tensors.from_slice(&[1.0f32, 100.0], &[2])?);
    /// let y = x.batch_norm(&mean, &variance, None, None, 0.0)?;
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch_norm(
        &self,
        mean: &Self,
        variance: &Self,
        weight: Option<&Self>,
        bias: Option<&Self>,
        epsilon: f32,
    ) -> Result<Self> {
        let op = "batch_norm";
        checked(op, self, epsilon)?;
        if self.rank() < 2 {
            return Err(Error::Axis { op, axis: 1, shape: self.shape().into(), why: "does not exist" });
        }
        let channels = [self.shape()[1]];
        let (mean, variance) = (operand(op, self, mean, &channels)?, operand(op, self, variance, &channels)?);
        let weight = weight.map(|weight| operand(op, self, weight, &channels)).transpose()?;
        let bias = bias.map(|bias| operand(op, self, bias, &channels)).transpose()?;
        let (x, out) = (self.contiguous()?, self.tensors().output(DType::F32, self.shaped())?);
        let (Some(from), Some(to)) = (x.buffer(), out.buffer()) else { return Ok(out) };
        let (Some(means), Some(variances)) = (mean.buffer(), variance.buffer()) else { return Ok(out) };
        let params = Params {
            n: x.elements() as u32,
            channels: channels[0] as u32,
            length: x.shape()[2..].iter().product::<usize>() as u32,
            epsilon,
            x: x.layout().offset as u32,
            mean: mean.layout().offset as u32,
            variance: variance.layout().offset as u32,
            weight: offset(weight.as_ref()),
            bias: offset(bias.as_ref()),
            has_weight: u32::from(weight.is_some()),
            has_bias: u32::from(bias.is_some()),
        };
        // What is not there is not read; something has to be bound in its place.
        let weights = weight.as_ref().and_then(Self::buffer).unwrap_or(means);
        let biases = bias.as_ref().and_then(Self::buffer).unwrap_or(means);
        let kernel = self.tensors().kernel(Family::Norm, BATCH)?;
        let launch = kernel.launch().bind(from).bind(weights).bind(biases).bind(means).bind(variances).bind(to);
        self.tensors().enqueue(launch.params(&params).grid(grid(x.elements())))?;
        let inputs = [Some(&x), Some(&mean), Some(&variance), weight.as_ref(), bias.as_ref()];
        let call = || Call::BatchNorm { weight: weight.is_some(), bias: bias.is_some(), epsilon };
        self.tensors().watch_some(call, &inputs, &out);
        Ok(out)
    }

    /// The elements along the last `axes` axes less their mean and divided by their standard deviation; then multiplied
    /// with a weight and a bias added, both of which have the shape of those axes. `epsilon` is added to the variance.
    ///
    /// ```
    /// use millrace::tensor::Tensors;
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[1.0f32, 3.0, 1000.0, 3000.0], &[2, 2])?;
    /// assert_eq!(x.layer_norm(1, None, None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn layer_norm(&self, axes: usize, weight: Option<&Self>, bias: Option<&Self>, epsilon: f32) -> Result<Self> {
        let op = "layer_norm";
        checked(op, self, epsilon)?;
        let rank = self.rank();
        if axes == 0 || axes > rank {
            let value = axes.to_string().into();
            return Err(Error::Setting {
                op,
                name: "axes",
                value,
                why: "has to be at least one, and no more than there are",
            });
        }
        let shape = self.shaped();
        let along = &shape[rank - axes..];
        let weight = weight.map(|weight| operand(op, self, weight, along)).transpose()?;
        let bias = bias.map(|bias| operand(op, self, bias, along)).transpose()?;
        let length: usize = along.iter().product();
        let rows = self.elements() / length.max(1);
        let way = if self.tensors().is_bounded() { Rows::of(rows, length) } else { Rows::Thread };
        if way == Rows::Whole {
            let last: [isize; MAX_RANK] = std::array::from_fn(|i| i as isize - axes as isize);
            let apart = self.sub(&self.mean_keepdims(&last[..axes])?)?;
            let variance = apart.mul(&apart)?.mean_keepdims(&last[..axes])?;
            let mut y = apart.div(&variance.add(epsilon)?.sqrt()?)?;
            if let Some(weight) = &weight {
                y = y.mul(weight)?;
            }
            return bias.iter().try_fold(y, |y, bias| y.add(bias));
        }
        let (x, out) = (self.contiguous()?, self.tensors().output(DType::F32, shape)?);
        let (Some(from), Some(to)) = (x.buffer(), out.buffer()) else { return Ok(out) };
        let params = Params {
            n: x.elements() as u32,
            channels: rows as u32,
            length: length as u32,
            epsilon,
            x: x.layout().offset as u32,
            weight: offset(weight.as_ref()),
            bias: offset(bias.as_ref()),
            has_weight: u32::from(weight.is_some()),
            has_bias: u32::from(bias.is_some()),
            ..Params::zeroed()
        };
        let weights = weight.as_ref().and_then(Self::buffer).unwrap_or(from);
        let biases = bias.as_ref().and_then(Self::buffer).unwrap_or(from);
        let kernel = self.tensors().kernel(Family::Norm, if way == Rows::Group { LAYER_GROUP } else { LAYER })?;
        let launch = kernel.launch().bind(from).bind(weights).bind(biases).bind(to);
        self.tensors().enqueue(launch.params(&params).grid(way.grid(rows)))?;
        let call = || Call::LayerNorm { axes, weight: weight.is_some(), bias: bias.is_some(), epsilon };
        self.tensors().watch_some(call, &[Some(&x), weight.as_ref(), bias.as_ref()], &out);
        Ok(out)
    }
}
