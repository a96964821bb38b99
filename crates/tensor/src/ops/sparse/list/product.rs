//! The product of two sparse matrices on a GPU.
//!
//! All products are made, sorted and summed: as many threads as there are products, however they are spread over the rows.
//! Where that would be a list longer than a device can bind, whole rows are done one piece after the other.

use std::{iter, ops::Range};

use millrace_core::{Buffer, View};

use super::{BINDABLE, Family, List, Params, Parts, Step, grid, read, step, sum_up};
use crate::{Error, Result, SparseMatrix, Tensors, sparse::count};

/// Products of a piece, unless a single row has more.
const PIECE: usize = BINDABLE / 12;

pub(in super::super) fn multiply(
    a: &SparseMatrix,
    a_parts: &Parts,
    b: &SparseMatrix,
    b_parts: &Parts,
) -> Result<SparseMatrix> {
    let (tensors, entries) = (a.tensors(), a.nnz());
    let shape = [a.shape()[0], b.shape()[1]];
    let starts = tensors.device().allocate(4 * entries)?;
    let params = Params { n: entries as u32, ..Params::default() };
    step!(tensors, Lengths, &params, grid(entries), a_parts.indices, b_parts.pointers, starts)?;
    let products = read(tensors, &sum_up(tensors, &starts, entries)?)?;
    if products == u32::MAX as usize {
        return Err(Error::TooLarge { op: "multiply", elements: products }); // or more
    }
    if products == 0 {
        return Ok(SparseMatrix::of(tensors, shape, 0, None));
    }
    let pieces =
        if products > PIECE { pieces(a, a_parts, &starts, products)? } else { iter::once(0..products).collect() };
    let done = pieces.into_iter().map(|piece| {
        let mut list = List::new("multiply", tensors, piece.len())?;
        let (rows, first) = (shape[0] as u32, piece.start as u32);
        let params = Params { rows, entries: entries as u32, first, ..list.params() };
        let (a, b) = (a_parts, b_parts);
        step!(
            tensors,
            Expand,
            &params,
            grid(list.n),
            a.pointers,
            a.indices,
            a.values,
            b.pointers,
            b.indices,
            b.values,
            starts,
            list.buffer
        )?;
        list.sort(list.n, shape[1])?;
        list.sort(0, shape[0])?;
        list.compress(shape)
    });
    join(tensors, shape, done.collect::<Result<_>>()?)
}

/// Which products are made together: those of whole rows.
fn pieces(a: &SparseMatrix, parts: &Parts, starts: &Buffer, products: usize) -> Result<Vec<Range<usize>>> {
    let (tensors, [rows, _]) = (a.tensors(), a.shape());
    let stream = tensors.stream();
    let begin = parts.pointers.range().start;
    let views = (stream.run(parts.pointers.buffer().read(begin..begin + 4 * (rows + 1))), stream.run(starts.read(..)));
    tensors.synchronize()?;
    let (pointers, starts): (View, View) = (views.0?, views.1?);
    let starts = starts.to::<u32>();
    // A row without entries at the end begins behind all products.
    let begins = |pointer: &u32| starts.get(*pointer as usize).map_or(products, |&start| start as usize);
    let mut pieces = Vec::new();
    let (mut first, mut end) = (0, 0);
    for next in pointers.to::<u32>().iter().map(begins) {
        if next - first > PIECE && first < end {
            pieces.push(first..end);
            first = end;
        }
        end = next;
    }
    pieces.push(first..end);
    Ok(pieces)
}

/// One matrix of several whose rows follow each other.
fn join(tensors: &Tensors, shape: [usize; 2], mut pieces: Vec<SparseMatrix>) -> Result<SparseMatrix> {
    if pieces.len() == 1 {
        return Ok(pieces.remove(0));
    }
    let entries = pieces.iter().map(SparseMatrix::nnz).sum();
    count("non-zeros", entries)?;
    let device = tensors.device();
    let (indices, values) = (device.allocate(4 * entries)?, device.allocate(4 * entries)?);
    let pointers = device.allocate(4 * (shape[0] + 1))?;
    let mut at = 0;
    for parts in pieces.iter().filter_map(SparseMatrix::parts) {
        let bytes = parts.indices.len();
        tensors.enqueue(parts.indices.buffer().copy_to(parts.indices.range(), &indices, at))?;
        tensors.enqueue(parts.values.buffer().copy_to(parts.values.range(), &values, at))?;
        // In each, so many entries of it come before a row.
        let params = Params { n: shape[0] as u32 + 1, ..Params::default() };
        step!(tensors, Add, &params, grid(shape[0] + 1), parts.pointers, pointers)?;
        at += bytes;
    }
    let parts = Parts { pointers: pointers.into(), indices: indices.into(), values: values.into() };
    Ok(SparseMatrix::of(tensors, shape, entries, Some(parts)))
}
