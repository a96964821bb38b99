//! Sparse matrices against dense ones.

use super::{
    Run,
    reference::Array,
    sample::{Case, Domain},
};
use crate::{DType, Result, sparse::Csr};

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
        let matrix = run.samples.tensors.sparse(Csr::from_dense(m, k, &elements)?)?;
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
            run.compare("sparse matvec", size, 3e-6, got, &want)?;
        }
    }
    Ok(())
}
