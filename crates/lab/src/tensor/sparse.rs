//! Sparse matrices: conversions and products with a vector, next to the libraries that have them, and next to what the
//! machine's memory allows.

use std::{fmt, hint::black_box};

use faer::{
    Accum, MatMut, MatRef, Par,
    sparse::{SparseColMatRef, SymbolicSparseColMatRef, linalg::matmul::dense_sparse_matmul},
};
use millrace::tensor::sparse::{Coo, Csr};
use sprs::{CsMatI, TriMatI, prod::mul_acc_mat_vec_csr};

use super::{Effort, context};
use crate::{
    Error, Result,
    gpu::{Context, numbers},
    measure::{Metric, Side, each_timed, warm_up},
};

/// How the entries of a square matrix lie, ten in a row on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    /// Around the diagonal.
    Banded,
    /// In columns that have nothing to do with one another.
    Random,
    /// The same, and in few rows more than in all others: row `r` has a share of about `1 / r`.
    PowerLaw,
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Banded => "banded",
            Self::Random => "random",
            Self::PowerLaw => "power-law",
        })
    }
}

const SPREADS: [Spread; 3] = [Spread::Banded, Spread::Random, Spread::PowerLaw];
/// Entries in a row.
const ENTRIES: usize = 10;

/// A number below `n`, from one between -1 and 1.
fn below(n: usize, x: f32) -> usize {
    (((f64::from(x) + 1.0) / 2.0 * n as f64) as usize).min(n - 1)
}

impl Spread {
    fn entries(self, n: usize) -> Result<Coo> {
        let count = n * ENTRIES;
        let (values, across, down) = (numbers(count, 3), numbers(count, 4), numbers(count, 5));
        let mut matrix = Coo::empty(n, n)?;
        for (i, value) in values.into_iter().enumerate() {
            let row = match self {
                Self::PowerLaw => (n as f64).powf((f64::from(down[i]) + 1.0) / 2.0) as usize - 1,
                _ => i / ENTRIES,
            };
            let column = match self {
                Self::Banded => row.saturating_sub(ENTRIES / 2).min(n - ENTRIES) + i % ENTRIES,
                _ => below(n, across[i]),
            };
            matrix.push(row.min(n - 1), column, value)?;
        }
        Ok(matrix)
    }

    /// The matrix, and a vector to multiply it with.
    fn operands(self, n: usize) -> Result<(Csr, Vec<f32>)> {
        Ok((self.entries(n)?.to_csr(), numbers(n, 6)))
    }
}

