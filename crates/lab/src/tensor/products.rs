//! Matrix products with other libraries.

#![allow(unsafe_code, reason = "two of the peers take pointers")]

use std::fmt;

use faer::{Accum, MatMut, MatRef, Par};

use crate::{Error, Result, gpu::numbers};

/// A product of an m×k and a k×n matrix, both stored row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Product {
    pub(super) m: usize,
    pub(super) k: usize,
    pub(super) n: usize,
}

impl Product {
    pub(super) fn square(n: usize) -> Self {
        Self { m: n, k: n, n }
    }

    /// Multiplications and additions.
    pub(super) fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.k as f64 * self.n as f64
    }

    /// Two factors, and room for the product.
    pub(super) fn operands(&self) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        (numbers(self.m * self.k, 1), numbers(self.k * self.n, 2), vec![0.0; self.m * self.n])
    }

    /// Whether `c` is the product, by looking at some of its elements.
    pub(super) fn check(&self, c: &[f32]) -> Result<()> {
        let (a, b, empty) = self.operands();
        if c.len() != empty.len() {
            return Err(Error::Wrong(format!("the product has {} elements, not {}", c.len(), empty.len())));
        }
        for at in (0..c.len()).step_by((c.len() / 64) | 1) {
            let (row, column) = (at / self.n, at % self.n);
            let term = |k: usize| f64::from(a[row * self.k + k]) * f64::from(b[k * self.n + column]);
            let expected: f64 = (0..self.k).map(term).sum();
            if (f64::from(c[at]) - expected).abs() > 1e-6 * self.k as f64 + 1e-6 {
                return Err(Error::Wrong(format!("element {at} of the product is {}, not {expected}", c[at])));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, k, n } = self;
        if m == k && k == n { write!(f, "{n}") } else { write!(f, "{m}x{k}x{n}") }
    }
}

/// Who multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    Gemm,
    Faer,
    Matrixmultiply,
}

impl Library {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::Faer => "faer",
            Self::Matrixmultiply => "matrixmultiply",
        }
    }

    /// `c = a b`. matrixmultiply uses as many threads as it found at its first call.
    pub(super) fn multiply(self, product: &Product, a: &[f32], b: &[f32], c: &mut [f32], threads: usize) {
        let Product { m, k, n } = *product;
        assert_eq!((a.len(), b.len(), c.len()), (m * k, k * n, m * n), "the sides have their sizes");
        match self {
            Self::Faer => {
                let (a, b) = (MatRef::from_row_major_slice(a, m, k), MatRef::from_row_major_slice(b, k, n));
                let par = if threads > 1 { Par::rayon(threads) } else { Par::Seq };
                faer::linalg::matmul::matmul(MatMut::from_row_major_slice_mut(c, m, n), Accum::Replace, a, b, 1.0, par);
            }
            Self::Gemm => {
                let par = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
                let (to, a, b) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
                let [kk, nn] = [k as isize, n as isize];
                // SAFETY: the pointers are to m*n, m*k and k*n floats, as was just asserted, and the strides are those of
                // rows stored one after the other, so every element read or written is one of them; `c` is borrowed
                // mutably and overlaps with nothing.
                unsafe {
                    gemm::gemm(m, n, k, to, 1, nn, false, a, 1, kk, b, 1, nn, 0.0, 1.0, false, false, false, par)
                };
            }
            Self::Matrixmultiply => {
                let (to, a, b) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
                let [kk, nn] = [k as isize, n as isize];
                // SAFETY: as above.
                unsafe { matrixmultiply::sgemm(m, k, n, 1.0, a, kk, 1, b, nn, 1, 0.0, to, nn, 1) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_multiplies_every_shape() {
        for product in [Product::square(16), Product { m: 1, k: 40, n: 24 }, Product { m: 24, k: 1, n: 8 }] {
            for library in [Library::Gemm, Library::Faer, Library::Matrixmultiply] {
                for threads in [1, 2] {
                    let (a, b, mut c) = product.operands();
                    assert!(product.check(&c).is_err(), "nothing was multiplied yet");
                    library.multiply(&product, &a, &b, &mut c, threads);
                    product.check(&c).unwrap();
                }
            }
        }
    }
}
