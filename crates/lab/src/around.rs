//! The groups of `millrace bench around`: what is around the work itself. Kernel execution from the call to the result,
//! several devices at once, a pool that is nearly full, the ways to fail, looking at metrics, opening devices and making
//! kernels.

use std::{
    hint::black_box,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace::{
    Access, Buffer, CpuKernel, Device, DeviceOptions, Kernel, KernelSpec, Runtime, Stream, StreamOptions, Synchronize,
    cpu::CpuProvider, tensor::Simd,
};

pub use crate::resident::Effort;
use crate::{
    Error, Result,
    commands::Progress,
    devices,
    gpu::numbers,
    groups::{self, Group},
    measure::{Metric, Side, batch_timed, each_timed, warm_up},
    report::{Report, Row},
    resident::kernels::{device_of, side_on},
    suites::Listed,
    targets::{Conditions, judge, value_of},
};

/// Measures all groups that `wanted` says yes to, the sides in turns, and sets the targets.
///
/// ```
/// use millrace_lab::around::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "metrics_cost", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// println!("{}", report.to_json()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    groups::run(groups_here(effort), &effort.turns(), wanted, progress)
}

/// The groups with the devices that are here.
pub(crate) fn groups_here(effort: &Effort) -> Vec<Group> {
    let there = |kind: &&str| devices::chosen().has(kind) && (*kind == "cpu" || devices::open(kind).is_ok());
    let on: Vec<_> = ["cpu", "gpu"].into_iter().filter(there).collect();
    groups(effort, &on)
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick(), &["cpu"]).iter().map(|group| group.name).collect()
}

/// Its groups as a list shows them.
pub(crate) fn listed() -> Vec<Listed> {
    groups(&Effort::quick(), &["cpu", "gpu"]).iter().map(Group::listed).collect()
}

fn groups(effort: &Effort, on: &[&'static str]) -> Vec<Group> {
    let side = |name: &str, body: fn(&Effort) -> Result<Vec<Metric>>| {
        let effort = effort.clone();
        Side::new(name, move || body(&effort))
    };
    let per_device = |body: fn(&Effort, &'static str) -> Result<Vec<Metric>>| -> Vec<Side> {
        let side = |device: &'static str| {
            let effort = effort.clone();
            Side::new(side_on("millrace", device), move || body(&effort, device))
        };
        on.iter().copied().map(side).collect()
    };
    let mut execution = per_device(executed);
    execution.extend([side("limit", called), side("thread", threaded)]);
    let mut coordination = per_device(coordinated);
    coordination.push(side("threads", two_threads));
    let pressure = vec![side("millrace", pressed), side("malloc", malloc)];
    let group = |name, about, sides, judge| Group::new(name, sides, judge).on(device_of).about(about);
    vec![
        group(
            "kernel_execution",
            "A kernel over 64 Ki floats and an empty one, from the call until the host knows; the limit is the same loop \
             called directly, the peer a thread that is started for it.",
            execution,
            judge_execution,
        ),
        group(
            "coordination",
            "One command to each of two devices and a wait for both, next to one device alone and to two threads.",
            coordination,
            judge_coordination,
        ),
        group(
            "memory_pressure",
            "Allocating and freeing while nine tenths of a pool's budget are in use, after a trim, and beyond the budget.",
            pressure,
            judge_pressure,
        ),
        group(
            "error_paths",
            "What it costs to be told no: no memory, no room in the queue, too late, a mistake of the caller's; next to \
             the same calls when all is well.",
            per_device(refused),
            judge_errors,
        ),
        group(
            "metrics_cost",
            "Looking at counts, memory and health, and commands on a device that publishes them.",
            per_device(looked_at),
            judge_metrics,
        ),
        group(
            "device_operations",
            "Opening the CPU device with its worker, asking what it is, listing the devices of a CPU runtime.",
            vec![side("millrace", device_operations)],
            |_| (),
        ),
        group(
            "kernel_operations",
            "Making a kernel that was never seen, getting one that is known, and reading what a kernel is.",
            per_device(kernel_operations),
            |_| (),
        ),
    ]
}

/// Elements of the kernel that is executed.
const ELEMENTS: usize = 1 << 16;

const SAXPY: &str = "
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @compute @workgroup_size(256) fn main(@builtin(global_invocation_id) at: vec3<u32>) {
        if (at.x < arrayLength(&x)) { y[at.x] = 2.0 * x[at.x] + 1.0; }
    }";

fn saxpy(x: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x + 1.0);
}

