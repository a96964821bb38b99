//! All that can be measured: suites of groups, each written once, for whoever wants to run or list them.

use std::time::Duration;

use crate::{
    around,
    commands::{self, Progress},
    devices, gpu,
    groups::Group,
    interactive,
    measure::{Side, Stop},
    profiler,
    report::Report,
    resident, tensor, throughput,
};

/// Groups that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// The road.
    Commands,
    /// The GPU device.
    Gpu,
    /// Tensors on the CPU device.
    Tensor,
    /// Resident kernels.
    Resident,
    /// Resident kernels against launches.
    Interactive,
    /// The wave engines.
    Throughput,
    /// What a profile costs.
    Profiler,
    /// What is around the work itself.
    Around,
}

/// A group, before anything of it is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: &'static str,
    /// What it measures, and how.
    pub about: &'static str,
    /// The kinds of devices that its sides work on.
    pub devices: Vec<&'static str>,
    /// How many sides take turns.
    pub sides: usize,
}

/// How a suite is run.
#[derive(Debug, Clone, Default)]
pub struct How {
    /// Seconds instead of minutes: enough to see that everything works.
    pub quick: bool,
    /// When a turn is given up, if sooner than the suite would.
    pub timeout: Option<Duration>,
    /// Ends it before all rounds are over.
    pub stop: Stop,
    /// The time of a turn for each case, if not what the suite thinks right.
    pub turn: Option<Duration>,
}

/// A side of a group, for whoever times it in another way.
#[derive(Debug, Clone)]
pub struct Part {
    /// The group.
    pub group: &'static str,
    /// The kind of device that the side works on.
    pub device: &'static str,
    /// The side. A round of it is one turn.
    pub side: Side,
}

impl How {
    fn within(&self, timeout: Duration) -> Duration {
        self.timeout.map_or(timeout, |most| most.min(timeout))
    }
}

/// An effort of a module, quick or not, with its timeout.
macro_rules! effort {
    ($how:expr, $module:ident) => {{
        let mut effort = if $how.quick { $module::Effort::quick() } else { $module::Effort::full() };
        effort.timeout = $how.within(effort.timeout);
        effort.stop = $how.stop.clone();
        effort.turn = $how.turn.unwrap_or(effort.turn);
        effort
    }};
}

