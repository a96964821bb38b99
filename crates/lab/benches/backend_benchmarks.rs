//! `cargo bench --bench backend_benchmarks`: the numeric backend on every device, under criterion, next to libraries that
//! do the same work.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark talks to a person, and ends if it cannot go on"
)]

mod numeric;

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use faer::{
    Accum, MatMut, MatRef, Par,
    sparse::{SparseColMatRef, SymbolicSparseColMatRef, linalg::matmul::dense_sparse_matmul},
};
use millrace::{
    Access, CpuKernel, KernelSpec, Profile, ProfileOptions,
    tensor::{
        Complex32, Norm, Tensor, Tensors,
        quant::{Calibration, Parameters, Scheme},
        sparse::{Coo, Csr},
        tune::{Op, Tuner, Tuning},
        validate::{Effort, validate},
    },
};
use millrace_fourier::FftDirection;
use sprs::prod::mul_acc_mat_vec_csr;

use numeric::{FINE, cpu, group, op};

/// The devices there are, with their names for ids.
fn places() -> Vec<(&'static str, Tensors)> {
    let open = |name: &'static str| {
        let device = millrace::runtime().open(name).ok()?;
        Some((name, Tensors::on(&device).ok()?))
    };
    ["cpu", "gpu"].into_iter().filter_map(open).collect()
}

fn memory_allocation(c: &mut Criterion) {
    let mut group = group(c, "memory_allocation", "below 10 µs up to 1 MiB, more than 1 GB/s, 95% from the pool");
    for (name, tensors) in places() {
        let device = tensors.device();
        for bytes in [1 << 10, 16 << 10, 256 << 10, 1 << 20] {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_function(BenchmarkId::new(format!("allocate/{name}"), bytes), |bencher| {
                bencher.iter(|| device.allocate(bytes).expect(FINE));
            });
            let payload = bytes::Bytes::from(vec![1u8; bytes]);
            let (stream, buffer) = (tensors.stream(), device.allocate(bytes).expect(FINE));
            group.bench_function(BenchmarkId::new(format!("write/{name}"), bytes), |bencher| {
                bencher.iter(|| stream.run(buffer.write(0, payload.clone())).expect(FINE));
            });
        }
        let stats = device.memory();
        println!("memory_allocation: {name}: {} of {} from the pool", stats.hits, stats.hits + stats.misses);
    }
    group.finish();
}

fn device_operations(c: &mut Criterion) {
    let mut group = group(c, "device_operations", "creation below 1 ms, a query below 100 ns, all devices below 10 µs");
    let runtime = millrace::Runtime::new(vec![Box::new(millrace::cpu::CpuProvider)]);
    group.bench_function("create/cpu", |bencher| bencher.iter(|| runtime.open("cpu").expect(FINE)));
    let device = cpu();
    group.bench_function("query/cpu", |bencher| bencher.iter(|| black_box(device.info().limits.threads)));
    group.bench_function("enumerate/cpu", |bencher| bencher.iter(|| runtime.devices()));
    group.bench_function("health/cpu", |bencher| bencher.iter(|| device.health()));
    group.finish();
}

fn kernel_operations(c: &mut Criterion) {
    let mut group = group(c, "kernel_operations", "creation below 5 ms, 99% of repeated ones from the cache");
    for (name, tensors) in places() {
        let device = tensors.device();
        let mut number = 0;
        let mut spec = || {
            number += 1;
            let source = format!(
                "@group(0) @binding(0) var<storage, read_write> out: array<f32>;
                 @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {{
                     if (at.x < arrayLength(&out)) {{ out[at.x] = {number}.0; }}
                 }}"
            );
            let code = CpuKernel::per_group(|group| group.output::<f32>(0).fill(1.0));
            let spec = KernelSpec::new(format!("bench_{number}")).block(64).binding::<f32>("out", Access::Overwrite);
            spec.cpu(code).wgsl(source)
        };
        let known = spec();
        group.bench_function(BenchmarkId::new("create", name), |bencher| {
            bencher.iter_with_setup(&mut spec, |spec| device.kernel(&spec).expect(FINE));
        });
        group.bench_function(BenchmarkId::new("find", name), |bencher| {
            bencher.iter(|| device.kernel(&known).expect(FINE));
        });
        let counts = device.counts();
        println!("kernel_operations: {name}: {} compiled, {} found", counts.compiled, counts.reused);
    }
    group.finish();
}

