//! `cargo bench --bench cpu_benchmarks`: what the CPU device is made of, under criterion, next to libraries that do the
//! same work.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark talks to a person, and ends if it cannot go on"
)]

mod numeric;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use millrace::{
    Access, CpuKernel, KernelSpec,
    cpu::CpuInfo,
    tensor::{
        Conv, Recurrent, Simd, Tensors,
        tune::{Op, Tuner},
    },
};
use ndarray::Array1;

use numeric::{FINE, cpu, group, op};

fn on_cpu() -> Tensors {
    Tensors::on(&cpu()).expect(FINE)
}

/// In the first cache, in the second, and beyond all of them.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 4 << 20];

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 1000) as f32 / 1000.0 - 0.4).collect()
}

/// Plain loops, as compilers find them.
#[inline(never)]
fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = a + b);
}

#[inline(never)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[inline(never)]
fn exp(a: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(a).for_each(|(out, a)| *out = a.exp());
}

fn cpu_simd(c: &mut Criterion) {
    let mut group = group(c, "cpu_simd", "2 to 8 times a plain loop, at least 4 in cache");
    let (tensors, level) = (on_cpu(), Simd::in_use().name());
    for n in SIZES {
        let (a, b) = (numbers(n), numbers(n));
        let (x, y) = (tensors.from_slice(&a, &[n]).expect(FINE), tensors.from_slice(&b, &[n]).expect(FINE));
        let three = Throughput::Bytes(12 * n as u64);
        let two = Throughput::Bytes(8 * n as u64);
        let ours = |name: &str| BenchmarkId::new(format!("{name}/millrace-{level}"), n);
        op(&mut group, ours("add"), three.clone(), &tensors, || x.add(&y));
        let mut out = vec![0.0; n];
        group.bench_function(BenchmarkId::new("add/plain-loop", n), |bencher| {
            bencher.iter(|| add(black_box(&a), black_box(&b), black_box(&mut out)));
        });
        let (p, q) = (Array1::from(a.clone()), Array1::from(b.clone()));
        group.bench_function(BenchmarkId::new("add/ndarray", n), |bencher| {
            bencher.iter(|| black_box(&p) + black_box(&q))
        });
        op(&mut group, ours("mul"), three, &tensors, || x.mul(&y));
        group.bench_function(BenchmarkId::new("mul/ndarray", n), |bencher| {
            bencher.iter(|| black_box(&p) * black_box(&q))
        });
        op(&mut group, ours("dot"), two.clone(), &tensors, || x.matmul(&y));
        group.bench_function(BenchmarkId::new("dot/plain-loop", n), |bencher| {
            bencher.iter(|| dot(black_box(&a), black_box(&b)));
        });
        group.bench_function(BenchmarkId::new("dot/ndarray", n), |bencher| {
            bencher.iter(|| black_box(&p).dot(black_box(&q)))
        });
        op(&mut group, ours("exp"), two, &tensors, || x.exp());
        group.bench_function(BenchmarkId::new("exp/plain-loop", n), |bencher| {
            bencher.iter(|| exp(black_box(&a), black_box(&mut out)));
        });
    }
    group.finish();
}

fn platform(c: &mut Criterion) {
    let mut group = group(c, "platform", "full enumeration below 10 µs once detected");
    group.bench_function("detect", |bencher| bencher.iter(CpuInfo::detect));
    group.bench_function("detected", |bencher| bencher.iter(|| black_box(CpuInfo::get()).cores));
    group.bench_function("enumerate", |bencher| {
        let runtime = millrace::Runtime::new(vec![Box::new(millrace::cpu::CpuProvider)]);
        bencher.iter(|| runtime.devices());
    });
    group.finish();
}

/// Numbers that a group of the kernel writes.
const ONES: usize = 1024;

