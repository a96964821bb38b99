//! The GPU device through the public API. Where there is no adapter these tests have nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use millrace::{
    Access, CpuKernel, Device, Error, InFlightLimits, KernelSpec, Runtime, Synchronize,
    gpu::{GpuProvider, Transfers},
    prelude::DeviceOptions,
};
use proptest::prelude::*;

/// The device, once for every way of moving bytes.
fn gpus() -> Vec<Device> {
    let runtimes = [Transfers::Best, Transfers::Staged]
        .map(|transfers| Runtime::new(vec![Box::new(GpuProvider::with_transfers(transfers))]));
    runtimes.iter().filter_map(|runtime| runtime.open("gpu").ok()).collect()
}

fn saxpy() -> KernelSpec {
    KernelSpec::new("saxpy")
        .binding::<f32>("x", Access::Read)
        .binding::<f32>("y", Access::ReadWrite)
        .params::<f32>()
        .block(64)
        .wgsl(
            "
            @group(0) @binding(0) var<storage, read> x: array<f32>;
            @group(0) @binding(1) var<storage, read_write> y: array<f32>;
            struct Params { a: f32 }
            var<immediate> params: Params;
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if id.x < arrayLength(&x) {
                    y[id.x] = params.a * x[id.x] + y[id.x];
                }
            }",
        )
        .cpu(CpuKernel::per_group(|group| {
            let (x, a, start) = (group.input::<f32>(0), group.params::<f32>(), group.start(1));
            for (i, y) in group.output::<f32>(1).iter_mut().enumerate() {
                *y += a * x[start + i];
            }
        }))
}

fn bytes_of(values: &[f32]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(values))
}

#[test]
fn a_kernel_runs_with_its_bindings_and_parameters() {
    for device in gpus() {
        let (stream, kernel) = (device.stream().unwrap(), device.kernel(&saxpy()).unwrap());
        let n = 1000;
        let (x, y) = (device.allocate(4 * n).unwrap(), device.allocate(4 * n).unwrap());
        let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        stream.enqueue(x.write(0, bytes_of(&values))).unwrap();
        stream.enqueue(y.write(0, bytes_of(&vec![1.0; n]))).unwrap();
        for _ in 0..3 {
            stream.enqueue(kernel.launch().bind(&x).bind(&y).params(&2f32).over(n, 64)).unwrap();
        }
        let result = stream.run(y.read(..)).unwrap();
        let expected: Vec<f32> = values.iter().map(|x| 1.0 + 6.0 * x).collect();
        assert_eq!(result.to::<f32>(), expected);
    }
}

#[test]
fn what_waits_is_handed_over_together() {
    for device in gpus() {
        let (stream, kernel) = (device.stream().unwrap(), device.kernel(&saxpy()).unwrap());
        let buffers: Vec<_> = (0..21).map(|_| device.allocate(1024).unwrap()).collect();
        let before = device.counts();
        // The worker wakes up with the first and finds most of the rest; a caller that waits takes what is left.
        for pair in buffers.windows(2) {
            stream.enqueue(kernel.launch().bind(&pair[0]).bind(&pair[1]).params(&1f32).over(256, 64)).unwrap();
        }
        stream.synchronize().unwrap();
        let counts = device.counts() - before;
        assert_eq!(counts.launches, 20);
        assert!(counts.submissions < 10, "{} submissions for 20 launches", counts.submissions);
        assert_eq!((device.health().submissions_in_flight, device.health().bytes_in_flight), (0, 0));
    }
}

#[test]
fn a_view_stays_when_its_buffer_is_written_or_gone() {
    for device in gpus() {
        let (stream, buffer) = (device.stream().unwrap(), device.allocate(300_000).unwrap());
        stream.enqueue(buffer.fill(.., 1)).unwrap();
        let first = stream.submit(buffer.read(..)).unwrap();
        stream.enqueue(buffer.fill(.., 2)).unwrap();
        let second = stream.run(buffer.read(..)).unwrap();
        drop(buffer);
        let first = first.wait().unwrap();
        let other = device.allocate(300_000).unwrap();
        stream.run(other.fill(.., 3)).unwrap();
        assert!(first.iter().all(|&byte| byte == 1) && second.iter().all(|&byte| byte == 2));
        drop(device); // views outlive even that
        assert!(first.iter().all(|&byte| byte == 1) && second.iter().all(|&byte| byte == 2));
    }
}

