//! What is tuned: operations, the ways they have, and cases of them.

use std::fmt;

use millrace_core::DeviceKind;

use super::contest::Work;
use crate::{
    Algorithm, Conv, DType, Element, Error, Result, Tensor, Tensors,
    ops::{
        binary,
        conv::{self, AXES, SIZES},
        reduce, unary,
    },
    sparse::Csr,
};

/// An operation that can be done in several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Op {
    /// How an elementwise operation is launched.
    Launch,
    /// Reductions.
    Reduce,
    /// Products of matrices.
    Matmul,
    /// Fourier transforms of complex lines.
    Fft,
    /// Sparse matrices times vectors.
    Spmv,
    /// Convolutions.
    Conv,
}

/// The way that is taken unless something better is known.
const USUAL: &str = "usual";

impl Op {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Launch, Self::Reduce, Self::Matmul, Self::Fft, Self::Spmv, Self::Conv];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Reduce => "reduce",
            Self::Matmul => "matmul",
            Self::Fft => "fft",
            Self::Spmv => "spmv",
            Self::Conv => "conv",
        }
    }

    /// The ways it has on a kind of device; the first is the usual one.
    ///
    /// ```
    /// use millrace::{DeviceKind, tensor::tune::Op};
    /// assert_eq!(Op::Fft.ways(DeviceKind::Cpu), ["usual", "one thread", "whole lines", "four steps"]);
    /// assert_eq!(Op::Fft.ways(DeviceKind::Gpu), ["usual"]);
    /// ```
    pub fn ways(self, kind: DeviceKind) -> &'static [&'static str] {
        match (self, kind == DeviceKind::Cpu) {
            (Self::Launch | Self::Reduce, true) => &[USUAL, "one thread", "all threads"],
            (Self::Matmul, true) => &[USUAL, "one thread", "a slab per thread", "two slabs per thread"],
            (Self::Fft, true) => &[USUAL, "one thread", "whole lines", "four steps"],
            (Self::Spmv, true) => &[USUAL, "one thread", "short pieces", "long pieces"],
            (Self::Launch | Self::Matmul, false) => &[USUAL, "one by one"],
            (Self::Reduce, false) => &[USUAL, "many chunks", "few chunks"],
            (Self::Fft, false) => &[USUAL],
            // The algorithms, in their order.
            (Self::Conv, _) => &[USUAL, "direct", "im2col", "winograd", "fft"],
            (Self::Spmv, false) => &[USUAL, "short pieces", "long pieces"],
        }
    }

    /// Its variants by number: each is tuned by itself.
    fn kinds(self) -> Vec<String> {
        let name = |name: &str, dtype: DType| format!("{name}_{dtype}");
        match self {
            Self::Launch => {
                let unary = unary::TABLE.iter().map(|entry| name(entry.name, entry.from));
                unary.chain(binary::TABLE.iter().map(|entry| name(entry.name, entry.from))).collect()
            }
            Self::Reduce => reduce::VALUES.iter().map(|entry| name(entry.name, entry.dtype)).collect(),
            Self::Matmul | Self::Fft | Self::Spmv | Self::Conv => Vec::new(),
        }
    }

    /// How many sizes a case of it has.
    fn sizes(self) -> usize {
        match self {
            Self::Launch => 1,
            Self::Matmul => 4,
            Self::Conv => SIZES,
            Self::Reduce | Self::Fft | Self::Spmv => 2,
        }
    }
}

/// An operation on inputs of certain sizes. Sizes that are nearly the same are one case: they are rounded to powers of
/// two, except for lengths of Fourier transforms and for all sizes of convolutions but the batch, which differ each by each.
///
/// The sizes: of `launch` the elements; of `reduce` results and elements of each; of `matmul` matrices, rows, columns, and
/// the axis between; of `fft` the length and lines; of `spmv` rows and entries; of `conv` batch, groups, channels and filters
/// of a group, how many axes, and then for depth, height and width each: input, kernel, stride, padding, dilation.
///
/// ```
/// use millrace::tensor::tune::Case;
/// let case: Case = "matmul 1x250x260x256".parse()?;
/// assert_eq!(case.to_string(), "matmul 1x256x256x256");
/// assert!("matmul 12".parse::<Case>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub(super) op: Op,
    kind: usize,
    sizes: Vec<usize>,
}

