//! A sparse matrix times a dense one or a vector; `multiply` has that of two sparse ones, `combine` sums and transposes,
//! and `list` what GPUs do for these.
//!
//! Work is divided as in Merrill and Garland's merge-based product (SC 2016): entries and ends of rows are one merged
//! list, which is cut into equal pieces wherever that falls. So a row with half of all entries is many pieces, and a
//! million empty rows are some. A piece writes the rows that end in it; what it has of the row after those is a carry,
//! and a second launch adds the carries. The pieces do not depend on the number of threads, nor do the results.

mod combine;
mod cpu;
mod gather;
mod list;
mod multiply;

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, Buffer, BufferSlice, KernelSpec, Spread};

use super::{BLOCK, Family, create, folded, grid, wgsl};
use crate::{
    DType, Error, Result, SparseMatrix, Tensor, Tensors,
    check::Call,
    layout::{Layout, Shape},
    tune::Op,
};

/// Items of a piece on the CPU, with one column of the dense factor; fewer with more columns,
const PIECE: usize = 32 * 1024;
/// down to this,
const SMALLEST: usize = 1024;
/// and more where there would be more pieces than this: each has a carry as wide as the dense factor.
const MOST_PIECES: usize = 4096;
/// Items that a thread of a GPU does: at least so many,
const FEWEST: usize = 16;
/// as long as there are so many threads,
const ENOUGH: usize = 65_536;
/// and so many pieces,
const FEWEST_PIECES: usize = 1024;
/// and at most so many.
const LONGEST: usize = 8192;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    rows: u32,
    entries: u32,
    /// Rows of the dense factor,
    depth: u32,
    /// and its columns.
    n: u32,
    /// Items of a piece.
    items: u32,
    pieces: u32,
    /// Where the dense factor begins.
    offset: u32,
}

const PRODUCT: usize = 0;
const CARRY: usize = 1;
const COUNTS: usize = 2;
const FILL: usize = 3;
const SUM: usize = 4;
const TURN: usize = 5;
const ADD: usize = 6;
const LIST: usize = 7;
pub(crate) const KERNELS: usize = LIST + list::KERNELS;

/// What a product adds up: an entry times an element of the dense factor,
const TERM: &str = "values[entry] * x[base + indices[entry] * params.n]";
/// or the value of an entry of a list.
const ALONE: &str = "from_bits(indices[2u * params.entries + entry])";

/// Binds the three arrays of a sparse matrix, to be read.
fn matrix(spec: KernelSpec, [pointers, indices, values]: [&str; 3]) -> KernelSpec {
    spec.binding::<u32>(pointers, Access::Read)
        .binding::<u32>(indices, Access::Read)
        .binding::<f32>(values, Access::Read)
}

/// The factors, or summands, of an operation on two of them.
fn both(name: &str) -> KernelSpec {
    matrix(
        matrix(KernelSpec::new(name), ["a_pointers", "a_indices", "a_values"]),
        ["b_pointers", "b_indices", "b_values"],
    )
}

pub(crate) fn spec(number: usize) -> KernelSpec {
    match number {
        PRODUCT => product("sparse_product").cpu(cpu::product()).wgsl(wgsl(include_str!("product.wgsl"), &[])),
        SUM => product("sparse_sum").wgsl(wgsl(include_str!("product.wgsl"), &[(TERM, ALONE)])),
        COUNTS => multiply::counts(),
        FILL => multiply::fill(),
        TURN => combine::turn(),
        ADD => combine::add(),
        LIST.. => list::spec(number - LIST),
        _ => KernelSpec::new("sparse_carry")
            .params::<Params>()
            .block(BLOCK)
            .binding::<u32>("starts", Access::Read)
            .binding::<f32>("carries", Access::Read)
            .binding::<f32>("out", Access::ReadWrite)
            .cpu(cpu::carry())
            .wgsl(wgsl(include_str!("carry.wgsl"), &[])),
    }
}

