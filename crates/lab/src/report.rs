//! The report of a run, and its JSON, which scripts may rely on.

use serde::{Deserialize, Serialize};

pub use crate::measure::Better;
use crate::{
    machine::Machine,
    measure::Measured,
    verdict::{Verdict, compare},
};

/// The form of the JSON. It changes when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// What a run measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Where and when.
    pub machine: Machine,
    /// The numbers.
    pub rows: Vec<Row>,
}

/// One number of one side.
///
/// Where a measurement failed, its three numbers are `null`, `target` is what it failed to do and `met` is false.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub group: String,
    /// Which side, and after a slash which case. Ours begin with `millrace`.
    pub id: String,
    /// The device.
    pub device: String,
    /// What the numbers are counted in.
    pub unit: String,
    /// The median.
    pub p50: Option<f64>,
    /// What 99 of 100 samples reach.
    pub p99: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// What it is held to; several conditions are separated by semicolons, and one that was missed says so.
    pub target: Option<String>,
    /// Whether all of that holds; `null` where the run could not tell, and the target says why.
    pub met: Option<bool>,
    /// Which way is better.
    pub better: Better,
    /// The median of every round: what two runs are compared by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<f64>,
}

impl Row {
    /// A row of `group` without a target, or of an error.
    pub fn new(group: &str, measured: Measured) -> Self {
        let (summary, target, met) = match measured.outcome {
            Ok(summary) => (Some(summary), None, None),
            Err(error) => (None, Some(format!("runs to its end [{error}]")), Some(false)),
        };
        Self {
            group: group.to_owned(),
            id: measured.id,
            device: "cpu".to_owned(),
            unit: measured.unit.to_owned(),
            p50: summary.map(|s| s.p50),
            p99: summary.map(|s| s.p99),
            mean: summary.map(|s| s.mean),
            target,
            met,
            better: measured.better,
            rounds: measured.rounds,
        }
    }

    /// Whether it is a number of ours.
    pub fn is_ours(&self) -> bool {
        self.id.starts_with("millrace")
    }

    /// Whether it is the same number, of another run.
    fn is_same_as(&self, other: &Self) -> bool {
        (&self.group, &self.id, &self.device) == (&other.group, &other.id, &other.device)
    }

    /// Whether the measurement failed.
    pub fn is_error(&self) -> bool {
        self.p50.is_none()
    }

    /// The side.
    pub fn side(&self) -> &str {
        self.id.split_once('/').map_or(&*self.id, |(side, _)| side)
    }

    /// The case; empty if there is only one.
    pub fn case(&self) -> &str {
        self.id.split_once('/').map_or("", |(_, case)| case)
    }
}

impl Report {
    /// As JSON, for people and scripts.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// What became of our rows since an earlier run, and how far apart their rounds are; none where one of the two has
    /// too few.
    pub fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a Row, Verdict)> {
        self.rows.iter().filter(|row| row.is_ours()).filter_map(|row| {
            let earlier =
                before.rows.iter().find(|other| other.is_same_as(row)).filter(|earlier| earlier.unit == row.unit)?;
            Some((row, compare(&row.rounds, &earlier.rounds, row.better)?))
        })
    }

    /// Takes the rounds of a second run of the same groups in, so that a comparison has more to go by. The other numbers
    /// stay those of the first.
    pub fn add_rounds(&mut self, again: &Self) {
        for row in &mut self.rows {
            if let Some(more) = again.rows.iter().find(|other| other.is_same_as(row)) {
                row.rounds.extend(&more.rounds);
            }
        }
    }

    /// Our rows that missed their target, errors included.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.is_ours() && row.met == Some(false))
    }
}
