//! What `millrace profile` runs: the work of the benchmarks on a device that somebody profiles, until told to stop.

use std::time::Duration;

use bytes::Bytes;
use millrace::{Device, StreamOptions, Synchronize};
use millrace_wave::{Boundary, Engine, PerStep, Scene};

use crate::{
    Error, Result,
    gpu::{Context, Effort, Job, Task, ours},
    tensor::WORK,
};

/// What is done once more for as long as somebody says so, but at least once.
#[derive(Debug, Clone, Copy)]
enum Run {
    /// Some steps and their check.
    Own(fn(&Device, &dyn Fn() -> bool) -> Result<()>),
    /// Our side of a group, which checks its results.
    Side(fn(&Effort, &Context) -> Result<()>),
}

/// Work that can be profiled.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name: for work of a benchmark, that of the group.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    run: Run,
}

impl Workload {
    /// Every workload there is.
    pub fn all() -> Vec<Self> {
        let sides = WORK.iter().map(|&(name, about, work)| Self { name, about, run: Run::Side(work) });
        OWN.iter().copied().chain(sides).collect()
    }

    /// The workload of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|workload| workload.name == name)
    }

    /// Does the work on a device, once more for as long as `go_on` says so, and checks what came out.
    ///
    /// ```
    /// let device = millrace::runtime().open("cpu")?;
    /// let profiler = device.profile(&millrace::ProfileOptions::default())?;
    /// millrace_lab::profiled::Workload::of("reduce_ops").unwrap().run(&device, &|| false)?;
    /// assert!(profiler.stop().summary().ops.iter().any(|op| op.op.contains("sum")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run(&self, device: &Device, go_on: &dyn Fn() -> bool) -> Result<()> {
        let work = match self.run {
            Run::Own(run) => return run(device, go_on),
            Run::Side(work) => work,
        };
        let effort = Effort { turn: Duration::from_millis(2), ..Effort::quick() };
        let context = Context::of(device.clone())?;
        loop {
            work(&effort, &context)?;
            if !go_on() {
                return Ok(());
            }
        }
    }
}

const OWN: &[Workload] = &[
    Workload {
        name: "tensor",
        about: "tensor operations: elementwise, a reduction, a matrix product",
        run: Run::Own(|device, go_on| {
            let arithmetic = [Task::Relus { count: 4, len: 1 << 16 }, Task::Add(1 << 20), Task::Sum(1 << 20)];
            tasks(device, go_on, &[&arithmetic[..], &[Task::Matmul(256)]].concat())
        }),
    },
    Workload { name: "wave", about: "steps of sound through a room with a ball, 64³ cells", run: Run::Own(wave) },
    Workload {
        name: "commands",
        about: "writes, reads, fills and synchronizations, one by one and in batches",
        run: Run::Own(commands),
    },
    Workload {
        name: "empty_launch",
        about: "a kernel that does nothing",
        run: Run::Own(|device, go_on| tasks(device, go_on, &[Task::Empty])),
    },
    Workload {
        name: "gpu_batch_processing",
        about: "twenty small operations, and one large",
        run: Run::Own(|device, go_on| {
            tasks(device, go_on, &[Task::Relus { count: 20, len: 256 }, Task::Relus { count: 1, len: 5120 }])
        }),
    },
    Workload {
        name: "upload",
        about: "transfers to the device, 1 KiB to 16 MiB",
        run: Run::Own(|device, go_on| tasks(device, go_on, &[1 << 10, 256 << 10, 1 << 20, 16 << 20].map(Task::Upload))),
    },
    Workload {
        name: "download",
        about: "transfers from the device, 1 KiB to 16 MiB",
        run: Run::Own(|device, go_on| {
            tasks(device, go_on, &[1 << 10, 256 << 10, 1 << 20, 16 << 20].map(Task::Download))
        }),
    },
    Workload {
        name: "unary_ops",
        about: "an operation on each of 256 to 4 Mi numbers",
        run: Run::Own(|device, go_on| tasks(device, go_on, &SIZES.map(|len| Task::Relus { count: 1, len }))),
    },
    Workload {
        name: "binary_ops",
        about: "sums of two arrays of 256 to 4 Mi numbers",
        run: Run::Own(|device, go_on| tasks(device, go_on, &SIZES.map(Task::Add))),
    },
    Workload {
        name: "reduce_ops",
        about: "the sum of 256 to 4 Mi numbers",
        run: Run::Own(|device, go_on| tasks(device, go_on, &SIZES.map(Task::Sum))),
    },
    Workload {
        name: "matmul",
        about: "products of square matrices, 256 and 512 rows",
        run: Run::Own(|device, go_on| tasks(device, go_on, &[Task::Matmul(256), Task::Matmul(512)])),
    },
];

const SIZES: [usize; 4] = [256, 1 << 16, 1 << 20, 4 << 20];

fn tasks(device: &Device, go_on: &dyn Fn() -> bool, tasks: &[Task]) -> Result<()> {
    let context = Context::of(device.clone())?;
    let mut jobs: Vec<Box<dyn Job>> = tasks.iter().map(|task| ours(&context, task)).collect::<Result<_>>()?;
    jobs.iter_mut().try_for_each(|job| job.run())?;
    for n in (0..jobs.len()).cycle() {
        if !go_on() {
            break;
        }
        jobs[n].run()?;
    }
    jobs.iter_mut().try_for_each(|job| job.check())
}

fn wave(device: &Device, go_on: &dyn Fn() -> bool) -> Result<()> {
    let mut engine = PerStep::on(device, Scene::Ball.setup(64, Boundary::Absorbing, Scene::tone(8.0)).build()?)?;
    loop {
        engine.step(4)?;
        engine.finish()?;
        if !go_on() {
            break;
        }
    }
    let energy = engine.energy()?;
    if energy.is_finite() { Ok(()) } else { Err(Error::Wrong(format!("the energy is {energy}"))) }
}

fn commands(device: &Device, go_on: &dyn Fn() -> bool) -> Result<()> {
    let stream = device.stream_with(&StreamOptions::default().capacity(1024))?;
    let buffer = device.allocate(1 << 20)?;
    let payload = Bytes::from(vec![7u8; 1024]);
    loop {
        stream.run(buffer.write(0, payload.clone()))?;
        if stream.run(buffer.read(..1024))?[..] != payload[..] {
            return Err(Error::Wrong("what was read is not what was written".to_owned()));
        }
        stream.run(buffer.fill(.., 1))?;
        for _ in 0..100 {
            stream.submit(buffer.write(0, payload.clone()))?;
        }
        stream.submit(Synchronize)?.wait()?;
        if !go_on() {
            return Ok(());
        }
    }
}
