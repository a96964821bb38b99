//! `millrace bench`

use std::{io::Write, path::Path};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_lab::{
    commands::{self, Progress},
    gpu, interactive, profiler,
    report::{Better, Report, Row},
    resident, tensor, throughput,
};

use crate::{
    Failure,
    table::{table, time},
};

/// What can be measured.
#[derive(Clone, Copy, clap::ValueEnum)]
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

pub(crate) fn bench(group: Group, filter: &str, quick: bool, json: Option<&Path>) -> Result<(), Failure> {
    let known = group.names();
    if !known.iter().any(|name| name.contains(filter)) {
        return Err(Failure::Failed(format!("nothing is called like {filter:?}; there is {}", known.join(", "))));
    }
    if let Some(path) = json {
        // Whether the file can be written is better known before the minutes than after. It is not kept open: Ctrl-C would
        // leave it behind.
        drop(NewFile::create(path).map_err(|error| cannot_write(path, &error))?);
    }
    if let Group::Gpu = group {
        drop(millrace::runtime().open("gpu")?); // better known now, with its own exit code
    }
    let report = run(group, filter, quick);
    print(&report);
    if let Some(path) = json {
        let text = report.to_json().map_err(|error| Failure::Failed(error.to_string()))?;
        let written = NewFile::create(path).and_then(|file| file.finish(text.as_bytes()));
        written.map_err(|error| cannot_write(path, &error))?;
        println!("{} rows written to {}", report.rows.len(), path.display());
    }
    match report.rows.iter().filter(|row| row.is_error()).count() {
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} measurements did not finish; the table says which"))),
    }
}

fn run(group: Group, filter: &str, quick: bool) -> Report {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {percent:>3}%  {eta:>4} left  {msg}") {
        bar.set_style(style);
    }
    let report = group.run()(quick, &|name| name.contains(filter), &mut |progress| {
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
