//! Where and when a run took place.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use millrace::cpu::CpuInfo;
use serde::{Deserialize, Serialize};

use crate::devices::Devices;

/// The machine and the moment of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// What the vendor calls the processor.
    pub cpu: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Operating system and architecture.
    pub os: String,
    /// The kernel's release, where the system says it.
    pub kernel: Option<String>,
    /// Load average of the last minute when the run began: above a few tenths, somebody else was at work.
    pub load: Option<f64>,
    /// Share of all cores that other processes used while the run lasted, where the system says it: above a few
    /// hundredths, do not judge by this run.
    pub others: Option<f64>,
    /// Share of all cores that the host of a virtual machine gave to others meanwhile, where the system says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
    /// The lowest and the highest clock of a core that was seen, in MHz, where the system says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency: Option<[f64; 2]>,
    /// The GPU and its driver, if one was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Whether only a few samples were taken.
    #[serde(default)]
    pub quick: bool,
    /// The devices that were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// Version of the lab.
    pub version: String,
    /// The commit checked out in the working directory, if there is one.
    pub commit: Option<String>,
    /// Seconds since 1970.
    pub date: u64,
}

impl Machine {
    /// This machine, now.
    pub fn now() -> Self {
        let cpu = CpuInfo::get();
        let line = |path: &str| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        Self {
            cpu: cpu.name.clone(),
            cores: cpu.cores,
            memory: cpu.memory,
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            kernel: line("/proc/sys/kernel/osrelease"),
            load: line("/proc/loadavg").and_then(|l| l.split(' ').next()?.parse().ok()),
            others: None,
            steal: None,
            frequency: frequency(),
            driver: None,
            quick: false,
            devices: Vec::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: std::env::current_dir().ok().and_then(|dir| dir.ancestors().find_map(commit)),
            date: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        }
    }
}

/// Processor time so far, in the system's ticks.
#[derive(Debug, Clone, Copy)]
pub struct Ticks {
    /// Of all cores, idle or not.
    all: u64,
    /// Of that, busy.
    busy: u64,
    /// Of that, what the host gave to others.
    steal: u64,
    /// Of that, this process's and its children's, once they have ended.
    own: u64,
}

impl Ticks {
    /// Until now, where the system says it.
    pub fn now() -> Option<Self> {
        let system = fs::read_to_string("/proc/stat").ok()?;
        // user nice system idle iowait irq softirq steal
        let fields = system.lines().next()?.split_whitespace().skip(1).take(8);
        let fields: Vec<u64> = fields.map(|field| field.parse().unwrap_or(0)).collect();
        let all = fields.iter().sum();
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // Behind the name, which may contain anything: user and system time are the 12th and 13th, then its children's.
        let times = own.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
        let own = times.filter_map(|field| field.parse::<u64>().ok()).sum();
        Some(Self { all, busy: all - fields.get(3)? - fields.get(4)?, steal: *fields.get(7)?, own })
    }

    /// Share of all cores that the host gave to others since.
    pub fn stolen_since(self) -> Option<f64> {
        let now = Self::now()?;
        let stolen = now.steal.saturating_sub(self.steal);
        (now.all > self.all).then(|| stolen as f64 / (now.all - self.all) as f64)
    }

    /// Share of all cores that other processes have used since.
    pub fn others_since(self) -> Option<f64> {
        let now = Self::now()?;
        // Time that was stolen counts as busy, and is nobody's here.
        let busy = now.busy.saturating_sub(self.busy).saturating_sub(now.steal.saturating_sub(self.steal));
        let others = busy.saturating_sub(now.own.saturating_sub(self.own));
        (now.all > self.all).then(|| others as f64 / (now.all - self.all) as f64)
    }
}

