//! An operation as data: what was asked for, so that it can be asked for again.

use serde::{Deserialize, Serialize};

use crate::{
    Conv, DType, Error, Norm, PerAxis, Pool, Recurrent, RecurrentState, Result, Tensor, Tensors,
    layout::Shape,
    ops::{binary, copy, create, fft, quant, reduce, unary},
    quant::Parameters,
    sparse::Csr,
};

/// An operation with everything but its inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Call {
    /// Something new, as [`Tensors::full`] makes it.
    Create {
        /// Which.
        kernel: usize,
        /// The result's shape,
        shape: Vec<usize>,
        /// its element type,
        dtype: DType,
        /// and the values it is made from, as bits.
        values: [u32; 2],
    },
    /// The elements in order.
    Copy,
    /// With something around them.
    Pad {
        /// Before and behind every axis.
        around: Vec<(usize, usize)>,
        /// What is there, as bits.
        value: u64,
    },
    /// On every element of one tensor.
    Unary {
        /// Which, with its element type.
        name: String,
    },
    /// On the elements of two.
    Binary {
        /// Which, with its element type.
        name: String,
        /// The bits of the second operand, if it is a number.
        number: Option<u32>,
    },
    /// Of one or the other.
    Select,
    /// Along axes.
    Reduce {
        /// Which, with its element type.
        name: String,
        /// The axes, as bits.
        axes: u32,
        /// Whether they stay, with length one.
        keepdims: bool,
        /// What the result is divided by.
        divisor: Option<f32>,
    },
    /// Where the largest or smallest is.
    Arg {
        /// `argmax` or `argmin`.
        name: String,
        /// The axes, as bits.
        axes: u32,
        /// Whether they stay, with length one.
        keepdims: bool,
    },
    /// Along the last axis.
    Softmax,
    /// The product of matrices.
    Matmul,
    /// A Fourier transform.
    Fft {
        /// What it makes of what.
        kind: fft::Kind,
        /// Along these axes.
        axes: Vec<isize>,
        /// The length of the last one in real numbers, if there are any.
        n: usize,
        /// What is divided.
        norm: Norm,
    },
    /// A sparse matrix times a dense one: the inputs are its three arrays and that.
    Sparse {
        /// Rows of the matrix,
        rows: usize,
        /// and its columns.
        columns: usize,
    },
    /// A convolution of an input, a weight, and a bias if there is one.
    Conv {
        /// How.
        conv: Conv,
    },
    /// A transposed one.
    ConvTranspose {
        /// How.
        conv: Conv,
    },
    /// The largest or the mean of windows.
    Pool {
        /// The largest.
        largest: bool,
        /// How large a window is,
        window: PerAxis,
        /// and how windows lie.
        pool: Pool,
    },
    /// With means and variances that are given.
    BatchNorm {
        /// Whether there is a weight,
        weight: bool,
        /// and a bias.
        bias: bool,
        /// What is added to variances.
        epsilon: f32,
    },
    /// With means and variances of its own.
    LayerNorm {
        /// Along so many axes.
        axes: usize,
        /// Whether there is a weight,
        weight: bool,
        /// and a bias.
        bias: bool,
        /// What is added to variances.
        epsilon: f32,
    },
    /// To eight bits, which are compared as integers.
    Quantize {
        /// What they stand for.
        scales: Scales,
    },
    /// Back again.
    Dequantize {
        /// What they stand for.
        scales: Scales,
    },
    /// A product in eight bits.
    EightBitMatmul {
        /// What both factors stand for.
        scales: (Scales, Scales),
        /// The sums alone.
        sums: bool,
    },
    /// A convolution in eight bits.
    EightBitConv {
        /// What input and weight stand for.
        scales: (Scales, Scales),
        /// How.
        conv: Conv,
    },
    /// A recurrent network over sequences, with its weights and what it begins with, if that is given.
    Recurrent {
        /// What it is.
        network: Recurrent,
    },
}

/// What numbers in eight bits stand for, as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scales {
    scales: Vec<f32>,
    zero_points: Vec<i32>,
    axis: Option<isize>,
}

impl Scales {
    pub(crate) fn of(parameters: &Parameters) -> Self {
        let (scales, zero_points) = (parameters.scales().to_vec(), parameters.zero_points().to_vec());
        Self { scales, zero_points, axis: parameters.axis() }
    }

    pub(crate) fn parameters(&self) -> Result<Parameters> {
        Parameters::new(self.scales.clone(), self.zero_points.clone(), self.axis)
    }
}

