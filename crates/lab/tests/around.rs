//! What is around the work: every group of `millrace bench around` has its rows, on every device.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use millrace_lab::around::{Effort, group_names, run_groups};

fn smoke() -> Effort {
    let mut effort = Effort::quick();
    (effort.rounds, effort.turn) = (1, Duration::from_millis(2));
    effort
}

#[test]
fn every_group_yields_its_rows_on_every_device() {
    let report = run_groups(&smoke(), &|_| true, &mut |_| ());
    for row in &report.rows {
        assert!(!row.is_error(), "{row:?}");
    }
    let gpu = millrace::runtime().open("gpu").is_ok();
    for (group, case, everywhere) in [
        ("kernel_execution", "64Ki-floats", true),
        ("kernel_execution", "empty-by-worker", true),
        ("coordination", "both", true),
        ("memory_pressure", "cycle-tight", false),
        ("memory_pressure", "refused", false),
        ("error_paths", "no-memory", true),
        ("error_paths", "callers-mistake", true),
        ("error_paths", "too-late", true),
        ("error_paths", "queue-full", false),
        ("metrics_cost", "run-published", true),
        ("device_operations", "create", false),
        ("kernel_operations", "cache-hits", true),
    ] {
        assert!(group_names().contains(&group));
        let has = |id: String| report.rows.iter().any(|row| row.group == group && row.id == id);
        assert!(has(format!("millrace/{case}")), "{group} {case}");
        assert_eq!(has(format!("millrace-gpu/{case}")), everywhere && gpu, "{group} {case} on a GPU");
    }
    let peers = ["limit/64Ki-floats", "thread/empty", "threads/both", "malloc/cycle-tight"];
    for peer in peers {
        assert!(report.rows.iter().any(|row| row.id == peer), "no {peer}");
    }
}
