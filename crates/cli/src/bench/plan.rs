//! What a run is made of, and running it: one group after the other, each in a process of its own.

use std::{
    io::IsTerminal as _,
    process::Command,
    time::{Duration, Instant},
};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_lab::{
    devices::Devices,
    isolated::{self, Isolated, PATIENCE, Step},
    machine::Watch,
    report::{Report, Row, SCHEMA},
    suites::{How, Listed, Suite},
};
use serde::{Deserialize, Serialize};

use crate::{Failure, stop::Run};

/// The run of this moment.
pub(crate) static RUN: Run = Run::new();

/// One group on some devices.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) suite: Suite,
    pub(crate) group: Listed,
    devices: Devices,
}

/// The devices that the words mean, checked to be there.
pub(crate) fn devices(words: &[String]) -> Result<Vec<Devices>, Failure> {
    let runtime = millrace::runtime();
    let mut ids: Vec<String> = Vec::new();
    for word in words.iter().flat_map(|words| words.split(',')).map(str::trim).filter(|word| !word.is_empty()) {
        drop(runtime.open(word)?); // an error that lists those there are, with its own exit code
        if !ids.iter().any(|known| known == word) {
            ids.push(word.to_owned());
        }
    }
    if ids.is_empty() {
        let there =
            |kind: &str| runtime.devices().iter().any(|found| found.kind.name() == kind && found.unavailable.is_none());
        return Ok(vec![Devices { cpu: true, gpu: there("gpu").then(|| "gpu".to_owned()) }]);
    }
    Ok(Devices::split(&ids))
}

/// The groups that the words mean: suites by their names, groups by a part of theirs. Everything without words.
pub(crate) fn jobs(words: &[String], targets: bool, on: &[Devices], quick: bool) -> Result<Vec<Job>, Failure> {
    let suites: Vec<_> = words.iter().filter_map(|word| Suite::of(word)).collect();
    let parts: Vec<_> = words.iter().filter(|word| Suite::of(word).is_none()).collect();
    let mut jobs = Vec::new();
    for suite in Suite::ALL.into_iter().filter(|suite| suites.is_empty() || suites.contains(suite)) {
        let named = |group: &Listed| parts.is_empty() || parts.iter().any(|part| group.name.contains(&***part));
        let mut groups: Vec<_> = suite.groups().into_iter().filter(named).collect();
        if targets {
            groups.retain(|group| millrace_lab::seeds::has_targets(suite, group.name));
        }
        if suite == Suite::Throughput && quick {
            groups.truncate(1); // one size says that it works
        }
        for group in groups {
            for devices in on.iter().filter(|devices| group.devices.iter().any(|kind| devices.has(kind))) {
                jobs.push(Job { suite, group: group.clone(), devices: devices.clone() });
            }
        }
    }
    if !jobs.is_empty() {
        return Ok(jobs);
    }
    if suites.contains(&Suite::Gpu) && parts.is_empty() && !on.iter().any(|devices| devices.has("gpu")) {
        drop(millrace::runtime().open("gpu")?); // says why there is none
    }
    let known: Vec<_> = Suite::ALL.iter().map(|suite| suite.name()).collect();
    let asked = if parts.is_empty() {
        words.join(" ")
    } else {
        parts.iter().map(|part| &***part).collect::<Vec<_>>().join(" ")
    };
    Err(Failure::Usage(format!(
        "nothing is called like {asked:?} on these devices; there is {}, and --list says what is in them",
        known.join(", ")
    )))
}

/// How a run goes on while it lasts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Going {
    pub(crate) suite: String,
    pub(crate) group: String,
    pub(crate) side: String,
    /// Turns of the group.
    pub(crate) done: usize,
    pub(crate) total: usize,
    /// Groups of the run.
    pub(crate) groups_done: usize,
    pub(crate) groups: usize,
    /// Seconds, as far as one can tell.
    pub(crate) left: Option<f64>,
}

/// How progress is shown.
pub(crate) enum Display {
    Bar(ProgressBar),
    /// A line for every group that is over.
    Lines,
    /// A line of JSON for every turn, for a program that follows.
    Json,
}

