//! `millrace tune`
//!
//! What is measured is measured in a process of its own (`process`), which a way may end without ending the run.

mod process;

use std::time::Duration;

use clap::{Args, builder::PossibleValuesParser};
use indicatif::{ProgressBar, ProgressStyle};
use millrace::{
    Device, DeviceKind,
    tensor::tune::{Case, Fate, Kept, Op, Outcome, Tuner, Tuning},
};
use serde::Serialize;

use process::{Answer, Measuring};
pub(crate) use process::{CaseOptions, measure_cases};

use crate::{
    Failure,
    stop::Run,
    table::{table, time},
};

#[derive(Args)]
pub(crate) struct Options {
    /// What to tune, as "matmul 1x256x256x256"; what is usual if not said
    #[arg(value_name = "CASE", value_parser = |text: &str| text.parse::<Case>())]
    cases: Vec<Case>,
    /// Of what is usual only these operations
    #[arg(long, value_name = "OP", conflicts_with = "cases", value_parser = PossibleValuesParser::new(Op::ALL.map(Op::name)))]
    op: Vec<String>,
    /// Only this device, by id or kind; all of them if not said
    #[arg(long)]
    device: Option<String>,
    /// Fewer and smaller cases
    #[arg(long)]
    quick: bool,
    /// How long one case may take
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = crate::top::seconds)]
    limit: f64,
    /// Measure also what is known already
    #[arg(long)]
    again: bool,
    /// Show what would be tuned, with the ways there are, and end
    #[arg(long, conflicts_with_all = ["show", "clear"])]
    list: bool,
    /// Show what is known, and end
    #[arg(long, conflicts_with = "clear")]
    show: bool,
    /// Forget what is known, also which ways ended a process, and end
    #[arg(long)]
    clear: bool,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

/// The run that Ctrl-C stops.
pub(crate) static RUN: Run = Run::new();

#[derive(Serialize)]
struct Tuned {
    device: String,
    file: Option<String>,
    warnings: Vec<String>,
    cases: Vec<Row>,
    /// Cases that could not be measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    case: String,
    error: String,
}

#[derive(Serialize)]
struct Row {
    case: String,
    #[serde(flatten)]
    kept: Kept,
    /// All ways, if it was measured now.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
}

pub(crate) fn tune(options: &Options) -> Result<(), Failure> {
    let runtime = millrace::runtime();
    let ids: Vec<String> = match &options.device {
        Some(device) => vec![device.clone()],
        None => runtime.devices().into_iter().filter(|d| d.unavailable.is_none()).map(|d| d.id).collect(),
    };
    let mut all = Vec::new();
    RUN.begin();
    for id in ids {
        let device = runtime.open(&id)?;
        let tuner = Tuner::new(&device, None, Tuning::Kept).limit(Duration::from_secs_f64(options.limit));
        let cases = cases(options, device.info().kind);
        if options.list {
            list(&device, &cases);
            continue;
        }
        if options.clear {
            tuner.clear().map_err(|error| Failure::Failed(format!("the results were not removed: {error}")))?;
            continue;
        }
        let measured = if options.show { Vec::new() } else { measure(options, &device, &tuner, &cases)? };
        let tuned = tuned(&device, &tuner, measured, options.show);
        if !options.json {
            print(&tuned, options.show);
        }
        all.push(tuned);
    }
    let stopped = RUN.end();
    if options.json && !options.list && !options.clear {
        let text = serde_json::to_string_pretty(&all);
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
    }
    if stopped {
        return Err(Failure::Stopped("stopped; what was measured until then is kept".into()));
    }
    if let Some(Failed { case, error }) = all.iter().flat_map(|tuned| &tuned.failed).next() {
        return Err(Failure::Failed(format!("{case}: {error}")));
    }
    let unwritten = all.iter().flat_map(|tuned| &tuned.warnings).find(|warning| warning.contains("cannot be written"));
    unwritten.map_or(Ok(()), |warning| Err(Failure::Failed(format!("{warning}; set XDG_CACHE_HOME to another folder"))))
}

