//! Running groups of sides in turns, and judging them.

use crate::{
    commands::Progress,
    devices,
    machine::{Machine, Ticks},
    measure::{Side, Turns, interleaved},
    report::{Report, Row, SCHEMA},
    seeds,
    suites::{Listed, Part},
    workloads::Overload,
};

/// Sets the targets of a group's rows.
pub(crate) type Judge = fn(&mut [Row]);

/// What is measured together.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    about: &'static str,
    sides: Vec<Side>,
    judge: Judge,
    device: fn(&str) -> &'static str,
    extra: fn(&[Row]) -> Vec<Row>,
    /// Busy threads beside it.
    load: usize,
    /// How many times as many rounds it has.
    times: usize,
}

impl Group {
    /// A group on the GPU device.
    pub(crate) fn new(name: &'static str, sides: Vec<Side>, judge: Judge) -> Self {
        Self { name, about: "", sides, judge, device: |_| "gpu", extra: |_| Vec::new(), load: 0, times: 1 }
    }

    /// Says in a sentence what a number of it is, and how it was made.
    pub(crate) fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// Says on which device a side works.
    pub(crate) fn on(mut self, device: fn(&str) -> &'static str) -> Self {
        self.device = device;
        self
    }

    /// Adds rows that are computed from the others, judged like them.
    pub(crate) fn with(mut self, extra: fn(&[Row]) -> Vec<Row>) -> Self {
        self.extra = extra;
        self
    }

    /// Lets so many more threads keep all cores busy meanwhile.
    pub(crate) fn beside(mut self, load: usize) -> Self {
        self.load = load;
        self
    }

    /// Takes so many times as many rounds, of sides whose turns are as much shorter: a machine that is faster or slower for some
    /// seconds, or a context whose threads happen to lie well, is then a smaller part of what is compared.
    pub(crate) fn in_rounds(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Its sides, each by itself.
    pub(crate) fn parts(self) -> impl Iterator<Item = Part> {
        let Self { name: group, sides, device, load, .. } = self;
        sides.into_iter().map(move |Side { name, round }| {
            let device = device(&name);
            let beside = move || {
                let _load = Overload::start(load)?;
                round()
            };
            Part { group, device, side: Side::new(name, beside) }
        })
    }

    /// As a list shows it.
    pub(crate) fn listed(&self) -> Listed {
        let mut devices: Vec<_> = self.sides.iter().map(|side| (self.device)(&side.name)).collect();
        devices.sort_unstable();
        devices.dedup();
        Listed { name: self.name, about: self.about, devices, sides: self.sides.len() }
    }
}

/// Measures the groups that `wanted` says yes to, with the sides that are on chosen devices.
pub(crate) fn run(
    groups: Vec<Group>,
    turns: &Turns,
    wanted: &dyn Fn(&str) -> bool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Report {
    let (mut machine, ticks) = (Machine::now(), Ticks::now());
    let mut groups: Vec<_> = groups.into_iter().filter(|group| wanted(group.name)).collect();
    for group in &mut groups {
        let device = group.device;
        group.sides.retain(|side| devices::chosen().has(device(&side.name)));
    }
    let rounds = |group: &Group| group.times * turns.rounds;
    let total = groups.iter().map(|group| group.sides.len() * rounds(group)).sum();
    let (mut done, mut rows) = (0, Vec::new());
    for group in groups {
        if turns.stop.is_asked() {
            break;
        }
        let mut step = |side: &str| {
            progress(Progress { group: group.name, side, done, total });
            done += 1;
        };
        let load = Overload::start(group.load); // one that cannot be had is seen in the numbers
        let turns = Turns { rounds: rounds(&group), ..turns.clone() };
        let measured = interleaved(&group.sides, &turns, &mut step);
        drop(load);
        let mut of_group: Vec<_> = measured.into_iter().map(|measured| Row::new(group.name, measured)).collect();
        of_group.extend((group.extra)(&of_group));
        for row in &mut of_group {
            row.device = (group.device)(row.side()).to_owned();
        }
        (group.judge)(&mut of_group);
        seeds::judge(&mut of_group);
        if of_group.iter().any(|row| row.interrupted) {
            of_group.iter_mut().for_each(Row::withdraw_verdict);
        }
        rows.append(&mut of_group);
    }
    for row in &mut rows {
        row.device = devices::id(&row.device).to_owned();
    }
    machine.others = ticks.and_then(Ticks::others_since);
    Report { schema: SCHEMA, machine, rows }
}
