//! `millrace bench`

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_lab::{
    commands::{self, Progress},
    gpu,
    history::{History, differs},
    interactive,
    machine::Machine,
    profiler,
    report::{Better, Report, Row},
    resident, tensor, throughput,
    verdict::{Change, FEWEST, Verdict},
};

use crate::{
    Failure,
    table::{table, time},
};

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    /// The road: rings, round trips, throughput, back-pressure, the memory pool
    Commands,
    /// The GPU device: launches, batches, transfers and operations, next to wgpu used by hand
    Gpu,
    /// Tensors on the CPU device: matrix products and arrays, next to other libraries and the memory's bandwidth
    Tensor,
    /// Resident kernels and their parts: messages, memory, queues, round trips, startup, next to actor libraries
    Resident,
    /// A kernel that stays against a launch for every command: inject, query, step, mixed, operations in a frame
    Interactive,
    /// Cells per second of the wave engines
    Throughput,
    /// What a profile costs those who are profiled, and what it takes to make sense of it
    Profiler,
}

/// Measures the groups that the filter says yes to.
type Run = fn(bool, &dyn Fn(&str) -> bool, &mut dyn FnMut(Progress<'_>)) -> Report;

impl Group {
    /// As users write it.
    pub(crate) fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn names(self) -> Vec<&'static str> {
        match self {
            Self::Commands => commands::group_names(),
            Self::Gpu => gpu::group_names(),
            Self::Tensor => tensor::group_names(),
            Self::Resident => resident::group_names(),
            Self::Interactive => interactive::group_names(),
            Self::Throughput => throughput::group_names(),
            Self::Profiler => profiler::group_names(),
        }
    }

    fn run(self) -> Run {
        match self {
            Self::Commands => |quick, wanted, progress| {
                let effort = if quick { commands::Effort::quick() } else { commands::Effort::full() };
                commands::run_groups(&effort, wanted, progress)
            },
            Self::Gpu => |quick, wanted, progress| {
                let effort = if quick { gpu::Effort::quick() } else { gpu::Effort::full() };
                gpu::run_groups(&effort, wanted, progress)
            },
            Self::Tensor => |quick, wanted, progress| {
                let effort = if quick { tensor::Effort::quick() } else { tensor::Effort::full() };
                tensor::run_groups(&effort, wanted, progress)
            },
            Self::Resident => |quick, wanted, progress| resident::run_groups(&lasting(quick), wanted, progress),
            Self::Interactive => |quick, wanted, progress| interactive::run_groups(&lasting(quick), wanted, progress),
            Self::Throughput => |quick, wanted, progress| throughput::run_groups(&lasting(quick), wanted, progress),
            Self::Profiler => |quick, wanted, progress| {
                let effort = if quick { profiler::Effort::quick() } else { profiler::Effort::full() };
                profiler::run_groups(&effort, wanted, progress)
            },
        }
    }
}

fn lasting(quick: bool) -> resident::Effort {
    if quick { resident::Effort::quick() } else { resident::Effort::full() }
}

#[derive(Args)]
pub(crate) struct Options {
    /// What to measure
    #[arg(value_enum, required_unless_present_any = ["list", "history"])]
    group: Option<Group>,
    /// Only what has this in its name, as `round_trip`
    filter: Option<String>,
    /// Say what could be measured, and end
    #[arg(long)]
    list: bool,
    /// Say which runs were kept, and end
    #[arg(long, conflicts_with = "list")]
    history: bool,
    /// Fewer samples: some seconds instead of minutes
    #[arg(long)]
    quick: bool,
    /// Also write the rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the run under this name
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
    /// Compare with the run that was kept under this name: faster, slower, the same, or undecided
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// Compare also with a run on another machine
    #[arg(long, requires = "baseline")]
    force: bool,
    /// End with code 1 if anything of ours is slower than the baseline by more than this, for sure, as 5%
    #[arg(long, value_name = "SHARE", requires = "baseline", value_parser = share)]
    fail_on_regression: Option<f64>,
}

/// A share, as 5% or 0.05.
fn share(text: &str) -> Result<f64, String> {
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: f64 = number.trim().parse().map_err(|_| "say a share, as 5%".to_owned())?;
    let share = number / of;
    if (0.0..10.0).contains(&share) { Ok(share) } else { Err("say a share that makes sense, as 5%".to_owned()) }
}

/// How often what is slower or undecided is measured again before that is said.
const AGAIN: usize = 2;

pub(crate) fn bench(options: &Options) -> Result<(), Failure> {
    let history = History::of_user();
    if options.list {
        for group in Group::value_variants().iter().filter(|group| options.group.is_none_or(|only| only == **group)) {
            for name in group.names() {
                println!("{} {name}", group.word());
            }
        }
        return Ok(());
    }
    if options.history {
        return list(&history);
    }
    let Some(group) = options.group else { return Err(Failure::Usage("say what to measure".to_owned())) };
    let filter = options.filter.as_deref().unwrap_or_default();
    let known = group.names();
    if !known.iter().any(|name| name.contains(filter)) {
        return Err(Failure::Failed(format!("nothing is called like {filter:?}; there is {}", known.join(", "))));
    }
    if let Some(path) = &options.json {
        // Whether the file can be written is better known before the minutes than after. It is not kept open: Ctrl-C would
        // leave it behind.
        drop(NewFile::create(path).map_err(|error| cannot_write(path, &error))?);
    }
    // The same goes for names and for what is compared with.
    if let Some(name) = &options.save {
        history.path(name)?;
    }
    let before = options.baseline.as_deref().map(|name| history.load(name)).transpose()?;
    let another = before.as_ref().and_then(|before| differs(&Machine::now(), &before.machine));
    if let (Some(why), false) = (&another, options.force) {
        return Err(Failure::Failed(format!("the baseline is of {why}; --force compares all the same")));
    }
    if let Group::Gpu = group {
        drop(millrace::runtime().open("gpu")?); // better known now, with its own exit code
    }
    let mut report = run(group, &|name| name.contains(filter), options.quick);
    if options.save.is_some() || before.is_some() {
        // Two runs of a few rounds each could not be told apart.
        while report.rows.iter().any(|row| (1..FEWEST).contains(&row.rounds.len())) {
            report.add_rounds(&run(group, &|name| name.contains(filter), options.quick));
        }
    }
    if let Some(before) = &before {
        again(group, &mut report, before, options.quick);
    }
    print(&report);
    let slower = before.as_ref().map_or(0, |before| compared(&report, before, options.fail_on_regression));
    if let Some(path) = &options.json {
        let text = report.to_json().map_err(|error| Failure::Failed(error.to_string()))?;
        let written = NewFile::create(path).and_then(|file| file.finish(text.as_bytes()));
        written.map_err(|error| cannot_write(path, &error))?;
        println!("{} rows written to {}", report.rows.len(), path.display());
    }
    if let Some(name) = &options.save {
        history.save(name, &report)?;
        println!("kept as {name}");
    }
    match report.rows.iter().filter(|row| row.is_error()).count() {
        0 if slower > 0 => Err(Failure::No),
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} measurements did not finish; the table says which"))),
    }
}