fn cases(options: &Options, kind: DeviceKind) -> Vec<Case> {
    if !options.cases.is_empty() {
        return options.cases.clone();
    }
    let wanted = |case: &Case| options.op.is_empty() || options.op.iter().any(|op| op == case.op().name());
    Case::usual(kind, options.quick).into_iter().filter(wanted).collect()
}

fn list(device: &Device, cases: &[Case]) {
    let info = device.info();
    let mut out = table(&[&format!("on {}", info.id), "ways"], 2);
    for case in cases {
        out.add_row([case.to_string(), case.op().ways(info.kind).join(", ")]);
    }
    println!("{out}\n");
}

fn measure(options: &Options, device: &Device, tuner: &Tuner, cases: &[Case]) -> Result<Vec<Answer>, Failure> {
    let known = tuner.results();
    let cases: Vec<_> = cases.iter().filter(|case| options.again || !known.contains_key(&case.to_string())).collect();
    let bar = ProgressBar::new(cases.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left  {msg}") {
        bar.set_style(style);
    }
    let id = &device.info().id;
    let mut measuring = Measuring::new(device, options.limit);
    let mut measured = Vec::new();
    for case in cases {
        if RUN.is_stopping() {
            break;
        }
        bar.set_message(format!("{case} on {id}"));
        let ended = |how: &str| bar.suspend(|| eprintln!("warning: {how} while {case} was measured"));
        measured.push(measuring.measure(case, ended)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(measured)
}

/// What was measured now, or everything that is known.
fn tuned(device: &Device, tuner: &Tuner, measured: Vec<Answer>, everything: bool) -> Tuned {
    let (mut warnings, mut cases, mut failed) = (tuner.warnings(), Vec::new(), Vec::new());
    if everything {
        cases.extend(tuner.results().into_iter().map(|(case, kept)| Row { case, kept, outcome: None }));
    }
    for Answer { case, kept, outcome, warnings: new } in measured {
        match outcome {
            Err(error) => failed.push(Failed { case, error }),
            Ok(outcome) => {
                let row = kept.or_else(|| unfinished(&outcome)).map(|kept| Row { case, kept, outcome: Some(outcome) });
                cases.extend(row);
            }
        }
        new.into_iter().for_each(|warning| {
            if !warnings.contains(&warning) {
                warnings.push(warning)
            }
        });
    }
    let file = tuner.path().map(|path| path.display().to_string());
    Tuned { device: device.info().id.clone(), file, warnings, cases, failed }
}

/// What there was no time for stays as it is.
fn unfinished(outcome: &Outcome) -> Option<Kept> {
    let (usual, ns) = (outcome.trials.first()?, outcome.trials.first()?.median_ns?);
    Some(Kept { way: usual.name.clone(), ns, usual_ns: ns })
}

fn print(tuned: &Tuned, show: bool) {
    for warning in &tuned.warnings {
        eprintln!("warning: {warning}");
    }
    let mut out = table(&[&format!("on {}", tuned.device), "way", "takes", "usually", "gain"], 2);
    for Row { case, kept, .. } in &tuned.cases {
        let gain = format!("{:.2} x", kept.usual_ns / kept.ns);
        out.add_row([case.clone(), kept.way.clone(), time(kept.ns), time(kept.usual_ns), gain]);
    }
    println!("{out}");
    let trials = || tuned.cases.iter().flat_map(|row| row.outcome.iter().map(move |outcome| (&row.case, outcome)));
    for (case, outcome) in trials() {
        if !outcome.complete {
            println!("NOT DECIDED: {case}; give it more time with --limit");
        }
        for trial in &outcome.trials {
            if let Fate::Dropped(reason) = &trial.fate {
                println!("DROPPED: {case}, {}: {reason}", trial.name);
            }
        }
    }
    for Failed { case, error } in &tuned.failed {
        println!("NOT MEASURED: {case}: {error}");
    }
    let other = tuned.cases.iter().filter(|row| row.kept.way != "usual").count();
    let what = if show { "known" } else { "measured" };
    let file = tuned.file.as_deref().unwrap_or("nowhere: there is no cache folder");
    println!("{} {what}, {other} of them with a faster way than the usual one; kept in {file}\n", tuned.cases.len());
}
