//! A sparse matrix times a sparse matrix: on the CPU with Gustavson's algorithm, a row of the result at a time; `list` has
//! what GPUs do.
//!
//! Two launches, with the host between them, because nobody knows before how large the result is: the first counts the
//! entries of every row, the second fills them in. A row is collected in a hash table that is as large as the row can
//! become, so that memory follows the rows and not the columns. Rows are handed to threads in pieces with equally many
//! products.

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, CpuKernel, KernelSpec, Launched, Threads};

use super::{Family, Parts};
use crate::{
    Error, Result, SparseMatrix,
    cpu::{Target, worth_threads},
    sparse::count,
};

/// Nanoseconds per product on one thread, roughly.
const COST: f64 = 5.0;
/// Products of a piece, unless a row has more.
const PIECE: u64 = 16 * 1024;
/// A place of a table that is free. No column is this.
const FREE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    rows: u32,
    /// Columns of the result.
    columns: u32,
    /// Where values begin in the result's entries.
    values: u32,
}

pub(super) fn counts() -> KernelSpec {
    KernelSpec::new("sparse_multiply_counts")
        .params::<Params>()
        .binding::<u32>("a_pointers", Access::Read)
        .binding::<u32>("a_indices", Access::Read)
        .binding::<u32>("b_pointers", Access::Read)
        .binding::<u32>("b_indices", Access::Read)
        .binding::<u32>("pointers", Access::Overwrite)
        .cpu(CpuKernel::whole(count_rows))
}

pub(super) fn fill() -> KernelSpec {
    super::both("sparse_multiply")
        .params::<Params>()
        .binding::<u32>("pointers", Access::Read)
        .binding::<u32>("entries", Access::Overwrite)
        .cpu(CpuKernel::whole(fill_rows))
}

impl SparseMatrix {
    /// The product with another sparse matrix. Waits for the size of the result, but not for its entries. Entries that
    /// cancel stay, as zeros. A GPU makes all products of some rows before it sums those of one place; that those of a single
    /// row do not fit, twelve bytes for each and as many again to sort them, is an error.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, sparse::Csr};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let a = tensors.sparse(Csr::from_dense(2, 3, &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0])?)?;
    /// let b = tensors.sparse(Csr::from_dense(3, 2, &[0.0, 4.0, 5.0, 0.0, 0.0, 6.0])?)?;
    /// assert_eq!(a.multiply(&b)?.to_csr()?.to_dense()?, [0.0, 16.0, 15.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn multiply(&self, other: &Self) -> Result<Self> {
        let (op, tensors) = ("multiply", self.tensors());
        if !tensors.is(other.tensors()) {
            return Err(Error::Strangers { op });
        }
        let ([rows, depth], [other_rows, columns]) = (self.shape(), other.shape());
        if depth != other_rows {
            let why = "do not multiply: the right one has to have as many rows as the left one columns";
            return Err(Error::Shapes { op, left: self.shape().into(), right: other.shape().into(), why });
        }
        let nothing = || Ok(Self::of(tensors, [rows, columns], 0, None));
        let (Some(a), Some(b)) = (self.parts(), other.parts()) else { return nothing() };
        if tensors.is_bounded() {
            return super::list::multiply(self, a, other, b);
        }
        let pointers = tensors.device().allocate(4 * (rows + 1))?;
        let params = Params { rows: rows as u32, columns: columns as u32, values: 0 };
        let launch = tensors.kernel(Family::Sparse, super::COUNTS)?.launch();
        let launch = launch.bind(a.pointers.clone()).bind(a.indices.clone());
        let launch = launch.bind(b.pointers.clone()).bind(b.indices.clone()).bind(&pointers);
        tensors.enqueue(launch.params(&params))?;
        let last = tensors.stream().run(pointers.read(4 * rows..));
        tensors.synchronize()?;
        let entries = last?.to::<u32>().first().copied().unwrap_or(0) as usize;
        count("non-zeros", entries)?;
        if entries == 0 {
            return nothing();
        }
        let both = tensors.device().allocate(8 * entries)?;
        let launch = tensors.kernel(Family::Sparse, super::FILL)?.launch();
        let launch = launch.bind(a.pointers.clone()).bind(a.indices.clone()).bind(a.values.clone());
        let launch = launch.bind(b.pointers.clone()).bind(b.indices.clone()).bind(b.values.clone());
        tensors.enqueue(launch.bind(&pointers).bind(&both).params(&Params { values: entries as u32, ..params }))?;
        let (indices, values) = (both.slice(..4 * entries), both.slice(4 * entries..));
        let parts = Parts { pointers: pointers.into(), indices, values };
        Ok(Self::of(tensors, [rows, columns], entries, Some(parts)))
    }
}

