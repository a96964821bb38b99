//! What our rows on the GPU are held to: wgpu used by hand for the same work, in the same run.

use crate::{
    report::Row,
    targets::{Conditions, best, judge, p50},
};

/// Held to `factor` times the better of the two ways to wait by hand.
fn at_most(rows: &mut [Row], factor: f64) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        let by_hand = |row: &Row| matches!(row.side(), "raw-wgpu" | "raw-wgpu-wait");
        let fastest = best(rows, row.case(), by_hand, p50).filter(|_| row.device == "gpu");
        if let Some((fastest, name)) = fastest {
            conditions.at_most("p50", median, Some(fastest * factor), &format!("{factor} x {name}"));
        }
        conditions
    });
}

pub(super) fn empty_launch(rows: &mut [Row]) {
    at_most(rows, 1.05);
}

pub(super) fn batch(rows: &mut [Row]) {
    at_most(rows, 1.1);
}

pub(super) fn transfer(rows: &mut [Row]) {
    at_most(rows, 1.1);
}

pub(super) fn operation(rows: &mut [Row]) {
    at_most(rows, 1.1);
}

/// Flat: no more than a few uploads of a megabyte.
pub(super) fn memory(rows: &mut [Row]) {
    judge(rows, |_, _, median| {
        let mut conditions = Conditions::default();
        conditions.at_most("p50", median, Some(16.0), "flat after the first hundred");
        conditions
    });
}
