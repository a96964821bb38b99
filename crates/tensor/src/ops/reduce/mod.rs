//! Reductions over any axes.
//!
//! On the CPU one launch does all of it. On other devices a thread folds a few hundred elements at most, and launches
//! follow one another, each with fewer elements, until one per output is left.

mod arg;
pub(crate) mod cpu;

pub(crate) use arg::arg_by_name;

use bytemuck::{Pod, Zeroable};
use millrace_core::{CpuKernel, KernelSpec};

use super::{BLOCK, Family, create, grid, kernel, spread, wgsl};
use crate::{
    DType, Error, Result, Tensor,
    check::Call,
    layout::{Layout, MAX_RANK, Shape, merge},
    tune::Op,
};

/// Elements that one thread of a GPU folds alone.
const CHUNK: usize = 256;
/// The most that a thread of a GPU folds in one launch.
const LONGEST: usize = 8192;
/// What one thread still does in one go if there are enough outputs to keep a GPU busy.
const WHOLE: usize = 1024;
/// Ways on a GPU: more threads with less to do each,
const MANY_CHUNKS: usize = 1;
/// and fewer threads with more.
const FEW_CHUNKS: usize = 2;
/// What reductions take.
const NUMBERS: &str = "f32, i32 or bool";

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    outputs: u32,
    /// Elements that go into one output.
    length: u32,
    /// Results per output; those of one output lie behind one another.
    chunks: u32,
    /// Axes that are kept come first,
    kept: u32,
    /// then those that are folded.
    folded: u32,
    offset: u32,
    /// What the result is divided by, as bits of an `f32`.
    divisor: u32,
    /// Results per output of the launch before.
    partials: u32,
    shape: [u32; MAX_RANK],
    strides: [i32; MAX_RANK],
}

impl Params {
    /// Folds the axes of the given bits.
    fn new(layout: &Layout, axes: u32) -> Self {
        let mut params = Self::zeroed();
        let (kept, folded) = (layout.without(axes), layout.without(!axes));
        (params.outputs, params.length) = (kept.shape.elements() as u32, folded.shape.elements() as u32);
        (params.offset, params.divisor) = (layout.offset as u32, 1f32.to_bits());
        let mut rank = 0;
        for (part, count) in [(kept, &mut params.kept), (folded, &mut params.folded)] {
            let (axes, dims, [strides]) = merge(&part.shape, [&part.strides]);
            // A single element needs no axis, except that there has to be one of each kind.
            let axes = if part.shape.elements() == 1 { 1 } else { axes };
            for axis in 0..axes {
                params.shape[rank.min(MAX_RANK - 1)] = dims[axis] as u32;
                params.strides[rank.min(MAX_RANK - 1)] = strides[axis] as i32;
                rank += 1;
            }
            *count = axes as u32;
        }
        params
    }

    /// Folds what a launch with these parameters has left.
    fn next(&self) -> Self {
        let (outputs, length) = (self.outputs, self.chunks);
        let mut next = Self { outputs, length, kept: 1, folded: 1, offset: 0, ..Self::zeroed() };
        (next.shape[0], next.strides[0]) = (outputs, length as i32);
        (next.shape[1], next.strides[1]) = (length, 1);
        next.divisor = 1f32.to_bits();
        next
    }

    /// Whether vectors of four elements can be read, and are all there is.
    fn is_packed(&self) -> bool {
        let kept = self.kept as usize;
        let rows = self.strides[..kept].iter().all(|stride| stride % 4 == 0) || self.outputs == 1;
        let whole = self.offset.is_multiple_of(4) && self.length.is_multiple_of(4);
        self.folded == 1 && self.strides[kept] == 1 && rows && whole
    }

