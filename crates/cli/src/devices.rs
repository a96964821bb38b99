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

pub(crate) fn devices(json: bool) -> Result<(), Failure> {
    let runtime = millrace::runtime();
    let devices: Vec<_> = runtime.devices().into_iter().map(|found| describe(&runtime, found)).collect();
    if json {
        let text = serde_json::to_string_pretty(&Listing { devices });
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
        return Ok(());
    }
    for device in devices {
        match &device.reason {
            None => println!("{:<8} {}", device.id, device.name),
            Some(reason) => println!("{:<8} not available: {reason}", device.id),
        }
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