/// Whether `y` is the product, by looking at some of its elements, the heaviest row's among them.
fn check(matrix: &Csr, x: &[f32], y: &[f32]) -> Result<()> {
    if y.len() != matrix.shape()[0] {
        return Err(Error::Wrong(format!("the product has {} elements", y.len())));
    }
    for row in (0..y.len()).step_by((y.len() / 64) | 1) {
        let (indices, values) = matrix.row(row);
        let terms = indices.iter().zip(values).map(|(&index, &value)| f64::from(value) * f64::from(x[index as usize]));
        let (want, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        if (f64::from(y[row]) - want).abs() > 1e-4 * size {
            return Err(Error::Wrong(format!("element {row} of the product is {}, not {want}", y[row])));
        }
    }
    Ok(())
}

/// Bytes that a product has to move: entries, pointers, and both vectors once.
fn bytes(matrix: &Csr) -> f64 {
    let [rows, columns] = matrix.shape();
    (8 * matrix.nnz() + 4 * (rows + 1) + 4 * rows + 4 * columns) as f64
}

fn rate(effort: &Effort, case: &str, bytes: f64, mut work: impl FnMut() -> Result<()>) -> Result<Metric> {
    warm_up(effort.turn / 4, &mut work)?;
    let times = each_timed(effort.turn, work)?;
    Ok(Metric::higher(case.to_owned(), "GB/s", times.into_iter().map(|ns| bytes / ns).collect()))
}

/// Times a product, and gives its result.
type Timed = fn(&Effort, &str, &Csr, &[f32]) -> Result<(Metric, Vec<f32>)>;

/// Products of `n` rows with a vector, all spreads.
pub(super) fn products(effort: &Effort, n: usize) -> Vec<Side> {
    let side = |name: &str, each: Timed| {
        let effort = effort.clone();
        Side::new(name, move || {
            let of = |spread: Spread| {
                let (matrix, x) = spread.operands(n)?;
                let (metric, y) = each(&effort, &spread.to_string(), &matrix, &x)?;
                check(&matrix, &x, &y)?;
                Ok(metric)
            };
            SPREADS.into_iter().map(of).collect()
        })
    };
    vec![side("millrace", ours), side("sprs", sprs_product), side("faer", faer_product)]
}

fn ours(effort: &Effort, case: &str, matrix: &Csr, x: &[f32]) -> Result<(Metric, Vec<f32>)> {
    let context = context(millrace::cpu::CpuInfo::get().cores)?;
    let measured = ours_on(&context, effort, case, matrix, x)?;
    context.finish()?;
    Ok(measured)
}

fn ours_on(context: &Context, effort: &Effort, case: &str, matrix: &Csr, x: &[f32]) -> Result<(Metric, Vec<f32>)> {
    let tensors = context.tensors();
    let (on_device, x) = (tensors.sparse(matrix.clone())?, tensors.from_slice(x, &[x.len()])?);
    let mut y = None;
    let metric = rate(effort, case, bytes(matrix), || {
        y = None; // back to the pool
        y = Some(on_device.matvec(&x)?);
        Ok(tensors.synchronize()?)
    })?;
    let y = y.take().map(|y| y.to_vec::<f32>()).transpose()?.unwrap_or_default();
    Ok((metric, y))
}

/// Our products on any device.
pub(super) fn products_on(effort: &Effort, context: &Context, n: usize) -> Result<()> {
    SPREADS.into_iter().try_for_each(|spread| {
        let (matrix, x) = spread.operands(n)?;
        let (_, y) = ours_on(context, effort, &spread.to_string(), &matrix, &x)?;
        check(&matrix, &x, &y)
    })
}

fn sprs_product(effort: &Effort, case: &str, matrix: &Csr, x: &[f32]) -> Result<(Metric, Vec<f32>)> {
    let parts = (matrix.pointers().to_vec(), matrix.indices().to_vec(), matrix.values().to_vec());
    let [rows, columns] = matrix.shape();
    let theirs: CsMatI<f32, u32> = CsMatI::new((rows, columns), parts.0, parts.1, parts.2);
    let mut y = vec![0f32; rows];
    let metric = rate(effort, case, bytes(matrix), || {
        y.fill(0.0); // it adds
        mul_acc_mat_vec_csr(theirs.view(), x, black_box(&mut y[..]));
        Ok(())
    })?;
    Ok((metric, y))
}

fn faer_product(effort: &Effort, case: &str, matrix: &Csr, x: &[f32]) -> Result<(Metric, Vec<f32>)> {
    let [rows, columns] = matrix.shape();
    // Rows read as columns are the transposed matrix, and a row of numbers times that is what we want.
    let symbolic = SymbolicSparseColMatRef::new_checked(columns, rows, matrix.pointers(), None, matrix.indices());
    let transposed = SparseColMatRef::new(symbolic, matrix.values());
    let mut y = vec![0f32; rows];
    let metric = rate(effort, case, bytes(matrix), || {
        let to = MatMut::from_row_major_slice_mut(black_box(&mut y[..]), 1, rows);
        let x = MatRef::from_row_major_slice(x, 1, columns);
        dense_sparse_matmul(to, Accum::Replace, x, transposed, 1.0, Par::rayon(0));
        Ok(())
    })?;
    Ok((metric, y))
}

/// Rows, columns and entries of the matrix that is converted.
const CONVERTED: (usize, usize) = (10_000, 100_000);

fn unsorted() -> Result<Coo> {
    let (n, count) = CONVERTED;
    let at = |seed: u64| numbers(count, seed).into_iter().map(|x| below(n, x) as u32).collect();
    Ok(Coo::new(n, n, at(7), at(8), numbers(count, 9))?)
}

fn times<T>(effort: &Effort, case: &'static str, mut work: impl FnMut() -> T) -> Result<Metric> {
    let mut run = || {
        black_box(work());
        Ok(())
    };
    warm_up(effort.turn / 4, &mut run)?;
    let samples = each_timed(effort.turn, run)?;
    Ok(Metric::lower(case, "us", samples.into_iter().map(|ns| ns / 1e3).collect()))
}

/// From one format to another, and sums.
pub(super) fn conversions(effort: &Effort) -> Vec<Side> {
    let (ours, theirs) = (effort.clone(), effort.clone());
    vec![
        Side::new("millrace", move || {
            let entries = unsorted()?;
            let (rows, columns) = (entries.to_csr(), entries.to_csc());
            Ok(vec![
                times(&ours, "coo-csr", || entries.to_csr())?,
                times(&ours, "coo-csc", || entries.to_csc())?,
                times(&ours, "csr-csc", || rows.to_csc())?,
                times(&ours, "csc-csr", || columns.to_csr())?,
                times(&ours, "add", || rows.add(&rows))?,
            ])
        }),
        Side::new("sprs", move || {
            let entries = unsorted()?;
            let (n, _) = CONVERTED;
            let (rows, columns) = (entries.row_indices().to_vec(), entries.column_indices().to_vec());
            let triplets: TriMatI<f32, u32> = TriMatI::from_triplets((n, n), rows, columns, entries.values().to_vec());
            let rows: CsMatI<f32, u32> = triplets.to_csr();
            let columns: CsMatI<f32, u32> = triplets.to_csc();
            if rows.nnz() != entries.to_csr().nnz() {
                return Err(Error::Wrong(format!("{} entries", rows.nnz())));
            }
            Ok(vec![
                times(&theirs, "coo-csr", || triplets.to_csr::<u32>())?,
                times(&theirs, "coo-csc", || triplets.to_csc::<u32>())?,
                times(&theirs, "csr-csc", || rows.to_other_storage())?,
                times(&theirs, "csc-csr", || columns.to_other_storage())?,
                times(&theirs, "add", || &rows + &rows)?,
            ])
        }),
    ]
}