    /// How many results per output the next launch leaves of `length` elements, or vectors of them.
    fn split(&mut self, length: usize, bounded: bool, way: usize) {
        let whole = length <= CHUNK || (length <= WHOLE && self.outputs as usize >= CHUNK);
        // As many threads as each has elements, so that the next launch is no longer than this one.
        let equal = match way {
            MANY_CHUNKS => 4 * length.isqrt(),
            FEW_CHUNKS => length.isqrt() / 4,
            _ => length.isqrt(),
        };
        let chunks = equal.max(length.div_ceil(LONGEST));
        // Whole groups, or less than one.
        let chunks = if chunks > BLOCK as usize { chunks.next_multiple_of(BLOCK as usize) } else { chunks };
        self.chunks = if !bounded || whole { 1 } else { chunks as u32 };
    }
}

/// A reduction to a value of the same type: how WGSL takes `v` into `acc`, and what becomes of `acc` in the end.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    step: &'static str,
    finish: &'static str,
    cpu: fn() -> CpuKernel,
}

#[derive(Debug, Clone, Copy)]
enum Value {
    Sum,
    SumI32,
    Prod,
    ProdI32,
    Max,
    MaxI32,
    Min,
    MinI32,
}

const DIVIDED: &str = "acc / bitcast<f32>(params.divisor)";
pub(crate) const VALUES: [Entry; 8] = [
    Entry { name: "sum", dtype: DType::F32, step: "acc + v", finish: DIVIDED, cpu: cpu::kernel::<cpu::Sum> },
    Entry { name: "sum", dtype: DType::I32, step: "acc + v", finish: "acc", cpu: cpu::kernel::<cpu::SumI32> },
    Entry { name: "prod", dtype: DType::F32, step: "acc * v", finish: "acc", cpu: cpu::kernel::<cpu::Prod> },
    Entry { name: "prod", dtype: DType::I32, step: "acc * v", finish: "acc", cpu: cpu::kernel::<cpu::ProdI32> },
    Entry { name: "max", dtype: DType::F32, step: "max_(acc, v)", finish: "acc", cpu: cpu::kernel::<cpu::Max> },
    Entry { name: "max", dtype: DType::I32, step: "max(acc, v)", finish: "acc", cpu: cpu::kernel::<cpu::MaxI32> },
    Entry { name: "min", dtype: DType::F32, step: "min_(acc, v)", finish: "acc", cpu: cpu::kernel::<cpu::Min> },
    Entry { name: "min", dtype: DType::I32, step: "min(acc, v)", finish: "acc", cpu: cpu::kernel::<cpu::MinI32> },
];

/// Each value has a kernel for any strides and one for vectors of four; then come those that look for places.
const PACKED: usize = VALUES.len();
const ARG: usize = 2 * VALUES.len();
pub(crate) const KERNELS: usize = ARG + arg::KERNELS;

pub(crate) fn spec(number: usize) -> KernelSpec {
    let head = format!("{}{}", include_str!("params.wgsl"), include_str!("../math.wgsl"));
    if number >= ARG {
        return arg::spec(number - ARG, &head);
    }
    let (entry, packed) = (&VALUES[number % PACKED], number >= PACKED);
    let eight = "{ at += step; let v = x[at]; acc = {STEP}; }\n".repeat(8);
    let types = [("{EIGHT}", eight.as_str()), ("{TYPE}", entry.dtype.wgsl())];
    let names = [types[0], types[1], ("{STEP}", entry.step), ("{FINISH}", entry.finish)];
    let template = if packed { include_str!("packed.wgsl") } else { include_str!("reduce.wgsl") };
    let source = wgsl(&format!("{head}{template}"), &names);
    // Named apart from the binary operations.
    let name = format!("reduce_{}_{}{}", entry.name, entry.dtype, if packed { "_packed" } else { "" });
    kernel::<Params>(name, &["x"]).cpu((entry.cpu)()).wgsl(source)
}

/// The shape that is left, with axes of length one in the place of those that were folded if they are kept.
fn left(shape: &Shape, axes: u32, keepdims: bool) -> Shape {
    let dims = shape.iter().enumerate();
    if keepdims {
        dims.map(|(axis, &dim)| if axes & 1 << axis != 0 { 1 } else { dim }).collect()
    } else {
        dims.filter(|(axis, _)| axes & 1 << axis == 0).map(|(_, &dim)| dim).collect()
    }
}