/// Where in the sizes of a convolution those per axis begin: the input's,
const PER_AXIS: usize = 5;
/// the kernel's, strides, paddings and dilations.
const KERNEL: usize = PER_AXIS + AXES;
const STRIDE: usize = KERNEL + AXES;
const PADDING: usize = STRIDE + AXES;
const DILATION: usize = PADDING + AXES;

/// Layers of pictures that are worth knowing, and smaller ones: groups, channels and filters of each, the side of the
/// picture, the side of the kernel, and the stride.
const LAYERS: [&[[usize; 6]]; 2] = [
    &[
        [1, 64, 64, 28, 3, 1],
        [1, 3, 64, 224, 7, 2],
        [128, 1, 1, 56, 3, 1],
        [1, 256, 256, 28, 1, 1],
        [1, 16, 32, 64, 5, 1],
    ],
    &[[1, 8, 8, 16, 3, 1], [16, 1, 1, 16, 3, 1]],
];

/// The power of two that is nearest, by ratio.
fn nearest(n: usize) -> usize {
    let below = 1 << n.max(1).ilog2();
    if (n as f64) < below as f64 * std::f64::consts::SQRT_2 { below } else { 2 * below }
}

/// Sizes as a case has them.
fn rounded(op: Op, n: usize, size: usize) -> usize {
    match (op, n) {
        (Op::Fft, 0) | (Op::Conv, 1..) => size,
        _ => nearest(size),
    }
}

/// A number for a case, by which it is found.
pub(super) fn hash(op: Op, kind: usize, sizes: &[usize]) -> u64 {
    let mix = |hash: u64, x: usize| (hash.rotate_left(5) ^ x as u64).wrapping_mul(0x517c_c1b7_2722_0a95);
    let start = mix(mix(0, op as usize), kind);
    sizes.iter().enumerate().fold(start, |hash, (n, &size)| mix(hash, rounded(op, n, size)))
}

impl Case {
    pub(super) fn new(op: Op, kind: usize, sizes: &[usize]) -> Self {
        let sizes = sizes.iter().enumerate().map(|(n, &size)| rounded(op, n, size)).collect();
        Self { op, kind, sizes }
    }

    /// The operation.
    pub fn op(&self) -> Op {
        self.op
    }

    pub(super) fn hash(&self) -> u64 {
        hash(self.op, self.kind, &self.sizes)
    }

    /// Cases that are worth tuning beforehand; fewer and smaller ones if it has to be quick.
    pub fn usual(kind: DeviceKind, quick: bool) -> Vec<Self> {
        let large = match (kind, quick) {
            (_, true) => 1 << 14,
            (DeviceKind::Cpu, false) => 1 << 22,
            _ => 1 << 20,
        };
        let powers = |from: usize, step: usize| {
            std::iter::successors(Some(from), move |n| Some(n * step)).take_while(move |n| *n <= large)
        };
        let mut cases = Vec::new();
        let named = |op: Op, name: &str| op.kinds().iter().position(|kind| kind == name).unwrap_or_default();
        for name in ["relu_f32", "exp_f32", "tanh_f32", "add_f32", "mul_f32"] {
            cases.extend(powers(1 << 12, 4).map(|n| Self::new(Op::Launch, named(Op::Launch, name), &[n])));
        }
        for name in ["sum_f32", "max_f32"] {
            let kind = named(Op::Reduce, name);
            cases.extend(powers(1 << 12, 4).map(|n| Self::new(Op::Reduce, kind, &[1, n])));
            cases.extend(powers(1 << 14, 4).map(|n| Self::new(Op::Reduce, kind, &[n / 256, 256])));
        }
        let sides: &[usize] = match (kind, quick) {
            (_, true) => &[32, 64],
            (DeviceKind::Cpu, false) => &[16, 32, 64, 128, 256, 512, 1024],
            _ => &[16, 32, 64, 128, 256],
        };
        cases.extend(sides.iter().map(|&n| Self::new(Op::Matmul, 0, &[1, n, n, n])));
        cases.extend(sides.iter().map(|&n| Self::new(Op::Matmul, 0, &[1, 1, n, n])));
        cases.extend(powers(1 << 10, 4).map(|n| Self::new(Op::Fft, 0, &[n, 1])));
        cases.extend(powers(1 << 10, 4).map(|n| Self::new(Op::Fft, 0, &[n / 16, 16])));
        cases.extend(powers(1 << 10, 4).map(|n| Self::new(Op::Spmv, 0, &[n / 4, 10 * n / 4])));
        let batches: &[usize] = if quick || kind != DeviceKind::Cpu { &[1] } else { &[1, 8] };
        for (batch, &layer) in
            batches.iter().flat_map(|&batch| LAYERS[usize::from(quick)].iter().map(move |layer| (batch, layer)))
        {
            let [groups, channels, filters, side, window, stride] = layer;
            let padding = window / 2;
            let [first, second] = [[batch, groups, channels, filters], [2, 1, side, side]];
            let [third, fourth, last] = [[1, window, window, 1], [stride, stride, 0, padding], [padding, 1, 1, 1]];
            cases.push(Self::new(Op::Conv, 0, [first, second, third, fourth, last].as_flattened()));
        }
        cases.retain(|case| case.op.ways(kind).len() > 1);
        cases
    }

