//! The groups of `millrace bench resident`: messages, memory and queues alone, and kernels that answer, next to the actor
//! libraries and to what the machine allows.
//!
//! A device is a parameter everywhere. The groups with a kernel have rows for every device on which one can be resident.

pub mod actors;
pub mod archives;
mod ends;
pub mod kernels;
mod ractor;
mod targets;

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use millrace::{
    Runtime,
    cpu::CpuProvider,
    resident::{self, Launch, LaunchOptions, Status, WaitPolicy},
};

use crate::{
    Error, Message, Result,
    commands::Progress,
    devices,
    groups::{self, Group},
    measure::{Metric, Side, Stop, Turns, batch_timed, each_timed, warm_up},
    peers::{Crossbeam, Kanal, Link, Millrace, MutexCondvar, Std, TokioMpsc},
    report::Report,
    suites::Listed,
    workloads::{Alone, CAPACITY, contend},
};
use kernels::{
    Adder, Command, INJECT, PAIR, PATIENCE, Taker, check_sum, device_of, launched, residential, side_on, until_handled,
};

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Turns of every side.
    pub rounds: usize,
    /// Time of a turn, for each of its cases.
    pub turn: Duration,
    /// Runs of a turn, where one run is long.
    pub runs: usize,
    /// When a turn is given up.
    pub timeout: Duration,
    /// Whether what takes long is left out.
    pub small: bool,
    /// Ends it before all rounds are over.
    pub stop: Stop,
}

impl Effort {
    /// Some twenty seconds.
    pub fn full() -> Self {
        // Many short turns, because what crosses a thread was seen to change its speed within a run.
        let (turn, timeout) = (Duration::from_millis(10), Duration::from_secs(60));
        Self { rounds: 20, turn, runs: 5, timeout, small: false, stop: Stop::default() }
    }

    /// A few seconds.
    pub fn quick() -> Self {
        let (turn, timeout) = (Duration::from_millis(5), Duration::from_secs(60));
        Self { rounds: 3, turn, runs: 2, timeout, small: true, stop: Stop::default() }
    }

    pub(crate) fn turns(&self) -> Turns {
        Turns { rounds: self.rounds, timeout: self.timeout, stop: self.stop.clone() }
    }
}

/// Measures all groups that `wanted` says yes to, the sides in turns, and sets the targets.
///
/// ```
/// use millrace_lab::resident::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "startup", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// println!("{}", report.to_json()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    // Looking for devices takes a while, and is not needed for everything.
    let on = if WITH_KERNELS.iter().any(|name| wanted(name)) { residential() } else { vec!["cpu"] };
    groups::run(groups(effort, &on), &effort.turns(), wanted, progress)
}

/// The groups with the devices that are here.
pub(crate) fn groups_here(effort: &Effort) -> Vec<Group> {
    groups(effort, &residential())
}

/// Its groups as a list shows them.
pub(crate) fn listed() -> Vec<Listed> {
    groups(&Effort::quick(), &["cpu", "gpu"]).iter().map(Group::listed).collect()
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick(), &["cpu"]).iter().map(|group| group.name).collect()
}

const WITH_KERNELS: [&str; 4] = ["kernel_round_trip", "inject", "query_state", "startup"];

/// One side per peer: the same generic function for each.
macro_rules! sides {
    ($effort:expr, $body:ident: $($peer:ty),+ $(,)?) => {{
        vec![$({
            let effort: Effort = $effort.clone();
            Side::new(<$peer as $crate::peers::Peer>::NAME, move || $body::<$peer>(&effort))
        }),+]
    }};
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
    let allocation = vec![side("millrace", pooled), side("malloc", malloc), side("direct", direct)];
    let alone = sides!(effort, queue_alone: Millrace, Crossbeam, Kanal, Std, TokioMpsc, MutexCondvar);
    let mut contended = sides!(effort, queue_contended: Millrace, Crossbeam, Kanal, Std, TokioMpsc, MutexCondvar);
    contended.insert(1, side("millrace-resident", kernel_contended));
    let mut round_trips = per_device(round_trip);
    if on.contains(&"cpu") {
        round_trips.insert(1, side("millrace-spin", crossing));
    }
    round_trips.extend(actors::sides(effort));
    let [kernel_round_trip, inject, query_state, startup] = WITH_KERNELS;
    let group = |name, about, sides, judge| Group::new(name, sides, judge).on(device_of).about(about);
    vec![
        group(
            "serialization",
            "Writing a message in place, checking one, and reading a field of it.",
            archives::sides(effort),
            targets::serialization,
        ),
        group(
            "allocation",
            "Four kilobytes from the pool and back, next to malloc and to the system itself.",
            allocation,
            targets::allocation,
        ),
        group("queue_alone", "A message in and out again, on one thread.", alone, targets::queue),
        group(
            "queue_contended_4_threads",
            "Four threads send to one; nanoseconds per message.",
            contended,
            targets::queue,
        ),
        group(
            kernel_round_trip,
            "A question to a kernel that stays, until its answer is there and checked.",
            round_trips,
            targets::round_trip,
        ),
        group(
            inject,
            "What sending costs the sender; everything is acknowledged before the next burst.",
            per_device(injected),
            targets::inject,
        ),
        group(
            query_state,
            "Looking at telemetry, while nothing happens and while the kernel is busy.",
            per_device(queried),
            targets::query_state,
        ),
        group(
            startup,
            "From nothing to a kernel that runs, and to its first answer.",
            per_device(started),
            targets::startup,
        ),
    ]
}

