//! `millrace bench`

mod instructions;
mod plan;
mod show;

use std::{path::PathBuf, time::Duration};

use clap::Args;
use millrace::core::file;
use millrace_lab::{
    history::{History, differs},
    html::{self, Page},
    isolated,
    machine::Machine,
    report::Report,
    verdict::{Change, FEWEST, Verdict},
};

use crate::Failure;
pub(crate) use instructions::{HotOptions, hot};
use plan::{Display, Job, Settings, seconds};
pub(crate) use plan::{Going, GroupOptions, RUN, group};

#[derive(Args)]
pub(crate) struct Options {
    /// What to measure: suites (commands, gpu, tensor, resident, interactive, throughput, profiler, around), or parts of groups'
    /// names, as round_trip; everything if not said
    #[arg(value_name = "GROUP")]
    groups: Vec<String>,
    /// Say what could be measured, and end
    #[arg(long)]
    list: bool,
    /// Say which runs were kept, and end
    #[arg(long, conflicts_with = "list")]
    history: bool,
    /// Count the instructions of the hot paths with valgrind instead, a number without noise
    #[arg(long, conflicts_with_all = ["list", "history", "targets", "json", "html", "save", "baseline"])]
    instructions: bool,
    /// Only groups that have figures to reach which users were promised
    #[arg(long)]
    targets: bool,
    /// Fewer samples: some seconds instead of minutes
    #[arg(long)]
    quick: bool,
    /// Only these devices, by id or kind, as cpu or gpu:0; may be said more than once
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    device: Vec<String>,
    /// Give up a turn that takes longer, and a group that hangs
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    timeout: Duration,
    /// Also write the rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write a page about the run to this file: charts, distributions, history; needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
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
    /// Say every turn in a line of JSON on standard output, for a program that follows
    #[arg(long, hide = true)]
    follow: bool,
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
        return show::list(&options.groups);
    }
    if options.history {
        return show::history(&history);
    }
    if options.instructions {
        return instructions::instructions(&options.groups);
    }
    let devices = plan::devices(&options.device)?;
    let jobs = plan::jobs(&options.groups, options.targets, &devices, options.quick)?;
    for path in [&options.json, &options.html].into_iter().flatten() {
        // Better known before the minutes than after.
        file::check(path)?;
    }
    // The same goes for names and for what is compared with.
    if let Some(name) = &options.save {
        history.path(name)?;
    }
    let before = options.baseline.as_deref().map(|name| history.load(name)).transpose()?;
    let another = before.as_ref().and_then(|before| {
        let driver = before.machine.driver.as_ref().and_then(|_| driver("gpu"));
        differs(&Machine { driver, ..Machine::now() }, &before.machine)
    });
    if let (Some(why), false) = (&another, options.force) {
        return Err(Failure::Failed(format!("the baseline is of {why}; --force compares all the same")));
    }
    if options.follow {
        isolated::end_with_parent();
    }
    RUN.begin();
    let measured = measure(options, &jobs, before.as_ref());
    RUN.end();
    let (report, stopped) = measured?;
    show::report(&report);
    let slower = before.as_ref().map_or(0, |before| show::compared(&report, before, options.fail_on_regression));
    if let Some(path) = &options.json {
        let text = report.to_json().map_err(|error| Failure::Failed(error.to_string()))?;
        file::write(path, |out| out.write_all(text.as_bytes()))?;
        println!("{} rows written to {}", report.rows.len(), path.display());
    }
    if let Some(path) = &options.html {
        let name = options.save.as_deref();
        let page = Page {
            report: &report,
            name,
            baseline: options.baseline.as_deref().zip(before.as_ref()),
            history: html::earlier(&history, &report, name),
        };
        file::write(path, |out| out.write_all(page.to_html().as_bytes()))?;
        println!("the page is {}", path.display());
    }
    if let Some(name) = &options.save {
        history.save(name, &report)?;
        println!("kept as {name}");
    }
    if let Some(done) = stopped {
        let cut = report.rows.iter().find(|row| row.interrupted);
        let within = cut.map_or_else(String::new, |row| format!(" and in the middle of {}", row.group));
        let text = format!("stopped after {done} of {} groups{within}; what was measured is above", jobs.len());
        return Err(Failure::Stopped(text));
    }
    match report.rows.iter().filter(|row| row.is_error()).count() {
        0 if slower > 0 => Err(Failure::No),
        0 => Ok(()),
        n => Err(Failure::Failed(format!("{n} measurements did not finish; the table says which"))),
    }
}

/// Everything that is asked for, and again what is not sure.
fn measure(options: &Options, jobs: &[Job], before: Option<&Report>) -> Result<(Report, Option<usize>), Failure> {
    let settings = Settings { quick: options.quick, timeout: options.timeout };
    let display = Display::new(options.follow);
    let (mut report, mut stopped) = plan::run(jobs, settings, &display)?;
    report.machine.driver =
        report.rows.iter().find(|row| row.device.starts_with("gpu")).and_then(|row| driver(&row.device));
    let again = |report: &mut Report, groups: &[String], stopped: &mut Option<usize>| -> Result<(), Failure> {
        let wanted = |job: &&Job| groups.iter().any(|group| group == job.group.name);
        let some: Vec<_> = jobs.iter().filter(wanted).cloned().collect();
        let (more, ended) = plan::run(&some, settings, &display)?;
        report.add_rounds(&more);
        *stopped = ended.map(|_| jobs.len());
        Ok(())
    };
    if options.save.is_some() || before.is_some() {
        // Two runs of a few rounds each could not be told apart.
        for _ in 0..FEWEST {
            let few = report.rows.iter().filter(|row| (1..FEWEST).contains(&row.rounds.len()));
            let groups: Vec<_> = few.map(|row| row.group.clone()).collect();
            if groups.is_empty() || stopped.is_some() {
                break;
            }
            again(&mut report, &groups, &mut stopped)?;
        }
    }
    if let Some(before) = before {
        // What seems slower or is undecided is measured again: a disturbance is not there every time.
        for _ in 0..AGAIN {
            let unsure = |verdict: &Verdict| matches!(verdict.change, Change::Slower | Change::Undecided);
            let groups: Vec<_> =
                report.since(before).filter(|(_, verdict)| unsure(verdict)).map(|(row, _)| row.group.clone()).collect();
            if groups.is_empty() || stopped.is_some() {
                break;
            }
            again(&mut report, &groups, &mut stopped)?;
        }
    }
    Ok((report, stopped))
}

/// What a device and its driver are called.
fn driver(device: &str) -> Option<String> {
    let device = millrace::runtime().open(device).ok()?;
    let driver = device.info().details.iter().find(|(name, _)| name == "driver").map(|(_, driver)| driver.clone());
    Some(driver.unwrap_or_else(|| device.info().name.clone()))
}

impl From<millrace_lab::Error> for Failure {
    fn from(error: millrace_lab::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
