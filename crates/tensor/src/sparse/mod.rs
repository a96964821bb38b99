//! Sparse matrices of `f32` on the host, and their files.
//!
//! [`Coo`] holds entries in any order, [`Csr`] row after row, [`Csc`] column after column. All of them are checked when
//! they are made, so that nobody has to look at an index twice; conversions are linear in the entries and lines. For a
//! device, [`Tensors::sparse`](crate::Tensors::sparse) makes a [`SparseMatrix`](crate::SparseMatrix) of any of them.
//!
//! Indices and pointers have 32 bits on every device, because WGSL has no others. So that pointers cannot overflow,
//! rows, columns and non-zeros are limited to [`LIMIT`], which is 2³¹ - 1: a pointer fits with a bit to spare, and so does
//! a row and a non-zero added up, which is how work is divided. Every place where a count grows checks it.
//!
//! ```
//! use millrace::tensor::sparse::{Coo, Csr};
//! let mut entries = Coo::empty(2, 3)?;
//! for (row, column, value) in [(1, 2, 4.0), (0, 0, 1.0), (1, 2, 1.0)] {
//!     entries.push(row, column, value)?;
//! }
//! let matrix = entries.to_csr(); // sorted, and what was there twice is summed
//! assert_eq!(matrix.pointers(), [0, 1, 2]);
//! assert_eq!(matrix.values(), [1.0, 5.0]);
//! assert_eq!(matrix.transpose().to_dense()?, [1.0, 0.0, 0.0, 0.0, 0.0, 5.0]);
//! let error = Csr::new(2, 3, vec![0, 1, 2], vec![0, 3], vec![1.0, 1.0]).unwrap_err();
//! assert_eq!(error.to_string(), "column index 3 of entry 1 is not below 3");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod compressed;
mod coo;
mod csr;
mod invalid;
pub mod market;
pub(crate) mod matrix;
pub(crate) mod merge;
mod sort;

pub use compressed::{Csc, Csr};
pub use coo::Coo;
pub use invalid::Invalid;

/// The most rows, columns and non-zeros that a sparse matrix can have.
pub const LIMIT: usize = i32::MAX as usize;

/// Checks a count against [`LIMIT`].
pub(crate) fn count(what: &'static str, count: usize) -> crate::Result<()> {
    if count <= LIMIT { Ok(()) } else { Err(Invalid::TooMany { what, count }.into()) }
}

/// Checks both sides of a matrix.
pub(crate) fn sides(rows: usize, columns: usize) -> crate::Result<()> {
    count("rows", rows)?;
    count("columns", columns)
}
