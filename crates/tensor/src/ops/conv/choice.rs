//! Which algorithm a convolution is done with: the only place that decides it.

use super::{Algorithm, Conv, Geometry, winograd};
use crate::{Error, Result, Tensors, tune::Op};

/// Filters of a group from which on a product of matrices is worth it on a GPU.
const FEW: usize = 4;
/// Positions that the direct algorithm does at a time with the widest vectors,
const BLOCK: usize = 48;
/// and the share of them that have to exist to be worth it, with as many filters as a product of matrices likes.
const SHARE: f64 = 0.6;
const MANY: usize = 32;
/// Elements of a kernel from which on transforms are thought of.
const LARGE: usize = 100;
/// What transforming an element costs, and multiplying a frequency, in multiplications of the direct algorithm.
const TRANSFORM: f64 = 800.0;
const FREQUENCY: f64 = 40.0;

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
fn likely(g: &Geometry, gpu: bool) -> Algorithm {
    if g.taps() >= LARGE && transformed(g) < (g.batch * g.groups * g.filters * g.positions() * g.depth()) as f64 {
        return Algorithm::Fft;
    }
    if gpu {
        return if g.filters < FEW { Algorithm::Direct } else { Algorithm::Im2col };
    }
    if g.is_pointwise() || (g.filters >= MANY && share(g) < SHARE) { Algorithm::Im2col } else { Algorithm::Direct }
}

/// What transforms cost, in multiplications of the direct algorithm.
fn transformed(g: &Geometry) -> f64 {
    let plane: f64 = g.input.iter().zip(g.padding).map(|(&len, padding)| (len + 2 * padding) as f64).product();
    let planes = g.groups * (g.batch * (g.channels + g.filters) + g.channels * g.filters);
    let products = g.batch * g.groups * g.channels * g.filters;
    plane * (planes as f64 * TRANSFORM + products as f64 * FREQUENCY)
}

/// The share of the direct algorithm's positions that exist.
fn share(g: &Geometry) -> f64 {
    let more = |axis: usize| (g.kernel[axis] - 1) * g.dilation[axis] / g.stride[axis];
    let [slices, rows, columns] = [g.output[0] - 1, g.output[1] - 1, g.output[2] + more(2)];
    let computed = (slices * (g.output[1] + more(1)) + rows) * columns + g.output[2];
    g.positions() as f64 / computed.next_multiple_of(BLOCK) as f64
}