fn simd(c: &mut Criterion) {
    let mut group =
        group(c, "simd", "choosing instructions and threads costs below 100 ns; 80% of the memory's bandwidth");
    for (name, tensors) in places() {
        for n in [16, 64 << 10, 4 << 20] {
            let x = tensors.rand(&[n], 1).expect(FINE);
            let bytes = Throughput::Bytes(8 * n as u64);
            op(&mut group, BenchmarkId::new(format!("relu/{name}"), n), bytes.clone(), &tensors, || x.relu());
            op(&mut group, BenchmarkId::new(format!("tanh/{name}"), n), bytes, &tensors, || x.tanh());
        }
    }
    let mut out = vec![0f32; 16];
    let few = vec![-1f32; 16];
    group.bench_function("relu/by-hand/16", |bencher| {
        bencher.iter(|| black_box(&mut out).iter_mut().zip(black_box(&few)).for_each(|(out, x)| *out = x.max(0.0)));
    });
    group.finish();
}

fn cross_backend_validation(c: &mut Criterion) {
    let mut group = group(c, "cross_backend_validation", "every operation is compared, and none is wrong");
    group.sample_size(10);
    for (name, tensors) in places() {
        let effort = Effort::default().large(1 << 10);
        let wrong = validate(tensors.device(), &effort, |_| ()).expect(FINE).iter().filter(|row| !row.ok).count();
        assert_eq!(wrong, 0, "{name} gives the right results");
        if name == "cpu" {
            group.bench_function(BenchmarkId::new("all", name), |bencher| {
                bencher.iter(|| validate(tensors.device(), &effort, |_| ()).expect(FINE));
            });
        }
        let checked = Tensors::checked(tensors.device(), None).expect(FINE);
        for (kind, place) in [("unchecked", &tensors), ("checked", &checked)] {
            let x = place.rand(&[256, 256], 1).expect(FINE);
            let id = BenchmarkId::new(format!("matmul/{name}"), kind);
            op(&mut group, id, Throughput::Elements(2 << 24), place, || x.matmul(&x));
        }
    }
    group.finish();
}

fn autotuning(c: &mut Criterion) {
    let mut group = group(c, "autotuning", "the tuned way is never slower than the usual one");
    group.sample_size(10);
    let (device, folder) = (cpu(), tempfile::tempdir().expect("a temporary folder"));
    let tuner = Tuner::new(&device, Some(folder.path()), Tuning::Kept).limit(Duration::from_millis(300));
    let case = "matmul 1x128x128x128".parse().expect("it is a case");
    let mut outcome = None;
    group.bench_function("measure", |bencher| {
        bencher.iter(|| outcome = Some(tuner.tune(&device, &case).expect(FINE)));
    });
    group.sample_size(20);
    let usual = Tuner::new(&device, Some(folder.path()), Tuning::Never);
    for (name, tuner) in [("usual", &usual), ("tuned", &tuner)] {
        let tensors = Tensors::tuned(&device, tuner).expect(FINE);
        let x = tensors.rand(&[128, 128], 1).expect(FINE);
        let id = BenchmarkId::new("matmul-128", name);
        op(&mut group, id, Throughput::Elements(2 << 21), &tensors, || x.matmul(&x));
    }
    for way in Op::Matmul.ways(device.info().kind) {
        let tensors =
            Tensors::tuned(&device, &Tuner::fixed(&device, Op::Matmul, way).expect("it has this way")).expect(FINE);
        let x = tensors.rand(&[128, 128], 1).expect(FINE);
        let id = BenchmarkId::new("matmul-128/way", way);
        op(&mut group, id, Throughput::Elements(2 << 21), &tensors, || x.matmul(&x));
    }
    println!("autotuning: {:?}", tuner.stats());
    if let Some(outcome) = outcome {
        println!(
            "autotuning: {} was chosen, {:.2} times the usual way",
            outcome.trials[outcome.chosen].name,
            outcome.gain()
        );
    }
    group.finish();
}

