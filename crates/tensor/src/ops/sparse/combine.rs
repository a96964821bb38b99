//! Sums and transposes of sparse matrices, and matrices of entries in any order.
//!
//! On the CPU, lines of a sum are merged in pieces of rows on several threads. How many entries come out is known only
//! afterwards, but how many it can be at most is known before: each piece writes where it would begin then, and pieces are
//! moved up in the end.

use std::{ops::Range, sync::Mutex};

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, CpuKernel, KernelSpec, Launched};

use super::{Family, Parts, list};
use crate::{
    Error, Result, SparseMatrix, Tensors,
    cpu::worth_threads,
    sparse::{
        Coo, count,
        merge::{self, Lines},
    },
};

/// Nanoseconds per entry of both on one thread, roughly.
const COST: f64 = 1.5;
/// Rows and entries of a piece.
const PIECE: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    columns: u32,
    /// Entries of the first matrix,
    entries: u32,
    /// and of the second.
    others: u32,
}

pub(super) fn turn() -> KernelSpec {
    super::matrix(KernelSpec::new("sparse_turn"), ["pointers", "indices", "values"])
        .params::<Params>()
        .binding::<u32>("turned_pointers", Access::Overwrite)
        .binding::<u32>("turned_indices", Access::Overwrite)
        .binding::<f32>("turned_values", Access::Overwrite)
        .cpu(CpuKernel::whole(turn_lines))
}

/// Both inputs' values are words here, as the output is one buffer.
pub(super) fn add() -> KernelSpec {
    super::both("sparse_add")
        .params::<Params>()
        .binding::<u32>("pointers", Access::Overwrite)
        .binding::<u32>("entries", Access::Overwrite)
        .cpu(CpuKernel::whole(add_lines))
}

impl SparseMatrix {
    /// Rows become columns, on the device.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, sparse::Csr};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let matrix = tensors.sparse(Csr::from_dense(2, 3, &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0])?)?;
    /// assert_eq!(matrix.transpose()?.to_csr()?.to_dense()?, [1.0, 0.0, 0.0, 3.0, 2.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transpose(&self) -> Result<Self> {
        let (tensors, [rows, columns], entries) = (self.tensors(), self.shape(), self.nnz());
        let Some(parts) = self.parts() else { return Ok(Self::of(tensors, [columns, rows], 0, None)) };
        if tensors.is_bounded() {
            return list::transpose(self, parts);
        }
        let device = tensors.device();
        let pointers = device.allocate(4 * (columns + 1))?;
        let (indices, values) = (device.allocate(4 * entries)?, device.allocate(4 * entries)?);
        let params = Params { rows: rows as u32, columns: columns as u32, entries: entries as u32, others: 0 };
        let launch = tensors.kernel(Family::Sparse, super::TURN)?.launch();
        let launch = launch.bind(parts.pointers.clone()).bind(parts.indices.clone()).bind(parts.values.clone());
        tensors.enqueue(launch.bind(&pointers).bind(&indices).bind(&values).params(&params))?;
        let parts = Parts { pointers: pointers.into(), indices: indices.into(), values: values.into() };
        Ok(Self::of(tensors, [columns, rows], entries, Some(parts)))
    }

    /// Both added up, on the device. Waits for the size of the result. Entries that cancel stay, as zeros.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, sparse::Csr};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let a = tensors.sparse(Csr::from_dense(2, 2, &[1.0, 0.0, 2.0, 0.0])?)?;
    /// let b = tensors.sparse(Csr::from_dense(2, 2, &[1.0, 5.0, 0.0, 0.0])?)?;
    /// assert_eq!(a.add(&b)?.to_csr()?.to_dense()?, [2.0, 5.0, 2.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&self, other: &Self) -> Result<Self> {
        let (op, tensors, shape) = ("add", self.tensors(), self.shape());
        if !tensors.is(other.tensors()) {
            return Err(Error::Strangers { op });
        }
        if shape != other.shape() {
            let (left, right) = (shape.into(), other.shape().into());
            return Err(Error::Shapes { op, left, right, why: "differ, and sparse matrices do not broadcast" });
        }
        let (Some(a), Some(b)) = (self.parts(), other.parts()) else {
            return Ok(if self.parts().is_some() { self.clone() } else { other.clone() });
        };
        if tensors.is_bounded() {
            return list::add(self, a, other, b);
        }
        let most = self.nnz() + other.nnz();
        let (pointers, both) = (tensors.device().allocate(4 * (shape[0] + 1))?, tensors.device().allocate(8 * most)?);
        let [rows, columns] = shape.map(|n| n as u32);
        let params = Params { rows, columns, entries: self.nnz() as u32, others: other.nnz() as u32 };
        let launch = tensors.kernel(Family::Sparse, super::ADD)?.launch();
        let launch = launch.bind(a.pointers.clone()).bind(a.indices.clone()).bind(a.values.clone());
        let launch = launch.bind(b.pointers.clone()).bind(b.indices.clone()).bind(b.values.clone());
        tensors.enqueue(launch.bind(&pointers).bind(&both).params(&params))?;
        let last = tensors.stream().run(pointers.read(4 * shape[0]..));
        tensors.synchronize()?;
        let entries = last?.to::<u32>().first().copied().unwrap_or(0) as usize;
        count("non-zeros", entries)?;
        let (indices, values) = (both.slice(..4 * entries), both.slice(4 * most..4 * (most + entries)));
        let parts = Parts { pointers: pointers.into(), indices, values };
        Ok(Self::of(tensors, shape, entries, Some(parts)))
    }
}