impl Suite {
    /// Every suite, in the order they are run.
    pub const ALL: [Self; 8] = [
        Self::Commands,
        Self::Gpu,
        Self::Tensor,
        Self::Resident,
        Self::Interactive,
        Self::Throughput,
        Self::Profiler,
        Self::Around,
    ];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Commands => "commands",
            Self::Gpu => "gpu",
            Self::Tensor => "tensor",
            Self::Resident => "resident",
            Self::Interactive => "interactive",
            Self::Throughput => "throughput",
            Self::Profiler => "profiler",
            Self::Around => "around",
        }
    }

    /// The suite of a name.
    ///
    /// ```
    /// use millrace_lab::suites::Suite;
    /// assert_eq!(Suite::of("commands"), Some(Suite::Commands));
    /// assert_eq!(Suite::of("nonsense"), None);
    /// ```
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }

    /// What it is about.
    pub fn about(self) -> &'static str {
        match self {
            Self::Commands => "The road: rings, round trips, throughput, back-pressure, the memory pool.",
            Self::Gpu => "The GPU device: launches, batches, transfers and operations, next to wgpu used by hand.",
            Self::Tensor => "Tensors on the CPU device, next to other libraries and the memory's bandwidth.",
            Self::Resident => "Resident kernels and their parts, next to actor libraries.",
            Self::Interactive => "A kernel that stays against a launch for every command.",
            Self::Throughput => "Cells per second of the wave engines.",
            Self::Profiler => "What a profile costs those who are profiled, and what it takes to make sense of it.",
            Self::Around => {
                "What is around the work: execution, several devices, memory pressure, errors, metrics, making things."
            }
        }
    }

    /// Its groups, in the order they are run.
    pub fn groups(self) -> Vec<Listed> {
        match self {
            Self::Commands => commands::listed(),
            Self::Gpu => gpu::listed(),
            Self::Tensor => {
                let listed = |name| Listed { name, about: tensor::about(name), devices: vec!["cpu"], sides: 4 };
                tensor::group_names().into_iter().map(listed).collect()
            }
            Self::Resident => resident::listed(),
            Self::Interactive => interactive::listed(),
            Self::Throughput => throughput::listed(),
            Self::Profiler => profiler::listed(),
            Self::Around => around::listed(),
        }
    }

    /// The sides of all its groups, in the order they are run, on the devices that are here.
    ///
    /// ```
    /// use millrace_lab::suites::{How, Suite};
    /// let parts = Suite::Profiler.parts(&How { quick: true, ..How::default() });
    /// assert!(parts.iter().any(|part| part.group == "profiler" && part.side.name == "millrace"));
    /// ```
    pub fn parts(self, how: &How) -> Vec<Part> {
        let groups = match self {
            Self::Commands => commands::groups(&effort!(how, commands)),
            Self::Gpu => gpu::groups(&effort!(how, gpu)),
            Self::Tensor => tensor::groups(&effort!(how, tensor)),
            Self::Resident => resident::groups_here(&effort!(how, resident)),
            Self::Interactive => interactive::groups_here(&effort!(how, interactive)),
            Self::Throughput => throughput::groups_here(&effort!(how, throughput)),
            Self::Profiler => profiler::groups(&effort!(how, profiler)),
            Self::Around => around::groups_here(&effort!(how, around)),
        };
        let mut parts: Vec<_> = groups.into_iter().flat_map(Group::parts).collect();
        let there = |kind: &str| devices::chosen().has(kind) && (kind == "cpu" || devices::open(kind).is_ok());
        let here: Vec<_> = ["cpu", "gpu"].into_iter().filter(|kind| there(kind)).collect();
        parts.retain(|part| here.contains(&part.device));
        parts
    }

    /// Measures the groups that `wanted` says yes to, all in this process.
    pub fn run(self, how: &How, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
        let mut report = match self {
            Self::Commands => commands::run_groups(&effort!(how, commands), wanted, progress),
            Self::Gpu => gpu::run_groups(&effort!(how, gpu), wanted, progress),
            Self::Tensor => tensor::run_groups(&effort!(how, tensor), wanted, progress),
            Self::Resident => resident::run_groups(&effort!(how, resident), wanted, progress),
            Self::Interactive => interactive::run_groups(&effort!(how, interactive), wanted, progress),
            Self::Throughput => throughput::run_groups(&effort!(how, throughput), wanted, progress),
            Self::Profiler => profiler::run_groups(&effort!(how, profiler), wanted, progress),
            Self::Around => around::run_groups(&effort!(how, around), wanted, progress),
        };
        for row in &mut report.rows {
            row.suite = self.name().to_owned();
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_that_runs_on_a_cpu_can_be_timed_side_by_side() {
        let how = How { quick: true, ..How::default() };
        for suite in Suite::ALL {
            let parts = suite.parts(&how);
            for group in suite.groups().iter().filter(|group| group.devices.contains(&"cpu")) {
                assert!(parts.iter().any(|part| part.group == group.name), "{suite:?} {}", group.name);
            }
        }
    }

    #[test]
    fn every_group_of_every_suite_says_what_it_measures() {
        for suite in Suite::ALL {
            let groups = suite.groups();
            assert!(!groups.is_empty(), "{suite:?}");
            for group in groups {
                assert!(group.about.ends_with('.'), "{suite:?} {} has no sentence", group.name);
                assert!(!group.devices.is_empty() && group.sides > 0, "{suite:?} {}", group.name);
            }
        }
    }
}
