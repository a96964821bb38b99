//! Sparse matrices against dense ones: products, transposes, sums, and entries in any order.

use super::{
    Run,
    reference::Array,
    sample::{Case, Domain},
};
use crate::{
    DType, Result, SparseMatrix, Tensor,
    sparse::{Coo, Csr},
};

/// Rows, columns, columns of the dense factor, and which share of the elements is there. Products with special numbers
/// have all elements, because what is not stored is not multiplied.
fn shapes(case: Case, large: usize) -> Vec<([usize; 3], f64)> {
    match case {
        Case::Random => vec![([13, 21, 1], 0.2), ([40, 30, 17], 0.3), ([1, 90, 4], 0.5)],
        Case::Empty => vec![([0, 3, 2], 0.5), ([3, 0, 2], 0.5), ([4, 5, 3], 0.0)],
        Case::One => vec![([1, 1, 1], 1.0)],
        Case::NonContiguous => vec![([9, 14, 6], 0.4)],
        Case::Broadcast => vec![],
        Case::Special => vec![([5, 6, 4], 1.0)],
        // One entry in a hundred, in as many elements as the reference can go through.
        Case::Large => vec![([large.isqrt().min(1000), 1000, 1], 0.01), ([large.isqrt().min(200), 300, 33], 0.05)],
    }
}

pub(super) fn products(run: &mut Run<'_>, case: Case) -> Result<()> {
    let domain = Domain { range: (-1.0, 1.0), huge: false };
    for ([m, k, n], share) in shapes(case, run.samples.large) {
        let dense = run.samples.shaped(&[m, k], DType::F32, domain)?;
        // The first row of a large one has all elements: many pieces, if work is divided by entries.
        let random = &mut run.samples.random;
        let mut keep = |row: usize| (case == Case::Large && row == 0) || random.number((0.0, 1.0)) < share;
        let data: Vec<f64> =
            dense.array.data.iter().enumerate().map(|(at, &x)| if keep(at / k.max(1)) { x } else { 0.0 }).collect();
        let elements: Vec<f32> = data.iter().map(|&x| x as f32).collect();
        let host = Csr::from_dense(m, k, &elements)?;
        let matrix = run.samples.tensors.sparse(host.clone())?;
        let left = Array { shape: vec![m, k], data };
        let right = match case {
            Case::NonContiguous | Case::Special => {
                run.samples.tangled(&[k, n], DType::F32, domain, case == Case::Special)?
            }
            _ => run.samples.shaped(&[k, n], DType::F32, domain)?,
        };
        let size = format!("{} {m}x{k} with {}, {k}x{n}", case.name(), matrix.nnz());
        let want = left.matmul(&right.array);
        run.compare("sparse matmul", size.clone(), 3e-6, matrix.matmul(&right.tensor), &want)?;
        if n == 1 {
            let got = right.tensor.reshape(&[k]).and_then(|x| matrix.matvec(&x)?.reshape(&[m, 1]));
            run.compare("sparse matvec", size.clone(), 3e-6, got, &want)?;
        }
        // The dense factor without its zeros.
        let numbers: Vec<f32> = right.array.data.iter().map(|&x| x as f32).collect();
        let other = run.samples.tensors.sparse(Csr::from_dense(k, n, &numbers)?)?;
        run.compare(
            "sparse multiply",
            size,
            3e-6,
            matrix.multiply(&other).and_then(|product| all_elements(&product)),
            &want,
        )?;
        let size = format!("{} {m}x{k} with {}", case.name(), matrix.nnz());
        let turned = matrix.transpose().and_then(|turned| all_elements(&turned));
        run.compare("sparse transpose", size.clone(), 0.0, turned, &left.permute(&[1, 0]).into())?;
        // All rows, and every second one once more.
        let mut entries = Coo::empty(m, k)?;
        let mut every_second = Coo::empty(m, k)?;
        for (row, column, value) in host.entries() {
            // Not in order.
            entries.push(m - 1 - row, column, value)?;
            if row % 2 == 0 {
                every_second.push(row, column, value)?;
                entries.push(m - 1 - row, column, value)?;
            }
        }
        let twice = Array::from_fn(&[m, k], |at| left.at(at) * if at[0] % 2 == 0 { 2.0 } else { 1.0 });
        let upside_down = Array::from_fn(&[m, k], |at| twice.at(&[m - 1 - at[0], at[1]]));
        let sum = run.samples.tensors.sparse(every_second).and_then(|other| matrix.add(&other));
        run.compare("sparse add", size.clone(), 0.0, sum.and_then(|sum| all_elements(&sum)), &twice.into())?;
        let sorted = run.samples.tensors.assemble(&entries);
        run.compare(
            "sparse assemble",
            size,
            0.0,
            sorted.and_then(|sorted| all_elements(&sorted)),
            &upside_down.into(),
        )?;
    }
    Ok(())
}

/// All elements of a sparse matrix.
fn all_elements(matrix: &SparseMatrix) -> Result<Tensor> {
    matrix.tensors().from_slice(&matrix.to_csr()?.to_dense()?, &matrix.shape())
}
