//! Products of matrices, of batches of them, and of vectors.

mod cpu;
mod dots;
mod packed;
mod small;

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, Dim3, KernelSpec, Spread};

use super::{BLOCK, Family, grid, together, wgsl};
use crate::{
    DType, Error, Result, Tensor,
    check::Call,
    layout::{Layout, MAX_RANK, Shape, Strides, WALKED, merge},
    tune::Op,
};
use dots::Dots;

/// Products that one thread of a GPU adds up in one launch.
const LONGEST: usize = 4096;
/// Matrices of one launch.
const BATCH: usize = 65_535;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    m: u32,
    n: u32,
    /// The part of the common axis that this launch adds up.
    k_start: u32,
    k_end: u32,
    a_offset: u32,
    b_offset: u32,
    a_row: i32,
    a_column: i32,
    b_row: i32,
    b_column: i32,
    /// Axes of the batch.
    rank: u32,
    /// The launch's first matrix.
    first: u32,
    shape: [u32; WALKED],
    a_strides: [i32; WALKED],
    b_strides: [i32; WALKED],
    /// Slabs for each thread of a CPU; zero leaves it to the kernel.
    slabs: u32,
}

/// Ways on a CPU.
const ONE_THREAD: usize = 1;
const A_SLAB: usize = 2;
const TWO_SLABS: usize = 3;

const FIRST: usize = 0;
const FURTHER: usize = 1;
const PACKED: usize = 2;
/// For a CPU: what is known to be brief runs on the caller's thread, and that is known of a kernel, not of a launch.
const BRIEF: usize = 3;
/// Few elements that are long, and the same if it is brief.
const DOTS: usize = 4;
const DOTS_BRIEF: usize = 5;
pub(crate) const KERNELS: usize = 6;
/// Multiplications of a product that is brief.
const FEW: usize = 1 << 22;

pub(crate) fn spec(number: usize) -> KernelSpec {
    let (name, access, source) = match number {
        FIRST => ("matmul", Access::Overwrite, Some(one_by_one("sums[i]"))),
        FURTHER => ("matmul_further", Access::ReadWrite, Some(one_by_one("out[at + i] + sums[i]"))),
        PACKED => ("matmul_packed", Access::Overwrite, Some(packed())),
        DOTS | DOTS_BRIEF => return dots::spec(number == DOTS_BRIEF),
        _ => ("matmul_brief", Access::Overwrite, None),
    };
    let spec = KernelSpec::new(name)
        .params::<Params>()
        .block(BLOCK)
        .binding::<f32>("a", Access::Read)
        .binding::<f32>("b", Access::Read)
        .binding::<f32>("out", access)
        .cpu(cpu::kernel(number == FURTHER));
    match source {
        Some(source) => spec.wgsl(source),
        None => spec,
    }
}

fn one_by_one(value: &str) -> String {
    wgsl(include_str!("matmul.wgsl"), &[("{VALUE}", value)])
}

/// Eight rows by two fours of columns, written out.
fn packed() -> String {
    let rows = |line: &dyn Fn(usize) -> String| (0..8).map(line).collect::<String>();
    let sums = rows(&|i| format!("var l{i} = vec4<f32>(); var r{i} = vec4<f32>();\n"));
    let loads = rows(&|i| format!("let a{i} = a[from_a + {i}u * steps + k];\n"));
    let step = |c: &str| rows(&|i| format!("l{i} += a{i}.{c} * left; r{i} += a{i}.{c} * right;\n"));
    let products = ["x", "y", "z", "w"].map(step).join("at += columns; left = b[at]; right = b[at + 1u];\n");
    let stores = rows(&|i| format!("out[to + {i}u * columns] = l{i}; out[to + {i}u * columns + 1u] = r{i};\n"));
    let names = [("{SUMS}", &*sums), ("{LOADS}", &loads), ("{PRODUCTS}", &products), ("{STORES}", &stores)];
    wgsl(include_str!("packed.wgsl"), &names)
}

