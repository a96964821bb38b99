//! Lists of entries on a GPU, which are sorted there and become matrices: products of two sparse matrices by expansion,
//! sorting and compression (Bell, Dalton and Olson, 2012), transposes, sums, and entries in any order.
//!
//! A list is one buffer: all rows, all columns, all values. It is sorted by digits of four bits from the least significant
//! one, which is stable: each thread counts the digits of a run, the counts are summed up, and the runs are scattered.
//! Entries of one place lie behind one another then, and are summed by the kernel that multiplies matrices with vectors,
//! so that a place with very many is many equal pieces. Nothing here depends on the order in which threads run.
//!
//! - A sum of counts is one launch per 1024, again for those sums, and back.
//! - A sort is a count, its sums, and a scattering for every digit that rows and columns have.

mod product;

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use millrace_core::{Access, Buffer, KernelSpec};

pub(super) use product::multiply;

use super::{Family, Parts, folded, grid, wgsl};
use crate::{
    Error, Result, SparseMatrix, Tensors,
    ops::BLOCK,
    sparse::{Coo, count},
    tensors::Words,
};

/// Counts that a group sums up; `params.wgsl` has these too.
const TILE: usize = 1024;
/// Entries whose digits a thread counts.
const RUN: usize = 32;
/// Bits of a digit.
const DIGIT: u32 = 4;
/// Bytes of a list that some device might not be able to bind: every one can this much.
const BINDABLE: usize = 64 << 20;

#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Params {
    /// Entries of the list.
    n: u32,
    rows: u32,
    /// Entries of a matrix.
    entries: u32,
    /// Where keys begin, and from which bit on they count.
    key: u32,
    shift: u32,
    threads: u32,
    /// The first of the products that are made.
    first: u32,
}

/// The kernels, in the order of [`TABLE`].
#[derive(Debug, Clone, Copy)]
enum Step {
    Scan,
    Offset,
    Lengths,
    Expand,
    Turn,
    Merge,
    Digits,
    Scatter,
    Heads,
    Compact,
    Pointers,
    PointersOnce,
    Take,
    Add,
}

use Access::{Overwrite, Read, ReadWrite};

