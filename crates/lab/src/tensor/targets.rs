//! What our rows on the CPU are held to.

use crate::{
    report::Row,
    targets::{Conditions, best, judge, p50, value_of},
};

/// The best library that does nothing else, less five hundredths.
pub(super) fn matmul(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if let Some((fastest, name)) = best(rows, row.case(), |row| !row.is_ours(), p50) {
            conditions.at_least("p50", median, Some(0.95 * fastest), &format!("0.95 x {name}, the fastest"));
        }
        conditions
    });
}

/// What a plain copy or a plain read of the same arrays reaches, less a tenth.
pub(super) fn bandwidth(rows: &mut [Row]) {
    judge(rows, |rows, _, median| {
        let mut conditions = Conditions::default();
        conditions.at_least("p50", median, value_of(rows, "copy").map(|rate| 0.9 * rate), "0.9 x a plain copy");
        conditions.at_least("p50", median, value_of(rows, "read").map(|rate| 0.9 * rate), "0.9 x a plain read");
        conditions
    });
}

pub(super) fn small_op(rows: &mut [Row]) {
    judge(rows, |_, _, median| {
        let mut conditions = Conditions::default();
        conditions.at_most("p50", median, Some(1000.0), "a microsecond");
        conditions
    });
}

/// Half a millisecond for a hundred thousand entries, and the best library.
pub(super) fn sparse_convert(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if let Some((fastest, name)) = best(rows, row.case(), |row| !row.is_ours(), p50) {
            conditions.at_most("p50", median, Some(fastest), &format!("{name}, the fastest"));
        }
        if row.case() == "coo-csr" {
            conditions.at_most("p50", median, Some(500.0), "half a millisecond");
        }
        conditions
    });
}

/// The best library, and around the diagonal a plain copy less two tenths.
pub(super) fn sparse_product(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        let is_library = |row: &Row| !row.is_ours() && row.side() != "copy";
        if let Some((fastest, name)) = best(rows, row.case(), is_library, p50) {
            conditions.at_least("p50", median, Some(fastest), &format!("{name}, the fastest"));
        }
        if row.case() == "banded" {
            conditions.at_least("p50", median, value_of(rows, "copy").map(|rate| 0.8 * rate), "0.8 x a plain copy");
        }
        conditions
    });
}

/// As fast as any other.
pub(super) fn fastest(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if let Some((fastest, name)) = best(rows, row.case(), |row| !row.is_ours(), p50) {
            conditions.at_least("p50", median, Some(fastest), &format!("{name}, the fastest"));
        }
        conditions
    });
}

/// What the library alone takes, and a twentieth more. A short line is over before an operation of any kind could be; so an
/// operation that takes one step for each number is added there, measured in the same run.
pub(super) fn fft(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        let alone = value_of(rows, &format!("rustfft/{}", row.case())).map(|us| us / 0.95);
        let (limit, name) = match value_of(rows, &format!("operation/{}", row.case())) {
            Some(operation) => (alone.map(|us| us + operation), "rustfft alone / 0.95 and an operation"),
            None => (alone, "rustfft alone / 0.95"),
        };
        conditions.at_most("p50", median, limit, name);
        conditions
    });
}

/// Twice what our own product of `f32` reaches, and a plain copy less two tenths.
pub(super) fn int8(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if matches!(row.case(), "quantize" | "dequantize") {
            conditions.at_least("p50", median, value_of(rows, "copy").map(|rate| 0.8 * rate), "0.8 x a plain copy");
        } else {
            let floats = value_of(rows, &format!("f32/{}", row.case()));
            conditions.at_least("p50", median, floats.map(|rate| 2.0 * rate), "2 x our own f32");
        }
        conditions
    });
}

/// The library whose products get memory of their own, too, if it is there. The others write into a result that is there already.
pub(super) fn matmul_small(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        let candle = value_of(rows, &format!("candle/{}", row.case()));
        conditions.at_least("p50", median, candle, "candle");
        conditions
    });
}

/// Nothing here.
pub(super) fn none(_: &mut [Row]) {}