/// Folds the axes of the given bits to one value per output. `identity` is the value of no elements, if there is one.
pub(crate) fn reduce(
    x: &Tensor,
    entry: usize,
    axes: u32,
    keepdims: bool,
    identity: Option<u32>,
    divisor: Option<f32>,
) -> Result<Tensor> {
    let (tensors, shape) = (x.tensors(), left(&x.shaped(), axes, keepdims));
    let Some(mut source) = x.buffer().cloned() else {
        let Entry { name: op, dtype, .. } = VALUES[entry];
        return match identity {
            Some(bits) => create::full(tensors, shape, dtype, bits.into()),
            None if shape.elements() == 0 => tensors.output(dtype, shape),
            None => Err(Error::Empty { op, shape: x.shaped().into() }),
        };
    };
    let mut params = Params::new(x.layout(), axes);
    let way = tensors.way(Op::Reduce, entry, &[params.outputs as usize, params.length as usize]);
    loop {
        let packed = tensors.is_bounded() && params.is_packed();
        let (number, each) = if packed { (PACKED + entry, 4) } else { (entry, 1) };
        let kernel = tensors.kernel(Family::Reduce, number)?;
        params.split(params.length as usize / each, tensors.is_bounded(), way);
        let last = params.chunks == 1;
        if let (true, Some(divisor)) = (last, divisor) {
            params.divisor = divisor.to_bits();
        }
        let results = (params.outputs * params.chunks) as usize;
        let to = if last { shape } else { [results].into_iter().collect() };
        let out = tensors.output(x.dtype(), to)?;
        let Some(target) = out.buffer() else { return Ok(out) };
        let launch = kernel.launch().bind(&source).bind(target).params(&params).grid(grid(results));
        tensors.enqueue(launch.spread(spread(way)))?;
        if last {
            tensors.watch(|| Call::reduce(entry, axes, keepdims, divisor), &[x], &out);
            return Ok(out);
        }
        (source, params) = (target.clone(), params.next());
    }
}

/// The sum of numbers along an axis.
pub(crate) fn sum_along(x: &Tensor, axis: usize) -> Result<Tensor> {
    reduce(x, Value::Sum as usize, 1 << axis, false, None, None)
}

/// Folds the last axis by an entry, by its number.
pub(crate) fn run(x: &Tensor, entry: usize) -> Result<Tensor> {
    reduce(x, entry, 1 << (x.rank() - 1), false, None, None)
}

impl Tensor {
    fn folded(&self, op: &'static str, axes: &[isize]) -> Result<u32> {
        self.layout().shape.axes(op, axes)
    }

    fn all_axes(&self) -> u32 {
        (1 << self.rank()) - 1
    }

    fn sum_bits(&self, axes: u32, keepdims: bool) -> Result<Self> {
        match self.dtype() {
            DType::F32 => reduce(self, Value::Sum as usize, axes, keepdims, Some(0), None),
            DType::I32 => reduce(self, Value::SumI32 as usize, axes, keepdims, Some(0), None),
            DType::Bool => self.cast(DType::I32)?.sum_bits(axes, keepdims),
            given @ DType::Complex => Err(Error::DType { op: "sum", given, takes: NUMBERS }),
        }
    }

    fn mean_bits(&self, axes: u32, keepdims: bool) -> Result<Self> {
        if self.dtype() == DType::Complex {
            return Err(Error::DType { op: "mean", given: DType::Complex, takes: NUMBERS });
        }
        let x = self.cast(DType::F32)?;
        let n = left(&x.shaped(), !axes, false).elements();
        let nothing = Some(f32::NAN.to_bits());
        reduce(&x, Value::Sum as usize, axes, keepdims, nothing, Some(n as f32))
    }