fn check(first: Option<&f32>, x: &[f32]) -> Result<()> {
    let wanted = 2.0 * x[0] + 1.0;
    match first {
        Some(first) if (first - wanted).abs() < 1e-6 => Ok(()),
        other => Err(Error::Wrong(format!("the kernel's first element is {other:?}, not {wanted}"))),
    }
}

/// A device with a stream, an empty kernel and one with something to do.
struct Ready {
    device: Device,
    stream: Stream,
    empty: Kernel,
    saxpy: Kernel,
    x: Buffer,
    y: Buffer,
}

fn empty() -> KernelSpec {
    KernelSpec::new("empty").block(1).wgsl("@compute @workgroup_size(1) fn main() {}").cpu(CpuKernel::whole(|_| ()))
}

impl Ready {
    fn on(kind: &str) -> Result<Self> {
        let device = devices::open(kind)?;
        let stream = device.stream()?;
        let spec = KernelSpec::new("saxpy")
            .binding::<f32>("x", Access::Read)
            .binding::<f32>("y", Access::Overwrite)
            .block(256)
            .wgsl(SAXPY)
            .cpu(CpuKernel::whole(|launched| {
                let (x, y) = (launched.input::<f32>(0), launched.output::<f32>(1));
                saxpy(x, y);
            }));
        let (x, y) = (device.allocate(4 * ELEMENTS)?, device.allocate(4 * ELEMENTS)?);
        stream.run(x.write(0, Bytes::copy_from_slice(bytemuck::cast_slice(&numbers(ELEMENTS, 1)))))?;
        Ok(Self { empty: device.kernel(&empty())?, saxpy: device.kernel(&spec)?, device, stream, x, y })
    }

    fn run(&self) -> Result<()> {
        Ok(self.stream.run(self.saxpy.launch().bind(&self.x).bind(&self.y).over(ELEMENTS, 256))?)
    }
}

fn executed(effort: &Effort, kind: &'static str) -> Result<Vec<Metric>> {
    let ready = Ready::on(kind)?;
    warm_up(effort.turn / 4, || ready.run())?;
    let work = each_timed(effort.turn, || ready.run())?;
    let view = ready.stream.run(ready.y.read(..))?;
    check(view.to::<f32>().first(), &numbers(1, 1))?;
    let empty = each_timed(effort.turn, || Ok(ready.stream.run(ready.empty.launch())?))?;
    let submitted = each_timed(effort.turn, || Ok(ready.stream.submit(ready.empty.launch())?.wait()?))?;
    Ok(vec![
        Metric::lower("64Ki-floats", "ns", work),
        Metric::lower("empty", "ns", empty),
        Metric::lower("empty-by-worker", "ns", submitted),
    ])
}

/// The same loop without anything around it.
fn called(effort: &Effort) -> Result<Vec<Metric>> {
    let (x, mut y) = (numbers(ELEMENTS, 1), vec![0.0; ELEMENTS]);
    let samples = each_timed(effort.turn, || {
        saxpy(black_box(&x), black_box(&mut y));
        Ok(())
    })?;
    check(y.first(), &x)?;
    Ok(vec![Metric::lower("64Ki-floats", "ns", samples)])
}

/// The same loop in a thread that is started for it.
fn threaded(effort: &Effort) -> Result<Vec<Metric>> {
    let (x, mut y) = (numbers(ELEMENTS, 1), vec![0.0; ELEMENTS]);
    let mut run = |work: bool| {
        thread::scope(|scope| {
            let run = || {
                if work {
                    saxpy(&x, &mut y)
                }
            };
            scope.spawn(run).join().map_err(|_| Error::Panicked)
        })
    };
    let work = each_timed(effort.turn, || run(true))?;
    let empty = each_timed(effort.turn, || run(false))?;
    check(y.first(), &x)?;
    Ok(vec![Metric::lower("64Ki-floats", "ns", work), Metric::lower("empty", "ns", empty)])
}

