//! What is profiled really runs, and the profiler's own rows have numbers.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use millrace::ProfileOptions;
use millrace_lab::{
    gpu,
    profiled::Workload,
    profiler::{Effort, group_names, run_groups},
    tensor,
};

#[test]
fn every_workload_gives_a_profile_of_its_own_commands() {
    for workload in Workload::all() {
        let device = millrace::runtime().open("cpu").unwrap();
        let profiler = device.profile(&ProfileOptions::default()).unwrap();
        workload.run(&device, &|| false).unwrap();
        let (profile, counts) = (profiler.stop(), device.counts());
        assert_eq!(profile.spans().len() as u64, counts.commands(), "{}", workload.name);
        assert!(!profile.spans().is_empty() && profile.dropped() == 0, "{}", workload.name);
        assert_eq!(Workload::of(workload.name).unwrap().about, workload.about);
    }
}

#[test]
fn every_group_of_operations_can_be_profiled() {
    let groups = || gpu::group_names().into_iter().chain(tensor::group_names());
    // One is done by the host alone, and one is about how many threads a device has. A leak is no work, and
    // vectors are seen in `functions`.
    let without = ["sparse_convert", "matmul_one_thread", "uploads_memory", "simd"];
    let missing: Vec<_> = groups().filter(|name| Workload::of(name).is_none()).collect();
    assert!(missing.iter().all(|name| without.contains(name)), "{missing:?}");
    let mut names: Vec<_> = Workload::all().iter().map(|workload| workload.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Workload::all().len(), "each name is one workload");
}

#[test]
fn every_group_yields_rows_with_numbers_and_events_have_targets() {
    let effort = Effort { rounds: 1, turn: Duration::from_millis(1), ..Effort::quick() };
    let report = run_groups(&effort, &|_| true, &mut |_| ());
    for name in group_names() {
        assert!(report.rows.iter().any(|row| row.group == name), "{name}");
    }
    for row in &report.rows {
        assert!(!row.is_error() && row.p50.is_some(), "{row:?}");
        assert_eq!(row.id.starts_with("millrace/event"), row.target.is_some(), "{row:?}");
    }
}
