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
    /// The suite of the group; empty in reports of old.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suite: String,
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
    /// What 999 of 1000 samples reach, where there are at least [`ENOUGH`](crate::measure::ENOUGH) of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// How many samples there were; zero in reports of old.
    #[serde(default)]
    pub samples: usize,
    /// The best sample, what every further twentieth of them reaches, and the worst.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<f64>,
    /// What it is held to; several conditions are separated by semicolons, and one that was missed says so.
    pub target: Option<String>,
    /// Whether all of that holds; `null` where the run could not tell, and the target says why.
    pub met: Option<bool>,
    /// Which way is better.
    pub better: Better,
    /// The median of every round: what two runs are compared by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<f64>,
    /// Whether its group was stopped before all rounds were over: a number to look at, not to judge by.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

impl Row {
    /// A row of `group` without a target, or of an error.
    pub fn new(group: &str, measured: Measured) -> Self {
        let (summary, target, met) = match measured.outcome {
            Ok(summary) => (Some(summary), None, None),
            Err(error) => (None, Some(format!("runs to its end [{error}]")), Some(false)),
        };
        Self {
            suite: String::new(),
            group: group.to_owned(),
            id: measured.id,
            device: "cpu".to_owned(),
            unit: measured.unit.to_owned(),
            p50: summary.as_ref().map(|s| s.p50),
            p99: summary.as_ref().map(|s| s.p99),
            p999: summary.as_ref().and_then(|s| s.p999),
            mean: summary.as_ref().map(|s| s.mean),
            samples: summary.as_ref().map_or(0, |s| s.samples),
            spread: summary.map_or_else(Vec::new, |s| s.spread),
            target,
            met,
            better: measured.better,
            rounds: measured.rounds,
            interrupted: measured.interrupted,
        }
    }

    /// Its group was stopped: sides had too few turns, or not equally many, for a verdict.
    pub(crate) fn withdraw_verdict(&mut self) {
        self.interrupted = true;
        if self.target.is_some() && !self.is_error() {
            (self.met, self.target) = (None, Some("not judged: the group was interrupted".to_owned()));
        }
    }

    /// Whether it is a number of ours.
    pub fn is_ours(&self) -> bool {
        self.id.starts_with("millrace")
    }

    /// Whether it is the same number, of another run.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let suite = self.suite == other.suite || self.suite.is_empty() || other.suite.is_empty();
        suite && (&self.group, &self.id, &self.device) == (&other.group, &other.id, &other.device)
    }

    /// Whether it is a time that single operations took.
    pub fn is_latency(&self) -> bool {
        self.better == Better::Lower && matches!(&*self.unit, "ns" | "us" | "ms") && !self.is_error()
    }

    /// A number of this row as people say it.
    pub fn shown(&self, n: f64) -> String {
        let seconds = match &*self.unit {
            "ns" => Some(n / 1e9),
            "us" => Some(n / 1e6),
            "ms" => Some(n / 1e3),
            _ => None,
        };
        match (seconds, self.better) {
            (Some(s), _) if s.abs() < 1e-7 => format!("{:.1} ns", s * 1e9),
            (Some(s), _) if s.abs() < 1e-6 => format!("{:.0} ns", s * 1e9),
            (Some(s), _) if s.abs() < 1e-3 => format!("{:.2} µs", s * 1e6),
            (Some(s), _) if s.abs() < 1.0 => format!("{:.2} ms", s * 1e3),
            (Some(s), _) => format!("{s:.2} s"),
            (None, Better::Higher) if n >= 1e9 => format!("{:.2} G{}", n / 1e9, self.unit),
            (None, Better::Higher) if n >= 1e6 => format!("{:.2} M{}", n / 1e6, self.unit),
            (None, Better::Higher) if n >= 1e3 => format!("{:.1} k{}", n / 1e3, self.unit),
            (None, _) => format!("{n:.2} {}", self.unit),
        }
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
    /// The rows, group by group.
    pub fn groups(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunk_by(|a, b| (&a.suite, &a.group) == (&b.suite, &b.group))
    }

    /// As JSON, for people and scripts.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// What became of our rows since an earlier run, and how far apart their rounds are; none where one of the two has
    /// too few or was interrupted.
    pub fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a Row, Verdict)> {
        self.rows.iter().filter(|row| row.is_ours() && !row.interrupted).filter_map(|row| {
            let earlier = before.rows.iter().find(|other| other.is_same_as(row))?;
            if earlier.unit != row.unit || earlier.interrupted {
                return None;
            }
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
