//! The `millrace` command.
//!
//! This room talks to people: it parses, prints and sets exit codes. What it shows comes from `millrace` and
//! `millrace-lab`. Exit codes: 0 fine, 1 the answer is no, 2 wrong usage, 3 no such device, 4 the run failed.

#![deny(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what this program is for")]

mod bench;
mod devices;
mod layout;
mod manual;
mod profile;
mod replay;
mod serve;
mod stop;
mod table;
mod top;
mod tour;
mod tune;
mod validate;
mod wave;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use millrace::Error;
use stop::Run;

/// A compute runtime: commands, kernels and memory on any device over one fast, bounded, lossless road.
///
/// Without a command it gives a tour: which devices there are, real work on each of them with its result checked, and
/// what that cost.
#[derive(Parser)]
#[command(
    name = "millrace",
    version,
    arg_required_else_help = false,
    after_help = "Set MILLRACE_LOG=debug to see what happens inside."
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// List the devices, what they can do, and why one cannot be used
    Devices {
        /// Print JSON for scripts
        #[arg(long)]
        json: bool,
    },
    /// Compare every operation's results with a naive reference
    Validate {
        /// Only this device, by id or kind; all of them if not said
        #[arg(long)]
        device: Option<String>,
        /// Smaller inputs
        #[arg(long)]
        quick: bool,
        /// Print JSON for scripts
        #[arg(long)]
        json: bool,
    },
    /// Do an operation again whose results differed from the CPU's
    ///
    /// Programs that run with MILLRACE_CHECK=1, or with it set to a folder, do every operation on the CPU as well; the
    /// inputs of the first one that differs are saved in a file.
    Replay {
        /// The file
        file: PathBuf,
        /// Another device than the one it went wrong on
        #[arg(long)]
        device: Option<String>,
        /// Print JSON for scripts
        #[arg(long)]
        json: bool,
    },
    /// Find the fastest way of each operation on this machine, and keep it for all programs
    ///
    /// Ways are timed with real data, in a process of their own: one that ends it is dropped, named and never tried again,
    /// and the rest goes on. Programs use what is kept unless MILLRACE_TUNE=never; with MILLRACE_TUNE=measure
    /// they measure what they need and is not known.
    Tune(tune::Options),
    /// The process that measures for `tune`: a case a line, an answer a line
    #[command(hide = true)]
    TuneCases(tune::CaseOptions),
    /// Watch the devices that programs use: those that publish, as with MILLRACE_MONITOR=1
    Top {
        /// Show it once and end
        #[arg(long)]
        once: bool,
        /// Print JSON for scripts, once
        #[arg(long)]
        json: bool,
        /// Seconds between two looks
        #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = top::seconds)]
        interval: f64,
    },
    /// Run something with a profiler on: which operations took how long, and how much memory was in use
    Profile(profile::Options),
    /// Let sound go through a room, and say how fast that was
    Wave(wave::Options),
    /// Show the wave, the devices, kernels and benchmarks on a page, live
    Serve(serve::Options),
    /// Print completions for a shell, to be put where it looks for them
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or with a folder write those of all commands there
    Man {
        /// Where to write them
        #[arg(value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Show where everything lies in a resident kernel's memory
    Layout {
        /// As constants for a shader
        #[arg(long, conflicts_with = "json")]
        wgsl: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure, next to the peers and in the same run
    Bench(bench::Options),
    /// The process of one group, which says what it measures in lines of JSON
    #[command(hide = true)]
    BenchGroup(bench::GroupOptions),
    /// One hot path so many times, for valgrind
    #[command(hide = true)]
    BenchHot(bench::HotOptions),
}

/// How a run can end, other than well.
pub(crate) enum Failure {
    /// The answer is no.
    No,
    /// Something could not be done.
    Failed(String),
    /// What was asked for makes no sense.
    Usage(String),
    /// The user has stopped it.
    Stopped(String),
    /// A device could not be used.
    Device(Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

/// Mesa's layer that reorders adapters complains on stderr where there is no desktop session. We order them ourselves.
#[allow(unsafe_code, reason = "the layer is told by a variable of the environment only")]
fn without_reordering() {
    // SAFETY: nothing else runs yet that could read the environment.
    unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
}

fn main() -> ExitCode {
    without_reordering();
    // A variable that is set wrongly is said by us; drivers and libraries have warnings for every machine.
    let asked = std::env::var("MILLRACE_LOG").ok().filter(|asked| !asked.is_empty());
    let filter = tracing_subscriber::EnvFilter::new(asked.as_deref().unwrap_or("error,millrace=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    // Nothing here leaves anything behind that an end in the middle could break: files are written whole.
    if let Err(error) = ctrlc::set_handler(|| {
        if bench::RUN.stop() {
            eprintln!("\nstopping; the turn under way may take some seconds, Ctrl-C once more does not wait for it");
            return;
        }
        let stopping = [&wave::RUN, &profile::RUN, &tune::RUN].into_iter().any(Run::stop);
        if stopping || serve::stop() {
            return; // it ends by itself, soon
        }
        top::leave_screen();
        eprintln!("\nstopped");
        std::process::exit(130);
    }) {
        eprintln!("warning: Ctrl-C will not be announced: {error}");
    }
    let result = match Arguments::parse().command {
        None => tour::tour(),
        Some(Task::Devices { json }) => devices::devices(json),
        Some(Task::Validate { device, quick, json }) => validate::validate(device.as_deref(), quick, json),
        Some(Task::Replay { file, device, json }) => replay::replay(&file, device.as_deref(), json),
        Some(Task::Tune(options)) => tune::tune(&options),
        Some(Task::TuneCases(options)) => tune::measure_cases(&options),
        Some(Task::Top { once, json, interval }) => top::top(once, json, interval),
        Some(Task::Profile(options)) => profile::profile(&options),
        Some(Task::Wave(options)) => wave::wave(&options),
        Some(Task::Serve(options)) => serve::serve(&options),
        Some(Task::Completions { shell }) => manual::completions(shell),
        Some(Task::Man { folder }) => manual::pages(folder.as_deref()),
        Some(Task::Layout { wgsl, json }) => layout::layout(wgsl, json),
        Some(Task::Bench(options)) => bench::bench(&options),
        Some(Task::BenchGroup(options)) => bench::group(&options),
        Some(Task::BenchHot(options)) => bench::hot(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::No) => ExitCode::from(1),
        Err(Failure::Failed(what)) => {
            eprintln!("error: {what}");
            ExitCode::from(4)
        }
        Err(Failure::Usage(what)) => {
            eprintln!("error: {what}");
            ExitCode::from(2)
        }
        Err(Failure::Stopped(what)) => {
            eprintln!("{what}");
            ExitCode::from(130)
        }
        Err(Failure::Device(error)) => {
            eprintln!("error: {error}");
            ExitCode::from(if matches!(error, Error::NoSuchDevice { .. }) { 3 } else { 4 })
        }
    }
}