fn memory(c: &mut Criterion) {
    let mut group =
        group(c, "memory", "allocation below 10 µs up to 1 MiB; more than 1 GB/s; 95% of repeated ones from the pool");
    let device = cpu();
    let stream = device.stream().expect(FINE);
    let code = CpuKernel::per_group(|group| group.output::<f32>(0).fill(1.0));
    let ones = KernelSpec::new("ones").block(ONES as u32).binding::<f32>("out", Access::Overwrite).cpu(code);
    let ones = device.kernel(&ones).expect(FINE);
    for bytes in [1 << 10, 64 << 10, 1 << 20, 16 << 20] {
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("allocate/pool", bytes), |bencher| {
            bencher.iter(|| device.allocate(bytes).expect(FINE));
        });
        group.bench_function(BenchmarkId::new("allocate/malloc", bytes), |bencher| {
            bencher.iter(|| black_box(Vec::<u8>::with_capacity(black_box(bytes))));
        });
        let (from, to) = (device.allocate(bytes).expect(FINE), device.allocate(bytes).expect(FINE));
        stream.run(from.fill(.., 1)).expect(FINE);
        group.bench_function(BenchmarkId::new("copy/millrace", bytes), |bencher| {
            bencher.iter(|| stream.run(from.copy_to(.., &to, 0)).expect(FINE));
        });
        let (source, mut target) = (vec![1u8; bytes], vec![0u8; bytes]);
        group.bench_function(BenchmarkId::new("copy/plain", bytes), |bencher| {
            bencher.iter(|| black_box(&mut target).copy_from_slice(black_box(&source)));
        });
        // The first touch of fresh memory: pages come with it. Ours is written as kernels write, by the whole team. Giving it
        // back is not timed, on both sides.
        group.bench_function(BenchmarkId::new("first-touch/millrace", bytes), |bencher| {
            bencher.iter_with_setup(
                || {
                    device.trim(0);
                    device.allocate(bytes).expect(FINE)
                },
                |buffer| {
                    let launch = ones.launch().bind(&buffer).grid((bytes / 4).div_ceil(ONES) as u32);
                    stream.run(launch).expect(FINE);
                    buffer
                },
            );
        });
        group.bench_function(BenchmarkId::new("first-touch/malloc", bytes), |bencher| {
            bencher.iter_with_setup(
                || Vec::with_capacity(bytes),
                |mut memory: Vec<u8>| {
                    memory.resize(bytes, 1);
                    memory
                },
            );
        });
    }
    let stats = device.memory();
    println!("memory: {:.2}% of {} requests came from the pool", hit_rate(&stats), stats.hits + stats.misses);
    group.finish();
}

fn hit_rate(stats: &millrace::PoolStats) -> f64 {
    100.0 * stats.hits as f64 / (stats.hits + stats.misses).max(1) as f64
}

fn feature_detection(c: &mut Criterion) {
    let mut group = group(c, "feature_detection", "below 100 ns a query");
    group.bench_function("vector-instructions", |bencher| bencher.iter(|| black_box(Simd::in_use())));
    group.bench_function("all-vector-instructions", |bencher| bencher.iter(|| black_box(Simd::all())));
    group.bench_function("features", |bencher| bencher.iter(|| black_box(CpuInfo::get().simd.len())));
    group.finish();
}

/// A layer: groups, channels and filters of each, the side of the picture, the side of the kernel, the stride.
const LAYERS: [(&str, [usize; 6]); 4] = [
    ("64-64-28-k3", [1, 64, 64, 28, 3, 1]),
    ("3-64-224-k7-s2", [1, 3, 64, 224, 7, 2]),
    ("depthwise-128-56-k3", [128, 1, 1, 56, 3, 1]),
    ("256-256-28-k1", [1, 256, 256, 28, 1, 1]),
];

fn convolution(c: &mut Criterion) {
    let mut group = group(c, "convolution", "faster than candle, at least 0.8 of oneDNN");
    let tensors = on_cpu();
    for (name, [groups, channels, filters, side, kernel, stride]) in LAYERS {
        for batch in [1, 8] {
            let conv = Conv::new().stride(stride).padding(kernel / 2).groups(groups);
            let x = tensors.rand(&[batch, groups * channels, side, side], 1).expect(FINE);
            let weight = tensors.rand(&[groups * filters, channels, kernel, kernel], 2).expect(FINE);
            let out = (side - 1) / stride + 1;
            let flops = 2 * batch * groups * filters * channels * kernel * kernel * out * out;
            let flops = Throughput::Elements(flops as u64);
            let run = |id: String, conv: &Conv, group: &mut _| {
                op(group, BenchmarkId::new(id, batch), flops.clone(), &tensors, || x.conv(&weight, None, conv));
            };
            run(format!("{name}/millrace"), &conv, &mut group);
            for algorithm in conv.candidates(&x, &weight).expect(FINE) {
                run(format!("{name}/millrace-{algorithm}"), &conv.clone().algorithm(algorithm), &mut group);
            }
            #[cfg(feature = "candle")]
            {
                let numbers = |t: &millrace::tensor::Tensor| t.to_vec::<f32>().expect(FINE);
                let on = &candle_core::Device::Cpu;
                let input = candle_core::Tensor::from_vec(numbers(&x), x.shape(), on).expect(FINE);
                let filter = candle_core::Tensor::from_vec(numbers(&weight), weight.shape(), on).expect(FINE);
                group.bench_function(BenchmarkId::new(format!("{name}/candle"), batch), |bencher| {
                    bencher.iter(|| input.conv2d(&filter, kernel / 2, stride, 1, groups).expect(FINE));
                });
            }
        }
    }
    group.finish();
}

