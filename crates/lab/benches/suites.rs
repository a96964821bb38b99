//! `cargo bench --bench suites`: every group of `millrace bench` under criterion, with baselines and regressions.
//!
//! The groups are the lab's own list, so none can be missing here. An id is `suite/group/side/case`. Which cases a side has
//! is known once it had a turn: `--list` gives each a very short one. A sample is the median of a turn. What is better when
//! it is higher is turned round, so that more is always worse: a rate per second becomes the time of one.

#![allow(missing_docs, reason = "a benchmark has no users")]
#![allow(clippy::expect_used, reason = "a benchmark talks to a person, and ends if it cannot go on")]

use std::time::Duration;

use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use millrace_lab::{
    measure::{Better, Metric, Summary, guarded},
    suites::{How, Part, Suite},
};

/// Of a turn that is given up.
const LONG: Duration = Duration::from_secs(120);
/// Of a case, where only its name is wanted or whether it works.
const SHORT: Duration = Duration::from_millis(1);

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let brief = has("--list") || has("--test") || !has("--bench");
    let (once, how) = (How { quick: true, turn: Some(SHORT), ..How::default() }, How { quick: true, ..How::default() });
    let mut filter = Filter::of(&args);
    let suites: Vec<_> = Suite::ALL.map(|suite| (suite, suite.parts(&once), suite.parts(&how))).into();
    filter.narrow(suites.iter().flat_map(|(suite, parts, _)| parts.iter().map(|part| prefix(*suite, part))));
    for (suite, parts, timed) in suites {
        let gpu = timed.iter().any(|part| part.device == "gpu");
        for group in suite.groups().iter().filter(|group| gpu || group.devices.contains(&"cpu")) {
            assert!(parts.iter().any(|part| part.group == group.name), "{} {} has no sides", suite.name(), group.name);
        }
        let pairs: Vec<_> = parts.into_iter().zip(timed).collect();
        for sides in pairs.chunk_by(|(a, _), (b, _)| a.group == b.group) {
            let wanted = sides.iter().map(|(first, part)| (first, part, prefix(suite, part)));
            let begun = wanted.filter(|(.., name)| filter.may_match(name)).flat_map(|(first, part, name)| {
                turn(&name, first)
                    .into_iter()
                    .map(|first| Case { part, figure: Figure::of(&first), first })
                    .collect::<Vec<_>>()
            });
            bench(suite, begun.collect(), brief);
        }
    }
    if !brief {
        Criterion::default().configure_from_args().final_summary();
    }
}

fn prefix(suite: Suite, part: &Part) -> String {
    format!("{}/{}/{}", suite.name(), part.group, part.side.name)
}

fn turn(name: &str, part: &Part) -> Vec<Metric> {
    let round = part.side.round.clone();
    match guarded(LONG, move || round()) {
        Ok(Ok(metrics)) => metrics,
        Ok(Err(error)) | Err(error) => panic!("{name}: {error}"),
    }
}

/// A case of a side, after its first turn.
struct Case<'a> {
    part: &'a Part,
    figure: Figure,
    first: Metric,
}

/// The cases of a group. Criterion has one unit for all that it measures, so each unit has its own.
fn bench(suite: Suite, mut cases: Vec<Case<'_>>, brief: bool) {
    cases.sort_by_key(|case| case.figure.unit());
    for cases in cases.chunk_by(|a, b| a.figure.unit() == b.figure.unit()) {
        let mut criterion = Criterion::default()
            .with_measurement(cases[0].figure)
            .sample_size(10)
            .warm_up_time(SHORT)
            .measurement_time(Duration::from_secs(1))
            .nresamples(5000)
            .without_plots()
            .configure_from_args();
        let mut group = criterion.benchmark_group(format!("{}/{}", suite.name(), cases[0].part.group));
        group.sampling_mode(SamplingMode::Flat);
        for case in cases {
            let side = &case.part.side.name;
            let id = if case.first.case.is_empty() { side.clone() } else { format!("{side}/{}", case.first.case) };
            let mut known = brief.then(|| case.value(&case.first)); // a test is one turn, and that is over
            group.bench_function(BenchmarkId::from_parameter(id), |bencher| {
                bencher.iter_custom(|iters| {
                    let value = known.take().unwrap_or_else(|| case.again(suite));
                    value * iters as f64
                });
            });
        }
        group.finish();
    }
}