/// A CPU device and another one of a kind: one command each, both waited for, and one of them alone.
fn coordinated(effort: &Effort, kind: &'static str) -> Result<Vec<Metric>> {
    let (first, second) = (devices::open("cpu")?, devices::open(kind)?);
    let streams = [first.stream()?, second.stream()?];
    let both = || {
        let tickets = millrace::fan_out(&streams, Synchronize, Instant::now() + effort.timeout);
        tickets.into_iter().try_for_each(|ticket| {
            ticket?.wait()?;
            Ok::<_, Error>(())
        })
    };
    let one = || Ok::<_, Error>(streams[1].submit(Synchronize)?.wait()?);
    let bytes = Bytes::from(vec![7; 1 << 16]);
    let buffers = [first.allocate(bytes.len())?, second.allocate(bytes.len())?];
    let move_across = || {
        streams[0].run(buffers[0].write(0, bytes.clone()))?;
        let view = streams[0].run(buffers[0].read(..))?;
        streams[1].run(buffers[1].write(0, view.into_bytes()))?;
        Ok::<_, Error>(())
    };
    warm_up(effort.turn / 4, both)?;
    let pair = each_timed(effort.turn, both)?;
    let alone = each_timed(effort.turn, one)?;
    let across = each_timed(effort.turn, move_across)?;
    match streams[1].run(buffers[1].read(..))?.last() {
        Some(7) => {}
        other => return Err(Error::Wrong(format!("{other:?} arrived on the other device"))),
    }
    Ok(vec![
        Metric::lower("both", "ns", pair),
        Metric::lower("one-alone", "ns", alone),
        Metric::lower("64KiB-across", "ns", across),
    ])
}

/// Two threads that stay, one message each way and back.
fn two_threads(effort: &Effort) -> Result<Vec<Metric>> {
    use std::sync::mpsc::sync_channel;
    thread::scope(|scope| {
        let ends = [(); 2].map(|()| {
            let (ask, asked) = sync_channel::<u64>(1);
            let (answer, answered) = sync_channel(1);
            scope.spawn(move || asked.iter().try_for_each(|n| answer.send(n + 1)));
            (ask, answered)
        });
        let gone = || Error::Closed("thread");
        let both = each_timed(effort.turn, || {
            ends.iter().try_for_each(|(ask, _)| ask.send(1).map_err(|_| gone()))?;
            ends.iter().try_for_each(|(_, answered)| answered.recv().map(drop).map_err(|_| gone()))
        })?;
        Ok(vec![Metric::lower("both", "ns", both)])
    })
}

/// What the pool under pressure may hold.
const BUDGET: u64 = 64 << 20;
const BLOCK: usize = 64 << 10;

fn pressed(effort: &Effort) -> Result<Vec<Metric>> {
    let options = DeviceOptions::default().budget(BUDGET);
    let device = Runtime::new(vec![Box::new(CpuProvider)]).open_with("cpu", options)?;
    let cycle = || {
        black_box(device.allocate(BLOCK)?);
        Ok(())
    };
    let roomy = batch_timed(effort.turn, 100, cycle)?;
    let held = (0..BUDGET as usize / BLOCK * 9 / 10).map(|_| Ok(device.allocate(BLOCK)?));
    let held: Vec<Buffer> = held.collect::<Result<_>>()?;
    let tight = batch_timed(effort.turn, 100, cycle)?;
    let refill = each_timed(effort.turn, || {
        device.trim(0);
        cycle()
    })?;
    let too_much = batch_timed(effort.turn, 20, || match device.allocate(BUDGET as usize / 2) {
        Err(millrace::Error::OutOfMemory { .. }) => Ok(()),
        other => Err(Error::Wrong(format!("half the budget beside nine tenths of it gave {other:?}"))),
    })?;
    let before = device.memory();
    for _ in 0..1000 {
        cycle()?;
    }
    let after = device.memory();
    let hits = 100.0 * (after.hits - before.hits) as f64 / 1000.0;
    drop(held);
    Ok(vec![
        Metric::lower("cycle-roomy", "ns", roomy),
        Metric::lower("cycle-tight", "ns", tight),
        Metric::lower("cycle-after-trim", "ns", refill),
        Metric::lower("refused", "ns", too_much),
        Metric::higher("hits", "%", vec![hits]),
    ])
}

/// The same sizes from the system's allocator.
fn malloc(effort: &Effort) -> Result<Vec<Metric>> {
    let cycle = || {
        drop(black_box(Vec::<u8>::with_capacity(black_box(BLOCK))));
        Ok(())
    };
    let roomy = batch_timed(effort.turn, 100, cycle)?;
    let held: Vec<Vec<u8>> = (0..BUDGET as usize / BLOCK * 9 / 10).map(|_| Vec::with_capacity(BLOCK)).collect();
    let tight = batch_timed(effort.turn, 100, cycle)?;
    drop(black_box(held));
    Ok(vec![Metric::lower("cycle-roomy", "ns", roomy), Metric::lower("cycle-tight", "ns", tight)])
}