impl Tensors {
    /// A sparse matrix of entries in any order: they are sorted, and those of one place are summed, on the device. On the
    /// CPU this is what [`Tensors::sparse`] does.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, sparse::Coo};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let matrix = tensors.assemble(&Coo::new(2, 2, vec![1, 0, 1], vec![0, 1, 0], vec![2.0, 3.0, 5.0])?)?;
    /// assert_eq!(matrix.to_csr()?.to_dense()?, [0.0, 3.0, 7.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn assemble(&self, entries: &Coo) -> Result<SparseMatrix> {
        match self.is_bounded() && entries.nnz() > 0 {
            true => list::assemble(self, entries),
            false => self.sparse(entries.to_csr()),
        }
    }
}

/// The arrays of a matrix that is bound from binding `first` on.
fn lines<'a>(launch: &Launched<'a>, first: usize, rows: u32, entries: u32) -> Lines<'a> {
    Lines {
        pointers: &launch.input::<u32>(first)[..=rows as usize],
        indices: &launch.input::<u32>(first + 1)[..entries as usize],
        values: &launch.input::<f32>(first + 2)[..entries as usize],
    }
}

fn turn_lines(launch: &mut Launched<'_>) {
    let params = launch.params::<Params>();
    let (from, entries) = (lines(launch, 0, params.rows, params.entries), params.entries as usize);
    let pointers = &mut launch.output::<u32>(3)[..=params.columns as usize];
    let (indices, values) = (&mut launch.output::<u32>(4)[..entries], &mut launch.output::<f32>(5)[..entries]);
    merge::turn(&from, pointers, indices, values);
}

/// Lines of a piece: about [`PIECE`] rows and entries of both.
fn pieces(a: &Lines<'_>, b: &Lines<'_>, rows: usize) -> Vec<Range<usize>> {
    let (mut starts, mut size) = (vec![0], 0);
    for row in 0..rows {
        size += 1 + a.entries(&(row..row + 1)) + b.entries(&(row..row + 1));
        if size >= PIECE {
            starts.push(row + 1);
            size = 0;
        }
    }
    starts.push(rows);
    starts.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

/// Where a piece writes.
struct Piece<'a> {
    lines: Range<usize>,
    counts: &'a mut [u32],
    indices: &'a mut [u32],
    values: &'a mut [f32],
    written: usize,
}

fn add_lines(launch: &mut Launched<'_>) {
    let params = launch.params::<Params>();
    let (a, b) = (lines(launch, 0, params.rows, params.entries), lines(launch, 3, params.rows, params.others));
    let (rows, most) = (params.rows as usize, (params.entries + params.others) as usize);
    let pointers = &mut launch.output::<u32>(6)[..=rows];
    let (indices, values) = launch.output::<u32>(7)[..2 * most].split_at_mut(most);
    let values: &mut [f32] = bytemuck::cast_slice_mut(values);
    pointers[0] = 0;
    let (mut counts_left, mut indices_left, mut values_left) = (&mut pointers[1..], &mut indices[..], &mut values[..]);
    let mut all = Vec::new();
    for lines in pieces(&a, &b, rows) {
        let room = a.entries(&lines) + b.entries(&lines);
        let (counts, indices, values);
        (counts, counts_left) = counts_left.split_at_mut(lines.len());
        (indices, indices_left) = indices_left.split_at_mut(room);
        (values, values_left) = values_left.split_at_mut(room);
        all.push(Mutex::new(Piece { lines, counts, indices, values, written: 0 }));
    }
    let each = |n: u64| {
        // Nobody else has this number.
        let Ok(mut piece) = all[n as usize].try_lock() else { return };
        let Piece { lines, counts, indices, values, written } = &mut *piece;
        *written = merge::add(&a, &b, lines.clone(), counts, indices, values);
    };
    match worth_threads(launch.threads(), most as f64 * COST + rows as f64) {
        true => launch.threads().for_each(all.len() as u64, &each),
        false => (0..all.len() as u64).for_each(each),
    }
    let written: Vec<_> =
        all.iter_mut().filter_map(|piece| piece.get_mut().ok()).map(|p| (p.indices.len(), p.written)).collect();
    let (mut from, mut to) = (0, 0);
    for (room, written) in written {
        indices.copy_within(from..from + written, to);
        values.copy_within(from..from + written, to);
        (from, to) = (from + room, to + written);
    }
    let mut sum = 0;
    for pointer in pointers {
        sum += *pointer;
        *pointer = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_all_rows_and_heavy_ones_end_theirs() {
        let pointers: Vec<u32> = (0..=100_000u32).map(|row| row + if row > 70_000 { 50_000 } else { 0 }).collect();
        let entries = vec![0; 150_000];
        let matrix = Lines { pointers: &pointers, indices: &entries, values: &[] };
        let pieces = pieces(&matrix, &matrix, 100_000);
        assert!(pieces[0].start == 0 && pieces.last().unwrap().end == 100_000);
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start && !pair[0].is_empty()));
        assert!((18..22).contains(&pieces.len()), "{}", pieces.len());
        assert!(pieces.iter().any(|piece| piece.end == 70_001), "the heavy row");
    }
}