fn quantization(c: &mut Criterion) {
    let mut group =
        group(c, "quantization", "products twice as fast as in f32; conversions at 0.8 of the memory's bandwidth");
    for (name, tensors) in places() {
        let sizes: &[usize] = if name == "cpu" { &[1 << 16, 1 << 20] } else { &[1 << 16] };
        for &n in sizes {
            let x = tensors.rand(&[n], 1).expect(FINE);
            let parameters = Parameters::calibrate(&x, Scheme::affine(), Calibration::MinMax).expect(FINE);
            let q = x.quantize(&parameters).expect(FINE);
            group.throughput(Throughput::Bytes(5 * n as u64));
            group.bench_function(BenchmarkId::new(format!("quantize/{name}"), n), |bencher| {
                bencher.iter(|| {
                    let q = x.quantize(&parameters).expect(FINE);
                    tensors.synchronize().expect(FINE);
                    q
                });
            });
            let id = BenchmarkId::new(format!("dequantize/{name}"), n);
            op(&mut group, id, Throughput::Bytes(5 * n as u64), &tensors, || q.dequantize());
            for (kind, calibration) in [
                ("min-max", Calibration::MinMax),
                ("percentile", Calibration::Percentile(99.9)),
                ("entropy", Calibration::Entropy),
            ] {
                group.bench_function(BenchmarkId::new(format!("calibrate-{kind}/{name}"), n), |bencher| {
                    bencher.iter(|| Parameters::calibrate(&x, Scheme::symmetric(), calibration).expect(FINE));
                });
                let parameters = Parameters::calibrate(&x, Scheme::symmetric(), calibration).expect(FINE);
                let kept = x.quantize(&parameters).expect(FINE).accuracy_against(&x).expect(FINE);
                println!("quantization: {kind}, {n} on {name}: {:.1} dB above the error", kept.signal_to_noise_db);
            }
        }
        let sides: &[usize] = if name == "cpu" { &[256, 512, 1024] } else { &[128] };
        for &n in sides {
            let (x, y) = (tensors.rand(&[n, n], 1).expect(FINE), tensors.rand(&[n, n], 2).expect(FINE));
            let eight = |x: &Tensor| {
                x.quantize(&Parameters::calibrate(x, Scheme::symmetric(), Calibration::MinMax).expect(FINE))
                    .expect(FINE)
            };
            let (a, b) = (eight(&x), eight(&y));
            let operations = Throughput::Elements(2 * (n * n * n) as u64);
            op(&mut group, BenchmarkId::new(format!("matmul-i8/{name}"), n), operations.clone(), &tensors, || {
                a.matmul(&b)
            });
            op(&mut group, BenchmarkId::new(format!("matmul-f32/{name}"), n), operations, &tensors, || x.matmul(&y));
        }
    }
    group.finish();
}

fn fft(c: &mut Criterion) {
    let mut group = group(c, "fft", "one line no slower than 0.95 of rustfft alone");
    for (name, tensors) in places() {
        for n in [64, 1024, 1 << 14, 1 << 18] {
            let x = tensors.rand(&[n, 2], 1).expect(FINE).view_as_complex().expect(FINE);
            let elements = Throughput::Elements(n as u64);
            op(&mut group, BenchmarkId::new(format!("1d/{name}"), n), elements, &tensors, || x.fft(-1, Norm::Backward));
        }
        let x = tensors.rand(&[256, 256, 2], 1).expect(FINE).view_as_complex().expect(FINE);
        op(&mut group, BenchmarkId::new("2d", name), Throughput::Elements(1 << 16), &tensors, || {
            x.fft2(Norm::Backward)
        });
        let x = tensors.rand(&[32, 32, 32, 2], 1).expect(FINE).view_as_complex().expect(FINE);
        let axes = [-3, -2, -1];
        op(&mut group, BenchmarkId::new("3d", name), Throughput::Elements(1 << 15), &tensors, || {
            x.fftn(&axes, Norm::Backward)
        });
    }
    for n in [64, 1024, 1 << 14, 1 << 18] {
        let plan = millrace_fourier::complex(n, FftDirection::Forward);
        let (input, mut line) = (vec![Complex32::new(0.5, -0.5); n], vec![Complex32::ZERO; n]);
        let mut scratch = vec![Complex32::ZERO; plan.get_immutable_scratch_len()];
        group.throughput(Throughput::Elements(n as u64));
        group.bench_function(BenchmarkId::new("1d/rustfft", n), |bencher| {
            bencher.iter(|| plan.process_immutable_with_scratch(black_box(&input), black_box(&mut line), &mut scratch));
        });
    }
    group.finish();
}

/// So many entries in every row, scattered.
fn entries(rows: usize, per_row: usize) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
    let places = (0..rows).flat_map(|row| (0..per_row).map(move |n| (row, (row * 31 + n * 7919 + n * n * 17) % rows)));
    let (down, across): (Vec<u32>, Vec<u32>) = places.map(|(row, column)| (row as u32, column as u32)).unzip();
    let values = (0..down.len()).map(|n| (n % 13) as f32 - 6.0).collect();
    (down, across, values)
}

