//! The groups for the GPU and for tensors yield rows, and what they compare is right.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use millrace_lab::{
    gpu::{self, Context, Effort, Task, adapter_name, ours, ours_by_stream},
    report::Report,
    tensor,
};

fn smoke() -> Effort {
    let mut effort = Effort::quick();
    effort.rounds = 1;
    effort.turn = Duration::from_micros(100);
    effort.uploads = 300;
    effort
}

/// One of everything, small enough for a test.
fn tasks() -> Vec<Task> {
    let mut tasks = vec![Task::Empty, Task::Relus { count: 20, len: 256 }, Task::Relus { count: 1, len: 5120 }];
    tasks.extend([Task::Add(1 << 17), Task::Sum(256), Task::Sum(1 << 17), Task::Matmul(64), Task::Matmul(72)]);
    tasks.extend([Task::Upload(1 << 10), Task::Upload(1 << 20), Task::Download(1 << 10), Task::Download(1 << 20)]);
    tasks
}

fn every_task_is_right_on(device: &str) {
    let context = Context::open(device).unwrap();
    for task in tasks() {
        for make in [ours, ours_by_stream] {
            let mut job = make(&context, &task).unwrap();
            job.run().unwrap();
            job.run().unwrap();
            job.check().unwrap_or_else(|error| panic!("{task:?} on {device}: {error}"));
        }
    }
    let idle = context.finish().unwrap();
    assert!(idle.device.starts_with(device));
}

#[test]
fn every_task_is_right_on_the_cpu_and_leaves_nothing_in_flight() {
    every_task_is_right_on("cpu");
}

#[test]
fn every_task_is_right_on_the_gpu_and_leaves_nothing_in_flight() {
    if adapter_name().is_some() {
        every_task_is_right_on("gpu");
    }
}

fn all_rows_have_numbers(report: &Report, peers: &[&str]) {
    for row in &report.rows {
        assert!(!row.is_error(), "{row:?}");
        assert_eq!(row.met.is_some(), row.target.is_some(), "{row:?}");
        assert!(row.is_ours() || row.target.is_none(), "{row:?}");
    }
    for peer in peers {
        assert!(report.rows.iter().any(|row| row.side() == *peer), "{peer}");
    }
}

#[test]
fn the_groups_of_the_gpu_yield_rows_with_targets() {
    if adapter_name().is_none() {
        return;
    }
    let mut steps = 0;
    let report = gpu::run_groups(&smoke(), &|group| group != "matmul", &mut |progress| {
        assert_eq!(progress.done, steps);
        assert!(progress.done < progress.total);
        steps += 1;
    });
    all_rows_have_numbers(&report, &["raw-wgpu", "raw-wgpu-wait", "millrace-cpu", "millrace-staged"]);
    for row in report.rows.iter().filter(|row| row.is_ours()) {
        assert_eq!(row.target.is_some(), row.device == "gpu", "{row:?}");
    }
    for group in gpu::group_names().into_iter().filter(|group| *group != "matmul") {
        assert!(report.rows.iter().any(|row| row.group == group && row.side() == "millrace"), "{group}");
    }
}

#[test]
fn the_groups_of_tensors_yield_rows_with_targets() {
    let report = tensor::run_groups(&smoke(), &|_| true, &mut |_| ());
    let libraries = ["gemm", "faer", "matrixmultiply", "sprs", "rustfft", "copy", "read"];
    all_rows_have_numbers(&report, &libraries);
    for group in tensor::group_names() {
        let ours = report.rows.iter().filter(|row| row.group == group && row.is_ours());
        assert!(ours.clone().count() > 0, "{group}");
        // Some are held to nothing, and convolutions to a library that is not always there.
        let free = ["matmul_small", "rnn"].contains(&group) || (group == "conv" && cfg!(not(feature = "candle")));
        // Of vectors only the factors are.
        let held = |id: &str| !free && (group != "simd" || id.ends_with("-over-scalar"));
        assert!(ours.clone().all(|row| row.target.is_some() == held(&row.id)), "{group}");
    }
    assert!(report.rows.iter().all(|row| row.device == "cpu"));
}