fn product(name: &'static str) -> KernelSpec {
    matrix(KernelSpec::new(name), ["pointers", "indices", "values"])
        .params::<Params>()
        .block(BLOCK)
        .binding::<f32>("x", Access::Read)
        .binding::<u32>("starts", Access::Overwrite)
        .binding::<f32>("carries", Access::Overwrite)
        .binding::<f32>("out", Access::Overwrite)
}

/// Adds up the values of a list that belong together: `runs` says where those of each of `rows` begin, and ends with `n`.
fn sum_runs(tensors: &Tensors, runs: &Buffer, rows: usize, list: &Buffer, n: usize, out: &Buffer) -> Result<()> {
    let items = items(rows + n, 1, true);
    let pieces = (rows + n).div_ceil(items);
    let (rows, entries, items, pieces_word) = (rows as u32, n as u32, items as u32, pieces as u32);
    let params = Params { rows, entries, depth: 1, n: 1, items, pieces: pieces_word, offset: 0 };
    let device = tensors.device();
    let (starts, carries) = (device.allocate(4 * (pieces + 1))?, device.allocate(4 * pieces)?);
    // Only the list is read.
    let launch = tensors.kernel(Family::Sparse, SUM)?.launch().bind(runs).bind(list).bind(list).bind(list);
    tensors.enqueue(launch.bind(&starts).bind(&carries).bind(out).params(&params).grid(grid(pieces)))?;
    if pieces > 1 {
        let launch = tensors.kernel(Family::Sparse, CARRY)?.launch().bind(&starts).bind(&carries).bind(out);
        tensors.enqueue(launch.params(&params).grid(folded(1)))?;
    }
    Ok(())
}

/// A matrix's arrays on the device.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) pointers: BufferSlice,
    pub(crate) indices: BufferSlice,
    pub(crate) values: BufferSlice,
}

/// Items of a piece: a number that depends on the work, not on who does it.
fn items(total: usize, n: usize, bounded: bool) -> usize {
    if bounded {
        total.div_ceil((ENOUGH / n).max(FEWEST_PIECES)).clamp(FEWEST, LONGEST)
    } else {
        (PIECE / n).max(SMALLEST).max(total.div_ceil(MOST_PIECES))
    }
}

