//! Fourier transforms, against the sum that they are.

use super::{
    Run,
    reference::{Array, Expected},
    sample::{Domain, Sample},
};
use crate::{DType, Norm, Result, Tensor};

/// Errors are relative to the root of the sum of the squares of a line: of noise, every frequency is about that large.
/// One transform rounds a few times for every factor of its length;
const DIRECT: f64 = 2e-6;
/// a length with large prime factors may take two transforms of a longer one.
const CHIRPED: f64 = 4e-6;

const UNIT: Domain = Domain { range: (-1.0, 1.0), huge: false };

/// The transform of a line of (real, imaginary) pairs.
fn sum(line: &[[f64; 2]], inverse: bool) -> Vec<[f64; 2]> {
    let n = line.len();
    let turn = std::f64::consts::TAU / n as f64 * if inverse { 1.0 } else { -1.0 };
    let frequency = |k: usize| {
        line.iter().enumerate().fold([0.0; 2], |[re, im], (i, [a, b])| {
            let (s, c) = (turn * (i * k % n) as f64).sin_cos();
            [re + a * c - b * s, im + a * s + b * c]
        })
    };
    (0..n).map(frequency).collect()
}

/// Transforms lines along an axis; the parts are the last axis of input and result. `keep` frequencies of each are kept.
fn along(x: &Array, axis: usize, inverse: bool, keep: usize) -> Expected {
    let n = x.shape[axis];
    let divisor = if inverse { n as f64 } else { 1.0 };
    let mut shape = x.shape.clone();
    shape[axis] = keep;
    let (mut array, mut scale) = (Array::from_fn(&shape, |_| 0.0), vec![0.0; shape.iter().product()]);
    let step: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    for (o, inner) in (0..outer).flat_map(|o| (0..step / 2).map(move |inner| (o, 2 * inner))) {
        let at = |len: usize, i: usize| (o * len + i) * step + inner;
        let line: Vec<[f64; 2]> = (0..n).map(|i| [x.data[at(n, i)], x.data[at(n, i) + 1]]).collect();
        let norm = line.iter().map(|[a, b]| a * a + b * b).sum::<f64>().sqrt() / divisor;
        for (i, parts) in sum(&line, inverse).into_iter().take(keep).enumerate() {
            for (part, value) in parts.into_iter().enumerate() {
                array.data[at(keep, i) + part] = value / divisor;
                scale[at(keep, i) + part] = norm;
            }
        }
    }
    Expected { array, scale }
}

/// Real numbers with imaginary parts of zero.
fn with_zeros(x: &Array) -> Array {
    let mut shape = x.shape.clone();
    shape.push(2);
    Array { shape, data: x.data.iter().flat_map(|&x| [x, 0.0]).collect() }
}

fn parts(got: Result<Tensor>) -> Result<Tensor> {
    got?.view_as_real()
}

fn tolerance(n: usize) -> f64 {
    let rest = [2, 3, 5, 7].into_iter().fold(n, |mut rest, factor| {
        while rest % factor == 0 {
            rest /= factor;
        }
        rest
    });
    if rest == 1 { DIRECT } else { CHIRPED }
}

pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    // One, powers, mixed, large primes, and more than one pass.
    for n in [1, 2, 16, 60, 97, 210, 512, 1009, 1536] {
        let complex = run.samples.shaped(&[2, n], DType::Complex, UNIT)?;
        lines(run, "random", &complex, 1)?;
        let real = run.samples.shaped(&[2, n], DType::F32, UNIT)?;
        real_lines(run, "random", &real, 1)?;
    }
    // Lines apart from one another, backwards, in the middle, and repeated.
    let mut s = run.samples.shaped(&[7, 30, 5], DType::Complex, UNIT)?;
    (s.tensor, s.array) = (s.tensor.permute(&[2, 1, 0])?.flip(1)?, s.array.permute(&[2, 1, 0, 3]).slice(1, 0, 30, -1));
    for axis in 0..3 {
        lines(run, "non-contiguous", &s, axis)?;
    }
    let real = run.samples.tangled(&[4, 18, 5], DType::F32, UNIT, false)?;
    for axis in 0..3 {
        real_lines(run, "non-contiguous", &real, axis)?;
    }
    let mut s = run.samples.shaped(&[1, 12], DType::Complex, UNIT)?;
    (s.tensor, s.array) = (s.tensor.expand(&[6, 12])?, s.array.reshape(&[1, 12, 2]).expand(&[6, 12, 2]));
    lines(run, "broadcast", &s, 0)?;
    several(run)?;
    let empty = run.samples.shaped(&[3, 0], DType::Complex, UNIT)?;
    run.refused("fft", "empty 3x0 over [1]".to_owned(), empty.tensor.fft(1, Norm::Backward))
}

fn size(case: &str, shape: &[usize], axis: usize) -> String {
    let dims: Vec<_> = shape.iter().map(ToString::to_string).collect();
    format!("{case} {} over [{axis}]", dims.join("x"))
}

fn lines(run: &mut Run<'_>, case: &str, s: &Sample, axis: usize) -> Result<()> {
    let (n, shape) = (s.tensor.shape()[axis], s.tensor.shape());
    let (size, tolerance) = (size(case, shape, axis), tolerance(n));
    let forward = parts(s.tensor.fft(axis as isize, Norm::Backward));
    run.compare("fft", size.clone(), tolerance, forward, &along(&s.array, axis, false, n))?;
    let inverse = parts(s.tensor.ifft(axis as isize, Norm::Backward));
    run.compare("ifft", size, tolerance, inverse, &along(&s.array, axis, true, n))
}

fn real_lines(run: &mut Run<'_>, case: &str, s: &Sample, axis: usize) -> Result<()> {
    let n = s.tensor.shape()[axis];
    let (size, tolerance) = (size(case, s.tensor.shape(), axis), tolerance(n));
    let forward = s.tensor.rfft(axis as isize, Norm::Backward);
    let want = along(&with_zeros(&s.array), axis, false, n / 2 + 1);
    run.compare("rfft", size.clone(), tolerance, forward.clone().and_then(|y| y.view_as_real()), &want)?;
    // The way back is checked with what the device itself had, twice the error.
    let back = forward.and_then(|y| y.irfft(axis as isize, n, Norm::Backward));
    let mut want = Expected::from(s.array.clone());
    let largest = s.array.data.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    want.scale.fill(largest);
    run.compare("irfft", size, 2.0 * tolerance, back, &want)
}

/// Along all axes, and back.
fn several(run: &mut Run<'_>) -> Result<()> {
    let s = run.samples.shaped(&[6, 8, 10], DType::Complex, UNIT)?;
    let axes = [0, 1, 2];
    let mut want = along(&s.array, 2, false, 10);
    for axis in [1, 0] {
        want = along(&want.array, axis, false, s.array.shape[axis]);
    }
    let got = s.tensor.fftn(&axes, Norm::Backward);
    run.compare("fftn", "random 6x8x10".to_owned(), DIRECT, parts(got), &want)?;
    let round = s.tensor.fftn(&axes, Norm::Ortho).and_then(|y| y.ifftn(&axes, Norm::Ortho));
    let mut want = Expected::from(s.array.clone());
    want.scale.fill(1.0);
    run.compare("ifftn", "random 6x8x10".to_owned(), 2.0 * DIRECT, parts(round), &want)
}