impl From<millrace_lab::Error> for Failure {
    fn from(error: millrace_lab::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn list(history: &History) -> Result<(), Failure> {
    let names = history.names();
    if names.is_empty() {
        println!("no run was kept in {}; --save NAME keeps one", history.folder().display());
        return Ok(());
    }
    let mut out = table(&["run", "machine", "commit", "rows", "met"], 3);
    for name in names {
        match history.load(&name) {
            Ok(report) => {
                let met = report.rows.iter().filter(|row| row.is_ours() && row.met == Some(true)).count();
                let judged = report.rows.iter().filter(|row| row.is_ours() && row.met.is_some()).count();
                let commit = report.machine.commit.as_deref().map_or("-", |commit| &commit[..commit.len().min(10)]);
                let machine = format!("{}, {} cores", report.machine.cpu, report.machine.cores);
                let rows = report.rows.len().to_string();
                out.add_row([name, machine, commit.to_owned(), rows, format!("{met} of {judged}")]);
            }
            Err(error) => drop(out.add_row([name, error.to_string()])),
        }
    }
    println!("{out}");
    Ok(())
}

/// Measures groups again in which something seems slower or is undecided: a disturbance is not there every time.
fn again(group: Group, report: &mut Report, before: &Report, quick: bool) {
    for _ in 0..AGAIN {
        let unsure = |verdict: &Verdict| matches!(verdict.change, Change::Slower | Change::Undecided);
        let groups: Vec<String> =
            report.since(before).filter(|(_, verdict)| unsure(verdict)).map(|(row, _)| row.group.clone()).collect();
        if groups.is_empty() {
            return;
        }
        let more = run(group, &|name| groups.iter().any(|unsure| unsure == name), quick);
        report.add_rounds(&more);
    }
}

/// Says what became of everything; how many rows are slower than is allowed.
fn compared(report: &Report, before: &Report, allowed: Option<f64>) -> usize {
    let mut out = table(&["group", "what", "verdict", "effect", "between"], 3);
    let mut slower = 0;
    let per_cent = |share: f64| format!("{:+.1}%", 100.0 * share);
    for (row, verdict) in report.since(before) {
        let Verdict { change, effect, interval: (low, high) } = verdict;
        slower += usize::from(change == Change::Slower && allowed.is_some_and(|allowed| effect > allowed));
        let between = format!("{} and {}", per_cent(low), per_cent(high));
        out.add_row([&row.group, &row.id, change.name(), &per_cent(effect), &between]);
    }
    println!("\nSince the baseline, more is slower:\n{out}");
    let others = [report, before].map(|run| run.machine.others.unwrap_or(0.0)).into_iter().fold(0.0, f64::max);
    if others > 0.05 {
        println!("warning: others used {:.0}% of the machine during one of the runs", 100.0 * others);
    }
    if slower > 0 {
        println!("{slower} slower than is allowed");
    }
    slower
}

fn run(group: Group, wanted: &dyn Fn(&str) -> bool, quick: bool) -> Report {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {percent:>3}%  {eta:>4} left  {msg}") {
        bar.set_style(style);
    }
    let report = group.run()(quick, wanted, &mut |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("{}, {}", progress.group, progress.side));
    });
    bar.finish_and_clear();
    report
}