fn sparse(c: &mut Criterion) {
    let mut group =
        group(c, "sparse", "COO to CSR of 100k entries below 0.5 ms; products at 0.8 of the memory's bandwidth");
    for (rows, per_row) in [(10_000, 10), (100_000, 10)] {
        let (down, across, values) = entries(rows, per_row);
        let coo = Coo::new(rows, rows, down.clone(), across.clone(), values.clone()).expect(FINE);
        let csr = Csr::from(coo.clone());
        let nnz = Throughput::Elements(csr.nnz() as u64);
        group.throughput(nnz.clone());
        group.bench_function(BenchmarkId::new("coo-to-csr/millrace", rows), |bencher| {
            bencher.iter_with_setup(|| coo.clone(), Csr::from);
        });
        // Indices as wide as ours.
        let triplets: sprs::TriMatI<f32, u32> = sprs::TriMatI::from_triplets((rows, rows), down, across, values);
        group.bench_function(BenchmarkId::new("coo-to-csr/sprs", rows), |bencher| {
            bencher.iter(|| black_box(&triplets).to_csr::<u32>());
        });
        for (name, tensors) in places() {
            let matrix = tensors.sparse(csr.clone()).expect(FINE);
            let x = tensors.rand(&[rows], 1).expect(FINE);
            op(&mut group, BenchmarkId::new(format!("spmv/{name}"), rows), nnz.clone(), &tensors, || matrix.matvec(&x));
        }
        let matrix: sprs::CsMatI<f32, u32> = triplets.to_csr();
        let x = vec![0.5f32; rows];
        let mut y = vec![0f32; rows];
        group.bench_function(BenchmarkId::new("spmv/sprs", rows), |bencher| {
            bencher.iter(|| {
                y.fill(0.0); // it adds
                mul_acc_mat_vec_csr(matrix.view(), &x[..], black_box(&mut y[..]));
            })
        });
        // Rows read as columns are the transposed matrix, and a row of numbers times that is what we want.
        let symbolic = SymbolicSparseColMatRef::new_checked(rows, rows, csr.pointers(), None, csr.indices());
        let transposed = SparseColMatRef::new(symbolic, csr.values());
        group.bench_function(BenchmarkId::new("spmv/faer", rows), |bencher| {
            bencher.iter(|| {
                let to = MatMut::from_row_major_slice_mut(black_box(&mut y[..]), 1, rows);
                let x = MatRef::from_row_major_slice(&x, 1, rows);
                dense_sparse_matmul(to, Accum::Replace, x, transposed, 1.0, Par::rayon(0));
            })
        });
    }
    group.finish();
}

fn profiler(c: &mut Criterion) {
    let mut group = group(c, "profiler", "below 100 ns per event at any number of events; nothing when off");
    let device = cpu();
    let (stream, buffer) = (device.stream().expect(FINE), device.allocate(64).expect(FINE));
    let commands = |count: u64| {
        let start = Instant::now();
        (0..count).for_each(|_| stream.enqueue(buffer.fill(.., 1)).expect(FINE));
        stream.synchronize().expect(FINE);
        start.elapsed()
    };
    // A profile of its own for each, so that every event is kept.
    let profiled = |count: u64| -> (Duration, Profile) {
        let profiler = device.profile(&ProfileOptions::default().events(2 * count as usize)).expect(FINE);
        let (time, profile) = (commands(count), profiler.stop());
        assert!(profile.dropped() == 0 && profile.spans().len() as u64 >= count, "what is timed is recorded");
        (time, profile)
    };
    for count in [100, 10_000] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new("commands/off", count), |bencher| {
            bencher.iter_custom(|iters| (0..iters).map(|_| commands(count)).sum());
        });
        group.bench_function(BenchmarkId::new("commands/on", count), |bencher| {
            bencher.iter_custom(|iters| (0..iters).map(|_| profiled(count).0).sum());
        });
    }
    let (_, profile) = profiled(10_000);
    group.bench_function("summary", |bencher| bencher.iter(|| black_box(&profile).summary()));
    group.finish();
}

criterion_group!(
    benches,
    memory_allocation,
    device_operations,
    kernel_operations,
    simd,
    cross_backend_validation,
    autotuning,
    quantization,
    fft,
    sparse,
    profiler
);
criterion_main!(benches);