impl Case<'_> {
    fn value(&self, metric: &Metric) -> f64 {
        self.figure.value(metric).expect("a turn has samples")
    }

    /// The value of another turn.
    fn again(&self, suite: Suite) -> f64 {
        let name = prefix(suite, self.part);
        let metrics = turn(&name, self.part);
        let again = metrics.iter().find(|again| again.case == self.first.case);
        self.value(again.unwrap_or_else(|| panic!("{name} has no {} any more", self.first.case)))
    }
}

/// What a number is.
#[derive(Clone, Copy)]
enum Figure {
    /// Nanoseconds: of a time as many as one unit has, of a rate those of one of what is counted.
    Time(f64),
    /// Something else; whether more of it is better.
    Other(&'static str, Better),
}

impl Figure {
    fn of(metric: &Metric) -> Self {
        match metric.unit {
            "ns" => Self::Time(1.0),
            "us" => Self::Time(1e3),
            "ms" => Self::Time(1e6),
            unit if unit.ends_with("/s") && metric.better == Better::Higher => Self::Time(1e9),
            unit => Self::Other(unit, metric.better),
        }
    }

    /// What all that are shown together have in common.
    fn unit(self) -> &'static str {
        match self {
            Self::Time(_) => "",
            Self::Other(unit, _) => unit,
        }
    }

    /// The median of a turn; none without samples. Differences can come out below zero, and criterion does not know such.
    fn value(self, metric: &Metric) -> Option<f64> {
        let median = Summary::of(metric.samples.clone(), metric.better)?.p50;
        let value = match (self, metric.better) {
            (Self::Time(unit), Better::Lower) => median * unit,
            (Self::Time(unit), Better::Higher) => unit / median,
            (Self::Other(..), Better::Lower) => median,
            (Self::Other(..), Better::Higher) => 1.0 / median,
        };
        Some(if value.is_finite() { value.max(1e-3) } else { 1e-3 })
    }
}

impl Measurement for Figure {
    type Intermediate = ();
    type Value = f64;

    fn start(&self) {}

    fn end(&self, (): ()) -> f64 {
        0.0
    }

    fn add(&self, a: &f64, b: &f64) -> f64 {
        a + b
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self
    }
}

impl ValueFormatter for Figure {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        match self {
            Self::Time(_) => WallTime.formatter().scale_values(typical, values),
            Self::Other(unit, Better::Lower) => unit,
            Self::Other(..) => "of one",
        }
    }

    fn scale_throughputs(&self, typical: f64, _: &Throughput, values: &mut [f64]) -> &'static str {
        self.scale_values(typical, values) // none is set
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        match self {
            Self::Time(_) => WallTime.formatter().scale_for_machines(values),
            Self::Other(unit, _) => unit,
        }
    }
}

/// Which sides may have an id that the user asks for. Criterion decides about ids; this saves the turns of others.
struct Filter {
    /// None for everything.
    word: Option<String>,
    /// Whether the word can be in a case alone.
    anywhere: bool,
}

impl Filter {
    fn of(args: &[String]) -> Self {
        const WITH_VALUE: [&str; 20] = [
            "-c",
            "--color",
            "--colour",
            "-s",
            "--save-baseline",
            "-b",
            "--baseline",
            "--baseline-lenient",
            "--load-baseline",
            "--warm-up-time",
            "--measurement-time",
            "--nresamples",
            "--noise-threshold",
            "--confidence-level",
            "--significance-level",
            "--profile-time",
            "--plotting-backend",
            "--output-format",
            "--sample-size",
            "--format",
        ];
        let mut words = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if WITH_VALUE.contains(&&**arg) {
                args.next();
            } else if !arg.starts_with('-') {
                words.push(arg.clone());
            }
        }
        // An expression is left to criterion.
        let plain = |word: &String| word.chars().all(|c| c.is_ascii_alphanumeric() || "/_- ".contains(c));
        Self { word: (words.len() == 1).then(|| words.remove(0)).filter(plain), anywhere: false }
    }

    /// Only sides whose own names have the word, or those of no side have it.
    fn narrow(&mut self, mut all: impl Iterator<Item = String>) {
        self.anywhere = !all.any(|name| self.may_match(&name));
    }

    fn may_match(&self, name: &str) -> bool {
        let Some(word) = &self.word else { return true };
        let name = format!("{name}/");
        let over_the_end = (0..name.len()).any(|at| name.is_char_boundary(at) && word.starts_with(&name[at..]));
        self.anywhere || name.contains(&**word) || over_the_end
    }
}
