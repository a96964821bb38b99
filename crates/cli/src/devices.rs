//! `millrace devices`

use millrace::{DeviceInfo, DeviceKind, Found, Health, Runtime, tensor::Simd};
use serde::Serialize;
use std::collections::BTreeMap;

use crate::{Failure, table::bytes};

#[derive(Serialize)]
struct Listing {
    devices: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    id: String,
    kind: &'static str,
    name: String,
    available: bool,
    reason: Option<String>,
    memory: Option<u64>,
    max_groups: Option<[u32; 3]>,
    max_threads: Option<u32>,
    details: BTreeMap<String, String>,
    /// Faults of the driver that the probes found.
    findings: Vec<String>,
    health: Option<State>,
}

/// How a device is.
#[derive(Serialize)]
struct State {
    state: &'static str,
    reason: Option<String>,
    memory_in_use: u64,
    memory_budget: u64,
    submissions_in_flight: usize,
    bytes_in_flight: u64,
    temperature: Option<f32>,
}

impl From<Health> for State {
    fn from(health: Health) -> Self {
        Self {
            state: health.state.name(),
            reason: health.reason.map(|reason| reason.to_string()),
            memory_in_use: health.memory.in_use,
            memory_budget: health.memory.budget,
            submissions_in_flight: health.submissions_in_flight,
            bytes_in_flight: health.bytes_in_flight,
            temperature: health.temperature,
        }
    }
}

/// A device as far as it can be described: opened for it, and closed again.
fn describe(runtime: &Runtime, found: Found) -> Entry {
    let opened = match found.unavailable {
        Some(reason) => Err(reason),
        None => runtime.open(&found.id).map_err(|error| error.to_string()),
    };
    let info = opened.as_ref().ok().map(|device| device.info());
    Entry {
        id: found.id,
        kind: found.kind.name(),
        name: found.name,
        available: info.is_some(),
        memory: info.map(|info| info.memory),
        max_groups: info.map(|info| info.limits.groups),
        max_threads: info.map(|info| info.limits.threads),
        details: info.map(details).unwrap_or_default(),
        findings: info.map(|info| info.findings.clone()).unwrap_or_default(),
        health: opened.as_ref().ok().map(|device| device.health().into()),
        reason: opened.err(),
    }
}

fn details(info: &DeviceInfo) -> BTreeMap<String, String> {
    let mut details: BTreeMap<_, _> = info.details.iter().cloned().collect();
    if info.kind == DeviceKind::Cpu {
        let all: Vec<_> = Simd::all().into_iter().map(Simd::name).collect();
        details.insert("simd".to_owned(), format!("{}, of {}", Simd::in_use().name(), all.join(", ")));
    }
    details
}

/// Which device it is, and why it cannot be used if it cannot.
fn headline(device: &Entry) -> String {
    // A kind of which there is none at all has no name.
    let name = if device.name == "none" { "" } else { &device.name };
    let reason = device.reason.as_ref().map(|reason| format!("not available: {reason}"));
    let parts: Vec<_> = [Some(name), reason.as_deref()].into_iter().flatten().filter(|part| !part.is_empty()).collect();
    format!("{:<8} {}", device.id, parts.join(", "))
}

pub(crate) fn devices(json: bool) -> Result<(), Failure> {
    let runtime = millrace::runtime();
    let devices: Vec<_> = runtime.devices().into_iter().map(|found| describe(&runtime, found)).collect();
    if json {
        let text = serde_json::to_string_pretty(&Listing { devices });
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
        return Ok(());
    }
    for device in devices {
        println!("{}", headline(&device));
        for (name, value) in &device.details {
            println!("         {name:<11} {value}");
        }
        if let Some(health) = &device.health {
            let temperature = health.temperature.map(|t| format!(", {t:.0} °C")).unwrap_or_default();
            let reason = health.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            let budget = bytes(health.memory_budget);
            println!("         {:<11} {}{reason}, a memory budget of {budget}{temperature}", "health", health.state);
        }
        for finding in &device.findings {
            println!("         {:<11} {finding}", "WARNING");
        }
        if let (Some(groups), Some(threads)) = (device.max_groups, device.max_threads) {
            println!("         {:<11} {groups:?} groups of {threads} threads", "launch");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use millrace::{DeviceKind, Provider, Result};

    use super::*;

    /// An adapter whose driver lacks something, and a kind of which there is nothing.
    struct Useless(Option<&'static str>);

    impl Provider for Useless {
        fn list(&self) -> Vec<Found> {
            let (id, name) = ("gpu".to_owned(), self.0.unwrap_or("none").to_owned());
            vec![Found { id, kind: DeviceKind::Gpu, name, unavailable: Some("it cannot".to_owned()) }]
        }

        fn open(&self, id: &str) -> Result<millrace::Engine> {
            Err(millrace::Error::NoSuchDevice { wanted: id.into(), known: "it cannot".into() })
        }
    }

    #[test]
    fn an_adapter_that_cannot_be_used_has_its_name() {
        for (name, line) in [
            (Some("Matrox Mystique"), "gpu      Matrox Mystique, not available: it cannot"),
            (None, "gpu      not available: it cannot"),
        ] {
            let runtime = Runtime::new(vec![Box::new(Useless(name))]);
            let found = runtime.devices().remove(0);
            assert_eq!(headline(&describe(&runtime, found)), line);
        }
    }
}