#[test]
fn code_that_does_not_compile_says_where() {
    for device in gpus() {
        let spec = KernelSpec::new("broken").wgsl("@compute @workgroup_size(1)\nfn main() {\n    let x = 1 + ;\n}");
        let Err(Error::Compile { kernel, message }) = device.kernel(&spec) else { panic!("it compiled") };
        assert_eq!(&*kernel, "broken");
        assert!(message.contains("broken.wgsl:3:"), "{message}");
        let spec =
            KernelSpec::new("mistyped").wgsl("@compute @workgroup_size(1)\nfn main() {\n    let x: i32 = 1.5;\n}");
        let Err(Error::Compile { message, .. }) = device.kernel(&spec) else { panic!("it compiled") };
        assert!(message.contains(":3:") || message.contains("3 │"), "{message}");
    }
}

#[test]
fn a_kernel_that_does_not_match_its_code_is_refused() {
    for device in gpus() {
        let code = "@compute @workgroup_size(32) fn main() {}";
        let refused = device.kernel(&KernelSpec::new("other block").block(64).wgsl(code)).unwrap_err();
        assert!(refused.to_string().contains("[32, 1, 1]") && refused.to_string().contains("[64, 1, 1]"), "{refused}");
        let none = device.kernel(&KernelSpec::new("no code")).unwrap_err();
        assert!(matches!(none, Error::NoImplementation { device: "gpu", .. }), "{none}");
        let kernel = device.kernel(&KernelSpec::new("fits").block(32).wgsl(code)).unwrap();
        let ticket = device.stream().unwrap().submit(kernel.launch().block(16)).unwrap();
        assert!(matches!(ticket.wait(), Err(Error::Geometry { .. })));
    }
}

#[test]
fn the_same_code_is_compiled_once() {
    for device in gpus() {
        let before = device.counts();
        for _ in 0..5 {
            device.kernel(&saxpy()).unwrap();
        }
        let counts = device.counts() - before;
        assert_eq!((counts.compiled, counts.reused), (1, 4));
    }
}

#[test]
fn a_binding_has_to_start_where_the_device_can() {
    for device in gpus() {
        let (stream, kernel) = (device.stream().unwrap(), device.kernel(&saxpy()).unwrap());
        let (x, y) = (device.allocate(4096).unwrap(), device.allocate(4096).unwrap());
        let launch = kernel.launch().bind(x.slice(4..1028)).bind(&y).params(&1f32).over(256, 64);
        assert!(matches!(stream.run(launch), Err(Error::Misaligned { value: 4, .. })));
        let launch = kernel.launch().bind(x.slice(1024..2048)).bind(&y).params(&1f32).over(256, 64);
        stream.run(launch).unwrap();
    }
}

/// A kernel whose code wants 64 words, whatever is bound.
fn wants_64_words() -> KernelSpec {
    KernelSpec::new("wants_64_words").binding::<u32>("out", Access::Overwrite).block(64).wgsl(
        "
        @group(0) @binding(0) var<storage, read_write> out: array<u32, 64>;
        @compute @workgroup_size(64)
        fn main(@builtin(local_invocation_index) i: u32) {
            out[i] = i;
        }",
    )
}

#[test]
fn a_launch_that_binds_too_little_fails_alone() {
    for device in gpus() {
        let (bad, good) = (device.stream().unwrap(), device.stream().unwrap());
        let kernel = device.kernel(&wants_64_words()).unwrap();
        let (small, x, y) = (device.allocate(4).unwrap(), device.allocate(256).unwrap(), device.allocate(256).unwrap());
        for _ in 0..20 {
            good.enqueue(kernel.launch().bind(&x)).unwrap();
            bad.enqueue(kernel.launch().bind(&small)).unwrap();
            good.enqueue(x.copy_to(.., &y, 0)).unwrap();
        }
        let error = bad.synchronize().unwrap_err();
        assert!(matches!(error, Error::BindingSize { binding: 0, given: 4, least: 256, .. }), "{error}");
        assert!(error.to_string().contains("binding 0 of kernel wants_64_words gets 4 bytes; its code needs 256"));
        good.synchronize().unwrap();
        assert_eq!(good.run(y.read(..)).unwrap().to::<u32>(), (0..64).collect::<Vec<_>>());
    }
}