/// A factor's arrays. What they say is not relied on: what is out of range is left out.
#[derive(Clone, Copy)]
struct Factor<'a> {
    pointers: &'a [u32],
    indices: &'a [u32],
    values: &'a [f32],
}

impl<'a> Factor<'a> {
    fn row(&self, row: usize) -> std::ops::Range<usize> {
        let bounds = (self.pointers.get(row), self.pointers.get(row + 1));
        let (Some(&start), Some(&end)) = bounds else { return 0..0 };
        let end = (end as usize).min(self.indices.len());
        (start as usize).min(end)..end
    }

    fn indices(&self, row: usize) -> &'a [u32] {
        &self.indices[self.row(row)]
    }
}

/// Row by row, the products that a row of the result is made of, summed up.
fn products(a: &Factor<'_>, b: &Factor<'_>, rows: usize) -> Vec<u64> {
    let mut sum = 0;
    let of_row = |row: usize| a.indices(row).iter().map(|&k| b.row(k as usize).len() as u64).sum::<u64>();
    let mut sums = Vec::with_capacity(rows + 1);
    sums.push(0);
    sums.extend((0..rows).map(|row| {
        sum += of_row(row);
        sum
    }));
    sums
}

/// Cuts rows into pieces of about [`PIECE`] products.
fn pieces(sums: &[u64]) -> Vec<usize> {
    let rows = sums.len() - 1;
    let mut starts = vec![0];
    while let Some(&start) = starts.last().filter(|start| **start < rows) {
        // A row without products is still a row to be written.
        let most = (start + PIECE as usize).min(rows);
        let end = start + sums[start + 1..=most].partition_point(|&sum| sum - sums[start] <= PIECE);
        starts.push(end.max(start + 1));
    }
    starts
}

fn run(threads: &dyn Threads, sums: &[u64], each: &(dyn Fn(usize, usize) + Sync)) {
    let starts = pieces(sums);
    let piece = |n: u64| each(starts[n as usize], starts[n as usize + 1]);
    let count = starts.len() as u64 - 1;
    match worth_threads(threads, sums[sums.len() - 1] as f64 * COST) {
        true => threads.for_each(count, &piece),
        false => (0..count).for_each(piece),
    }
}

/// Columns that were seen, each with its place in a list.
#[derive(Default)]
struct Table {
    columns: Vec<u32>,
    places: Vec<u32>,
}

impl Table {
    /// Makes room for so many columns.
    fn clear(&mut self, most: usize) {
        let size = (2 * most).next_power_of_two().max(16);
        self.columns.clear();
        self.columns.resize(size, FREE);
        self.places.resize(size, 0);
    }

    /// Where a column is looked for first: Fibonacci hashing, whose high bits depend on all of the column's.
    fn start(&self, column: u32) -> usize {
        // A product of 64 bits has as many of them as a table of any size needs.
        let bits = self.columns.len().trailing_zeros();
        (u64::from(column).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - bits)) as usize
    }

    /// Where the column is, and whether it is new: linear probing.
    fn find(&mut self, column: u32, next: usize) -> (usize, bool) {
        let mask = self.columns.len() - 1;
        let mut at = self.start(column);
        loop {
            match self.columns[at] {
                FREE => {
                    (self.columns[at], self.places[at]) = (column, next as u32);
                    return (next, true);
                }
                seen if seen == column => return (self.places[at] as usize, false),
                _ => at = (at + 1) & mask,
            }
        }
    }
}

fn count_rows(launch: &mut Launched<'_>) {
    let params = launch.params::<Params>();
    let rows = params.rows as usize;
    let a = Factor { pointers: launch.input(0), indices: launch.input(1), values: &[] };
    let b = Factor { pointers: launch.input(2), indices: launch.input(3), values: &[] };
    let pointers = &mut launch.output::<u32>(4)[..=rows];
    let sums = products(&a, &b, rows);
    let target = Target::new(pointers);
    run(launch.threads(), &sums, &|start, end| {
        // SAFETY: rows `start..end` are no other piece's.
        let counts = unsafe { target.part(start + 1, end - start) };
        let mut table = Table::default();
        for (row, count) in (start..end).zip(counts) {
            table.clear(((sums[row + 1] - sums[row]) as usize).min(params.columns as usize));
            let mut entries = 0;
            for &k in a.indices(row) {
                for &column in b.indices(k as usize).iter().filter(|column| **column < params.columns) {
                    entries += usize::from(table.find(column, entries).1);
                }
            }
            *count = entries as u32;
        }
    });
    // Too many are said to be the most that can be said, which is too many as well.
    let mut sum = 0u64;
    pointers[0] = 0;
    for pointer in &mut pointers[1..] {
        sum += u64::from(*pointer);
        *pointer = u32::try_from(sum).unwrap_or(u32::MAX);
    }
}

