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
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: std::env::current_dir().ok().and_then(|dir| dir.ancestors().find_map(commit)),
            date: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        }
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