/// What two devices may differ by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Tolerance {
    /// A share of the result.
    Result(f64),
    /// A share of the sum of the magnitudes that were added up: of the same operation on the inputs' magnitudes.
    Terms(f64),
    /// A share of the largest result.
    Largest(f64),
}

/// The number of the operation of a name.
fn named(names: impl IntoIterator<Item = String>, wanted: &str) -> Result<usize> {
    let found = names.into_iter().position(|name| name == wanted);
    found.ok_or_else(|| millrace_core::Error::Invalid(format!("there is no operation {wanted}").into()).into())
}

fn name_of(name: &str, dtype: DType) -> String {
    format!("{name}_{dtype}")
}

/// Casts of one type differ in what they give.
fn name_of_unary(entry: &unary::Entry) -> String {
    format!("{}_{}_{}", entry.name, entry.from, entry.to)
}

/// The next inputs, as far as they are there.
fn optional(inputs: &[Tensor], first: bool, second: bool) -> (Option<&Tensor>, Option<&Tensor>) {
    let mut rest = inputs.iter();
    (if first { rest.next() } else { None }, if second { rest.next() } else { None })
}

impl Call {
    pub(crate) fn unary(entry: usize) -> Self {
        Self::Unary { name: name_of_unary(&unary::TABLE[entry]) }
    }

    pub(crate) fn binary(entry: usize, number: Option<u32>) -> Self {
        let entry = &binary::TABLE[entry];
        Self::Binary { name: name_of(entry.name, entry.from), number }
    }

    pub(crate) fn reduce(entry: usize, axes: u32, keepdims: bool, divisor: Option<f32>) -> Self {
        let entry = &reduce::VALUES[entry];
        Self::Reduce { name: name_of(entry.name, entry.dtype), axes, keepdims, divisor }
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        match self {
            Self::Create { .. } => "create".into(),
            Self::Copy => "contiguous".into(),
            Self::Pad { .. } => "pad".into(),
            Self::Unary { name } | Self::Binary { name, .. } | Self::Reduce { name, .. } | Self::Arg { name, .. } => {
                name.clone()
            }
            Self::Select => "select".into(),
            Self::Softmax => "softmax".into(),
            Self::Matmul => "matmul".into(),
            Self::Fft { kind, .. } => format!("fft {kind:?}").to_lowercase(),
            Self::Sparse { .. } => "sparse product".into(),
            Self::Conv { .. } => "conv".into(),
            Self::ConvTranspose { .. } => "conv_transpose".into(),
            Self::Pool { largest, .. } => if *largest { "max_pool" } else { "avg_pool" }.into(),
            Self::BatchNorm { .. } => "batch_norm".into(),
            Self::LayerNorm { .. } => "layer_norm".into(),
            Self::Recurrent { .. } => "recurrent".into(),
            Self::Quantize { .. } => "quantize".into(),
            Self::Dequantize { .. } => "dequantize".into(),
            Self::EightBitMatmul { .. } => "matmul in eight bits".into(),
            Self::EightBitConv { .. } => "conv in eight bits".into(),
        }
    }

    /// What two devices may differ by: both are within what `millrace validate` allows, so twice that.
    pub(super) fn tolerance(&self) -> Tolerance {
        match self {
            Self::Copy | Self::Pad { .. } | Self::Select | Self::Arg { .. } => Tolerance::Result(0.0),
            Self::Create { .. } => Tolerance::Result(1e-6),
            Self::Unary { name } if name.starts_with("gelu") => Tolerance::Result(2e-5),
            Self::Unary { name } if name.starts_with("sin") || name.starts_with("cos") => Tolerance::Largest(1e-6),
            Self::Binary { name, .. } if name.starts_with("pow") => Tolerance::Result(1e-4),
            Self::Unary { .. } | Self::Binary { .. } => Tolerance::Result(1e-6),
            Self::Reduce { name, .. } if name.starts_with("sum") => Tolerance::Terms(1e-5),
            Self::Reduce { name, .. } if name.starts_with("prod") => Tolerance::Result(1e-4),
            Self::Reduce { .. } => Tolerance::Result(0.0),
            Self::Softmax => Tolerance::Result(1e-5),
            Self::Matmul | Self::Sparse { .. } => Tolerance::Terms(1e-5),
            Self::Fft { .. } => Tolerance::Largest(1e-5),
            // Winograd's transforms round more.
            Self::Conv { .. } | Self::ConvTranspose { .. } => Tolerance::Terms(1e-4),
            Self::Pool { largest, .. } => Tolerance::Result(if *largest { 0.0 } else { 1e-5 }),
            Self::BatchNorm { .. } | Self::LayerNorm { .. } => Tolerance::Largest(1e-5),
            Self::Recurrent { .. } => Tolerance::Largest(1e-4),
            Self::Quantize { .. } => Tolerance::Result(0.0),
            Self::Dequantize { .. } | Self::EightBitMatmul { .. } | Self::EightBitConv { .. } => {
                Tolerance::Result(1e-6)
            }
        }
    }