fn refused(effort: &Effort, kind: &'static str) -> Result<Vec<Metric>> {
    let ready = Ready::on(kind)?;
    let told = |what: &str, answer: std::result::Result<(), millrace::Error>| match answer {
        Err(_) => Ok(()),
        Ok(()) => Err(Error::Wrong(format!("{what} was not refused"))),
    };
    let memory = batch_timed(effort.turn, 20, || told("too much memory", ready.device.allocate(1 << 50).map(drop)))?;
    let unbound = || ready.saxpy.launch().bind(&ready.x).over(ELEMENTS, 256);
    let mistake = batch_timed(effort.turn, 20, || told("a launch without its buffers", ready.stream.run(unbound())))?;
    // On a stream of its own, whose error is nobody else's.
    let hurried = ready.device.stream()?;
    let late = batch_timed(effort.turn, 20, || {
        let ticket = hurried.submit_deadline(Synchronize, Instant::now());
        told("a command that is late", ticket.map_err(|rejected| rejected.error).and_then(|ticket| ticket.wait()))
    })?;
    let fine = batch_timed(effort.turn, 20, || Ok(ready.stream.run(Synchronize)?))?;
    let full = full_queue(effort, &ready.device)?;
    let mut metrics = vec![
        Metric::lower("no-memory", "ns", memory),
        Metric::lower("callers-mistake", "ns", mistake),
        Metric::lower("too-late", "ns", late),
        Metric::lower("all-well", "ns", fine),
    ];
    metrics.extend(full.map(|samples| Metric::lower("queue-full", "ns", samples)));
    Ok(metrics)
}

/// Submitting to a queue without room, on the CPU: a kernel there can be made to wait.
fn full_queue(effort: &Effort, device: &Device) -> Result<Option<Vec<f64>>> {
    if device.info().kind != millrace::DeviceKind::Cpu {
        return Ok(None);
    }
    let (open, closed) = std::sync::mpsc::channel::<()>();
    let closed = std::sync::Mutex::new(closed);
    let spec = KernelSpec::new("gate").cpu(CpuKernel::whole(move |_| {
        if let Ok(closed) = closed.lock() {
            let _ = closed.recv(); // until the sender is gone
        }
    }));
    let stream = device.stream_with(&StreamOptions::default().capacity(2))?;
    let gate = stream.submit(device.kernel(&spec)?.launch())?;
    // The worker takes some out of the queue before it comes to the gate.
    let (mut waiting, mut refusals) = (Vec::new(), 0);
    while refusals < 100 {
        match stream.try_submit(Synchronize) {
            Ok(ticket) => waiting.push(ticket),
            Err(_) => {
                refusals += 1;
                thread::sleep(Duration::from_micros(50));
            }
        }
        if waiting.len() > 10_000 {
            return Err(Error::Wrong("a queue of two takes ten thousand commands".to_owned()));
        }
    }
    let full = batch_timed(effort.turn, 20, || match stream.try_submit(Synchronize) {
        Err(_) => Ok(()),
        Ok(_) => Err(Error::Wrong("a full queue took a command".to_owned())),
    });
    drop(open);
    gate.wait()?;
    waiting.into_iter().try_for_each(|ticket| ticket.wait())?;
    full.map(Some)
}

fn looked_at(effort: &Effort, kind: &'static str) -> Result<Vec<Metric>> {
    let ready = Ready::on(kind)?;
    ready.run()?;
    let counts = batch_timed(effort.turn, 100, || {
        black_box(ready.device.counts());
        Ok(())
    })?;
    let memory = batch_timed(effort.turn, 100, || {
        black_box(ready.device.memory());
        Ok(())
    })?;
    let health = batch_timed(effort.turn, 100, || {
        black_box(ready.device.health());
        Ok(())
    })?;
    let run = || Ok(ready.stream.run(Synchronize)?);
    warm_up(effort.turn / 4, run)?;
    let plain = batch_timed(effort.turn, 100, run)?;
    let folder = tempfile::tempdir().map_err(|error| Error::System(error.to_string()))?;
    let publication = ready.device.publish(folder.path()).map_err(|error| Error::System(error.to_string()))?;
    let published = batch_timed(effort.turn, 100, run);
    drop(publication);
    Ok(vec![
        Metric::lower("counts", "ns", counts),
        Metric::lower("memory", "ns", memory),
        Metric::lower("health", "ns", health),
        Metric::lower("run", "ns", plain),
        Metric::lower("run-published", "ns", published?),
    ])
}

