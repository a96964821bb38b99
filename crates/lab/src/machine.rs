//! Where and when a run took place.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use millrace::cpu::CpuInfo;
use serde::{Deserialize, Serialize};

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
    /// Of that, this process's.
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
        // Behind the name, which may contain anything: user and system time are the 12th and 13th.
        let times = own.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
        let own = times.filter_map(|field| field.parse::<u64>().ok()).sum();
        Some(Self { all, busy: all - fields.get(3)? - fields.get(4)?, own })
    }

    /// Share of all cores that other processes have used since.
    pub fn others_since(self) -> Option<f64> {
        let now = Self::now()?;
        let others = (now.busy - self.busy).saturating_sub(now.own - self.own);
        (now.all > self.all).then(|| others as f64 / (now.all - self.all) as f64)
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