fn fill_rows(launch: &mut Launched<'_>) {
    let params = launch.params::<Params>();
    let (rows, total) = (params.rows as usize, params.values as usize);
    let a = Factor { pointers: launch.input(0), indices: launch.input(1), values: launch.input(2) };
    let b = Factor { pointers: launch.input(3), indices: launch.input(4), values: launch.input(5) };
    let pointers = &launch.input::<u32>(6)[..=rows];
    let entries = &mut launch.output::<u32>(7)[..2 * total];
    let sums = products(&a, &b, rows);
    // Pieces write between their rows' pointers, which must not overlap whatever is in the buffer.
    assert!(pointers.is_sorted() && pointers[rows] as usize == total, "pointers of the first launch");
    let target = Target::new(entries);
    run(launch.threads(), &sums, &|start, end| {
        let (mut table, mut row_entries) = (Table::default(), Vec::<(u32, f32)>::new());
        for row in start..end {
            row_entries.clear();
            table.clear(((sums[row + 1] - sums[row]) as usize).min(params.columns as usize));
            for at in a.row(row) {
                let (k, factor) = (a.indices[at] as usize, a.values[at]);
                for at in b.row(k) {
                    let (column, term) = (b.indices[at], factor * b.values[at]);
                    if column >= params.columns {
                        continue;
                    }
                    match table.find(column, row_entries.len()) {
                        (_, true) => row_entries.push((column, term)),
                        (place, false) => row_entries[place].1 += term,
                    }
                }
            }
            row_entries.sort_unstable_by_key(|entry| entry.0);
            let (from, to) = (pointers[row] as usize, pointers[row + 1] as usize);
            // SAFETY: pointers rise up to `total`, where the other half of the output begins; rows are one piece's.
            let (indices, values) = unsafe { (target.part(from, to - from), target.part(total + from, to - from)) };
            assert_eq!(row_entries.len(), indices.len(), "entries that the first launch counted");
            for ((entry, index), value) in row_entries.iter().zip(indices).zip(values) {
                (*index, *value) = (entry.0, entry.1.to_bits());
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_are_multiples_of_a_power_of_two_are_spread_over_the_table() {
        for step in [1u32, 3, 64, 4096, 1 << 20] {
            let columns = (0..1000u32).map(|n| n.wrapping_mul(step) & (u32::MAX >> 1));
            let mut columns: Vec<_> = columns.collect();
            columns.sort_unstable();
            columns.dedup();
            let mut table = Table::default();
            table.clear(columns.len());
            let mask = table.columns.len() - 1;
            let mut probes = 0;
            for (n, &column) in columns.iter().enumerate() {
                assert_eq!(table.find(column, n), (n, true));
                let at = table.columns.iter().position(|&seen| seen == column).unwrap();
                probes += 1 + (at.wrapping_sub(table.start(column)) & mask);
            }
            assert!(probes <= 2 * columns.len(), "{probes} probes for {} multiples of {step}", columns.len());
            assert!(columns.iter().enumerate().all(|(n, &column)| table.find(column, 0) == (n, false)));
        }
    }

    #[test]
    fn pieces_have_equally_many_products_and_all_rows() {
        let mut sums = vec![0u64];
        (0..10_000u64).for_each(|row| sums.push(sums[row as usize] + if row == 77 { 1_000_000 } else { 20 }));
        let starts = pieces(&sums);
        assert_eq!((starts[0], *starts.last().unwrap()), (0, 10_000));
        for pair in starts.windows(2) {
            let products = sums[pair[1]] - sums[pair[0]];
            assert!(pair[0] < pair[1] && (products <= PIECE || pair[1] - pair[0] == 1), "{pair:?}: {products}");
        }
        assert!(starts.len() < 30, "{} pieces", starts.len());
    }
}