impl Tensor {
    /// The product of matrices, as NumPy's `matmul`: the last two axes are the matrices', axes before them broadcast, and
    /// a tensor of one axis is a row on the left and a column on the right.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let a = tensors.arange(0.0, 1.0, 6)?.reshape(&[2, 3])?;
    /// assert_eq!(a.matmul(&a.t()?)?.to_vec::<f32>()?, [5.0, 14.0, 14.0, 50.0]);
    /// let stack = tensors.ones(&[4, 1, 3, 2])?;
    /// assert_eq!(a.matmul(&stack)?.shape(), [4, 1, 2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        let op = "matmul";
        for given in [self.dtype(), other.dtype()] {
            if given != DType::F32 {
                return Err(Error::DType { op, given, takes: "f32" });
            }
        }
        together(op, self, other)?;
        let mismatch = || Error::Shapes {
            op,
            left: self.shape().into(),
            right: other.shape().into(),
            why: "do not multiply: the left one's last axis has to be as long as the right one's last but one",
        };
        if self.rank() == 0 || other.rank() == 0 {
            return Err(mismatch());
        }
        // What is wrong with the shapes is said of those that were given; anything else is what it is.
        let of_given = |error| if matches!(error, Error::Shapes { .. }) { mismatch() } else { error };
        match (self.rank(), other.rank()) {
            (1, 1) => self.unsqueeze(0)?.matmul(&other.unsqueeze(1)?).map_err(of_given)?.reshape(&[]),
            (1, _) => self.unsqueeze(0)?.matmul(other).map_err(of_given)?.squeeze(-2),
            (_, 1) => self.matmul(&other.unsqueeze(1)?).map_err(of_given)?.squeeze(-1),
            _ if is_usable(self) && is_usable(other) => matmul(self, other, mismatch),
            _ => matmul(&usable(self)?, &usable(other)?, mismatch),
        }
    }
}

/// Whether its matrices lie in memory as matrices do: not repeated and not backwards.
fn is_usable(x: &Tensor) -> bool {
    let axes = x.shape().iter().zip(x.strides()).skip(x.rank() - 2);
    axes.filter(|(dim, _)| **dim > 1).all(|(_, &stride)| stride > 0)
}

fn usable(x: &Tensor) -> Result<Tensor> {
    if is_usable(x) { Ok(x.clone()) } else { super::copy::copy(x) }
}

/// The matrices' axes.
fn matrix(layout: &Layout) -> ([usize; 2], [isize; 2]) {
    let last = layout.shape.len() - 2;
    ([layout.shape[last], layout.shape[last + 1]], [layout.strides[last], layout.strides[last + 1]])
}

/// The others.
fn batch(layout: &Layout) -> Layout {
    layout.without(0b11 << (layout.shape.len() - 2))
}

/// The matrices of a product, and where those of its factors are.
struct Batch {
    shape: Shape,
    rank: usize,
    dims: [usize; MAX_RANK],
    strides: [Strides; 2],
}

impl Batch {
    fn new(op: &'static str, a: &Layout, b: &Layout) -> Result<Self> {
        if a.shape.len() == 2 && b.shape.len() == 2 {
            return Ok(Self { shape: Shape::SCALAR, rank: 1, dims: [1; MAX_RANK], strides: [[0; MAX_RANK]; 2] });
        }
        let (a, b) = (batch(a), batch(b));
        let shape = Shape::broadcast(op, &a.shape, &b.shape)?;
        let (a, b) = (a.expand(op, &shape)?, b.expand(op, &shape)?);
        let (rank, dims, strides) = merge(&shape, [&a.strides, &b.strides]);
        Ok(Self { shape, rank, dims, strides })
    }
}

/// How a CPU's ways spread a launch.
fn spread(way: usize) -> Spread {
    match way {
        ONE_THREAD => Spread::One,
        A_SLAB | TWO_SLABS => Spread::All,
        _ => Spread::Usual,
    }
}

