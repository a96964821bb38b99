//! Which algorithm a convolution is done with: the only place that decides it.

use super::{Algorithm, Conv, Geometry, winograd};
use crate::{Error, Result, Tensors, tune::Op};

/// Filters of a group from which on a product of matrices is worth it.
const FEW: usize = 4;

/// Why an algorithm cannot do a convolution.
fn refusal(algorithm: Algorithm, geometry: &Geometry) -> Option<&'static str> {
    match algorithm {
        Algorithm::Direct | Algorithm::Im2col | Algorithm::Fft => None,
        Algorithm::Winograd => winograd::refusal(geometry),
    }
}

/// The algorithms that can do it.
pub(super) fn candidates(geometry: &Geometry) -> Vec<Algorithm> {
    Algorithm::ALL.into_iter().filter(|algorithm| refusal(*algorithm, geometry).is_none()).collect()
}

/// What the user wants, if it can be done, or what is likely to be fastest.
pub(super) fn choose(op: &'static str, conv: &Conv, geometry: &Geometry, tensors: &Tensors) -> Result<Algorithm> {
    match conv.algorithm {
        Some(algorithm) => match refusal(algorithm, geometry) {
            None => Ok(algorithm),
            Some(why) => Err(Error::Algorithm { op, algorithm: algorithm.name(), why }),
        },
        // The tuner's first way is the usual one, and the others are the algorithms in their order.
        None => match tensors.way(Op::Conv, 0, &geometry.sizes()).checked_sub(1).and_then(|n| Algorithm::ALL.get(n)) {
            Some(&algorithm) if refusal(algorithm, geometry).is_none() => Ok(algorithm),
            _ => Ok(likely(geometry, tensors.is_bounded())),
        },
    }
}

/// A choice by shape.
fn likely(geometry: &Geometry, gpu: bool) -> Algorithm {
    if gpu {
        return if geometry.filters < FEW { Algorithm::Direct } else { Algorithm::Im2col };
    }
    if geometry.is_pointwise() { Algorithm::Im2col } else { Algorithm::Direct }
}