fn print(report: &Report) {
    let machine = &report.machine;
    println!("{}, {} cores, {}", machine.cpu, machine.cores, machine.os);
    if let Some(load) = machine.load.filter(|load| *load > 0.5) {
        println!("warning: the load was {load:.1} when the run began; somebody else is using this machine");
    }
    for rows in report.rows.chunk_by(|a, b| a.group == b.group) {
        let mut out = table(&[rows[0].group.as_str(), "p50", "p99", "mean", "target"], 1);
        for row in rows {
            let number = |n: Option<f64>| n.map_or_else(|| "-".to_owned(), |n| value(n, row));
            let verdict = match (row.met, &row.target) {
                (Some(true), Some(target)) => format!("met: {target}"),
                (Some(false), Some(target)) => format!("MISSED: {target}"),
                _ => String::new(),
            };
            out.add_row([row.id.clone(), number(row.p50), number(row.p99), number(row.mean), verdict]);
        }
        if let Some(column) = out.column_mut(4) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        println!("\n{out}");
    }
    let (met, all) = report.rows.iter().filter(|row| row.is_ours()).fold((0, 0), |(met, all), row| match row.met {
        Some(true) => (met + 1, all + 1),
        Some(false) => (met, all + 1),
        None => (met, all),
    });
    println!("\n{met} of {all} targets met.");
    for row in report.missed() {
        println!("  missed: {} {}: {}", row.group, row.id, row.target.as_deref().unwrap_or_default());
    }
}

fn value(n: f64, row: &Row) -> String {
    match (row.unit.as_str(), row.better) {
        ("ns", _) => time(n),
        (unit, Better::Higher) if n >= 1e6 => format!("{:.2} M{unit}", n / 1e6),
        (unit, Better::Higher) if n >= 1e3 => format!("{:.1} k{unit}", n / 1e3),
        (unit, _) => format!("{n:.2} {unit}"),
    }
}

pub(crate) fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot write {}: {error}", path.display()))
}

/// A file that appears whole or not at all.
pub(crate) struct NewFile {
    file: std::fs::File,
    /// None for what is not a file, as a pipe or a terminal: that is written to as it is.
    unfinished: Option<std::path::PathBuf>,
    path: std::path::PathBuf,
}

impl NewFile {
    pub(crate) fn create(path: &Path) -> std::io::Result<Self> {
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            let file = std::fs::File::options().write(true).open(path)?;
            return Ok(Self { file, unfinished: None, path: path.to_owned() });
        }
        let name = path.file_name().ok_or_else(|| std::io::Error::other("that is not a file's name"))?;
        let mut unfinished = name.to_owned();
        unfinished.push(format!(".{}.part", std::process::id()));
        let unfinished = path.with_file_name(unfinished);
        let file = std::fs::File::create(&unfinished)?;
        Ok(Self { file, unfinished: Some(unfinished), path: path.to_owned() })
    }

    pub(crate) fn finish(mut self, content: &[u8]) -> std::io::Result<()> {
        self.file.write_all(content)?;
        let Some(unfinished) = &self.unfinished else { return Ok(()) };
        self.file.sync_all()?;
        std::fs::rename(unfinished, &self.path)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Renamed if all went well, and then there is nothing to remove.
        if let Some(unfinished) = &self.unfinished {
            let _ = std::fs::remove_file(unfinished);
        }
    }
}
