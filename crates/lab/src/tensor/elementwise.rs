//! Operations over large arrays: what each does, and what its result has to be.

use millrace::tensor::Tensor;

use super::{Effort, context};
use crate::{
    Error, Result,
    gpu::{Context, numbers},
    measure::{Metric, Side, each_timed, warm_up},
};

/// What a result is, of numbers that need no device.
#[derive(Clone, Copy)]
enum Expected {
    /// Each element, of those at the same place.
    Each(fn(f64, f64) -> f64),
    /// One number, of all of the first array.
    One(fn(f64, f64) -> f64),
}

impl Expected {
    /// Compares some elements, or the only one.
    fn check(self, name: &str, [x, y]: [&[f32]; 2], result: &[f32]) -> Result<()> {
        let wrong = |at: usize, got: f32, want: f64, size: f64| {
            let close = (f64::from(got) - want).abs() <= 1e-5 * size;
            (!close).then(|| Error::Wrong(format!("element {at} of {name} is {got}, not {want}"))).map_or(Ok(()), Err)
        };
        match (self, result) {
            (Self::Each(of), _) if result.len() == x.len() => {
                (0..x.len()).step_by((x.len() / 1024) | 1).try_for_each(|i| {
                    let want = of(x[i].into(), y[i].into());
                    wrong(i, result[i], want, want.abs())
                })
            }
            (Self::One(of), &[got]) => {
                let numbers = || x.iter().map(|&x| f64::from(x));
                let first = x.first().map_or(0.0, |&x| f64::from(x));
                let (want, size) = (numbers().skip(1).fold(first, of), numbers().map(f64::abs).sum());
                wrong(0, got, want, size)
            }
            _ => Err(Error::Wrong(format!("{name} has {} elements", result.len()))),
        }
    }
}

/// An operation over large arrays, with the arrays that it reads and writes.
pub(super) struct Operation {
    name: &'static str,
    /// Of numbers from -1 to 1, and of some that are not negative.
    run: fn(&Tensor, &Tensor) -> Result<Tensor>,
    arrays: usize,
    expected: Expected,
}

const fn each(
    name: &'static str,
    run: fn(&Tensor, &Tensor) -> Result<Tensor>,
    arrays: usize,
    of: fn(f64, f64) -> f64,
) -> Operation {
    Operation { name, run, arrays, expected: Expected::Each(of) }
}

const fn one(name: &'static str, run: fn(&Tensor, &Tensor) -> Result<Tensor>, of: fn(f64, f64) -> f64) -> Operation {
    Operation { name, run, arrays: 1, expected: Expected::One(of) }
}

pub(super) type Operations = &'static [Operation];

pub(super) const UNARY: Operations = &[
    each("relu", |x, _| Ok(x.relu()?), 2, |x, _| x.max(0.0)),
    each("neg", |x, _| Ok(x.neg()?), 2, |x, _| -x),
    each("sqrt", |_, y| Ok(y.sqrt()?), 2, |_, y| y.sqrt()),
];

/// Functions that take many instructions, over an array that is in the caches.
pub(super) const FUNCTIONS: Operations = &[
    each("exp", |x, _| Ok(x.exp()?), 2, |x, _| x.exp()),
    each("tanh", |x, _| Ok(x.tanh()?), 2, |x, _| x.tanh()),
    each("sigmoid", |x, _| Ok(x.sigmoid()?), 2, |x, _| 1.0 / (1.0 + (-x).exp())),
];
pub(super) const FUNCTIONS_OVER: usize = 1 << 20;

pub(super) const BINARY: Operations =
    &[each("add", |x, y| Ok(x.add(y)?), 3, |x, y| x + y), each("mul", |x, y| Ok(x.mul(y)?), 3, |x, y| x * y)];

pub(super) const REDUCE: Operations =
    &[one("sum", |x, _| Ok(x.sum(&[0])?), |sum, x| sum + x), one("max", |x, _| Ok(x.max(&[0])?), f64::max)];

/// Every operation with our tensors, in gigabytes that it has to move in a second.
pub(super) fn elementwise(effort: &Effort, elements: usize, operations: Operations) -> Side {
    let effort = effort.clone();
    Side::new("millrace", move || {
        let context = context(millrace::cpu::CpuInfo::get().cores)?;
        let metrics = ours(&effort, &context, elements, operations)?;
        context.finish()?;
        Ok(metrics)
    })
}

pub(super) fn ours(effort: &Effort, context: &Context, elements: usize, operations: Operations) -> Result<Vec<Metric>> {
    let tensors = context.tensors();
    let plain = numbers(elements, 1);
    let positive: Vec<_> = numbers(elements, 2).into_iter().map(f32::abs).collect();
    let x = tensors.from_slice(&plain, &[elements])?;
    let y = tensors.from_slice(&positive, &[elements])?;
    let mut metrics = Vec::new();
    for Operation { name, run: operation, arrays, expected } in operations {
        let mut result = None;
        let mut run = || {
            result = None; // back to the pool
            result = Some(operation(&x, &y)?);
            Ok(tensors.synchronize()?)
        };
        warm_up(effort.turn / 4, &mut run)?;
        let times = each_timed(effort.turn, run)?;
        let bytes = (4 * elements * arrays) as f64;
        metrics.push(Metric::higher(*name, "GB/s", times.into_iter().map(|ns| bytes / ns).collect()));
        let result = result.map(|result| result.to_vec::<f32>()).transpose()?;
        let result = result.ok_or_else(|| Error::Wrong(format!("{name} was not run")))?;
        expected.check(name, [&plain, &positive], &result)?;
    }
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_are_wrong_are_found() {
        let (x, y) = ([-0.5f32, 0.25, 1.0], [0.5f32, 0.0, 1.0]);
        let check = |expected: Expected, result: &[f32]| expected.check("it", [&x, &y], result).is_ok();
        let add = Expected::Each(|x, y| x + y);
        assert!(check(add, &[0.0, 0.25, 2.0]));
        for wrong in [&[0.0, 0.25, 2.001][..], &[f32::NAN, 0.25, 2.0], &[0.0, 0.25], &[]] {
            assert!(!check(add, wrong), "{wrong:?}");
        }
        let (sum, max) = (Expected::One(|sum, x| sum + x), Expected::One(f64::max));
        assert!(check(sum, &[0.75]) && check(max, &[1.0]));
        assert!(!check(sum, &[0.76]) && !check(max, &[0.25]) && !check(sum, &[0.75, 0.0]));
    }
}