fn device_operations(effort: &Effort) -> Result<Vec<Metric>> {
    let runtime = || Runtime::new(vec![Box::new(CpuProvider)]);
    let create = each_timed(effort.turn, || {
        let device = runtime().open("cpu")?;
        Ok(device.stream()?.run(Synchronize)?)
    })?;
    let device = runtime().open("cpu")?;
    let query = batch_timed(effort.turn, 200, || {
        black_box(black_box(&device).info().limits.threads);
        Ok(())
    })?;
    let level = batch_timed(effort.turn, 200, || {
        black_box(Simd::in_use());
        Ok(())
    })?;
    let listing = runtime();
    let enumerate = batch_timed(effort.turn, 20, || {
        black_box(listing.devices());
        Ok(())
    })?;
    Ok(vec![
        Metric::lower("create", "ns", create),
        Metric::lower("feature-query", "ns", query),
        Metric::lower("simd-level", "ns", level),
        Metric::lower("enumerate", "ns", enumerate),
    ])
}

fn kernel_operations(effort: &Effort, kind: &'static str) -> Result<Vec<Metric>> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let device = devices::open(kind)?;
    let fresh = || {
        // A text that no cache knows.
        let n = MADE.fetch_add(1, Ordering::Relaxed);
        let text = format!(
            "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
             @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) at: vec3<u32>) {{
                 y[at.x] = at.x * {n}u + {}u;
             }}",
            std::process::id()
        );
        let code = CpuKernel::whole(move |launched| launched.output::<u32>(0).fill(n));
        KernelSpec::new(format!("fresh {n}")).binding::<u32>("y", Access::Overwrite).block(64).wgsl(text).cpu(code)
    };
    let mut created = Vec::new();
    let start = Instant::now();
    while created.len() < 3 || (start.elapsed() < effort.turn && created.len() < 200) {
        let spec = fresh();
        let before = Instant::now();
        black_box(device.kernel(&spec)?);
        created.push(before.elapsed().as_nanos() as f64);
    }
    let spec = fresh();
    let kernel = device.kernel(&spec)?;
    let before = device.counts();
    let known = batch_timed(effort.turn, 20, || {
        black_box(device.kernel(&spec)?);
        Ok(())
    })?;
    let after = device.counts();
    let (compiled, reused) = ((after.compiled - before.compiled) as f64, (after.reused - before.reused) as f64);
    let metadata = batch_timed(effort.turn, 100, || {
        black_box((black_box(&kernel).spec().bindings().len(), kernel.spec().block_size()));
        Ok(())
    })?;
    Ok(vec![
        Metric::lower("create", "ns", created),
        Metric::lower("known", "ns", known),
        Metric::lower("metadata", "ns", metadata),
        Metric::higher("cache-hits", "%", vec![100.0 * reused / (compiled + reused).max(1.0)]),
    ])
}

fn judge_execution(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.device == "cpu" && row.case() != "empty-by-worker" {
            let thread = value_of(rows, &format!("thread/{}", row.case()));
            conditions.at_most("p50", median, thread, "a thread started for it");
        }
        if row.id == "millrace/64Ki-floats" {
            let direct = value_of(rows, "limit/64Ki-floats").map(|ns| 1.1 * ns + 1000.0);
            conditions.at_most("p50", median, direct, "1.1 x a direct call and a microsecond");
        }
        conditions
    });
}

fn judge_coordination(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.id == "millrace/both" {
            conditions.at_most("p50", median, value_of(rows, "threads/both"), "two threads and their channels");
        }
        conditions
    });
}

fn judge_pressure(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        match row.case() {
            "cycle-roomy" => {
                conditions.at_most("p50", median, Some(50.0), "a hit");
            }
            "cycle-tight" => {
                let roomy = value_of(rows, "millrace/cycle-roomy").map(|ns| 1.5 * ns);
                conditions.at_most("p50", median, roomy, "1.5 x with room");
            }
            _ => {}
        }
        conditions
    });
}

fn judge_errors(rows: &mut [Row]) {
    judge(rows, |_, row, median| {
        let mut conditions = Conditions::default();
        if matches!(row.case(), "no-memory" | "callers-mistake" | "queue-full") {
            conditions.at_most("p50", median, Some(2000.0), "told at once");
        }
        conditions
    });
}

fn judge_metrics(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.case() == "run-published" {
            let plain = value_of(rows, &format!("{}/run", row.side())).map(|ns| 1.1 * ns);
            conditions.at_most("p50", median, plain, "1.1 x without");
        }
        conditions
    });
}
