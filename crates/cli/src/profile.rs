//! `millrace profile`

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::{Args, builder::PossibleValuesParser};
use millrace::{Device, Figures, ProfileOptions, ProfileSummary, core::file};
use millrace_lab::profiled::Workload;
use serde::Serialize;

use crate::{Failure, stop::Run, tour};

#[derive(Args)]
pub(crate) struct Options {
    /// What to run: an example, or the work of a group of `millrace bench`
    #[arg(value_name = "WHAT", value_parser = PossibleValuesParser::new(names()))]
    what: String,
    /// Where: a device by id or kind
    #[arg(long, default_value = "cpu")]
    device: String,
    /// For about how long; it is done once in any case
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = crate::top::seconds)]
    seconds: f64,
    /// Commands that are kept; those beyond are counted
    #[arg(long, value_name = "COUNT", default_value_t = 1 << 20)]
    events: usize,
    /// Write a trace to this file, for ui.perfetto.dev or chrome tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write a picture to this file: streams and their operations, as wide as the time they took
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the table to this file, as JSON for scripts
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn names() -> Vec<clap::builder::PossibleValue> {
    let tour = clap::builder::PossibleValue::new("tour").help("what `millrace` does without a command, on one device");
    let named = |of: &Workload| clap::builder::PossibleValue::new(of.name).help(of.about);
    std::iter::once(tour).chain(Workload::all().iter().map(named)).collect()
}

/// The run that Ctrl-C stops.
pub(crate) static RUN: Run = Run::new();

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    count: u64,
    failed: u64,
    total_ns: u64,
    mean_ns: f64,
    p50_ns: u64,
    p99_ns: u64,
    queued_ns: f64,
    share: f64,
    bytes: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    what: &'a str,
    device: &'a str,
    time_ns: u64,
    busy_ns: u64,
    commands: u64,
    dropped: u64,
    in_batches: u64,
    peak_memory: u64,
    ops: Vec<Row<'a>>,
    streams: Vec<StreamRow<'a>>,
}

#[derive(Serialize)]
struct StreamRow<'a> {
    stream: u64,
    ops: Vec<Row<'a>>,
}

impl<'a> Row<'a> {
    fn new(name: &'a str, figures: &Figures) -> Self {
        let Figures { count, failed, total, mean, p50, p99, share, bytes, queued, .. } = *figures;
        Self {
            name,
            count,
            failed,
            total_ns: total,
            mean_ns: mean,
            p50_ns: p50,
            p99_ns: p99,
            queued_ns: queued,
            share,
            bytes,
        }
    }
}

impl<'a> Report<'a> {
    fn new(what: &'a str, summary: &'a ProfileSummary) -> Self {
        let rows = |ops: &'a [millrace::OpSummary]| ops.iter().map(|op| Row::new(&op.op, &op.figures)).collect();
        Self {
            what,
            device: &summary.device,
            time_ns: summary.time,
            busy_ns: summary.busy,
            commands: summary.all.count,
            dropped: summary.dropped,
            in_batches: summary.in_batches,
            peak_memory: summary.peak_memory,
            ops: rows(&summary.ops),
            streams: summary.streams.iter().map(|of| StreamRow { stream: of.stream, ops: rows(&of.ops) }).collect(),
        }
    }
}

pub(crate) fn profile(options: &Options) -> Result<(), Failure> {
    let device = millrace::runtime().open(&options.device)?;
    for path in [&options.trace, &options.svg, &options.json].into_iter().flatten() {
        // Better known before the run than after.
        file::check(path)?;
    }
    let profiler = device.profile(&ProfileOptions::default().events(options.events))?;
    RUN.begin();
    let done = run(&options.what, &device, Duration::from_secs_f64(options.seconds));
    let profile = profiler.stop();
    let stopped = RUN.end();
    let summary = profile.summary();
    println!("{summary}");
    // All of them, also if one cannot be written or the work has failed.
    let said = |written: std::io::Result<()>, path: &Path| written.map(|()| println!("written to {}", path.display()));
    let trace = options.trace.as_deref().map(|path| said(profile.write_trace(path), path));
    let svg = options.svg.as_deref().map(|path| said(profile.write_svg(path), path));
    let json = options.json.as_deref().map(|path| {
        let report = Report::new(&options.what, &summary);
        said(file::write(path, |out| Ok(serde_json::to_writer_pretty(out, &report)?)), path)
    });
    done?;
    [trace, svg, json].into_iter().flatten().collect::<Result<(), _>>()?;
    if stopped { Err(Failure::Stopped("stopped; the profile is of what ran until then".to_owned())) } else { Ok(()) }
}

fn run(what: &str, device: &Device, lasting: Duration) -> Result<(), Failure> {
    let until = Instant::now() + lasting;
    let stopping = || RUN.is_stopping();
    let go_on = || Instant::now() < until && !stopping();
    let Some(workload) = Workload::of(what) else {
        let failed = RefCell::new(None);
        while failed.borrow().is_none() {
            for (name, check) in tour::CHECKS {
                if stopping() {
                    return Ok(());
                }
                if let Err(why) = check(device) {
                    failed.replace(Some(format!("{name}: {why}")));
                }
            }
            if !go_on() {
                break;
            }
        }
        return failed.into_inner().map_or(Ok(()), |why| Err(Failure::Failed(why)));
    };
    workload.run(device, &go_on).map_err(|error| Failure::Failed(error.to_string()))
}