    /// Whether a way can do it.
    pub(super) fn is_done_by(&self, way: usize) -> bool {
        match (self.conv(), way.checked_sub(1)) {
            (Some((from, to, conv)), Some(n)) => conv::candidates(&from, &to, &conv).contains(&Algorithm::ALL[n]),
            _ => true,
        }
    }

    /// The shapes and settings of a convolution.
    fn conv(&self) -> Option<(Vec<usize>, Vec<usize>, Conv)> {
        let &[batch, groups, channels, filters, axes, ..] = &self.sizes[..] else { return None };
        if self.op != Op::Conv || !(1..=AXES).contains(&axes) {
            return None;
        }
        let of = |from: usize| &self.sizes[from..][AXES - axes..AXES];
        let shape = |first: [usize; 2], from: usize| [&first, of(from)].concat();
        let conv = Conv::new().stride(of(STRIDE)).padding(of(PADDING)).dilation(of(DILATION)).groups(groups);
        let (all, outputs) = (groups.checked_mul(channels)?, groups.checked_mul(filters)?);
        Some((shape([batch, all], PER_AXIS), shape([outputs, channels], KERNEL), conv))
    }

    fn impossible(&self) -> Error {
        Error::Device(millrace_core::Error::Invalid(format!("there is no {self}").into()))
    }

    /// Does the work once with real data.
    pub(super) fn work(&self, tensors: &Tensors) -> Result<Work> {
        let sizes = &self.sizes;
        Ok(match self.op {
            Op::Launch if self.kind < unary::TABLE.len() => {
                let kind = self.kind;
                let x = operand(tensors, unary::TABLE[kind].from, sizes[0], 1)?;
                Box::new(move || unary::run(&x, kind))
            }
            Op::Launch => {
                let kind = self.kind - unary::TABLE.len();
                let dtype = binary::TABLE[kind].from;
                let (x, y) = (operand(tensors, dtype, sizes[0], 1)?, operand(tensors, dtype, sizes[0], 2)?);
                Box::new(move || binary::run(&x, &y, kind))
            }
            Op::Reduce => {
                let (kind, n) = (self.kind, sizes[0] * sizes[1]);
                let x = operand(tensors, reduce::VALUES[kind].dtype, n, 1)?.reshape(&[sizes[0], sizes[1]])?;
                Box::new(move || reduce::run(&x, kind))
            }
            Op::Matmul => {
                let [batch, m, n, k] = [sizes[0], sizes[1], sizes[2], sizes[3]];
                let (a, b) = (tensors.rand(&[batch, m, k], 1)?, tensors.rand(&[batch, k, n], 2)?);
                // Rank two takes a way of its own.
                let flat = |x: Tensor| if batch == 1 { x.squeeze(0) } else { Ok(x) };
                let (a, b) = (flat(a)?, flat(b)?);
                Box::new(move || a.matmul(&b))
            }
            Op::Fft => {
                let x = tensors.rand(&[sizes[1], sizes[0], 2], 1)?.view_as_complex()?;
                Box::new(move || x.fft(-1, Default::default()))
            }
            Op::Conv => {
                let (from, to, conv) = self.conv().ok_or_else(|| self.impossible())?;
                let x = tensors.rand(&from, 1)?.sub(0.5)?;
                let weight = tensors.rand(&to, 2)?.sub(0.5)?;
                Box::new(move || x.conv(&weight, None, &conv))
            }
            Op::Spmv => {
                let (rows, entries) = (sizes[0], sizes[1]);
                let matrix = tensors.sparse(scattered(rows, entries)?)?;
                let x = tensors.rand(&[rows], 1)?;
                Box::new(move || matrix.matvec(&x))
            }
        })
    }
}