    fn prod_bits(&self, axes: u32, keepdims: bool) -> Result<Self> {
        match self.dtype() {
            DType::F32 => reduce(self, Value::Prod as usize, axes, keepdims, Some(1f32.to_bits()), None),
            DType::I32 => reduce(self, Value::ProdI32 as usize, axes, keepdims, Some(1), None),
            DType::Bool => self.cast(DType::I32)?.prod_bits(axes, keepdims),
            given @ DType::Complex => Err(Error::DType { op: "prod", given, takes: NUMBERS }),
        }
    }

    fn max_bits(&self, axes: u32, keepdims: bool) -> Result<Self> {
        self.extreme(axes, keepdims, Value::Max, Value::MaxI32)
    }

    fn min_bits(&self, axes: u32, keepdims: bool) -> Result<Self> {
        self.extreme(axes, keepdims, Value::Min, Value::MinI32)
    }

    /// True is larger than false.
    fn extreme(&self, axes: u32, keepdims: bool, f32: Value, i32: Value) -> Result<Self> {
        match self.dtype() {
            DType::F32 => reduce(self, f32 as usize, axes, keepdims, None, None),
            DType::I32 => reduce(self, i32 as usize, axes, keepdims, None, None),
            DType::Bool => {
                let bits = self.clone().reinterpret(DType::I32);
                Ok(bits.extreme(axes, keepdims, f32, i32)?.reinterpret(DType::Bool))
            }
            given @ DType::Complex => Err(Error::DType { op: "max and min", given, takes: NUMBERS }),
        }
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])+ $name:ident, $keep:ident, $all:ident, $bits:ident;)+) => {
        impl Tensor {$(
            $(#[$doc])+
            pub fn $name(&self, axes: &[isize]) -> Result<Self> {
                self.$bits(self.folded(stringify!($name), axes)?, false)
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`], with axes of length one in the place of those that are gone.")]
            pub fn $keep(&self, axes: &[isize]) -> Result<Self> {
                self.$bits(self.folded(stringify!($name), axes)?, true)
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] over all axes.")]
            pub fn $all(&self) -> Result<Self> {
                self.$bits(self.all_axes(), false)
            }
        )+}
    };
}
methods! {
    /// The sum over the given axes; negative ones count from the end. Of `bool` it is how many are true, as `i32`.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.arange(0.0, 1.0, 6)?.reshape(&[2, 3])?;
    /// assert_eq!(x.sum(&[-1])?.to_vec::<f32>()?, [3.0, 12.0]);
    /// assert_eq!(x.sum_keepdims(&[0, 1])?.shape(), [1, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    sum, sum_keepdims, sum_all, sum_bits;
    /// The mean over the given axes, always `f32`; of no elements it is NaN.
    mean, mean_keepdims, mean_all, mean_bits;
    /// The product over the given axes. On the CPU `f32` are multiplied as `f64`, so that only the result has to be in the
    /// range of `f32`. On a GPU the products on the way there have to be, too, in an order that depends on the shape: they
    /// become zero or infinite where the result would not.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[1e30f32, 1e30, 1e-30, 1e-30], &[4])?;
    /// assert!((x.prod(&[0])?.item::<f32>()? - 1.0).abs() < 1e-6); // infinite or not a number on a GPU
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    prod, prod_keepdims, prod_all, prod_bits;
    /// The largest element over the given axes; NaN if there is one. Of no elements there is none, which is an error.
    max, max_keepdims, max_all, max_bits;
    /// The smallest element over the given axes; NaN if there is one. Of no elements there is none, which is an error.
    min, min_keepdims, min_all, min_bits;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_groups_or_less_than_one_and_none_is_empty() {
        for length in [257, 300, 4096, 4097, 1 << 20, 100_000_007] {
            for way in [0, MANY_CHUNKS, FEW_CHUNKS] {
                let mut params = Params { outputs: 1, ..Params::zeroed() };
                params.split(length, true, way);
                let (chunks, block) = (params.chunks as usize, BLOCK as usize);
                assert!(chunks <= block || chunks % block == 0, "{chunks} of {length}");
                assert!((1..=LONGEST).contains(&length.div_ceil(chunks)), "{chunks} of {length}");
            }
        }
    }
}
