//! What only one of the two compressed forms does, and from one to the other.

use super::{Csc, Csr, Invalid, compressed::Compressed, count, sides};
use crate::Result;

impl Csr {
    /// The elements of a dense matrix, given row after row, that are not zero. NaN is not zero.
    ///
    /// ```
    /// use millrace::tensor::sparse::Csr;
    /// let matrix = Csr::from_dense(2, 2, &[0.0, 1.0, 0.0, -2.0])?;
    /// assert_eq!((matrix.nnz(), matrix.indices()), (2, &[1, 1][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_dense(rows: usize, columns: usize, elements: &[f32]) -> Result<Self> {
        sides(rows, columns)?;
        let expected = rows.saturating_mul(columns);
        if elements.len() != expected {
            return Err(Invalid::Length { what: "elements", given: elements.len(), expected }.into());
        }
        let mut parts =
            Compressed { lines: rows, across: columns, pointers: vec![0], indices: Vec::new(), values: Vec::new() };
        for row in 0..rows {
            let elements = &elements[row * columns..(row + 1) * columns];
            for (column, &value) in elements.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                parts.indices.push(column as u32);
                parts.values.push(value);
            }
            count("non-zeros", parts.values.len())?;
            parts.pointers.push(parts.values.len() as u32);
        }
        Ok(Self::of(parts))
    }

    /// The same matrix column after column. Linear in entries, rows and columns.
    pub fn to_csc(&self) -> Csc {
        Csc::of(self.0.turned())
    }

    /// Rows become columns. Linear in entries, rows and columns.
    pub fn transpose(&self) -> Self {
        Self::of(self.0.turned())
    }

    /// Pointers, indices and values, to be handed on without a copy.
    pub fn into_parts(self) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
        (self.0.pointers, self.0.indices, self.0.values)
    }
}

impl Csc {
    /// The same matrix row after row. Linear in entries, rows and columns.
    pub fn to_csr(&self) -> Csr {
        Csr::of(self.0.turned())
    }

    /// Rows become columns. Linear in entries, rows and columns.
    pub fn transpose(&self) -> Self {
        Self::of(self.0.turned())
    }

    /// The same arrays read as rows: the matrix with rows and columns exchanged, without a copy.
    pub fn into_transposed(self) -> Csr {
        Csr::of(self.0)
    }
}

impl From<Csc> for Csr {
    fn from(matrix: Csc) -> Self {
        matrix.to_csr()
    }
}

impl From<Csr> for Csc {
    fn from(matrix: Csr) -> Self {
        matrix.to_csc()
    }
}