impl Display {
    pub(crate) fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines;
        }
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:28} {percent:>3}%  {wide_msg}") {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    fn step(&self, going: &Going, share: f64) {
        match self {
            Self::Bar(bar) => {
                bar.set_position((share * 1000.0) as u64);
                let left = going.left.map_or_else(String::new, |left| format!("{} left, ", spoken(left)));
                let place = format!("{} of {}", going.groups_done + 1, going.groups);
                bar.set_message(format!("{left}{place}: {} {}, {}", going.suite, going.group, going.side));
            }
            Self::Lines => {}
            Self::Json => {
                if let Ok(line) = serde_json::to_string(going) {
                    println!("{line}");
                }
            }
        }
    }

    fn over(&self, job: &Job, place: usize, jobs: usize, rows: usize, took: Duration) {
        if let Self::Lines = self {
            let (suite, group, took) = (job.suite.name(), job.group.name, took.as_secs_f64());
            eprintln!("{place} of {jobs}: {suite} {group}, {rows} rows in {took:.1} s");
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Seconds as people say them.
pub(crate) fn spoken(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// How groups are run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) quick: bool,
    pub(crate) timeout: Duration,
}

/// What the process gets beyond a turn's own time until it is taken for dead: to start, to open a device, to end.
const GRACE: Duration = Duration::from_secs(20);

/// Runs all jobs. The second answer is how many came to their end before somebody stopped it, if somebody did. What the
/// job under way had measured by then is among the rows, marked as interrupted.
pub(crate) fn run(jobs: &[Job], settings: Settings, display: &Display) -> Result<(Report, Option<usize>), Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::Failed(error.to_string()))?;
    let (start, mut watch) = (Instant::now(), Watch::begin());
    let weight: usize = jobs.iter().map(|job| job.group.sides).sum();
    let (mut rows, mut before, mut stopped) = (Vec::new(), 0, None);
    for (place, job) in jobs.iter().enumerate() {
        let mut command = Command::new(&program);
        command.args(["bench-group", job.suite.name(), job.group.name]);
        command.args(["--timeout", &settings.timeout.as_secs_f64().to_string()]);
        command.args(job.devices.ids().iter().flat_map(|id| ["--device", id]));
        if settings.quick {
            command.arg("--quick");
        }
        let (began, isolated) =
            (Instant::now(), Isolated { command, timeout: settings.timeout + GRACE, patience: PATIENCE });
        let ended = isolated.run(job.group.name, &|| RUN.is_stopping(), &mut |step: &Step| {
            let inside = step.done as f64 / step.total.max(1) as f64;
            let share = (before as f64 + inside * job.group.sides as f64) / weight.max(1) as f64;
            let left = (share > 0.02).then(|| start.elapsed().as_secs_f64() * (1.0 - share) / share);
            let going = Going {
                suite: job.suite.name().to_owned(),
                group: job.group.name.to_owned(),
                side: step.side.clone(),
                done: step.done,
                total: step.total,
                groups_done: place,
                groups: jobs.len(),
                left,
            };
            display.step(&going, share);
        });
        watch.look();
        let whole = !ended.rows.is_empty() && ended.rows.iter().all(|row| !row.interrupted);
        if !ended.stopped || whole {
            display.over(job, place + 1, jobs.len(), ended.rows.len(), began.elapsed());
        }
        let suite = job.suite.name();
        rows.extend(ended.rows.into_iter().map(|row| Row { suite: suite.to_owned(), ..row }));
        before += job.group.sides;
        if ended.stopped {
            stopped = Some(place + usize::from(whole));
            break;
        }
    }
    let machine = watch.end(settings.quick, jobs.first().map(|job| &job.devices));
    Ok((Report { schema: SCHEMA, machine, rows }, stopped))
}

/// The process of one group.
#[derive(Args)]
pub(crate) struct GroupOptions {
    suite: String,
    group: String,
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    device: Vec<String>,
    #[arg(long, value_parser = seconds)]
    timeout: Duration,
}

/// Seconds that make sense to wait.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "say seconds, as 30".to_owned())?;
    if (0.01..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("say seconds that make sense, as 30".to_owned())
    }
}

pub(crate) fn group(options: &GroupOptions) -> Result<(), Failure> {
    let stop = isolated::heed_parent();
    let unknown = || Failure::Usage(format!("there is no suite {:?}", options.suite));
    let suite = Suite::of(&options.suite).ok_or_else(unknown)?;
    if let Some(devices) = Devices::split(&options.device).into_iter().next() {
        devices.choose();
    }
    let how = How { quick: options.quick, timeout: Some(options.timeout), stop, turn: None };
    isolated::measure(suite, &options.group, &how, &mut std::io::stdout().lock())
        .map_err(|error| Failure::Failed(error.to_string()))?;
    // Without waiting for what hangs: all is said.
    std::process::exit(0);
}