/// Numbers of an element type that no operation makes infinite.
fn operand(tensors: &Tensors, dtype: DType, n: usize, seed: u64) -> Result<Tensor> {
    let x = tensors.rand(&[n], seed)?;
    match dtype {
        f32::DTYPE => x.add(0.5),
        i32::DTYPE => x.mul(100.0)?.add(1.0)?.cast(DType::I32),
        bool::DTYPE => x.gt(0.5),
        DType::Complex => tensors.rand(&[n, 2], seed)?.view_as_complex(),
    }
}

/// A square matrix with so many entries, the same number in every row.
fn scattered(rows: usize, entries: usize) -> Result<Csr> {
    let per_row = (entries / rows).clamp(1, rows);
    let pointers = (0..=rows).map(|row| (row * per_row) as u32).collect();
    // Columns of a row rise in steps that differ from row to row.
    let step = rows / per_row;
    let column = |row: usize, n: usize| (n * step + (row * 7919) % step) as u32;
    let indices = (0..rows).flat_map(|row| (0..per_row).map(move |n| column(row, n))).collect();
    let values = (0..rows * per_row).map(|n| (n % 17) as f32 / 16.0 - 0.5).collect();
    Csr::new(rows, rows, pointers, indices, values)
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        if let Some(kind) = self.op.kinds().get(self.kind) {
            write!(f, " {kind}")?;
        }
        let sizes: Vec<_> = self.sizes.iter().map(usize::to_string).collect();
        write!(f, " {}", sizes.join("x"))
    }
}

/// What is wrong with a case's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text} is no case of tuning, as \"matmul 1x256x256x256\" or \"launch relu_f32 65536\" are")]
pub struct NoCase {
    text: String,
}

impl std::str::FromStr for Case {
    type Err = NoCase;

    fn from_str(text: &str) -> Result<Self, NoCase> {
        let parse = || {
            let mut words = text.split_whitespace();
            let name = words.next()?;
            let op = Op::ALL.into_iter().find(|op| op.name() == name)?;
            let kinds = op.kinds();
            let kind = match kinds.is_empty() {
                true => 0,
                false => {
                    let wanted = words.next()?;
                    kinds.iter().position(|kind| kind == wanted)?
                }
            };
            let sizes = words.next()?.split('x').map(|size| size.parse().ok().filter(|n| *n < 1 << 31));
            let sizes: Vec<usize> = sizes.collect::<Option<_>>()?;
            // Only paddings can be none.
            let padding = PADDING..PADDING + AXES;
            let some = sizes.iter().enumerate().all(|(n, &size)| size > 0 || (op == Op::Conv && padding.contains(&n)));
            let whole = words.next().is_none() && sizes.len() == op.sizes() && some;
            whole.then(|| Self::new(op, kind, &sizes))
        };
        parse().ok_or_else(|| NoCase { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_as_they_are_written() {
        for kind in [DeviceKind::Cpu, DeviceKind::Gpu] {
            let cases = Case::usual(kind, false);
            assert!(cases.len() > 20);
            for case in cases {
                let read: Case = case.to_string().parse().unwrap();
                assert_eq!((&read, read.hash()), (&case, case.hash()));
            }
        }
    }

    #[test]
    fn nearly_the_same_sizes_are_one_case_and_others_are_not() {
        let of = |sizes: &[usize]| hash(Op::Matmul, 0, sizes);
        assert_eq!(of(&[1, 250, 300, 256]), of(&[1, 256, 256, 256]));
        assert_ne!(of(&[1, 256, 256, 256]), of(&[1, 256, 512, 256]));
        assert_ne!(hash(Op::Fft, 0, &[1000, 1]), hash(Op::Fft, 0, &[1024, 1]), "lengths differ");
        assert_ne!(hash(Op::Launch, 0, &[64]), hash(Op::Launch, 1, &[64]));
    }
}