/// What is allocated.
const BLOCK: usize = 4096;

/// From the device's pool, and back.
fn pooled(effort: &Effort) -> Result<Vec<Metric>> {
    let device = millrace::runtime().open("cpu")?;
    let cycle = || {
        black_box(device.allocate(BLOCK)?);
        Ok(())
    };
    warm_up(effort.turn / 4, cycle)?;
    Ok(vec![Metric::lower("4KiB", "ns", batch_timed(effort.turn, 200, cycle)?)])
}

fn malloc(effort: &Effort) -> Result<Vec<Metric>> {
    let cycle = || {
        drop(black_box(Vec::<u8>::with_capacity(black_box(BLOCK))));
        Ok(())
    };
    Ok(vec![Metric::lower("4KiB", "ns", batch_timed(effort.turn, 200, cycle)?)])
}

/// From the system, as a device without a pool would, with its first byte written.
fn direct(effort: &Effort) -> Result<Vec<Metric>> {
    let cycle = || {
        let mut map = memmap2::MmapMut::map_anon(BLOCK).map_err(|error| Error::System(error.to_string()))?;
        black_box(&mut map)[0] = 1;
        Ok(())
    };
    Ok(vec![Metric::lower("4KiB", "ns", batch_timed(effort.turn, 20, cycle)?)])
}

/// A message in and out again, on one thread.
fn queue_alone<P: Link<Message>>(effort: &Effort) -> Result<Vec<Metric>> {
    let mut queue = Alone::new::<P>(CAPACITY);
    let mut cycle = || {
        queue.send(Message::medium())?;
        black_box(queue.receive()?);
        Ok(())
    };
    warm_up(effort.turn / 4, &mut cycle)?;
    Ok(vec![Metric::lower("", "ns", batch_timed(effort.turn, 200, cycle)?)])
}

const SENDERS: usize = 4;
/// Messages of every sender.
const EACH: usize = 1000;

/// Four threads send to one that receives: nanoseconds per message.
fn queue_contended<P: Link<Message, Tx: Clone>>(effort: &Effort) -> Result<Vec<Metric>> {
    let run = |_| {
        let time = contend::<P>(SENDERS, EACH, CAPACITY, &Message::medium())?;
        Ok(time.as_nanos() as f64 / (SENDERS * EACH) as f64)
    };
    Ok(vec![Metric::lower("", "ns", (0..effort.runs).map(run).collect::<Result<_>>()?)])
}

/// Four threads send to one kernel, until it has handled everything.
fn kernel_contended(effort: &Effort) -> Result<Vec<Metric>> {
    let (_device, taker) = launched("cpu", Taker, LaunchOptions::default().inbound(CAPACITY))?;
    let run = |n: usize| {
        let start = Instant::now();
        thread::scope(|scope| {
            let sender = || {
                let send = |n| taker.send(Command::nth(INJECT, n));
                (0..EACH as u32).try_for_each(send).map_err(resident::Error::from)
            };
            let threads: Vec<_> = (0..SENDERS).map(|_| scope.spawn(sender)).collect();
            threads.into_iter().try_for_each(|thread| Ok::<_, Error>(thread.join().map_err(|_| Error::Panicked)??))
        })?;
        until_handled(&taker, ((n + 1) * SENDERS * EACH) as u64)?;
        Ok(start.elapsed().as_nanos() as f64 / (SENDERS * EACH) as f64)
    };
    let samples = (0..effort.runs).map(run).collect::<Result<_>>()?;
    let (taken, expected) = (taker.checkpoint()?.state.commands, (effort.runs * SENDERS * EACH) as u32);
    if taken != expected {
        return Err(Error::Sum { got: taken.into(), expected: expected.into() });
    }
    Ok(vec![Metric::lower("", "ns", samples)])
}

