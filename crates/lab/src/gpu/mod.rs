//! The groups of `millrace bench gpu`: the GPU device next to wgpu used by hand, and next to the CPU device.
//!
//! A [`Task`] says what is done, on numbers that are always the same, and what must come out. [`ours`] does it through
//! tensors and streams, [`by_hand`] with [`crate::raw_wgpu`]; both give a [`Job`] that is run again and again, waits for
//! the device each time, and is checked at its end. Every turn opens a fresh context and ends with
//! [`Context::finish`], which fails if anything is left in flight.

mod by_hand;
mod ours;
mod targets;
mod task;

use std::time::{Duration, Instant};

pub use by_hand::by_hand;
pub use ours::{Context, Idle, ours, ours_by_stream};
pub use task::{Job, Task, numbers};

use millrace::{
    Provider, Runtime,
    gpu::{GpuProvider, Transfers},
};

use crate::{
    Result,
    commands::Progress,
    devices,
    groups::{self, Group},
    measure::{Metric, Side, Stop, Turns, each_timed},
    raw_wgpu::{Raw, Waiting},
    report::Report,
    suites::Listed,
};

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Turns of every side.
    pub rounds: usize,
    /// Time of a turn, for each of its cases. One run of a case may take longer.
    pub turn: Duration,
    /// Time before each of them in which nothing is counted: a system needs it to find the threads of a software driver places that
    /// suit what they do now.
    pub settling: Duration,
    /// When a turn is given up.
    pub timeout: Duration,
    /// Whether cases that take long on a software driver are left out.
    pub small: bool,
    /// Uploads of a megabyte, while the process's memory is watched.
    pub uploads: usize,
    /// Ends it before all rounds are over.
    pub stop: Stop,
}

impl Effort {
    /// A few minutes.
    pub fn full() -> Self {
        Self {
            rounds: 8,
            turn: Duration::from_millis(60),
            settling: Duration::from_millis(100),
            timeout: Duration::from_secs(300),
            small: false,
            uploads: 10_000,
            stop: Stop::default(),
        }
    }

    /// Some seconds.
    pub fn quick() -> Self {
        Self {
            rounds: 2,
            turn: Duration::from_millis(10),
            settling: Duration::from_millis(10),
            timeout: Duration::from_secs(120),
            small: true,
            uploads: 1000,
            stop: Stop::default(),
        }
    }

    pub(crate) fn turns(&self) -> Turns {
        Turns { rounds: self.rounds, timeout: self.timeout, stop: self.stop.clone() }
    }

    /// The same time in so many times as many turns, for what is over soon, and how many times as many they are.
    pub(crate) fn in_short_turns(&self, times: usize) -> (Self, usize) {
        let times = if self.small { 1 } else { times };
        (Self { turn: self.turn / times as u32, ..self.clone() }, times)
    }
}

/// Measures all groups that `wanted` says yes to, the sides in turns, and sets the targets.
///
/// ```
/// use millrace_lab::gpu::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "empty_launch", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// println!("{}", report.to_json()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    groups::run(groups(effort), &effort.turns(), wanted, progress)
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick()).iter().map(|group| group.name).collect()
}

/// Its groups as a list shows them. The CPU is there to be compared with: none of them makes sense without a GPU.
pub(crate) fn listed() -> Vec<Listed> {
    let listed = groups(&Effort::quick()).iter().map(Group::listed).collect::<Vec<_>>();
    listed.into_iter().map(|group| Listed { devices: vec!["gpu"], ..group }).collect()
}

pub(crate) fn groups(effort: &Effort) -> Vec<Group> {
    let sizes = |all: &[usize], most: usize| -> Vec<usize> {
        all.iter().copied().filter(|size| !effort.small || *size <= most).collect()
    };
    let cases = |sizes: Vec<usize>, task: fn(usize) -> Task| -> Vec<(String, Task)> {
        sizes.into_iter().map(|size| (label(size), task(size))).collect()
    };
    let bytes = [1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20];
    let elements = [256, 1 << 16, 1 << 20, 4 << 20];
    let batch = vec![
        ("many_small_ops".to_owned(), Task::Relus { count: 20, len: 256 }),
        ("single_large_op".to_owned(), Task::Relus { count: 1, len: 5120 }),
    ];
    let matrices = sizes(&[256, 512, 1024, 2048], 512);
    let matrices = matrices.into_iter().map(|size| (size.to_string(), Task::Matmul(size))).collect();
    let up = cases(sizes(&bytes, 1 << 20), Task::Upload);
    let down = cases(sizes(&bytes, 1 << 20), Task::Download);
    let unary = cases(sizes(&elements, 1 << 20), |len| Task::Relus { count: 1, len });
    let binary = cases(sizes(&elements, 1 << 20), Task::Add);
    let reduce = cases(sizes(&elements, 1 << 20), Task::Sum);
    let grown = vec![uploads("millrace", effort, || Context::open("gpu")), uploads("millrace-staged", effort, staged)];
    let in_turns = |times: usize| {
        let (short, times) = effort.in_short_turns(times);
        move |name, cases, judge| compared(name, &short, cases, judge).in_rounds(times)
    };
    // Where the system puts the threads of a software driver is a matter of luck in each context and makes a quarter of what is
    // small: many contexts, for a short time each. Transfers are less of that.
    let (compared_often, compared_soon) = (in_turns(4), in_turns(2));
    vec![
        compared_often("empty_launch", vec![(String::new(), Task::Empty)], targets::empty_launch)
            .about("A launch that does nothing, until the host knows that it is done."),
        compared_often("gpu_batch_processing", batch, targets::batch)
            .about("Twenty small operations waited for together, against one as large as all of them."),
        compared_soon("upload", up, targets::transfer)
            .about("Bytes to the device, over when their last word came back from there."),
        compared_soon("download", down, targets::transfer)
            .about("Bytes from the device, over when a byte of every page was read."),
        compared_often("unary_ops", unary, targets::operation).about("max(x, 0) over arrays of several sizes."),
        compared_often("binary_ops", binary, targets::operation).about("a + b over arrays of several sizes."),
        compared_often("reduce_ops", reduce, targets::operation).about("The sum of arrays of several sizes."),
        compared("matmul", effort, matrices, targets::operation).about("Products of square matrices."),
        Group::new("uploads_memory", grown, targets::memory)
            .about("How much the process grows during many uploads of a megabyte, after the first hundred."),
    ]
}

