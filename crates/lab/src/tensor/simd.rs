//! What vector instructions bring: the same code at the widest level that the processor has and at the scalar one.
//!
//! The level is decided once in a process, so the scalar side is a process of its own: this group again, under
//! `MILLRACE_SIMD=scalar`, where it has the one side only.

use std::{process::Command, sync::OnceLock};

use millrace::tensor::Simd;

use super::{
    Effort, context,
    elementwise::{self, Operations, each, one},
};
use crate::{
    Error, Result,
    isolated::{Isolated, PATIENCE},
    measure::{Metric, Side},
    report::Row,
    targets::{Conditions, judge},
};

pub(super) const GROUP: &str = "simd";

/// An addition, a reduction and a function.
const CASES: Operations = &[
    each("add", |x, y| Ok(x.add(y)?), 3, |x, y| x + y),
    one("sum", |x, _| Ok(x.sum(&[0])?), |sum, x| sum + x),
    each("exp", |x, _| Ok(x.exp()?), 2, |x, _| x.exp()),
];
/// Elements of an array: three of them are in the second cache and, all together, little enough for the caller to run the operation
/// itself, so that no thread is waited for.
const ELEMENTS: usize = 1 << 14;

static GROUPS: OnceLock<fn() -> Command> = OnceLock::new();

/// Says what runs a group in a process of its own: the command with `bench-group` and what follows it. Without that the scalar
/// side is left out.
pub fn processes(command: fn() -> Command) {
    let _ = GROUPS.set(command);
}

/// On one thread, so that nothing is measured but the instructions.
pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let own = effort.clone();
    let mut sides = vec![Side::new("millrace", move || {
        let context = context(1)?;
        let metrics = elementwise::ours(&own, &context, ELEMENTS, CASES)?;
        context.finish()?;
        Ok(metrics)
    })];
    if let Some(command) = GROUPS.get().filter(|_| Simd::in_use() != Simd::Scalar) {
        let effort = effort.clone();
        sides.push(Side::new("scalar", move || scalar(&effort, command())));
    }
    sides
}

/// The rows of the other process.
fn scalar(effort: &Effort, mut command: Command) -> Result<Vec<Metric>> {
    let timeout = effort.timeout.as_secs_f64().to_string();
    command.args(["bench-group", "tensor", GROUP, "--quick", "--timeout", &timeout]);
    command.env("MILLRACE_SIMD", Simd::Scalar.name());
    let isolated = Isolated { command, timeout: effort.timeout, patience: PATIENCE };
    let ended = isolated.run(GROUP, &|| effort.stop.is_asked(), &mut |_| ());
    let metric = |row: Row| match row.p50 {
        Some(median) => Ok(Metric::higher(row.case().to_owned(), "GB/s", vec![median])),
        None => Err(Error::Wrong(format!("{}: {}", row.id, row.target.unwrap_or_default()))),
    };
    ended.rows.into_iter().map(metric).collect()
}

/// Four times as fast, wherever both were measured.
pub(super) fn target(rows: &mut [Row]) {
    judge(rows, |_, row, median| {
        let mut conditions = Conditions::default();
        if row.case().ends_with("-over-scalar") {
            conditions.at_least("p50", median, Some(4.0), "the same code without wider vectors");
        }
        conditions
    });
}
