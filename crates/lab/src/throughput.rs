//! The groups of `millrace bench throughput`: how many cells per second the wave engines do.
//!
//! The same room for all: a ball in it, absorbing walls, a lasting tone. A sample is a handful of steps, until they are done.

use millrace_wave::{Boundary, Engine, PerStep, Reference, Resident, Scene};

pub use crate::resident::Effort;
use crate::{
    Error, Result,
    commands::Progress,
    devices,
    groups::{self, Group},
    measure::{Metric, Side, each_timed},
    report::{Report, Row},
    resident::kernels::{device_of, side_on},
    suites::Listed,
    targets::{Conditions, judge, value_of},
};

/// Measures all groups that `wanted` says yes to, the sides in turns, and sets the targets.
///
/// ```
/// use millrace_lab::throughput::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "wave_8", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// println!("{}", report.to_json()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    // A small effort is for one size, the smallest that is wanted.
    let smallest = SIZES.iter().map(|(_, name)| *name).find(|name| wanted(name));
    let wanted = |name: &str| wanted(name) && (!effort.small || smallest == Some(name));
    groups::run(groups_here(effort), &effort.turns(), &wanted, progress)
}

/// The groups with the devices that are here.
pub(crate) fn groups_here(effort: &Effort) -> Vec<Group> {
    let there = |kind: &&str| {
        let found = |kind: &str| {
            let all = millrace::runtime().devices();
            all.iter().any(|found| found.kind.name() == kind && found.unavailable.is_none())
        };
        devices::chosen().has(kind) && (*kind == "cpu" || found(kind))
    };
    let on: Vec<_> = ["cpu", "gpu"].into_iter().filter(there).collect();
    groups(effort, &on)
}

/// Its groups as a list shows them.
pub(crate) fn listed() -> Vec<Listed> {
    groups(&Effort::quick(), &["cpu", "gpu"]).iter().map(Group::listed).collect()
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick(), &["cpu"]).iter().map(|group| group.name).collect()
}

/// Cells on each side of a room, and what that is called.
const SIZES: [(u32, &str); 5] = [(8, "wave_8"), (16, "wave_16"), (32, "wave_32"), (64, "wave_64"), (128, "wave_128")];
/// The largest that a resident kernel of a GPU is asked to do.
const SMALL: u32 = 32;

fn groups(effort: &Effort, on: &[&'static str]) -> Vec<Group> {
    let group = |&(size, name): &(u32, &'static str)| {
        let side = |name: String, start: Box<dyn Fn() -> Result<Box<dyn Engine>> + Send + Sync>| {
            let effort = effort.clone();
            Side::new(name, move || cells_per_second(&effort, &mut *start()?))
        };
        let mut sides = Vec::new();
        for &device in on {
            let launch =
                move || -> Result<Box<dyn Engine>> { Ok(Box::new(PerStep::on(&devices::open(device)?, room(size)?)?)) };
            sides.push(side(side_on("millrace-launch", device), Box::new(launch)));
            // One thread, which is for small rooms; a GPU's memory for such kernels holds no large ones.
            if device == "cpu" || size <= SMALL {
                let stay = move || -> Result<Box<dyn Engine>> {
                    Ok(Box::new(Resident::on(&devices::open(device)?, room(size)?)?))
                };
                sides.push(side(side_on("millrace-resident", device), Box::new(stay)));
            }
        }
        sides.push(side("reference".to_owned(), Box::new(move || Ok(Box::new(Reference::new(room(size)?)?)))));
        Group::new(name, sides, judged)
            .on(device_of)
            .about("The same room for all: a ball, absorbing walls, a tone; four steps a sample, until they are done.")
    };
    SIZES.iter().map(group).collect()
}

fn room(size: u32) -> Result<millrace_wave::Room> {
    Ok(Scene::Ball.setup(size, Boundary::Absorbing, Scene::tone(8.0)).build()?)
}

/// Steps of a sample.
const STEPS: u64 = 4;

fn cells_per_second(effort: &Effort, engine: &mut dyn Engine) -> Result<Vec<Metric>> {
    engine.step(STEPS)?;
    engine.finish()?;
    let times = each_timed(effort.turn, || {
        engine.step(STEPS)?;
        Ok(engine.finish()?)
    })?;
    let energy = engine.energy()?;
    if !(energy.is_finite() && energy > 0.0) {
        return Err(Error::Wrong(format!("the energy after {} steps is {energy}", engine.steps())));
    }
    let work = engine.room().cells() as f64 * STEPS as f64;
    Ok(vec![Metric::higher("", "cells/s", times.into_iter().map(|ns| work / ns * 1e9).collect())])
}

fn judged(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.device == "cpu" {
            conditions.at_least("p50", median, value_of(rows, "reference"), "plain loops on one thread");
        }
        conditions
    });
}
