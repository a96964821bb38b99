//! What vector instructions bring: operations on arrays in the nearest cache, on one thread, next to the same done one element at
//! a time.
//!
//! Such an operation is over in less than it takes to ask for any, so that is measured as well, as the same operation on
//! a few elements, and taken off.

use std::{
    array,
    hint::black_box,
    sync::atomic::{AtomicU32, Ordering},
};

use millrace::tensor::Tensor;

use super::{Effort, context};
use crate::{
    Error, Result,
    gpu::numbers,
    measure::{Better, Measured, Metric, Side, batch_timed, warm_up},
    report::Row,
    targets::{Conditions, judge},
};

/// Elements of an array: three of them are in the nearest cache.
const ELEMENTS: usize = 2048;
/// As many as an operation is asked for that does next to nothing.
const FEW: usize = 16;
/// Runs in a sample.
const RUNS: usize = 200;

/// Arrays of numbers of which each is read or written by itself: what may be seen by others in between is never done several
/// at a time.
type Numbers = [AtomicU32; ELEMENTS];

/// An addition, a reduction and a function: ours, and one at a time.
struct Case {
    name: &'static str,
    ours: fn(&Tensor, &Tensor) -> Result<Tensor>,
    one_by_one: fn([&Numbers; 2], &Numbers),
}

const CASES: [Case; 3] = [
    Case { name: "add", ours: |x, y| Ok(x.add(y)?), one_by_one: |[x, y], to| each(to, |i| get(x, i) + get(y, i)) },
    Case {
        name: "sum",
        ours: |x, _| Ok(x.sum(&[0])?),
        one_by_one: |[x, _], to| set(&to[0], (0..ELEMENTS).map(|i| get(x, i)).sum()),
    },
    Case { name: "exp", ours: |x, _| Ok(x.exp()?), one_by_one: |[x, _], to| each(to, |i| get(x, i).exp()) },
];

fn get(from: &Numbers, i: usize) -> f32 {
    f32::from_bits(from[i].load(Ordering::Relaxed))
}

fn set(to: &AtomicU32, value: f32) {
    to.store(value.to_bits(), Ordering::Relaxed);
}

fn each(to: &Numbers, of: impl Fn(usize) -> f32) {
    to.iter().enumerate().for_each(|(i, to)| set(to, of(i)));
}

pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let (own, any, effort) = (effort.clone(), effort.clone(), effort.clone());
    vec![
        Side::new("millrace", move || ours(&own, ELEMENTS)),
        Side::new("operation", move || ours(&any, FEW)),
        Side::new("scalar", move || CASES.iter().map(|case| one_by_one(&effort, case)).collect()),
    ]
}

fn ours(effort: &Effort, elements: usize) -> Result<Vec<Metric>> {
    let context = context(1)?;
    let tensors = context.tensors();
    let [x, y] = [1, 2].map(|seed| tensors.from_slice(&numbers(elements, seed), &[elements]));
    let (x, y) = (x?, y?);
    let mut metrics = Vec::new();
    for case in &CASES {
        let mut result = None;
        metrics.push(timed(effort, case, || {
            result = None; // back to the pool
            result = Some((case.ours)(&x, &y)?);
            Ok(tensors.synchronize()?)
        })?);
        let result = result.map(|result| result.to_vec::<f32>()).transpose()?.unwrap_or_default();
        if elements == ELEMENTS {
            case.check(&result)?;
        }
    }
    drop((x, y));
    context.finish()?;
    Ok(metrics)
}

fn one_by_one(effort: &Effort, case: &Case) -> Result<Metric> {
    let [x, y] = arrays();
    let to = array::from_fn(|_| AtomicU32::new(0));
    let metric = timed(effort, case, || {
        (case.one_by_one)(black_box([&x, &y]), black_box(&to));
        Ok(())
    })?;
    case.check(&(0..ELEMENTS).map(|i| get(&to, i)).collect::<Vec<_>>()).map(|()| metric)
}

fn arrays() -> [Numbers; 2] {
    [1, 2].map(|seed| {
        let numbers = numbers(ELEMENTS, seed);
        array::from_fn(|i| AtomicU32::new(numbers[i].to_bits()))
    })
}

fn timed(effort: &Effort, case: &Case, mut run: impl FnMut() -> Result<()>) -> Result<Metric> {
    warm_up(effort.turn / 4, &mut run)?;
    Ok(Metric::lower(case.name, "ns", batch_timed(effort.turn, RUNS, run)?))
}

impl Case {
    /// Both sides must have done the same: what is expected is done here once more.
    fn check(&self, result: &[f32]) -> Result<()> {
        let ([x, y], to) = (arrays(), array::from_fn(|_| AtomicU32::new(0)));
        (self.one_by_one)([&x, &y], &to);
        let many = if self.name == "sum" { 1 } else { ELEMENTS };
        let close = |(i, &got): (usize, &f32)| (got - get(&to, i)).abs() <= 1e-3;
        if result.len() >= many && result[..many].iter().enumerate().all(close) {
            Ok(())
        } else {
            Err(Error::Wrong(format!("{} is wrong", self.name)))
        }
    }
}

/// How many times faster we are, less what any operation takes.
pub(super) fn factors(rows: &[Row]) -> Vec<Row> {
    let of = |side: &str, case: &str| rows.iter().find(|row| row.side() == side && row.case() == case)?.p50;
    let factor = |ours: &Row| {
        let case = ours.case();
        let own = (ours.p50? - of("operation", case)?).max(1.0);
        let id = format!("{}/{case}-over-scalar", ours.side());
        Some(Row::new(&ours.group, Measured::computed(id, "x", Better::Higher, of("scalar", case)? / own)))
    };
    rows.iter().filter(|row| row.is_ours()).filter_map(factor).collect()
}

/// Four times as fast.
pub(super) fn target(rows: &mut [Row]) {
    judge(rows, |_, row, median| {
        let mut conditions = Conditions::default();
        if row.case().ends_with("-over-scalar") {
            conditions.at_least("p50", median, Some(4.0), "one element at a time");
        }
        conditions
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_checked() {
        for case in &CASES {
            assert!(one_by_one(&Effort::quick(), case).is_ok(), "{}", case.name);
            assert!(case.check(&[0.5; ELEMENTS]).is_err() && case.check(&[]).is_err(), "{}", case.name);
        }
    }
}
