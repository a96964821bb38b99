//! The groups of `millrace bench profiler`: what a profile costs those who are profiled, and what it takes to make sense
//! of it.
//!
//! Two devices take turns in the same loop, one of them profiled. What it costs is the difference of the two, command for
//! command: of the first thousand commands, and of those after a million.

use std::{hint::black_box, time::Instant};

use millrace::{CpuKernel, Device, DeviceOptions, KernelSpec, ProfileOptions, StreamOptions, Synchronize};

pub use crate::gpu::Effort;
use crate::{
    Error, Result,
    commands::Progress,
    groups::{self, Group},
    measure::{Metric, Side},
    report::{Report, Row},
    suites::Listed,
    targets::{Conditions, judge},
};

/// Measures all groups that `wanted` says yes to, the sides in turns, and sets the targets.
///
/// ```
/// use millrace_lab::profiler::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "profiler", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// println!("{}", report.to_json()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    groups::run(groups(effort), &effort.turns(), wanted, progress)
}

/// Its groups as a list shows them.
pub(crate) fn listed() -> Vec<Listed> {
    groups(&Effort::quick()).iter().map(Group::listed).collect()
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick()).iter().map(|group| group.name).collect()
}

/// Commands of a sample.
const BATCH: usize = 1000;
/// Commands before the last samples.
const MANY: usize = 1_000_000;

pub(crate) fn groups(effort: &Effort) -> Vec<Group> {
    let side = |round: fn(&Effort) -> Result<Vec<Metric>>| {
        let effort = effort.clone();
        Side::new("millrace", move || round(&effort))
    };
    vec![
        Group::new("profiler", vec![side(events)], event_target).on(|_| "cpu").about(
            "The same commands on a device that is profiled and on one that is not; an event costs the difference.",
        ),
        Group::new("profiler_report", vec![side(reports)], |_| ())
            .on(|_| "cpu")
            .about("Ending a profile, summing it up and writing it as a trace, for each span."),
    ]
}

fn event_target(rows: &mut [Row]) {
    judge(rows, |_, row, median| {
        let mut conditions = Conditions::default();
        if row.case().starts_with("event") {
            conditions.at_most("p50", median, Some(100.0), "at any number of events");
        }
        conditions
    });
}

/// How a thousand commands are given to a device; the nanoseconds that they took.
type Batch = Box<dyn FnMut() -> Result<f64>>;

/// Makes a device ready for batches.
type Prepare = fn(&Device) -> Result<Batch>;

fn device() -> Result<Device> {
    Ok(millrace::runtime().open_with("cpu", DeviceOptions::default().workers(1))?)
}

/// Commands that the caller runs, launches that it runs, and commands that it hands over.
const WAYS: [(&str, Prepare); 3] = [
    ("run", |device| {
        let stream = device.stream()?;
        Ok(Box::new(move || {
            let start = Instant::now();
            for _ in 0..BATCH {
                stream.run(Synchronize)?;
            }
            Ok(start.elapsed().as_nanos() as f64)
        }))
    }),
    ("launch", |device| {
        let stream = device.stream()?;
        let kernel = device.kernel(&KernelSpec::new("nothing").cpu(CpuKernel::whole(|_| ())))?;
        stream.submit(kernel.launch())?.wait()?;
        Ok(Box::new(move || {
            let start = Instant::now();
            for _ in 0..BATCH {
                stream.run(kernel.launch())?;
            }
            Ok(start.elapsed().as_nanos() as f64)
        }))
    }),
    ("submit", |device| {
        let stream = device.stream_with(&StreamOptions::default().capacity(2 * BATCH))?;
        Ok(Box::new(move || {
            stream.submit(Synchronize)?.wait()?; // its worker is awake
            let start = Instant::now();
            for _ in 0..BATCH {
                drop(stream.submit(Synchronize)?);
            }
            let took = start.elapsed().as_nanos() as f64;
            stream.synchronize()?;
            Ok(took)
        }))
    }),
];

fn events(effort: &Effort) -> Result<Vec<Metric>> {
    let mut metrics = Vec::new();
    let samples = if effort.small { 20 } else { 100 };
    for (way, batch) in WAYS {
        let (plain, profiled) = (device()?, device()?);
        let (mut without, mut with) = (batch(&plain)?, batch(&profiled)?);
        for events in [BATCH, MANY] {
            let (mut costs, mut off, mut on) = (Vec::new(), Vec::new(), Vec::new());
            without()?;
            with()?;
            let mut profiler = profiled.profile(&ProfileOptions::default().events(2 * MANY))?;
            (0..(events - BATCH) / BATCH).try_for_each(|_| with().map(drop))?;
            for n in 0..samples {
                if events == BATCH {
                    drop(profiler); // the first thousand of another profile
                    profiler = profiled.profile(&ProfileOptions::default())?;
                }
                // Who comes first changes.
                let (a, b) = match n % 2 {
                    0 => (without()?, with()?),
                    _ => {
                        let b = with()?;
                        (without()?, b)
                    }
                };
                off.push(a / BATCH as f64);
                on.push(b / BATCH as f64);
                costs.push((b - a) / BATCH as f64);
            }
            let profile = profiler.stop();
            if profile.dropped() > 0 || profile.spans().len() < BATCH {
                return Err(Error::Wrong(format!("{} spans, {} dropped", profile.spans().len(), profile.dropped())));
            }
            metrics.push(Metric::lower(format!("event-{way}-{events}"), "ns", costs));
            metrics.push(Metric::lower(format!("off-{way}-{events}"), "ns", off));
            metrics.push(Metric::lower(format!("on-{way}-{events}"), "ns", on));
        }
    }
    Ok(metrics)
}

/// What is done with a profile afterwards, per span.
fn reports(effort: &Effort) -> Result<Vec<Metric>> {
    let spans = if effort.small { 100_000 } else { MANY };
    let device = device()?;
    let stream = device.stream()?;
    let profiler = device.profile(&ProfileOptions::default().events(spans))?;
    (0..spans).try_for_each(|_| stream.run(Synchronize))?;
    let each = |start: Instant| vec![start.elapsed().as_nanos() as f64 / spans as f64];
    let start = Instant::now();
    let profile = profiler.stop();
    let stop = each(start);
    let start = Instant::now();
    black_box(profile.summary().to_string());
    let summary = each(start);
    let start = Instant::now();
    profile.trace_to(&mut std::io::sink()).map_err(|error| Error::System(error.to_string()))?;
    let trace = each(start);
    Ok(vec![
        Metric::lower("stop-per-span", "ns", stop),
        Metric::lower("summary-per-span", "ns", summary),
        Metric::lower("trace-per-span", "ns", trace),
    ])
}
