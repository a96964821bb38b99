//! What our rows are held to.

use crate::{
    report::Row,
    targets::{Conditions, judge, value_of},
};

/// The best median of the rows that `among` says yes to, and whose it is.
fn fastest(rows: &[Row], among: impl Fn(&Row) -> bool) -> Option<(f64, String)> {
    let candidates = rows.iter().filter(|row| among(row)).filter_map(|row| Some((row.p50?, row.id.clone())));
    candidates.reduce(|a, b| if b.0 < a.0 { b } else { a })
}

pub(super) fn serialization(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        let case = row.case();
        if matches!(case, "write-2x1000" | "write-archive-2x1000") {
            let copy = value_of(rows, &format!("limit/{case}"));
            conditions.at_most("p50", median, copy.map(|ns| ns + 30.0), "30 ns beyond copying the floats");
        } else if case.starts_with("access") {
            conditions.at_most("p50", median, Some(2.0), "in place");
        }
        conditions
    });
}

pub(super) fn allocation(rows: &mut [Row]) {
    judge(rows, |rows, _, median| {
        let mut conditions = Conditions::default();
        conditions.at_most("p50", median, value_of(rows, "direct/4KiB").map(|ns| ns / 10.0), "a tenth of direct");
        conditions
    });
}

/// Alone or contended: below the fastest peer.
pub(super) fn queue(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.side() == "millrace"
            && let Some((best, name)) = fastest(rows, |other| !other.is_ours() && other.case() == row.case())
        {
            conditions.at_most("p50", median, Some(best), &format!("{name}, the fastest peer"));
        }
        conditions
    });
}

pub(super) fn round_trip(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        // An actor in the asker's own thread crosses none: it is a peer of questions that do not, either.
        let inline = row.case() == "same-thread";
        if row.device == "cpu" {
            if !inline {
                conditions.at_most("p50", median, value_of(rows, "limit").map(|ns| 2.0 * ns), "2 x limit");
            }
            let is_actor =
                |row: &Row| !row.is_ours() && row.side() != "limit" && (inline || row.case() != "same-thread");
            if let Some((best, name)) = fastest(rows, is_actor) {
                conditions.at_most("p50", median, Some(best), &format!("{name}, the fastest actor"));
            }
        } else {
            conditions.at_most("p50", median, Some(1000.0), "while active");
        }
        conditions
    });
}

pub(super) fn inject(rows: &mut [Row]) {
    judge(rows, |_, _, median| {
        let mut conditions = Conditions::default();
        conditions.at_most("p50", median, Some(100.0), "acknowledged later");
        conditions
    });
}

pub(super) fn query_state(rows: &mut [Row]) {
    judge(rows, |_, _, median| {
        let mut conditions = Conditions::default();
        conditions.at_most("p50", median, Some(50.0), "from telemetry");
        conditions
    });
}

pub(super) fn startup(rows: &mut [Row]) {
    judge(rows, |_, row, median| {
        let mut conditions = Conditions::default();
        if row.device == "cpu" {
            conditions.at_most("p50", median, Some(1e6), "a millisecond");
        }
        conditions
    });
}