fn matmul(a: &Tensor, b: &Tensor, mismatch: impl Fn() -> Error) -> Result<Tensor> {
    let (op, tensors) = ("matmul", a.tensors());
    let ([m, k], [a_row, a_column]) = matrix(a.layout());
    let ([depth, n], [b_row, b_column]) = matrix(b.layout());
    if k != depth {
        return Err(mismatch());
    }
    let Batch { shape: batch, rank, dims: batch_dims, strides: [a_strides, b_strides] } =
        Batch::new(op, a.layout(), b.layout())
            .map_err(|error| if matches!(error, Error::Shapes { .. }) { mismatch() } else { error })?;
    let mut dims = [0; MAX_RANK];
    dims[..batch.len()].copy_from_slice(&batch);
    dims[batch.len()..batch.len() + 2].copy_from_slice(&[m, n]);
    let shape = Shape::new(op, &dims[..batch.len() + 2])?;
    let (Some(left), Some(right)) = (a.buffer(), b.buffer()) else {
        return super::create::full(tensors, shape, DType::F32, 0);
    };
    let strides = |strides: Strides| std::array::from_fn(|axis| strides[axis] as i32);
    let mut params = Params {
        m: m as u32,
        n: n as u32,
        k_start: 0,
        k_end: 0,
        a_offset: a.layout().offset as u32,
        b_offset: b.layout().offset as u32,
        a_row: a_row as i32,
        a_column: a_column as i32,
        b_row: b_row as i32,
        b_column: b_column as i32,
        rank: rank as u32,
        first: 0,
        shape: std::array::from_fn(|axis| batch_dims[axis] as u32),
        a_strides: strides(a_strides),
        b_strides: strides(b_strides),
        slabs: 0,
    };
    let way = tensors.way(Op::Matmul, 0, &[batch.elements(), m, n, k]);
    if let (false, A_SLAB | TWO_SLABS) = (tensors.is_bounded(), way) {
        params.slabs = (way - ONE_THREAD) as u32;
    }
    // On a GPU the other way is to have every thread do elements as a whole.
    let shared = !tensors.is_bounded() || way == 0;
    if let Some(dots) = shared.then(|| Dots::of(&params, k, batch.elements(), tensors.is_bounded())).flatten() {
        let out = dots.multiply(left, right, tensors, shape, way)?;
        tensors.watch(|| Call::Matmul, &[a, b], &out);
        return Ok(out);
    }
    let out = tensors.output(DType::F32, shape)?;
    let Some(target) = out.buffer() else { return Ok(out) };
    let plain = [a_row as usize, a_column as usize, b_row as usize, b_column as usize] == [k, 1, n, 1];
    let aligned = [a.layout().offset, b.layout().offset, k].iter().all(|n| n % 4 == 0) && m % 8 == 0 && n % 8 == 0;
    if tensors.is_bounded() && plain && aligned && batch.elements() == 1 && k <= 4 * LONGEST && way == 0 {
        params.k_end = k as u32;
        let launch = tensors.kernel(Family::Matmul, PACKED)?.launch().bind(left).bind(right).bind(target);
        tensors.enqueue(launch.params(&params).grid(grid(m / 8 * (n / 8))))?;
        tensors.watch(|| Call::Matmul, &[a, b], &out);
        return Ok(out);
    }
    let (longest, most) = if tensors.is_bounded() { (LONGEST, BATCH) } else { (k, batch.elements()) };
    let flat = grid(m.div_ceil(4) * n.div_ceil(4));
    for start in (0..k).step_by(longest) {
        (params.k_start, params.k_end) = (start as u32, k.min(start + longest) as u32);
        for first in (0..batch.elements()).step_by(most) {
            params.first = first as u32;
            let matrices = (batch.elements() - first).min(most);
            // The first part of the common axis writes all of its matrices; only a part of a batch must not touch others.
            let kernel = match start == 0 && matrices == batch.elements() {
                true if !tensors.is_bounded() && m * n * k * matrices <= FEW => BRIEF,
                true => FIRST,
                false => FURTHER,
            };
            let launch = tensors.kernel(Family::Matmul, kernel)?.launch().bind(left).bind(right).bind(target);
            let geometry = Dim3 { z: matrices.min(BATCH) as u32, ..flat };
            tensors.enqueue(launch.params(&params).grid(geometry).spread(spread(way)))?;
        }
    }
    tensors.watch(|| Call::Matmul, &[a, b], &out);
    Ok(out)
}