/// A question after the other. On the CPU whoever asks runs so brief a handler itself, and nothing crosses a thread.
fn round_trip(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    asked(effort, device, LaunchOptions::default(), if device == "cpu" { "same-thread" } else { "" })
}

/// The same with a kernel whose thread never sleeps, and which nobody else runs: there and back is from core to core.
fn crossing(effort: &Effort) -> Result<Vec<Metric>> {
    asked(effort, "cpu", LaunchOptions::default().wait(WaitPolicy::Spin), "other-thread")
}

fn asked(effort: &Effort, device: &str, options: LaunchOptions, case: &'static str) -> Result<Vec<Metric>> {
    let (_device, adder) = launched(device, Adder, options)?;
    let mut ask = || check_sum(adder.ask(PAIR)?.value);
    warm_up(effort.turn / 2, &mut ask)?;
    Ok(vec![Metric::lower(case, "ns", each_timed(effort.turn, ask)?)])
}

/// What sending costs the sender; the kernel has to acknowledge everything before the next burst.
fn injected(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    const BURST: usize = 64;
    let (_device, taker) = launched(device, Taker, LaunchOptions::default().inbound(2 * BURST))?;
    let [mut active, mut paused] = [const { Vec::new() }; 2];
    let mut sent = 0u32;
    let mut burst = || {
        let before = Instant::now();
        for _ in 0..BURST {
            taker.try_send(Command::nth(INJECT, sent)).map_err(resident::Error::from)?;
            sent += 1;
        }
        Ok::<_, Error>((before.elapsed().as_nanos() as f64 / BURST as f64, u64::from(sent)))
    };
    let start = Instant::now();
    while start.elapsed() < effort.turn {
        let (ns, sent) = burst()?;
        active.push(ns);
        until_handled(&taker, sent)?;
    }
    let start = Instant::now();
    while start.elapsed() < effort.turn {
        taker.pause()?;
        let (ns, sent) = burst()?;
        paused.push(ns);
        taker.activate()?;
        until_handled(&taker, sent)?;
    }
    let taken = taker.checkpoint()?.state.commands;
    if taken != sent {
        return Err(Error::Sum { got: taken.into(), expected: sent.into() });
    }
    Ok(vec![Metric::lower("", "ns", active), Metric::lower("paused", "ns", paused)])
}

/// Looking at telemetry, while nothing happens and while somebody else keeps the kernel busy.
fn queried(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    let (_device, adder) = launched(device, Adder, LaunchOptions::default())?;
    let look = || {
        black_box(adder.telemetry());
        Ok(())
    };
    check_sum(adder.ask(PAIR)?.value)?;
    let idle = batch_timed(effort.turn, 100, look)?;
    let before = adder.telemetry().handled;
    let over = Arc::new(AtomicBool::new(false));
    let (busy, asked) = thread::scope(|scope| {
        let asker = scope.spawn(|| {
            let mut asked = 0;
            while !over.load(Ordering::Relaxed) {
                check_sum(adder.ask(PAIR)?.value)?;
                asked += 1;
            }
            Ok::<u64, Error>(asked)
        });
        let busy = batch_timed(effort.turn, 100, look);
        over.store(true, Ordering::Relaxed);
        Ok::<_, Error>((busy?, asker.join().map_err(|_| Error::Panicked)??))
    })?;
    let handled = adder.telemetry().handled - before;
    if handled != asked {
        return Err(Error::Wrong(format!("telemetry says {handled} messages after {asked} answers")));
    }
    Ok(vec![Metric::lower("", "ns", idle), Metric::lower("while-busy", "ns", busy)])
}

/// From nothing to a kernel that runs, and to its first answer.
fn started(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    let [mut running, mut answered] = [const { Vec::new() }; 2];
    for _ in 0..effort.runs {
        let start = Instant::now();
        let runtime = if device == "cpu" { Runtime::new(vec![Box::new(CpuProvider)]) } else { millrace::runtime() };
        let adder = devices::open_in(&runtime, device)?.launch(Adder, LaunchOptions::default())?;
        adder.wait_for(Status::Active, Instant::now() + PATIENCE)?;
        running.push(start.elapsed().as_nanos() as f64);
        check_sum(adder.ask(PAIR)?.value)?;
        answered.push(start.elapsed().as_nanos() as f64);
    }
    Ok(vec![Metric::lower("running", "ns", running), Metric::lower("first-answer", "ns", answered)])
}
