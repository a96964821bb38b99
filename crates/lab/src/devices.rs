//! Which devices a process measures.
//!
//! A process measures one group and then ends, so the choice is made once, before anything is opened, and holds for all
//! that the process does. Without a choice it is every device there is, and the first GPU.

use std::sync::OnceLock;

use millrace::{Device, Runtime};

use crate::Result;

/// Devices that are measured: the CPU or not, and at most one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// Whether the CPU is.
    pub cpu: bool,
    /// The GPU that is, by its id or kind.
    pub gpu: Option<String>,
}

impl Default for Devices {
    fn default() -> Self {
        Self { cpu: true, gpu: Some("gpu".to_owned()) }
    }
}

static CHOSEN: OnceLock<Devices> = OnceLock::new();

impl Devices {
    /// Splits a list of ids and kinds into what one process measures each: the CPU with the first GPU, and every further
    /// GPU by itself. All devices if the list is empty.
    ///
    /// ```
    /// use millrace_lab::devices::Devices;
    /// let ids = ["cpu", "gpu:0", "gpu:1"].map(str::to_owned);
    /// let split = Devices::split(&ids);
    /// assert_eq!(split.len(), 2);
    /// assert!(split[0].cpu && split[0].gpu.as_deref() == Some("gpu:0"));
    /// assert!(!split[1].cpu && split[1].gpu.as_deref() == Some("gpu:1"));
    /// assert_eq!(Devices::split(&[]), [Devices::default()]);
    /// ```
    pub fn split(ids: &[String]) -> Vec<Self> {
        if ids.is_empty() {
            return vec![Self::default()];
        }
        let cpu = ids.iter().any(|id| id == "cpu");
        let mut gpus: Vec<_> = ids.iter().filter(|id| *id != "cpu").cloned().collect();
        gpus.dedup();
        let mut gpus = gpus.into_iter();
        let first = Self { cpu, gpu: gpus.next() };
        let others = gpus.map(|gpu| Self { cpu: false, gpu: Some(gpu) });
        std::iter::once(first).chain(others).collect()
    }

    /// The ids again.
    pub fn ids(&self) -> Vec<String> {
        self.cpu.then(|| "cpu".to_owned()).into_iter().chain(self.gpu.clone()).collect()
    }

    /// Whether a kind of device is among them.
    pub fn has(&self, kind: &str) -> bool {
        if kind == "cpu" { self.cpu } else { self.gpu.is_some() }
    }

    /// Makes these the devices of this process. The first choice counts.
    pub fn choose(self) {
        let _ = CHOSEN.set(self); // a second choice would change what is being measured
    }
}

/// What this process measures.
pub(crate) fn chosen() -> &'static Devices {
    CHOSEN.get_or_init(Devices::default)
}

/// The id of the chosen device of a kind.
pub(crate) fn id(kind: &str) -> &str {
    match &chosen().gpu {
        Some(gpu) if kind == "gpu" => gpu,
        _ => kind,
    }
}

/// Opens the chosen device of a kind.
pub(crate) fn open(kind: &str) -> Result<Device> {
    open_in(&millrace::runtime(), kind)
}

/// [`open`] in a runtime of the caller's.
pub(crate) fn open_in(runtime: &Runtime, kind: &str) -> Result<Device> {
    Ok(runtime.open(id(kind))?)
}
