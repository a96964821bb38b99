//! The figures that users were promised, as data: `targets.json`. What a row is held to beside them, its peers and the
//! machine's own limit in the same run, is with its group.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::{
    report::{Better, Report, Row},
    suites::Suite,
};

/// A figure that some rows have to reach.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Which of the documents it is from.
    pub seed: String,
    /// What it is about.
    pub what: String,
    /// The suite,
    pub suite: String,
    /// the group, and
    pub group: String,
    /// the rows.
    pub ids: Vec<String>,
    /// What of the row has to reach it.
    #[serde(default)]
    pub metric: Figure,
    /// Not more than this,
    pub at_most: Option<f64>,
    /// or not less than this.
    pub at_least: Option<f64>,
    /// What it is counted in.
    pub unit: String,
    /// Whether a row that does not reach it has missed its target. Otherwise it is only said: what we hold ourselves to
    /// is another figure, or the machine cannot do it.
    #[serde(default = "yes")]
    pub bar: bool,
}

/// What of a row is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    /// Its median.
    #[default]
    P50,
    /// Its median over that of the limit in the same run.
    Share,
}

fn yes() -> bool {
    true
}

static ALL: LazyLock<serde_json::Result<Vec<Target>>> =
    LazyLock::new(|| serde_json::from_str(include_str!("../targets.json")));

/// All of them.
///
/// ```
/// let targets = millrace_lab::seeds::targets();
/// assert!(targets.iter().any(|target| target.group == "round_trip_latency" && target.at_most == Some(5000.0)));
/// ```
pub fn targets() -> &'static [Target] {
    ALL.as_deref().unwrap_or_default() // a test reads it
}

/// Whether a group has such targets.
pub fn has_targets(suite: Suite, group: &str) -> bool {
    targets().iter().any(|target| target.suite == suite.name() && target.group == group)
}

impl Target {
    /// The bound as text, as `<= 100 ns`.
    pub fn bound(&self) -> String {
        match (self.at_most, self.at_least) {
            (Some(most), _) => format!("<= {most} {}", self.unit),
            (None, Some(least)) => format!(">= {least} {}", self.unit),
            (None, None) => String::new(),
        }
    }

    fn holds(&self, value: f64) -> bool {
        self.at_most.is_none_or(|most| value <= most) && self.at_least.is_none_or(|least| value >= least)
    }

    fn value(&self, rows: &[Row], row: &Row) -> Option<f64> {
        match self.metric {
            Figure::P50 => row.p50,
            Figure::Share => row.of_limit(rows),
        }
    }

    fn is_for(&self, row: &Row) -> bool {
        let suite = row.suite.is_empty() || row.suite == self.suite;
        suite && self.group == row.group && self.ids.contains(&row.id)
    }
}

/// Adds what the file says to the targets of rows.
pub(crate) fn judge(rows: &mut [Row]) {
    for place in 0..rows.len() {
        for target in targets().iter().filter(|target| target.bar) {
            let row = &rows[place];
            let value = target.value(rows, row).filter(|_| target.is_for(row) && !row.is_error());
            let Some(value) = value else { continue };
            let (holds, missed) = match target.holds(value) {
                true => (true, ""),
                false => (false, " [missed]"),
            };
            let what = if target.metric == Figure::Share { "share of the limit" } else { "p50" };
            let text = format!("{what} {} (seed){missed}", target.bound());
            let row = &mut rows[place];
            row.met = match (row.met, &row.target) {
                (None, Some(_)) if holds => None, // something else is undecided
                (met, _) => Some(met.unwrap_or(true) && holds),
            };
            row.target = Some(row.target.take().map_or_else(|| text.clone(), |before| format!("{before}; {text}")));
        }
    }
}

/// What became of one target in a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The target.
    pub target: &'static Target,
    /// The row.
    pub id: String,
    /// What was measured; none if that failed.
    pub value: Option<f64>,
    /// Whether it is enough.
    pub met: bool,
}

/// What became of all targets whose rows are in a report, and were not interrupted.
pub fn outcomes(report: &Report) -> Vec<Outcome> {
    let of = |target: &'static Target| {
        report.rows.iter().filter(|row| target.is_for(row) && !row.interrupted).map(move |row| {
            let value = target.value(&report.rows, row);
            Outcome { target, id: row.id.clone(), value, met: value.is_some_and(|value| target.holds(value)) }
        })
    };
    targets().iter().flat_map(of).collect()
}

impl Row {
    /// How this row's median compares with that of the machine's limit for the same case, among the rows of its run: 1 is
    /// as good as the limit, less is worse, for times as for rates.
    pub fn of_limit(&self, rows: &[Self]) -> Option<f64> {
        let in_group =
            || rows.iter().filter(|row| row.group == self.group && row.suite == self.suite && row.unit == self.unit);
        // Cloning is there so that nothing needs to be copied.
        if self.group == "bytes_clone" || matches!(self.side(), "limit" | "copy" | "read") {
            return None;
        }
        let limits = || in_group().filter(|row| matches!(row.side(), "limit" | "copy" | "read"));
        let limit = limits().find(|row| row.case() == self.case());
        // One limit for all cases, if there is only one.
        let limit = limit.or_else(|| limits().find(|row| row.case().is_empty()));
        let (limit, ours) = (limit?.p50?, self.p50.filter(|p50| *p50 > 0.0)?);
        Some(match self.better {
            Better::Lower => limit / ours,
            Better::Higher => ours / limit,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn every_target_of_the_file_names_a_group_that_exists_and_has_one_bound() {
        let targets = ALL.as_ref().unwrap();
        assert!(targets.len() > 20);
        for target in targets {
            let suite = Suite::of(&target.suite).unwrap_or_else(|| panic!("no suite {}", target.suite));
            assert!(suite.groups().iter().any(|group| group.name == target.group), "no group {}", target.group);
            assert!(target.at_most.is_some() != target.at_least.is_some(), "{target:?}");
            assert!(!target.ids.is_empty() && target.ids.iter().all(|id| id.starts_with("millrace")), "{target:?}");
        }
    }
}
