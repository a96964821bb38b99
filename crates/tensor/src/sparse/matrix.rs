//! A sparse matrix on a device.

use std::fmt;

use bytemuck::NoUninit;
use bytes::Bytes;
use millrace_core::{BufferSlice, DeviceKind};

use super::Csr;
use crate::{Result, Tensors, ops::sparse::Parts, tensors::Words};

/// A sparse matrix of `f32` on a device, row after row. A clone shares the entries; they never change.
///
/// [`Tensors::sparse`] makes one; [`Self::matvec`] and [`Self::matmul`] multiply it, at once, while the device works.
///
/// ```
/// use millrace::tensor::{Tensors, sparse::Coo};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let matrix = tensors.sparse(Coo::new(2, 2, vec![1, 0], vec![0, 1], vec![2.0, 3.0])?)?;
/// assert_eq!((matrix.shape(), matrix.nnz()), ([2, 2], 2));
/// let x = tensors.from_slice(&[1.0f32, 10.0], &[2])?;
/// assert_eq!(matrix.matvec(&x)?.to_vec::<f32>()?, [30.0, 2.0]);
/// assert_eq!(matrix.to_csr()?.to_dense()?, [0.0, 3.0, 2.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SparseMatrix {
    tensors: Tensors,
    rows: usize,
    columns: usize,
    entries: usize,
    /// None if there are no entries.
    parts: Option<Parts>,
}

impl Tensors {
    /// A sparse matrix on the device, from any of the host's formats. Where the device can read the host's memory in
    /// place, the arrays of a [`Csr`] are not copied.
    pub fn sparse(&self, matrix: impl Into<Csr>) -> Result<SparseMatrix> {
        let matrix = matrix.into();
        let ([rows, columns], entries) = (matrix.shape(), matrix.nnz());
        let parts = match entries {
            0 => None,
            _ => {
                let (pointers, indices, values) = matrix.into_parts();
                Some(Parts {
                    pointers: hold(self, pointers)?,
                    indices: hold(self, indices)?,
                    values: hold(self, values)?,
                })
            }
        };
        Ok(SparseMatrix::of(self, [rows, columns], entries, parts))
    }
}

/// An array in a buffer.
fn hold<T: NoUninit + Send + Sync>(tensors: &Tensors, array: Vec<T>) -> Result<BufferSlice> {
    let bytes = Bytes::from_owner(Words(array));
    if tensors.device().info().kind == DeviceKind::Cpu {
        return Ok(tensors.device().adopt(bytes)?.into());
    }
    let buffer = tensors.device().allocate(bytes.len())?;
    tensors.enqueue(buffer.write(0, bytes))?;
    Ok(buffer.into())
}

impl SparseMatrix {
    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// How many entries are stored.
    pub fn nnz(&self) -> usize {
        self.entries
    }

    /// The place it lives in.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// A matrix of arrays that the device is about to have.
    pub(crate) fn of(tensors: &Tensors, [rows, columns]: [usize; 2], entries: usize, parts: Option<Parts>) -> Self {
        Self { tensors: tensors.clone(), rows, columns, entries, parts }
    }

    pub(crate) fn parts(&self) -> Option<&Parts> {
        self.parts.as_ref()
    }

    /// The matrix on the host. Waits for what it comes from, and brings the first error on the stream that nobody saw.
    pub fn to_csr(&self) -> Result<Csr> {
        let Some(parts) = &self.parts else {
            self.tensors.synchronize()?;
            let pointers = vec![0; self.rows + 1];
            return Csr::new(self.rows, self.columns, pointers, Vec::new(), Vec::new());
        };
        let stream = self.tensors.stream();
        let read = |part: &BufferSlice, n: usize| {
            let start = part.range().start;
            stream.run(part.buffer().read(start..start + 4 * n))
        };
        let views = (
            read(&parts.pointers, self.rows + 1),
            read(&parts.indices, self.entries),
            read(&parts.values, self.entries),
        );
        self.tensors.synchronize()?;
        let (pointers, indices, values) = (views.0?, views.1?, views.2?);
        Csr::new(
            self.rows,
            self.columns,
            pointers.to::<u32>().to_vec(),
            indices.to::<u32>().to_vec(),
            values.to::<f32>().to_vec(),
        )
    }
}

impl fmt::Debug for SparseMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SparseMatrix");
        debug.field("shape", &self.shape()).field("nnz", &self.entries).field("on", &self.tensors).finish()
    }
}
