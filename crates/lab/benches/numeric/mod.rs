//! What the benchmarks of the numeric backend share.

use std::time::Duration;

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use millrace::{
    Device,
    tensor::{Result, Tensor, Tensors},
};

pub(crate) const FINE: &str = "the operation works";

/// A group with a short measurement, which says what it is to reach.
pub(crate) fn group<'a>(c: &'a mut Criterion, name: &str, target: &str) -> BenchmarkGroup<'a, WallTime> {
    // Not in the way of `--list`, whose output is read by programs.
    if !std::env::args().any(|argument| argument == "--list") {
        println!("{name}: target: {target}");
    }
    let mut group = c.benchmark_group(name);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800)).sample_size(20);
    group
}

pub(crate) fn cpu() -> Device {
    millrace::runtime().open("cpu").expect("the CPU is always there")
}

/// An operation, from the call until the device has done it. The result of each goes back to the pool before the next.
pub(crate) fn op(
    group: &mut BenchmarkGroup<'_, WallTime>,
    id: BenchmarkId,
    throughput: Throughput,
    tensors: &Tensors,
    mut run: impl FnMut() -> Result<Tensor>,
) {
    group.throughput(throughput);
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            let result = run().expect(FINE);
            tensors.synchronize().expect(FINE);
            result
        });
    });
}