#[test]
fn a_launch_that_fails_shows_nothing_of_earlier_lives() {
    let pair = KernelSpec::new("pair")
        .binding::<u32>("a", Access::Overwrite)
        .binding::<u32>("b", Access::Overwrite)
        .block(1)
        .wgsl(
            "
            @group(0) @binding(0) var<storage, read_write> a: array<u32>;
            @group(0) @binding(1) var<storage, read_write> b: array<u32>;
            @compute @workgroup_size(1)
            fn main() {
                a[0] = 1u;
                b[0] = 1u;
            }",
        );
    for device in gpus() {
        let (stream, kernel) = (device.stream().unwrap(), device.kernel(&pair).unwrap());
        let old = device.allocate(64).unwrap();
        stream.run(old.fill(.., 7)).unwrap();
        drop(old);
        let (a, b) = (device.allocate(64).unwrap(), device.allocate(64).unwrap());
        let misaligned = stream.run(kernel.launch().bind(&a).bind(b.slice(4..)));
        assert!(matches!(misaligned, Err(Error::Misaligned { .. })), "{misaligned:?}");
        assert_eq!(*stream.run(a.read(..)).unwrap(), [0; 64], "it was never written");
    }
}

#[test]
fn errors_that_nobody_waited_for_come_up_at_the_next_synchronize() {
    for device in gpus() {
        let (stream, kernel) = (device.stream().unwrap(), device.kernel(&saxpy()).unwrap());
        let (x, y) = (device.allocate(4096).unwrap(), device.allocate(4096).unwrap());
        stream.enqueue(kernel.launch().bind(x.slice(4..8)).bind(&y).params(&1f32)).unwrap();
        assert!(matches!(stream.synchronize(), Err(Error::Misaligned { .. })));
        stream.synchronize().unwrap();
    }
}