/// A kernel's name, its text, what that needs, and its bindings.
type Entry = (&'static str, &'static str, &'static str, &'static [(&'static str, Access)]);

const ROW_OF: &str = include_str!("row_of.wgsl");
const IS_HEAD: &str = include_str!("is_head.wgsl");

const TABLE: [Entry; 14] = [
    ("scan", include_str!("scan.wgsl"), "", &[("data", ReadWrite), ("sums", Overwrite)]),
    ("offset", include_str!("offset.wgsl"), "", &[("sums", Read), ("data", ReadWrite)]),
    ("lengths", include_str!("lengths.wgsl"), "", &[("a_indices", Read), ("b_pointers", Read), ("lengths", Overwrite)]),
    (
        "expand",
        include_str!("expand.wgsl"),
        ROW_OF,
        &[
            ("pointers", Read),
            ("a_indices", Read),
            ("a_values", Read),
            ("b_pointers", Read),
            ("b_indices", Read),
            ("b_values", Read),
            ("starts", Read),
            ("list", Overwrite),
        ],
    ),
    (
        "turn",
        include_str!("turn.wgsl"),
        ROW_OF,
        &[("pointers", Read), ("indices", Read), ("values", Read), ("list", Overwrite)],
    ),
    (
        "merge",
        include_str!("merge.wgsl"),
        ROW_OF,
        &[
            ("pointers", Read),
            ("indices", Read),
            ("values", Read),
            ("other_pointers", Read),
            ("other_indices", Read),
            ("list", ReadWrite),
        ],
    ),
    ("digits", include_str!("digits.wgsl"), "", &[("list", Read), ("counts", Overwrite)]),
    ("scatter", include_str!("scatter.wgsl"), "", &[("list", Read), ("places", Read), ("sorted", Overwrite)]),
    ("heads", include_str!("heads.wgsl"), IS_HEAD, &[("list", Read), ("heads", Overwrite)]),
    (
        "compact",
        include_str!("compact.wgsl"),
        IS_HEAD,
        &[("list", Read), ("places", Read), ("runs", Overwrite), ("indices", Overwrite)],
    ),
    ("pointers", include_str!("pointers.wgsl"), "", &[("list", Read), ("places", Read), ("pointers", Overwrite)]),
    ("pointers_once", include_str!("pointers.wgsl"), "", &[("list", Read), ("places", Read), ("pointers", Overwrite)]),
    ("take", include_str!("take.wgsl"), "", &[("list", Read), ("indices", Overwrite), ("values", Overwrite)]),
    ("add", include_str!("offset.wgsl"), "", &[("sums", Read), ("data", ReadWrite)]),
];

pub(super) const KERNELS: usize = TABLE.len();

pub(super) fn spec(number: usize) -> KernelSpec {
    let (name, text, needs, bindings) = TABLE[number];
    let (place, sum) =
        (if name == "pointers" { "places[low]" } else { "low" }, if name == "add" { "i" } else { "i / TILE" });
    let source = format!("{}{text}{needs}", include_str!("params.wgsl"));
    let spec = KernelSpec::new(format!("sparse_list_{name}")).params::<Params>().block(BLOCK);
    let spec = bindings.iter().fold(spec, |spec, &(name, access)| spec.binding::<u32>(name, access));
    spec.wgsl(wgsl(&source, &[("{PLACE}", place), ("{SUM}", sum)]))
}

/// Enqueues a step: what is bound, and how many threads.
macro_rules! step {
    ($tensors:expr, $step:ident, $params:expr, $grid:expr, $($bound:expr),+) => {{
        let launch = $tensors.kernel(Family::Sparse, crate::ops::sparse::LIST + Step::$step as usize)?.launch();
        $(let launch = launch.bind($bound.clone());)+
        $tensors.enqueue(launch.params($params).grid($grid))
    }};
}
use step;

/// Sums up counts: each becomes the sum of those before it. The sum of all is in the buffer that comes back.
fn sum_up(tensors: &Tensors, counts: &Buffer, n: usize) -> Result<Buffer> {
    let (tiles, params) = (n.div_ceil(TILE), Params { n: n as u32, ..Params::default() });
    let sums = tensors.device().allocate(4 * tiles)?;
    step!(tensors, Scan, &params, folded(tiles), counts, sums)?;
    if tiles == 1 {
        return Ok(sums);
    }
    let total = sum_up(tensors, &sums, tiles)?;
    step!(tensors, Offset, &params, grid(n), sums, counts)?;
    Ok(total)
}

/// Waits for a sum.
fn read(tensors: &Tensors, total: &Buffer) -> Result<usize> {
    let word = tensors.stream().run(total.read(..4));
    tensors.synchronize()?;
    Ok(word?.to::<u32>().first().copied().unwrap_or(0) as usize)
}

/// How many bits numbers below this have.
fn bits(limit: usize) -> u32 {
    usize::BITS - limit.saturating_sub(1).leading_zeros()
}

/// Entries on a device.
struct List<'a> {
    tensors: &'a Tensors,
    buffer: Buffer,
    n: usize,
}

impl<'a> List<'a> {
    /// Room for entries.
    fn new(op: &'static str, tensors: &'a Tensors, n: usize) -> Result<Self> {
        // What kernels count with has 32 bits.
        if n > u32::MAX as usize / 3 {
            return Err(Error::TooLarge { op, elements: n });
        }
        Ok(Self { tensors, buffer: tensors.device().allocate(12 * n)?, n })
    }

    /// Waits for what a large list was filled by, so that a device that cannot hold it says so now, and not whenever
    /// somebody waits next.
    fn fits(&self) -> Result<()> {
        if 12 * self.n > BINDABLE { self.tensors.synchronize() } else { Ok(()) }
    }

    fn params(&self) -> Params {
        Params { n: self.n as u32, ..Params::default() }
    }

    /// Sorts by keys that begin at `key` and are below `limit`. Entries with equal keys stay in their order.
    fn sort(&mut self, key: usize, limit: usize) -> Result<()> {
        for shift in (0..bits(limit)).step_by(DIGIT as usize) {
            let threads = self.n.div_ceil(RUN);
            let (key, threads_word) = (key as u32, threads as u32);
            let params = Params { key, shift, threads: threads_word, ..self.params() };
            let counts = self.tensors.device().allocate(4 * (threads << DIGIT))?;
            let sorted = self.tensors.device().allocate(12 * self.n)?;
            step!(self.tensors, Digits, &params, grid(threads), self.buffer, counts)?;
            self.fits()?;
            sum_up(self.tensors, &counts, threads << DIGIT)?;
            step!(self.tensors, Scatter, &params, grid(threads), self.buffer, counts, sorted)?;
            self.buffer = sorted;
        }
        Ok(())
    }

    /// A matrix of a list that is sorted by rows and columns. Entries of one place are summed.
    fn compress(&self, shape: [usize; 2]) -> Result<SparseMatrix> {
        let (tensors, n, device) = (self.tensors, self.n, self.tensors.device());
        let places = device.allocate(4 * n)?;
        step!(tensors, Heads, &self.params(), grid(n), self.buffer, places)?;
        let entries = read(tensors, &sum_up(tensors, &places, n)?)?;
        count("non-zeros", entries)?;
        let (runs, indices) = (device.allocate(4 * (entries + 1))?, device.allocate(4 * entries)?);
        let (pointers, values) = (device.allocate(4 * (shape[0] + 1))?, device.allocate(4 * entries)?);
        let params = Params { rows: shape[0] as u32, entries: entries as u32, ..self.params() };
        step!(tensors, Compact, &params, grid(n), self.buffer, places, runs, indices)?;
        step!(tensors, Pointers, &params, grid(shape[0] + 1), self.buffer, places, pointers)?;
        super::sum_runs(tensors, &runs, entries, &self.buffer, n, &values)?;
        let parts = Parts { pointers: pointers.into(), indices: indices.into(), values: values.into() };
        Ok(SparseMatrix::of(tensors, shape, entries, Some(parts)))
    }

    /// A matrix of a list that is sorted by rows and columns and has every place once.
    fn take(&self, shape: [usize; 2]) -> Result<SparseMatrix> {
        let (tensors, n, device) = (self.tensors, self.n, self.tensors.device());
        let (indices, values) = (device.allocate(4 * n)?, device.allocate(4 * n)?);
        let pointers = device.allocate(4 * (shape[0] + 1))?;
        let params = Params { rows: shape[0] as u32, entries: n as u32, ..self.params() };
        step!(tensors, Take, &params, grid(n), self.buffer, indices, values)?;
        step!(tensors, PointersOnce, &params, grid(shape[0] + 1), self.buffer, self.buffer, pointers)?;
        let parts = Parts { pointers: pointers.into(), indices: indices.into(), values: values.into() };
        Ok(SparseMatrix::of(tensors, shape, n, Some(parts)))
    }
}

/// A matrix with rows and columns exchanged.
pub(super) fn transpose(matrix: &SparseMatrix, parts: &Parts) -> Result<SparseMatrix> {
    let (tensors, [rows, columns]) = (matrix.tensors(), matrix.shape());
    let mut list = List::new("transpose", tensors, matrix.nnz())?;
    let params = Params { rows: rows as u32, ..list.params() };
    step!(tensors, Turn, &params, grid(list.n), parts.pointers, parts.indices, parts.values, list.buffer)?;
    // Within a column, rows rise already.
    list.sort(0, columns)?;
    list.take([columns, rows])
}

/// The sum of two matrices of one shape: both lists are merged by looking for each entry's place.
pub(super) fn add(a: &SparseMatrix, a_parts: &Parts, b: &SparseMatrix, b_parts: &Parts) -> Result<SparseMatrix> {
    let (tensors, shape) = (a.tensors(), a.shape());
    let list = List::new("add", tensors, a.nnz() + b.nnz())?;
    for (shift, (n, own), other) in [(0, (a.nnz(), a_parts), b_parts), (1, (b.nnz(), b_parts), a_parts)] {
        let params = Params { rows: shape[0] as u32, entries: n as u32, shift, ..list.params() };
        let (pointers, indices) = (&other.pointers, &other.indices);
        step!(tensors, Merge, &params, grid(n), own.pointers, own.indices, own.values, pointers, indices, list.buffer)?;
    }
    list.fits()?;
    list.compress(shape)
}

/// A matrix of entries in any order.
pub(super) fn assemble(tensors: &Tensors, entries: &Coo) -> Result<SparseMatrix> {
    let (shape, n) = (entries.shape(), entries.nnz());
    let mut list = List::new("assemble", tensors, n)?;
    let rows = Bytes::from_owner(Words(entries.row_indices().to_vec()));
    let columns = Bytes::from_owner(Words(entries.column_indices().to_vec()));
    let values = Bytes::from_owner(Words(entries.values().to_vec()));
    for (at, words) in [rows, columns, values].into_iter().enumerate() {
        tensors.enqueue(list.buffer.write(4 * n * at, words))?;
    }
    list.sort(n, shape[1])?;
    list.sort(0, shape[0])?;
    list.compress(shape)
}