    /// Does it with other inputs, in their place.
    pub(super) fn run(&self, tensors: &Tensors, inputs: &[Tensor]) -> Result<Tensor> {
        let input = |n: usize| {
            let missing = || Error::Device(millrace_core::Error::Invalid(format!("input {n} is missing").into()));
            inputs.get(n).ok_or_else(missing)
        };
        match self {
            Self::Create { kernel, shape, dtype, values: [a, b] } => {
                create::create(tensors, *kernel, Shape::new("create", shape)?, *dtype, *a, *b)
            }
            Self::Copy => copy::copy(input(0)?),
            Self::Pad { around, value } => copy::pad(input(0)?, around, *value),
            Self::Unary { name } => unary::run(input(0)?, named(unary::TABLE.iter().map(name_of_unary), name)?),
            Self::Binary { name, number } => {
                let entry = named(binary::TABLE.iter().map(|entry| name_of(entry.name, entry.from)), name)?;
                match number {
                    Some(bits) => binary::run_number(input(0)?, *bits, entry),
                    None => binary::run(input(0)?, input(1)?, entry),
                }
            }
            Self::Select => input(0)?.select(input(1)?, input(2)?),
            Self::Reduce { name, axes, keepdims, divisor } => {
                let entry = named(reduce::VALUES.iter().map(|entry| name_of(entry.name, entry.dtype)), name)?;
                reduce::reduce(input(0)?, entry, *axes, *keepdims, Some(0), *divisor)
            }
            Self::Arg { name, axes, keepdims } => reduce::arg_by_name(input(0)?, name, *axes, *keepdims),
            Self::Softmax => input(0)?.softmax(-1),
            Self::Matmul => input(0)?.matmul(input(1)?),
            Self::Fft { kind, axes, n, norm } => fft::run(input(0)?, *kind, axes, *n, *norm),
            Self::Conv { conv } => input(0)?.conv(input(1)?, inputs.get(2), conv),
            Self::ConvTranspose { conv } => input(0)?.conv_transpose(input(1)?, inputs.get(2), conv),
            Self::Pool { largest: true, window, pool } => input(0)?.max_pool(window.clone(), pool),
            Self::Pool { largest: false, window, pool } => input(0)?.avg_pool(window.clone(), pool),
            Self::BatchNorm { weight, bias, epsilon } => {
                let (scale, shift) = optional(&inputs[3.min(inputs.len())..], *weight, *bias);
                input(0)?.batch_norm(input(1)?, input(2)?, scale, shift, *epsilon)
            }
            Self::LayerNorm { axes, weight, bias, epsilon } => {
                let (scale, shift) = optional(&inputs[1.min(inputs.len())..], *weight, *bias);
                input(0)?.layer_norm(*axes, scale, shift, *epsilon)
            }
            Self::Quantize { scales } => quant::as_integers(&input(0)?.quantize(&scales.parameters()?)?, tensors),
            Self::Dequantize { scales } => quant::as_eight_bits(input(0)?, scales)?.dequantize(),
            Self::EightBitMatmul { scales: (left, right), sums } => {
                let (a, b) = (quant::as_eight_bits(input(0)?, left)?, quant::as_eight_bits(input(1)?, right)?);
                if *sums { a.matmul_i32(&b) } else { a.matmul(&b) }
            }
            Self::EightBitConv { scales: (left, right), conv } => {
                let (x, weight) = (quant::as_eight_bits(input(0)?, left)?, quant::as_eight_bits(input(1)?, right)?);
                x.conv(&weight, conv)
            }
            Self::Recurrent { network } => {
                let initial =
                    inputs.get(2).map(|hidden| RecurrentState { hidden: hidden.clone(), cell: inputs.get(3).cloned() });
                Ok(input(0)?.recurrent(network, input(1)?, initial.as_ref())?.output)
            }
            Self::Sparse { rows, columns } => {
                let words = |n: usize| -> Result<Vec<u32>> {
                    Ok(input(n)?.to_vec::<i32>()?.into_iter().map(|word| word as u32).collect())
                };
                let matrix = Csr::new(*rows, *columns, words(0)?, words(1)?, input(2)?.to_vec()?)?;
                tensors.sparse(matrix)?.matmul(input(3)?)
            }
        }
    }
}
