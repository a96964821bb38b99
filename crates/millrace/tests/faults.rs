//! Wrong requests, and code that panics: a clear answer, and the device goes on.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bytes::Bytes;
use millrace::{Binding, Class, Launch, MAX_BINDINGS, MAX_PARAMS, prelude::*};
use support::{Log, cpu, cpu_with, kernel, only_wait, panics, workers};

/// A device with a stream and a kernel that reads `x`, writes `y` and takes four bytes of parameters.
struct Bench {
    device: Device,
    stream: Stream,
    kernel: Kernel,
    calls: Arc<AtomicUsize>,
}

impl Bench {
    fn new() -> Self {
        let device = workers(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let spec = KernelSpec::new("bench")
            .binding::<u32>("x", Access::Read)
            .binding::<u32>("y", Access::ReadWrite)
            .params::<u32>()
            .cpu(CpuKernel::whole(move |_| _ = counted.fetch_add(1, Ordering::SeqCst)));
        let (stream, kernel) = (device.stream().unwrap(), device.kernel(&spec).unwrap());
        Self { device, stream, kernel, calls }
    }

    fn buffer(&self) -> Buffer {
        self.device.allocate(64).unwrap()
    }

    /// A launch that is right but for what the test makes wrong.
    fn launch(&self) -> Launch {
        self.kernel.launch().bind(self.buffer()).bind(self.buffer()).params(&1u32)
    }

    /// Every way of submission refuses it with the same error, nothing runs, and the next command is fine.
    #[track_caller]
    fn refuses<R: millrace::Request>(&self, make: impl Fn() -> R) -> Error
    where
        R::Answer: std::fmt::Debug,
    {
        let error = self.stream.submit(make()).unwrap_err().error;
        assert_eq!(self.stream.try_submit(make()).unwrap_err().error, error);
        assert_eq!(self.stream.run(make()).unwrap_err(), error);
        assert_eq!(error.class(), Class::Caller, "{error}");
        assert_eq!(self.calls.load(Ordering::SeqCst), 0);
        self.stream.synchronize().unwrap();
        error
    }
}

#[test]
fn a_buffer_or_kernel_of_another_device_is_refused() {
    let (here, there) = (Bench::new(), Bench::new());
    let foreign = there.buffer();
    let wrong = Error::WrongDevice { what: "buffer" };
    assert_eq!(here.refuses(|| foreign.read(..)), wrong);
    assert_eq!(here.refuses(|| foreign.write(0, vec![1])), wrong);
    assert_eq!(here.refuses(|| foreign.fill(.., 1)), wrong);
    assert_eq!(here.refuses(|| foreign.copy_to(.., &here.buffer(), 0)), wrong);
    assert_eq!(here.refuses(|| here.buffer().copy_to(.., &foreign, 0)), wrong);
    assert_eq!(here.refuses(|| here.kernel.launch().bind(here.buffer()).bind(&foreign).params(&1u32)), wrong);
    assert_eq!(here.refuses(|| there.launch()), Error::WrongDevice { what: "kernel" });
    assert_eq!(here.device.buffer(foreign.id()).unwrap_err(), wrong);
}

#[test]
fn a_handle_of_a_buffer_that_is_gone_is_stale_for_good() {
    let device = cpu();
    let mut stale = Vec::new();
    // Dropped and used again; dropped and freed; adopted bytes that were dropped.
    for round in 0..20 {
        let first = device.allocate(1000).unwrap();
        stale.push(first.id());
        drop(first);
        if round % 2 == 0 {
            device.trim(0);
        }
        let adopted = device.adopt(vec![1; 10]).unwrap();
        stale.push(adopted.id());
        drop(adopted);
        let alive = [device.allocate(1000).unwrap(), device.allocate(5000).unwrap(), device.adopt(vec![2]).unwrap()];
        for buffer in &alive {
            assert!(device.buffer(buffer.id()).unwrap().same_as(buffer));
        }
        for id in &stale {
            let error = device.buffer(*id).unwrap_err();
            assert_eq!(error, Error::StaleHandle { index: id.index, generation: id.generation });
        }
        stale.extend(alive.iter().map(Buffer::id));
    }
}

#[test]
fn a_handle_that_was_made_up_is_stale() {
    let device = cpu();
    let mut id = device.allocate(1).unwrap().id();
    id.index = u32::MAX;
    assert!(matches!(device.buffer(id), Err(Error::StaleHandle { index: u32::MAX, .. })));
}

#[test]
fn a_range_outside_of_the_buffer_is_refused() {
    let bench = Bench::new();
    let buffer = bench.buffer();
    let max = usize::MAX;
    #[allow(clippy::reversed_empty_ranges)]
    let ranges = [0..65, 64..65, 65..65, 1000..1001, max..max, max - 1..max, 0..max, 10..5, max..0, 64..63];
    for range in ranges {
        let out_of_range = |error| matches!(error, Error::OutOfRange { size: 64, .. });
        assert!(out_of_range(bench.refuses(|| buffer.read(range.clone()))), "{range:?}");
        assert!(out_of_range(bench.refuses(|| buffer.fill(range.clone(), 1))), "{range:?}");
        assert!(out_of_range(bench.refuses(|| buffer.copy_to(range.clone(), &bench.buffer(), 0))), "{range:?}");
    }
    for offset in [64, 65, max, max - 2] {
        assert!(matches!(bench.refuses(|| buffer.write(offset, vec![1; 3])), Error::OutOfRange { size: 64, .. }));
        assert!(matches!(bench.refuses(|| buffer.copy_to(0..3, &bench.buffer(), offset)), Error::OutOfRange { .. }));
    }
    assert!(matches!(bench.refuses(|| buffer.read(..=max)), Error::OutOfRange { .. }));
    assert!(matches!(
        bench.refuses(|| buffer.read((std::ops::Bound::Excluded(max), std::ops::Bound::Unbounded))),
        Error::OutOfRange { .. }
    ));
    let bind = |range: std::ops::Range<usize>| {
        bench.kernel.launch().bind(bench.buffer().slice(range)).bind(bench.buffer()).params(&1u32)
    };
    assert!(matches!(bench.refuses(|| bind(0..68)), Error::OutOfRange { .. }));
    assert!(matches!(bench.refuses(|| bind(max - 3..max)), Error::OutOfRange { .. }));
}

#[test]
fn an_empty_range_is_fine_wherever_it_lies_inside() {
    let bench = Bench::new();
    let buffer = bench.buffer();
    for at in [0, 1, 64] {
        assert!(bench.stream.run(buffer.read(at..at)).unwrap().is_empty());
        bench.stream.run(buffer.write(at, Bytes::new())).unwrap();
        bench.stream.run(buffer.fill(at..at, 1)).unwrap();
        bench.stream.run(buffer.copy_to(at..at, &buffer, 64)).unwrap();
    }
    assert_eq!(&*bench.stream.run(buffer.read(..)).unwrap(), [0; 64]);
}

#[test]
fn a_binding_that_does_not_fit_its_elements_is_refused() {
    let bench = Bench::new();
    for (range, value) in [(1..5, 1), (4..7, 3), (2..6, 2)] {
        let launch = || bench.kernel.launch().bind(bench.buffer().slice(range.clone())).bind(bench.buffer());
        assert_eq!(bench.refuses(|| launch().params(&1u32)), Error::Misaligned { value, align: 4 });
    }
}

#[test]
fn adopted_bytes_that_are_not_aligned_for_the_kernel_are_an_error_of_the_launch() {
    let bench = Bench::new();
    let bytes = Bytes::from(vec![0; 32]);
    let odd = bytes.as_ptr().addr() % 4 + 1;
    let buffer = bench.device.adopt(bytes.slice(odd..odd + 8)).unwrap();
    let launch = bench.kernel.launch().bind(&buffer).bind(bench.buffer()).params(&1u32);
    assert!(matches!(bench.stream.run(launch), Err(Error::Misaligned { .. })));
    assert_eq!(bench.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn missing_and_extra_bindings_are_refused() {
    let bench = Bench::new();
    for given in [0, 1, 3, MAX_BINDINGS, MAX_BINDINGS + 5] {
        let launch = || (0..given).fold(bench.kernel.launch().params(&1u32), |launch, _| launch.bind(bench.buffer()));
        assert_eq!(bench.refuses(launch), Error::Bindings { kernel: "bench".into(), expected: 2, given });
    }
}

#[test]
fn parameters_of_another_size_are_refused() {
    let bench = Bench::new();
    let launch = || bench.kernel.launch().bind(bench.buffer()).bind(bench.buffer());
    let wrong = |given| Error::Parameters { kernel: "bench".into(), expected: 4, given };
    assert_eq!(bench.refuses(launch), wrong(0));
    assert_eq!(bench.refuses(|| launch().params(&1u16)), wrong(2));
    assert_eq!(bench.refuses(|| launch().params(&1u64)), wrong(8));
    assert_eq!(bench.refuses(|| launch().params(&[1u64; 25])), wrong(200));
    // As long as the most that fits, and then as long as is declared: the last counts.
    bench.stream.run(launch().params(&[1u8; 128]).params(&1u32)).unwrap();

    let spec = KernelSpec::new("wide").params::<[u8; 128]>().cpu(CpuKernel::whole(|_| ()));
    let wide = bench.device.kernel(&spec).unwrap();
    bench.stream.run(wide.launch().params(&[1u8; 128])).unwrap();
    let given = bench.stream.run(wide.launch().params(&[1u64; 25])).unwrap_err();
    assert_eq!(given, Error::Parameters { kernel: "wide".into(), expected: 128, given: 200 });
}

#[test]
fn a_geometry_outside_of_the_limits_is_refused() {
    let bench = Bench::new();
    let limits = bench.device.info().limits.clone();
    let max = limits.groups[0];
    let grids = [[0, 1, 1], [1, 0, 1], [1, 1, 0], [max + 1, 1, 1], [1, 1, u32::MAX], [u32::MAX; 3]];
    for groups in grids {
        let error = bench.refuses(|| bench.launch().grid(groups));
        assert_eq!(error, Error::Geometry { groups, block: [1; 3] });
    }
    for block in [[0, 1, 1], [1, 1, 0], [limits.threads + 1, 1, 1], [limits.threads, 2, 1], [u32::MAX; 3], [1 << 16; 3]]
    {
        let error = bench.refuses(|| bench.launch().block(block));
        assert_eq!(error, Error::Geometry { groups: [1; 3], block });
    }
    assert!(matches!(bench.refuses(|| bench.launch().over(0, 64)), Error::Geometry { .. }));
    assert!(matches!(bench.refuses(|| bench.launch().over(64, 0)), Error::Geometry { .. }));
    assert!(matches!(bench.refuses(|| bench.launch().over(usize::MAX, 1)), Error::Geometry { .. }));
    bench.stream.run(bench.launch().grid(max).block(limits.threads)).unwrap();
}

#[test]
fn a_buffer_that_is_written_can_be_bound_once() {
    let bench = Bench::new();
    let (one, other) = (bench.buffer(), bench.buffer());
    let launch = || bench.kernel.launch().bind(&one).bind(one.slice(32..)).params(&1u32);
    assert_eq!(bench.refuses(launch), Error::Aliased { first: 0, second: 1 });
    // What is only read may be bound as often as you like.
    let spec = KernelSpec::new("sum")
        .binding::<u8>("a", Access::Read)
        .binding::<u8>("out", Access::Overwrite)
        .binding::<u8>("b", Access::Read)
        .cpu(CpuKernel::whole(|launch| {
            let (a, b) = (launch.input::<u8>(0), launch.input::<u8>(2));
            launch.output::<u8>(1)[0] = a[0] + b[0];
        }));
    let sum = bench.device.kernel(&spec).unwrap();
    bench.stream.run(one.write(0, vec![3, 4])).unwrap();
    let launch = sum.launch().bind(one.slice(0..1)).bind(other.slice(0..1)).bind(one.slice(1..2));
    bench.stream.run(launch).unwrap();
    assert_eq!(bench.stream.run(other.read(0..1)).unwrap()[0], 7);
}

#[test]
fn adopted_bytes_cannot_be_written() {
    let bench = Bench::new();
    let adopted = bench.device.adopt(vec![5; 64]).unwrap();
    assert!(adopted.is_read_only());
    assert_eq!(bench.refuses(|| adopted.write(0, vec![1])), Error::ReadOnly);
    assert_eq!(bench.refuses(|| adopted.fill(.., 1)), Error::ReadOnly);
    assert_eq!(bench.refuses(|| bench.buffer().copy_to(.., &adopted, 0)), Error::ReadOnly);
    assert_eq!(
        bench.refuses(|| bench.kernel.launch().bind(bench.buffer()).bind(&adopted).params(&1u32)),
        Error::ReadOnly
    );
    assert_eq!(&*bench.stream.run(adopted.read(..)).unwrap(), [5; 64]);
}

#[test]
fn a_kernel_that_panics_fails_alone() {
    let device = workers(2);
    let stream = device.stream().unwrap();
    let buffer = device.allocate(64).unwrap();
    let spec = KernelSpec::new("half").binding::<u8>("x", Access::ReadWrite).cpu(CpuKernel::per_group(|group| {
        assert!(group.index != 3, "group {} is unlucky", group.index);
        group.output::<u8>(0).fill(1);
    }));
    let half = device.kernel(&spec).unwrap();
    for _ in 0..3 {
        let launch = half.launch().bind(&buffer).over(64, 1);
        assert_eq!(stream.run(launch), Err(Error::Panicked("group 3 is unlucky".into())));
        stream.run(buffer.fill(.., 9)).unwrap();
        assert_eq!(&*stream.run(buffer.read(..)).unwrap(), [9; 64]);
    }
    let silent = kernel(&device, || std::panic::panic_any(7));
    assert!(matches!(stream.run(silent.launch()), Err(Error::Panicked(_))));
    stream.run(Log::new(&device).launch(1)).unwrap();
}

#[test]
fn a_kernel_that_panics_on_many_threads_fails_alone() {
    let device = workers(2);
    let stream = device.stream().unwrap();
    let all = kernel(&device, || ());
    let spec = KernelSpec::new("all").cpu(CpuKernel::whole(|launch| {
        launch.threads().for_each(1000, &|n| assert!(n % 7 != 3, "unlucky"));
    }));
    let unlucky = device.kernel(&spec).unwrap();
    for _ in 0..20 {
        assert_eq!(stream.run(unlucky.launch()), Err(Error::Panicked("unlucky".into())));
        stream.run(all.launch()).unwrap();
    }
}

#[test]
fn a_kernel_that_asks_for_what_it_has_not_declared_fails_alone() {
    let bench = Bench::new();
    let refused: [(&str, CpuKernel); 6] = [
        ("no such input", CpuKernel::whole(|l| _ = l.input::<u8>(2))),
        ("an output is no input", CpuKernel::whole(|l| _ = l.input::<u8>(1))),
        ("an input is no output", CpuKernel::whole(|l| l.output::<u8>(0).fill(1))),
        ("taken twice", CpuKernel::whole(|l| (0..2).for_each(|_| l.output::<u8>(1).fill(1)))),
        ("other elements", CpuKernel::whole(|l| _ = l.input::<[u64; 3]>(0))),
        ("other parameters", CpuKernel::whole(|l| _ = l.params::<[u8; 3]>())),
    ];
    for (what, code) in refused {
        let spec = KernelSpec::new(what).binding::<u8>("x", Access::Read).binding::<u8>("y", Access::ReadWrite);
        let kernel = bench.device.kernel(&spec.cpu(code)).unwrap();
        let result = bench.stream.run(kernel.launch().bind(bench.buffer()).bind(bench.buffer()));
        assert!(matches!(result, Err(Error::Panicked(_))), "{what}: {result:?}");
    }
    bench.stream.run(bench.launch()).unwrap();
}

/// Bytes whose owner panics when it is dropped, if it is told to.
struct Grenade(Arc<AtomicBool>);

impl AsRef<[u8]> for Grenade {
    fn as_ref(&self) -> &[u8] {
        &[1, 2, 3, 4]
    }
}

impl Drop for Grenade {
    fn drop(&mut self) {
        assert!(!self.0.swap(false, Ordering::SeqCst), "dropped");
    }
}

fn grenade() -> Bytes {
    Bytes::from_owner(Grenade(Arc::new(AtomicBool::new(true))))
}

#[test]
fn a_payload_that_panics_when_it_is_dropped_fails_its_command_alone() {
    let bench = Bench::new();
    let buffer = bench.buffer();
    let panicked = Err(Error::Panicked("dropped".into()));
    assert_eq!(bench.stream.run(buffer.write(0, grenade())), panicked);
    assert_eq!(only_wait(bench.stream.submit(buffer.write(0, grenade())).unwrap()), panicked);
    // One that is refused is dropped as well.
    let (gate, held) = support::Gate::across(&bench.device, &bench.stream);
    let cancelled = bench.stream.submit(buffer.write(0, grenade())).unwrap();
    cancelled.cancel();
    gate.open();
    held.wait().unwrap();
    assert_eq!(cancelled.wait(), Err(Error::Cancelled));
    bench.stream.run(buffer.write(0, vec![1])).unwrap();
    drop(buffer);
    assert_eq!(bench.device.memory().in_use, 0);
}

#[test]
fn a_launch_whose_buffer_panics_when_it_is_dropped_leaves_nothing_behind() {
    let bench = Bench::new();
    let whole = |name: &'static str| {
        let spec = KernelSpec::new(name).binding::<u8>("x", Access::Read).cpu(CpuKernel::whole(move |launch| {
            assert_eq!((launch.grid(), launch.block()), (Dim3::ONE, Dim3::ONE), "left behind");
            assert!(name != "panics", "in the kernel");
        }));
        bench.device.kernel(&spec).unwrap()
    };
    let (fine, panics) = (whole("fine"), whole("panics"));
    for _ in 0..4 {
        let adopted = bench.device.adopt(grenade()).unwrap();
        let result = bench.stream.run(fine.launch().bind(adopted));
        assert_eq!(result, Err(Error::Panicked("dropped".into())));
        // Two panics at once are one error.
        let adopted = bench.device.adopt(grenade()).unwrap();
        let result = bench.stream.run(panics.launch().bind(adopted));
        assert_eq!(result, Err(Error::Panicked("in the kernel".into())));
        bench.stream.run(fine.launch().bind(bench.buffer())).unwrap();
    }
    assert_eq!((bench.device.memory().adopted, bench.device.memory().in_use), (0, 0));
}

#[test]
fn a_kernel_without_code_for_the_device_is_refused() {
    let error = cpu().kernel(&KernelSpec::new("elsewhere")).unwrap_err();
    assert_eq!(error, Error::NoImplementation { kernel: "elsewhere".into(), device: "cpu" });
}

#[test]
fn a_specification_that_no_launch_could_satisfy_is_refused() {
    let device = cpu();
    let nothing = || KernelSpec::new("odd").cpu(CpuKernel::whole(|_| ()));
    let many = |n| (0..n).fold(nothing(), |spec, _| spec.binding::<u8>("x", Access::Read));
    device.kernel(&many(MAX_BINDINGS)).unwrap();
    let binding = |element, per_thread| Binding { name: "x".into(), access: Access::Read, element, per_thread };
    let refused = [
        (many(MAX_BINDINGS + 1), MAX_BINDINGS.to_string()),
        (nothing().params::<[u64; 25]>(), MAX_PARAMS.to_string()),
        (nothing().binding::<()>("unit", Access::Read), "unit".to_owned()),
        (nothing().binding_of(binding(4, 0)), "x".to_owned()),
    ];
    for (spec, says) in refused {
        let error = device.kernel(&spec).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains("odd") && error.to_string().contains(&says), "{error}");
    }
}

#[test]
fn pieces_beyond_all_numbers_do_no_harm() {
    let device = cpu();
    let binding = Binding { name: "x".into(), access: Access::ReadWrite, element: 1, per_thread: usize::MAX / 2 };
    let spec = KernelSpec::new("huge").binding_of(binding).cpu(CpuKernel::per_group(|group| {
        group.output::<u8>(0).fill(1);
    }));
    let (stream, buffer, huge) =
        (device.stream().unwrap(), device.allocate(64).unwrap(), device.kernel(&spec).unwrap());
    // An error or not, nothing outside is touched and the device goes on.
    let _ = stream.run(huge.launch().bind(buffer.slice(16..32)).grid(1000).block(4));
    let bytes = stream.run(buffer.read(..)).unwrap();
    assert!(bytes[..16].iter().chain(&bytes[32..]).all(|b| *b == 0));
}

#[test]
fn an_unknown_device_is_answered_with_what_there_is() {
    let error = millrace::runtime().open("toaster:3").unwrap_err();
    let Error::NoSuchDevice { wanted, known } = &error else { panic!("{error:?}") };
    assert_eq!(&**wanted, "toaster:3");
    for device in millrace::runtime().devices() {
        assert!(known.contains(&device.id), "{known}");
    }
}

#[test]
fn a_buffer_of_no_or_of_absurd_size_is_refused() {
    let device = cpu();
    assert_eq!(device.allocate(0).unwrap_err(), Error::ZeroSize);
    assert_eq!(device.adopt(Bytes::new()).unwrap_err(), Error::ZeroSize);
    for requested in [(1 << 40) + 1, usize::MAX] {
        let error = device.allocate(requested).unwrap_err();
        assert_eq!(error, Error::TooLarge { requested: requested as u64, limit: 1 << 40 });
    }
    let memory = device.memory();
    assert_eq!((memory.in_use, memory.reserved, memory.buffers, memory.adopted), (0, 0, 0, 0));
}

#[test]
fn what_the_budget_or_the_system_refuses_leaves_the_accounts_as_they_were() {
    let device = cpu_with(DeviceOptions::default().budget(u64::MAX));
    // Some systems promise more than they have.
    match device.allocate(1 << 40) {
        Ok(buffer) => drop(buffer),
        Err(error) => assert_eq!(error, Error::SystemMemory(1 << 40)),
    }
    device.trim(0);
    let memory = device.memory();
    assert_eq!((memory.in_use, memory.reserved, memory.buffers), (0, 0, 0));
}

#[test]
fn out_of_memory_says_what_was_asked_for_what_is_used_and_what_there_is() {
    let device = cpu_with(DeviceOptions::default().budget(10_000));
    let _held = device.allocate(4096).unwrap();
    let error = device.allocate(7000).unwrap_err();
    assert_eq!(error, Error::OutOfMemory { requested: 7000, in_use: 4096, budget: 10_000 });
    assert_eq!(error.class(), Class::Resource);
    for number in ["7000", "4096", "10000"] {
        assert!(error.to_string().contains(number), "{error}");
    }
}

#[test]
fn a_view_that_is_held_can_use_up_the_budget_and_the_write_says_so() {
    let device = cpu_with(DeviceOptions::default().budget(4096));
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(4096).unwrap());
    let view = stream.run(buffer.read(..)).unwrap();
    assert!(matches!(stream.run(buffer.fill(.., 1)), Err(Error::OutOfMemory { .. })));
    assert_eq!(&*view, [0; 4096]);
    drop(view);
    stream.run(buffer.fill(.., 1)).unwrap();
    assert_eq!(&*stream.run(buffer.read(..)).unwrap(), [1; 4096]);
}

#[test]
fn errors_of_dropped_kernels_and_devices_reach_nobody_else() {
    let device = workers(1);
    let (failing, fine) = (device.stream().unwrap(), device.stream().unwrap());
    drop(failing.submit(panics(&device, "mine").launch()).unwrap());
    fine.synchronize().unwrap();
    assert_eq!(failing.synchronize(), Err(Error::Panicked("mine".into())));
    fine.synchronize().unwrap();
}
