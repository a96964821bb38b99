//! `cargo bench --bench gpu_comparison`: the CPU device, the GPU device and wgpu used by hand, side by side, under
//! criterion.
//!
//! Every group opens fresh contexts, shares nothing with the others and can be run alone, after any other one, and again
//! and again. At its end it waits for everything with a deadline and states that nothing is left in flight; if something
//! is, or if a result is wrong, the benchmark ends there. Each operation is timed until the device has done it.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark talks to a person, and ends if it cannot go on"
)]

use std::time::{Duration, Instant};

use criterion::{
    BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use millrace_lab::{
    gpu::{Context, Job, Task, adapter_name, by_hand, ours},
    raw_wgpu::{Raw, Waiting},
};

const FINE: &str = "the side works";

/// A group, and what it opened so far. A device is opened with the first benchmark that uses it, so that `--list` and
/// filters open nothing that is not needed.
struct Suite<'a> {
    name: &'static str,
    group: BenchmarkGroup<'a, WallTime>,
    /// What the GPU is called, if there is one.
    adapter: Option<String>,
    cpu: Option<Context>,
    gpu: Option<Context>,
    raw: Option<Raw>,
}

impl<'a> Suite<'a> {
    fn new(c: &'a mut Criterion, name: &'static str) -> Self {
        let mut group = c.benchmark_group(name);
        group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
        let adapter = adapter_name();
        if adapter.is_none() {
            eprintln!("{name}: there is no GPU, only the CPU is measured");
        }
        Self { name, group, adapter, cpu: None, gpu: None, raw: None }
    }

    /// A task on all sides: `<what>/cpu`, `<what>/gpu`, `<what>/raw-wgpu`.
    fn compare(&mut self, what: &str, task: &Task) {
        // What takes seconds on a software driver is done a few times only.
        let (samples, mode) = match task {
            Task::Matmul(1024..) => (10, SamplingMode::Flat),
            _ => (20, SamplingMode::Auto),
        };
        self.group.sample_size(samples).sampling_mode(mode);
        let Self { group, adapter, cpu, gpu, raw, .. } = self;
        bench(group, format!("{what}/cpu"), || {
            let context = cpu.get_or_insert_with(|| Context::open("cpu").expect("the CPU is always there"));
            ours(context, task).expect(FINE)
        });
        let Some(adapter) = adapter else { return };
        bench(group, format!("{what}/gpu"), || {
            let context = gpu.get_or_insert_with(|| Context::open("gpu").expect("the GPU can be opened"));
            ours(context, task).expect(FINE)
        });
        bench(group, format!("{what}/raw-wgpu"), || {
            let open = || Raw::open(Some(adapter), Waiting::Yield).expect("the GPU can be opened by hand");
            by_hand(raw.get_or_insert_with(open), task, false).expect(FINE)
        });
    }

    /// Waits for everything, and says that nothing is left.
    fn finish(self) {
        self.group.finish();
        for context in self.cpu.into_iter().chain(self.gpu) {
            let idle = context.finish().expect("nothing is left in flight");
            println!("{}: {idle}", self.name);
        }
    }
}

/// A benchmark. Its job is made with the first sample, and only if it is run at all. After the last sample the result is
/// checked.
fn bench(group: &mut BenchmarkGroup<'_, WallTime>, id: String, mut start: impl FnMut() -> Box<dyn Job>) {
    let mut job = None;
    group.bench_function(id, |bencher| {
        let job = job.get_or_insert_with(&mut start);
        bencher.iter_custom(|iters| {
            let begin = Instant::now();
            for _ in 0..iters {
                job.run().expect(FINE);
            }
            begin.elapsed()
        });
    });
    if let Some(mut job) = job {
        job.check().expect("the result is right");
    }
}

fn matmul_cpu_vs_gpu(c: &mut Criterion) {
    let mut suite = Suite::new(c, "matmul_cpu_vs_gpu");
    for size in [256usize, 512, 1024, 2048] {
        suite.group.throughput(Throughput::Elements(2 * (size * size * size) as u64));
        suite.compare(&size.to_string(), &Task::Matmul(size));
    }
    suite.finish();
}

/// Elements of the arrays.
const SIZES: [usize; 3] = [1 << 16, 1 << 20, 4 << 20];

fn binary_ops_cpu_vs_gpu(c: &mut Criterion) {
    let mut suite = Suite::new(c, "binary_ops_cpu_vs_gpu");
    for size in SIZES {
        suite.group.throughput(Throughput::Bytes(12 * size as u64));
        suite.compare(&format!("add/{size}"), &Task::Add(size));
    }
    suite.finish();
}

fn unary_ops_cpu_vs_gpu(c: &mut Criterion) {
    let mut suite = Suite::new(c, "unary_ops_cpu_vs_gpu");
    for size in SIZES {
        suite.group.throughput(Throughput::Bytes(8 * size as u64));
        suite.compare(&format!("relu/{size}"), &Task::Relus { count: 1, len: size });
    }
    suite.finish();
}

fn reduce_ops_cpu_vs_gpu(c: &mut Criterion) {
    let mut suite = Suite::new(c, "reduce_ops_cpu_vs_gpu");
    for size in SIZES {
        suite.group.throughput(Throughput::Bytes(4 * size as u64));
        suite.compare(&format!("sum/{size}"), &Task::Sum(size));
    }
    suite.finish();
}

fn memory_transfer(c: &mut Criterion) {
    let mut suite = Suite::new(c, "memory_transfer");
    for bytes in [1usize << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20] {
        suite.group.throughput(Throughput::Bytes(bytes as u64));
        suite.compare(&format!("upload/{bytes}"), &Task::Upload(bytes));
        suite.compare(&format!("download/{bytes}"), &Task::Download(bytes));
    }
    suite.finish();
}

fn gpu_batch_processing(c: &mut Criterion) {
    let mut suite = Suite::new(c, "gpu_batch_processing");
    suite.group.throughput(Throughput::Elements(5120));
    suite.compare("many_small_ops", &Task::Relus { count: 20, len: 256 });
    suite.compare("single_large_op", &Task::Relus { count: 1, len: 5120 });
    suite.finish();
}

criterion_group!(
    benches,
    matmul_cpu_vs_gpu,
    binary_ops_cpu_vs_gpu,
    unary_ops_cpu_vs_gpu,
    reduce_ops_cpu_vs_gpu,
    memory_transfer,
    gpu_batch_processing
);
criterion_main!(benches);
