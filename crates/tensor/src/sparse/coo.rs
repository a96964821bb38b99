//! Entries in any order.

use super::{
    Csc, Csr, Invalid,
    compressed::{check_indices, dense_len},
    count, sides,
    sort::compress,
};
use crate::Result;

/// A sparse matrix as a list of entries: row, column, value. They may come in any order, and several at one place; a
/// conversion sorts them and sums those of one place, in the order they came.
///
/// ```
/// use millrace::tensor::sparse::Coo;
/// let matrix = Coo::new(2, 2, vec![1, 0, 1], vec![0, 1, 0], vec![2.0, 3.0, 5.0])?;
/// assert_eq!(matrix.to_csr().entries().collect::<Vec<_>>(), [(0, 1, 3.0), (1, 0, 7.0)]);
/// assert!(Coo::new(2, 2, vec![2], vec![0], vec![1.0]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Coo {
    rows: usize,
    columns: usize,
    row_indices: Vec<u32>,
    column_indices: Vec<u32>,
    values: Vec<f32>,
}

impl Coo {
    /// A matrix of these entries.
    pub fn new(
        rows: usize,
        columns: usize,
        row_indices: Vec<u32>,
        column_indices: Vec<u32>,
        values: Vec<f32>,
    ) -> Result<Self> {
        sides(rows, columns)?;
        count("non-zeros", values.len())?;
        for (what, indices) in [("row indices", &row_indices), ("column indices", &column_indices)] {
            if indices.len() != values.len() {
                return Err(Invalid::Length { what, given: indices.len(), expected: values.len() }.into());
            }
        }
        check_indices("row", &row_indices, rows)?;
        check_indices("column", &column_indices, columns)?;
        Ok(Self { rows, columns, row_indices, column_indices, values })
    }

    /// A matrix without entries.
    pub fn empty(rows: usize, columns: usize) -> Result<Self> {
        Self::new(rows, columns, Vec::new(), Vec::new(), Vec::new())
    }

    /// Adds an entry.
    pub fn push(&mut self, row: usize, column: usize, value: f32) -> Result<()> {
        let entry = self.values.len();
        count("non-zeros", entry + 1)?;
        for (what, index, limit) in [("row", row, self.rows), ("column", column, self.columns)] {
            if index >= limit {
                return Err(Invalid::OutOfRange { what, entry, index, limit }.into());
            }
        }
        self.row_indices.push(row as u32);
        self.column_indices.push(column as u32);
        self.values.push(value);
        Ok(())
    }

    /// A matrix of parts that are known to be right.
    pub(super) fn of(shape: [usize; 2], row_indices: Vec<u32>, column_indices: Vec<u32>, values: Vec<f32>) -> Self {
        Self { rows: shape[0], columns: shape[1], row_indices, column_indices, values }
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// How many entries there are, those of one place each counted.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// The row of every entry.
    pub fn row_indices(&self) -> &[u32] {
        &self.row_indices
    }

    /// The column of every entry.
    pub fn column_indices(&self) -> &[u32] {
        &self.column_indices
    }

    /// The value of every entry.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Row, column and value of every entry, as they came.
    pub fn entries(&self) -> impl Iterator<Item = (usize, usize, f32)> + '_ {
        let places = self.row_indices.iter().zip(&self.column_indices);
        places.zip(&self.values).map(|((&row, &column), &value)| (row as usize, column as usize, value))
    }

    /// Row after row, sorted, entries of one place summed. Linear in entries and rows.
    pub fn to_csr(&self) -> Csr {
        Csr::of(compress(self.rows, self.columns, &self.row_indices, &self.column_indices, &self.values))
    }

    /// Column after column, sorted, entries of one place summed. Linear in entries and columns.
    pub fn to_csc(&self) -> Csc {
        Csc::of(compress(self.columns, self.rows, &self.column_indices, &self.row_indices, &self.values))
    }

    /// Rows become columns. Nothing is copied.
    pub fn transpose(self) -> Self {
        Self::of([self.columns, self.rows], self.column_indices, self.row_indices, self.values)
    }

    /// All elements, row after row.
    pub fn to_dense(&self) -> Result<Vec<f32>> {
        let mut dense = vec![0.0; dense_len(self.shape())?];
        self.entries().for_each(|(row, column, value)| dense[row * self.columns + column] += value);
        Ok(dense)
    }
}