fn rnn(c: &mut Criterion) {
    let mut group = group(c, "rnn", "faster than candle, at least PyTorch");
    let tensors = on_cpu();
    let networks = [("lstm", Recurrent::lstm(128, 256)), ("gru", Recurrent::gru(128, 256))];
    for (name, network) in networks {
        for (kind, network) in [("one-layer", network), ("two-layers-both-ways", network.layers(2).bidirectional(true))]
        {
            let weights =
                tensors.rand(&[network.weights_len()], 1).expect(FINE).sub(0.5).expect(FINE).mul(0.1).expect(FINE);
            for batch in [4, 32] {
                let x = tensors.rand(&[64, batch, 128], 2).expect(FINE);
                let steps = Throughput::Elements(64 * batch as u64);
                let id = BenchmarkId::new(format!("{name}-{kind}/millrace"), batch);
                op(&mut group, id, steps, &tensors, || Ok(x.recurrent(&network, &weights, None)?.output));
            }
        }
    }
    group.bench_function("weights-len", |bencher| {
        bencher.iter(|| black_box(Recurrent::lstm(128, 256).layers(2)).weights_len())
    });
    group.finish();
}

/// What a library's kernel on all threads gains over the same on one.
fn optimized_kernels(c: &mut Criterion) {
    let mut group = group(c, "optimized_kernels", "no slower than the fastest library");
    let device = cpu();
    let tensors = on_cpu();
    let alone = Tuner::fixed(&device, Op::Matmul, "one thread").expect("it has this way");
    let alone = Tensors::tuned(&device, &alone).expect(FINE);
    for n in [64, 256, 512] {
        let flops = Throughput::Elements(2 * (n * n * n) as u64);
        let (a, b) = (numbers(n * n), numbers(n * n));
        for (name, place) in [("millrace", &tensors), ("millrace-one-thread", &alone)] {
            let (x, y) = (place.from_slice(&a, &[n, n]).expect(FINE), place.from_slice(&b, &[n, n]).expect(FINE));
            op(&mut group, BenchmarkId::new(format!("matmul/{name}"), n), flops.clone(), place, || x.matmul(&y));
        }
        let mut out = vec![0f32; n * n];
        group.bench_function(BenchmarkId::new("matmul/gemm", n), |bencher| {
            bencher.iter(|| {
                let (m, step) = (n, n as isize);
                // SAFETY: three slices of n times n elements, rows one behind the other.
                unsafe {
                    gemm::gemm(
                        m,
                        n,
                        n,
                        black_box(&mut out).as_mut_ptr(),
                        1,
                        step,
                        false,
                        a.as_ptr(),
                        1,
                        step,
                        b.as_ptr(),
                        1,
                        step,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        gemm::Parallelism::Rayon(0),
                    );
                }
            });
        });
    }
    for n in [64 << 10, 1 << 20, 16 << 20] {
        let a = numbers(n);
        let x = tensors.from_slice(&a, &[n]).expect(FINE);
        let bytes = Throughput::Bytes(4 * n as u64);
        op(&mut group, BenchmarkId::new("sum/millrace", n), bytes.clone(), &tensors, || x.sum(&[0]));
        op(&mut group, BenchmarkId::new("max/millrace", n), bytes, &tensors, || x.max(&[0]));
        group.bench_function(BenchmarkId::new("sum/plain-loop", n), |bencher| {
            bencher.iter(|| black_box(&a).iter().sum::<f32>());
        });
        let p = Array1::from(a);
        group.bench_function(BenchmarkId::new("sum/ndarray", n), |bencher| bencher.iter(|| black_box(&p).sum()));
    }
    group.finish();
}

criterion_group!(benches, cpu_simd, platform, memory, feature_detection, convolution, rnn, optimized_kernels);
criterion_main!(benches);