/// The lowest and the highest clock of all cores at this moment, in MHz.
fn frequency() -> Option<[f64; 2]> {
    let cores = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let scaled = cores.filter_map(|core| {
        let clock = fs::read_to_string(core.path().join("cpufreq/scaling_cur_freq")).ok()?;
        Some(clock.trim().parse::<f64>().ok()? / 1e3)
    });
    let mut clocks: Vec<f64> = scaled.collect();
    if clocks.is_empty() {
        let info = fs::read_to_string("/proc/cpuinfo").ok()?;
        let lines = info.lines().filter(|line| line.starts_with("cpu MHz"));
        clocks = lines.filter_map(|line| line.split_once(':')?.1.trim().parse().ok()).collect();
    }
    let low = clocks.iter().copied().reduce(f64::min)?;
    Some([low, clocks.into_iter().fold(low, f64::max)])
}

/// Watches the machine while a run lasts.
///
/// ```
/// let mut watch = millrace_lab::machine::Watch::begin();
/// watch.look();
/// let machine = watch.end(true, None);
/// assert!(machine.cores > 0 && machine.quick);
/// ```
#[derive(Debug)]
pub struct Watch {
    machine: Machine,
    ticks: Option<Ticks>,
}

impl Watch {
    /// From now on.
    pub fn begin() -> Self {
        Self { machine: Machine::now(), ticks: Ticks::now() }
    }

    /// Looks at the clocks of the cores.
    pub fn look(&mut self) {
        if let (Some([low, high]), Some([lower, higher])) = (self.machine.frequency, frequency()) {
            self.machine.frequency = Some([low.min(lower), high.max(higher)]);
        }
    }

    /// Until now: the machine, what was seen of it, and what was asked for.
    pub fn end(mut self, quick: bool, devices: Option<&Devices>) -> Machine {
        self.look();
        let mut machine = self.machine;
        machine.others = self.ticks.and_then(Ticks::others_since);
        machine.steal = self.ticks.and_then(Ticks::stolen_since);
        machine.quick = quick;
        machine.devices = devices.map(Devices::ids).unwrap_or_default();
        machine
    }
}

impl Machine {
    /// What makes numbers of this run hard to trust, one sentence each; none on a quiet machine.
    ///
    /// ```
    /// use millrace_lab::machine::Machine;
    /// let quiet = Machine { load: Some(0.1), others: Some(0.01), steal: None, frequency: None, ..Machine::now() };
    /// assert!(quiet.noise().is_empty());
    /// let noisy = Machine { steal: Some(0.2), ..quiet };
    /// assert!(noisy.noise()[0].contains("20%"));
    /// ```
    pub fn noise(&self) -> Vec<String> {
        let mut seen = Vec::new();
        if let Some(load) = self.load.filter(|load| *load > 0.5) {
            seen.push(format!("the load was {load:.1} when it began"));
        }
        if let Some(others) = self.others.filter(|others| *others > 0.05) {
            seen.push(format!("other programs used {:.0}% of all cores", 100.0 * others));
        }
        if let Some(steal) = self.steal.filter(|steal| *steal > 0.01) {
            seen.push(format!("the host gave {:.0}% of all cores to others", 100.0 * steal));
        }
        if let Some([low, high]) = self.frequency.filter(|[low, high]| *high > 1.15 * low) {
            seen.push(format!("cores ran at {low:.0} to {high:.0} MHz"));
        }
        seen
    }

    /// Whether that is too much to tell small changes.
    pub fn is_noisy(&self) -> bool {
        self.others.is_some_and(|others| others > 0.05) || self.steal.is_some_and(|steal| steal > 0.03)
    }
}

/// The commit that is checked out in `dir`, if that is the top of a Git work tree.
fn commit(dir: &Path) -> Option<String> {
    let git = dir.join(".git");
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let Some(name) = head.trim().strip_prefix("ref: ") else { return Some(head.trim().to_owned()) };
    if let Ok(commit) = fs::read_to_string(git.join(name)) {
        return Some(commit.trim().to_owned());
    }
    let packed = fs::read_to_string(git.join("packed-refs")).ok()?;
    packed.lines().find_map(|line| Some(line.strip_suffix(name)?.trim_end().to_owned()))
}