#[test]
fn what_nobody_waits_for_runs_soon_also_after_callers_did_everything_themselves() {
    for device in gpus() {
        let (stream, buffer) = (device.stream().unwrap(), device.allocate(1 << 16).unwrap());
        for round in 0..3 {
            // Somebody waits each time, so the worker finds nothing to do and rests for longer and longer.
            for _ in 0..100 {
                stream.enqueue(buffer.fill(.., 1)).unwrap();
                stream.synchronize().unwrap();
            }
            stream.enqueue(buffer.fill(.., 2)).unwrap();
            let start = Instant::now();
            while device.counts().fills < 101 * (round + 1) {
                assert!(start.elapsed() < Duration::from_secs(5), "nobody took it");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn streams_wait_for_each_other_and_for_deadlines() {
    for device in gpus() {
        let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
        let buffer = device.allocate(1 << 20).unwrap();
        first.enqueue(buffer.fill(.., 9)).unwrap();
        let filled = first.mark().unwrap();
        second.enqueue(filled.wait()).unwrap();
        assert!(second.run(buffer.read(..)).unwrap().iter().all(|&byte| byte == 9));
        let (never, signal) = millrace::Marker::new();
        second.enqueue(never.wait()).unwrap();
        let start = Instant::now();
        let mut ticket = second.submit(Synchronize).unwrap();
        assert_eq!(ticket.wait_for(Duration::from_millis(30)), Err(Error::Deadline));
        assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
        drop(signal);
        assert_eq!(ticket.wait(), Err(Error::MarkerBroken), "the error that nobody waited for");
    }
}

#[test]
fn memory_stays_flat_over_many_uploads() {
    for device in gpus() {
        let (stream, buffer) = (device.stream().unwrap(), device.allocate(1 << 20).unwrap());
        let data = Bytes::from(vec![7u8; 1 << 20]);
        let upload = |n: usize| {
            for _ in 0..n {
                stream.enqueue(buffer.write(0, data.clone())).unwrap();
            }
            stream.synchronize().unwrap();
        };
        upload(100);
        let before = resident();
        upload(1000);
        let grown = resident().saturating_sub(before);
        assert!(grown < 40 << 20, "{} MiB more after a thousand uploads", grown >> 20);
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

#[test]
fn trimming_frees_what_is_kept_for_transfers() {
    const BYTES: usize = 8 << 20;
    let runtime = Runtime::new(vec![Box::new(GpuProvider::with_transfers(Transfers::Staged))]);
    let Ok(device) = runtime.open("gpu") else { return };
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(BYTES).unwrap());
    for value in 1..4 {
        stream.enqueue(buffer.write(0, vec![value; BYTES])).unwrap();
        assert!(stream.run(buffer.read(..)).unwrap().iter().all(|&byte| byte == value));
        stream.synchronize().unwrap();
        // A piece for each way, which is kept for the next.
        assert_eq!(device.trim(0), 2 * BYTES as u64);
        assert_eq!(device.trim(0), 0);
    }
}

#[test]
fn a_bound_on_bytes_in_flight_holds_back_and_loses_nothing() {
    let provider = GpuProvider::with_transfers(Transfers::Staged);
    let options = DeviceOptions::default().in_flight(InFlightLimits::new(1, 1 << 20));
    let Ok(device) = Runtime::new(vec![Box::new(provider)]).open_with("gpu", options) else { return };
    let stream = device.stream().unwrap();
    let buffers: Vec<_> = (0..40u8).map(|i| (i, device.allocate(1 << 19).unwrap())).collect();
    for (i, buffer) in &buffers {
        stream.enqueue(buffer.write(0, Bytes::from(vec![*i; 1 << 19]))).unwrap();
        assert!(device.health().bytes_in_flight <= 2 << 20);
    }
    for (i, buffer) in &buffers {
        assert!(stream.run(buffer.read(..)).unwrap().iter().all(|byte| byte == i));
    }
    assert!(device.counts().submissions >= 20, "{:?}", device.counts());
}

/// What a random program does to buffers.
#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize, Vec<u8>),
    Fill(usize, usize, usize, u8),
    Copy(usize, usize, usize, usize, usize),
    Read(usize, usize, usize),
    Renew(usize),
}

const SIZE: usize = 61;

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..3usize, 0..SIZE);
    prop_oneof![
        (place(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|((b, at), data)| Step::Write(b, at, data)),
        (place(), 0..40usize, any::<u8>()).prop_map(|((b, at), len, value)| Step::Fill(b, at, len, value)),
        (place(), place(), 0..40usize).prop_map(|((a, from), (b, to), len)| Step::Copy(a, from, b, to, len)),
        (place(), 0..40usize).prop_map(|((b, at), len)| Step::Read(b, at, len)),
        (0..3usize).prop_map(Step::Renew),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Bytes of any place and length, in batches of any composition, end up where plain memory has them.
    #[test]
    fn transfers_do_what_memory_does(steps in prop::collection::vec(step(), 1..60)) {
        for device in gpus() {
            let stream = device.stream().unwrap();
            let mut buffers: Vec<_> = (0..3).map(|_| device.allocate(SIZE).unwrap()).collect();
            let mut model = vec![vec![0u8; SIZE]; 3];
            let mut reads = Vec::new();
            for step in &steps {
                match step {
                    Step::Write(b, at, data) => {
                        let data = &data[..data.len().min(SIZE - at)];
                        stream.enqueue(buffers[*b].write(*at, Bytes::copy_from_slice(data))).unwrap();
                        model[*b][*at..at + data.len()].copy_from_slice(data);
                    }
                    Step::Fill(b, at, len, value) => {
                        let end = (at + len).min(SIZE);
                        stream.enqueue(buffers[*b].fill(*at..end, *value)).unwrap();
                        model[*b][*at..end].fill(*value);
                    }
                    Step::Copy(a, from, b, to, len) => {
                        let len = (*len).min(SIZE - from).min(SIZE - to);
                        stream.enqueue(buffers[*a].copy_to(*from..from + len, &buffers[*b], *to)).unwrap();
                        let bytes = model[*a][*from..from + len].to_vec();
                        model[*b][*to..to + len].copy_from_slice(&bytes);
                    }
                    Step::Read(b, at, len) => {
                        let end = (at + len).min(SIZE);
                        let ticket = stream.submit(buffers[*b].read(*at..end)).unwrap();
                        reads.push((ticket, model[*b][*at..end].to_vec()));
                    }
                    Step::Renew(b) => {
                        let other = device.allocate(2 * SIZE).unwrap();
                        buffers[*b] = other; // and the old one goes back to the pool
                        buffers[*b] = device.allocate(SIZE).unwrap();
                        model[*b].fill(0);
                    }
                }
            }
            for (ticket, expected) in reads {
                prop_assert_eq!(&*ticket.wait().unwrap(), &expected[..]);
            }
            for (buffer, expected) in buffers.iter().zip(&model) {
                prop_assert_eq!(&*stream.run(buffer.read(..)).unwrap(), &expected[..]);
            }
        }
    }
}