fn label(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{}Mi", size >> 20),
        size if size >= 1 << 10 => format!("{}Ki", size >> 10),
        size => size.to_string(),
    }
}

type Cases = Vec<(String, Task)>;

type Make = fn(&Context, &Task) -> Result<Box<dyn Job>>;

/// The same cases on every side.
fn compared(name: &'static str, effort: &Effort, cases: Cases, judge: groups::Judge) -> Group {
    let on = |open: fn() -> Result<Context>, make: Make| {
        let (effort, cases) = (effort.clone(), cases.clone());
        move || {
            let context = open()?;
            let metrics = timed(&effort, &cases, |task| make(&context, task))?;
            context.finish()?;
            Ok(metrics)
        }
    };
    let hand = |waiting: Waiting, mapped: bool| {
        let (effort, cases) = (effort.clone(), cases.clone());
        move || {
            let raw = Raw::open(adapter_name().as_deref(), waiting)?;
            if mapped && !raw.maps_primary() {
                return Ok(Vec::new()); // not every adapter has it
            }
            timed(&effort, &cases, |task| by_hand(&raw, task, mapped))
        }
    };
    let gpu = || Context::open("gpu");
    let mut sides = vec![
        Side::new("millrace", on(gpu, ours)),
        Side::new("raw-wgpu", hand(Waiting::Yield, false)),
        Side::new("raw-wgpu-wait", hand(Waiting::Sleep, false)),
    ];
    if cases.iter().any(|(_, task)| matches!(task, Task::Relus { count: 2.., .. })) {
        sides.push(Side::new("millrace-stream", on(gpu, ours_by_stream)));
    }
    if cases.iter().any(|(_, task)| matches!(task, Task::Upload(_) | Task::Download(_))) {
        sides.push(Side::new("millrace-staged", on(staged, ours)));
        sides.push(Side::new("raw-wgpu-mapped", hand(Waiting::Yield, true)));
    }
    sides.push(Side::new("millrace-cpu", on(|| Context::open("cpu"), ours)));
    Group::new(name, sides, judge).on(|side| if side == "millrace-cpu" { "cpu" } else { "gpu" })
}

/// What the device that `gpu` means is called, if there is one: with this name it can be opened by hand, too.
pub fn adapter_name() -> Option<String> {
    let provider = GpuProvider::default();
    let id = provider.find(devices::id("gpu"))?;
    provider.list().into_iter().find(|found| found.id == id).map(|found| found.name)
}

/// Every case for a turn, after at least two runs that are not counted.
fn timed(effort: &Effort, cases: &Cases, make: impl Fn(&Task) -> Result<Box<dyn Job>>) -> Result<Vec<Metric>> {
    let timed = |(case, task): &(String, Task)| {
        let (mut job, begun) = (make(task)?, Instant::now());
        job.run()?;
        job.run()?;
        while begun.elapsed() < effort.settling {
            job.run()?;
        }
        let samples = each_timed(effort.turn, || job.run())?;
        job.check()?;
        Ok(Metric::lower(case.clone(), "us", samples.into_iter().map(|ns| ns / 1e3).collect()))
    };
    cases.iter().map(timed).collect()
}

/// How much the process grew during many uploads, after the first hundred.
fn uploads(name: &str, effort: &Effort, open: fn() -> Result<Context>) -> Side {
    let count = effort.uploads;
    Side::new(name, move || {
        let context = open()?;
        let grown = context.growth_of_uploads(count, 1 << 20)?;
        context.finish()?;
        let row = |grown: u64| Metric::lower("", "MiB", vec![grown as f64 / f64::from(1 << 20)]);
        Ok(grown.map(row).into_iter().collect())
    })
}

/// The GPU device, with staging also where host and device share their memory.
fn staged() -> Result<Context> {
    let provider = GpuProvider::with_transfers(Transfers::Staged);
    Context::of(Runtime::new(vec![Box::new(provider)]).open(devices::id("gpu"))?)
}