impl SparseMatrix {
    /// The product with a vector.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, sparse::Csr};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let matrix = tensors.sparse(Csr::new(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![1.0, 2.0, 3.0])?)?;
    /// let y = matrix.matvec(&tensors.from_slice(&[1.0f32, 10.0, 100.0], &[3])?)?;
    /// assert_eq!(y.to_vec::<f32>()?, [201.0, 30.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matvec(&self, x: &Tensor) -> Result<Tensor> {
        let fits = x.rank() == 1 && x.shape()[0] == self.shape()[1];
        self.product("matvec", x, fits, 1, &[self.shape()[0]])
    }

    /// The product with a dense matrix, or with a vector as [`Self::matvec`].
    ///
    /// Only entries that are stored are multiplied: what is not stored times infinity is zero.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, sparse::Csr};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let matrix = tensors.sparse(Csr::new(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![1.0, 2.0, 3.0])?)?;
    /// let x = tensors.arange(0.0, 1.0, 6)?.reshape(&[3, 2])?;
    /// assert_eq!(matrix.matmul(&x)?.to_vec::<f32>()?, [8.0, 11.0, 6.0, 9.0]);
    /// assert!(matrix.matmul(&x.t()?).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matmul(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() == 1 {
            return self.matvec(x);
        }
        let fits = x.rank() == 2 && x.shape()[0] == self.shape()[1];
        let n = x.shape().last().map_or(1, |&n| n);
        self.product("matmul", x, fits, n, &[self.shape()[0], n])
    }

    fn product(&self, op: &'static str, x: &Tensor, fits: bool, n: usize, shape: &[usize]) -> Result<Tensor> {
        let tensors = self.tensors();
        if x.dtype() != DType::F32 {
            return Err(Error::DType { op, given: x.dtype(), takes: "f32" });
        }
        if !tensors.is(x.tensors()) {
            return Err(Error::Strangers { op });
        }
        let [rows, depth] = self.shape();
        if !fits {
            let why = "do not multiply: the right one has to have as many rows as the left one columns";
            return Err(Error::Shapes { op, left: self.shape().into(), right: x.shape().into(), why });
        }
        let shape = Shape::new(op, shape)?;
        let x = x.contiguous()?;
        let (Some(parts), Some(from)) = (self.parts(), x.buffer()) else {
            return create::full(tensors, shape, DType::F32, 0);
        };
        let out = tensors.output(DType::F32, shape)?;
        let Some(target) = out.buffer() else { return Ok(out) };
        let total = rows + self.nnz();
        let way = tensors.way(Op::Spmv, 0, &[rows, self.nnz()]);
        let usual = items(total, n, tensors.is_bounded());
        // The CPU has one more way, which is the first.
        let (items, spread) = match (way, tensors.is_bounded()) {
            (1, false) => (usual, Spread::One),
            (1, true) | (2, false) => ((usual / 4).max(FEWEST), Spread::Usual),
            (2, true) | (3, false) => {
                (if tensors.is_bounded() { (usual * 4).min(LONGEST) } else { usual * 4 }, Spread::Usual)
            }
            _ => (usual, Spread::Usual),
        };
        let pieces = total.div_ceil(items);
        let params = Params {
            rows: rows as u32,
            entries: self.nnz() as u32,
            depth: depth as u32,
            n: n as u32,
            items: items as u32,
            pieces: pieces as u32,
            offset: x.layout().offset as u32,
        };
        let starts = tensors.device().allocate(4 * (pieces + 1))?;
        let carries = tensors.device().allocate(4 * pieces * n)?;
        let launch = tensors.kernel(Family::Sparse, PRODUCT)?.launch();
        let launch =
            launch.bind(parts.pointers.clone()).bind(parts.indices.clone()).bind(parts.values.clone()).bind(from);
        let launch = launch.bind(&starts).bind(&carries).bind(target);
        tensors.enqueue(launch.params(&params).grid(grid(pieces * n)).spread(spread))?;
        // A single piece ends with the last row, and carries nothing.
        if pieces > 1 {
            let launch = tensors.kernel(Family::Sparse, CARRY)?.launch().bind(&starts).bind(&carries).bind(target);
            tensors.enqueue(launch.params(&params).grid(folded(n)))?;
        }
        if tensors.check().is_some() {
            let part = |slice: &BufferSlice, n: usize, dtype: DType| {
                let layout =
                    Layout { offset: slice.range().start / 4, ..Layout::contiguous([n].into_iter().collect()) };
                Tensor::new(tensors.clone(), Some(slice.buffer().clone()), layout, dtype)
            };
            let (pointers, indices) =
                (part(&parts.pointers, rows + 1, DType::I32), part(&parts.indices, self.nnz(), DType::I32));
            let values = part(&parts.values, self.nnz(), DType::F32);
            tensors.watch(|| Call::Sparse { rows, columns: depth }, &[&pointers, &indices, &values, &x], &out);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_that_sums_lists_is_another_one_than_the_product() {
        let text = |number: usize| spec(number).wgsl_code().unwrap().to_owned();
        assert!(text(PRODUCT).contains(TERM) && !text(SUM).contains(TERM) && text(SUM).contains(ALONE));
    }

    #[test]
    fn pieces_are_as_many_as_devices_can_do_and_carries_stay_small() {
        for total in [1, 1000, 11_000_000, u32::MAX as usize] {
            for n in [1, 16, 1000, 1 << 20] {
                let pieces = total.div_ceil(items(total, n, false));
                assert!(pieces <= MOST_PIECES, "{total} items, {n} columns: {pieces} pieces");
                let (longest, pieces) = (items(total, n, true), total.div_ceil(items(total, n, true)));
                // Turns of a thread's loops: of the product, and of a thread that adds carries.
                assert!(longest <= LONGEST && pieces.div_ceil(BLOCK as usize) < 16_384, "{total} items, {n} columns");
            }
        }
    }
}
