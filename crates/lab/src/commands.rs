//! The groups of `millrace bench commands`: queues, round trips, back-pressure, memory and the stream itself.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace::{Device, Stream, Synchronize};

use crate::{
    Error, Message, Parcel, Result,
    groups::{self, Group},
    measure::{Metric, Side, Stop, Turns, batch_timed, clock_cost, each_timed, warm_up},
    message::payload,
    peers::{
        Crossbeam, Flume, Kanal, Limit, Link, Millrace, MillraceSpsc, MutexCondvar, MutexYield, Parked, Service, Std,
        TokioBroadcast, TokioMpsc,
    },
    report::{Report, Row},
    suites::Listed,
    targets,
    workloads::{self, Alone, CAPACITY, Flow, RoundTrip},
};

/// How a run is to be.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// A few seconds instead of a few minutes: enough to see that everything works, too little to judge by.
    pub quick: bool,
}

/// How far a run is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The group being measured.
    pub group: &'a str,
    /// The side whose turn it is.
    pub side: &'a str,
    /// Turns that are over.
    pub done: usize,
    /// Turns in all.
    pub total: usize,
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Effort {
    /// Turns of every side.
    pub rounds: usize,
    /// Time of a turn, for each of its cases.
    pub turn: Duration,
    /// Runs of a turn, where one run is long.
    pub runs: usize,
    /// Time of a turn while the machine is overloaded.
    pub overloaded: Duration,
    /// Messages of each producer in a run of four to one.
    pub each: usize,
    /// When a turn is given up.
    pub timeout: Duration,
    /// Ends it before all rounds are over.
    pub stop: Stop,
}

impl Effort {
    /// A few minutes.
    pub fn full() -> Self {
        Self {
            // Many short turns, because what crosses a thread was seen to change its speed within a run.
            rounds: 30,
            turn: Duration::from_millis(10),
            runs: 2,
            overloaded: Duration::from_millis(100),
            each: 25_000,
            timeout: Duration::from_secs(20),
            stop: Stop::default(),
        }
    }

    /// A few seconds.
    pub fn quick() -> Self {
        Self {
            rounds: 3,
            turn: Duration::from_millis(6),
            runs: 2,
            overloaded: Duration::from_millis(50),
            each: 5000,
            timeout: Duration::from_secs(10),
            stop: Stop::default(),
        }
    }

    fn turns(&self) -> Turns {
        Turns { rounds: self.rounds, timeout: self.timeout, stop: self.stop.clone() }
    }
}

/// Measures all groups, ours and the peers' in turns, and sets the targets.
///
/// With `run_groups` the same for some of them:
///
/// ```
/// use millrace_lab::commands::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "bytes_clone", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// ```
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_groups(&effort, &|_| true, progress)
}

/// [`run`] with an effort of your own, and only the groups that `wanted` says yes to.
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    groups::run(groups(effort), &effort.turns(), wanted, progress)
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick()).iter().map(|group| group.name).collect()
}

/// Its groups as a list shows them.
pub(crate) fn listed() -> Vec<Listed> {
    groups(&Effort::quick()).iter().map(Group::listed).collect()
}

/// One side per peer: the same generic function for each.
macro_rules! sides {
    ($effort:expr, $body:ident: $($peer:ty),+ $(,)?) => {{
        vec![$({
            let effort: Effort = $effort.clone();
            Side::new(<$peer as $crate::peers::Peer>::NAME, move || $body::<$peer>(&effort))
        }),+]
    }};
}

pub(crate) fn groups(effort: &Effort) -> Vec<Group> {
    let group = |name, about, sides, judge| Group::new(name, sides, judge).on(|_| "cpu").about(about);
    let over_mutex_yield = |rows: &[Row]| targets::over_mutex_yield(rows).into_iter().collect();
    let one_to_one = sides!(effort, stream_one: Millrace, MillraceSpsc, Crossbeam, Kanal, Flume, Std, TokioMpsc,
        MutexYield, MutexCondvar);
    let four_to_one = sides!(effort, stream_many: Millrace, Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexYield,
        MutexCondvar);
    let send = sides!(effort, send_receive: Millrace, MillraceSpsc, Crossbeam, Kanal, Flume, Std, TokioMpsc,
        TokioBroadcast, MutexYield, MutexCondvar, Limit);
    let mut round_trips = sides!(effort, round_trip: Millrace, Crossbeam, Kanal, Flume, Std, TokioMpsc,
        TokioBroadcast, MutexYield, MutexCondvar, Limit);
    round_trips.insert(1, side("millrace-stream", effort, stream_round_trip));
    let mut idle = sides!(effort, after_idle: Millrace, Crossbeam, Kanal, Flume, Std, TokioMpsc, TokioBroadcast,
        MutexYield, MutexCondvar, Parked);
    idle.insert(1, side("millrace-stream", effort, stream_after_idle));
    let flow = sides!(effort, throughput: Millrace, MillraceSpsc, Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexYield,
        MutexCondvar, Limit);
    let words = sides!(effort, throughput_word: Millrace, MillraceSpsc, Crossbeam, Kanal, Flume, Std, TokioMpsc,
        MutexYield, MutexCondvar, Limit);
    let many = sides!(effort, throughput_many: Millrace, Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexYield,
        MutexCondvar);
    let contention = sides!(effort, contention: Millrace, Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexYield,
        MutexCondvar);
    let mut pressure = sides!(effort, backpressure: Millrace, MillraceSpsc, Crossbeam, Kanal, Flume, Std, TokioMpsc,
        MutexYield, MutexCondvar);
    pressure.push(side("limit", effort, consumer_alone));
    let clones = vec![side("millrace", effort, bytes_clone), side("copy", effort, bytes_copy)];
    let pool = vec![side("millrace", effort, pool), side("malloc", effort, malloc), side("copy", effort, copy_1_kib)];
    let submit = vec![side("millrace-stream", effort, submit)];
    // The overloaded ones last, because a hot machine is slower for a while.
    vec![
        group(
            "channel_send_latency",
            "Send and receive on one thread: what a queue costs when nobody waits, for four sizes of messages.",
            send,
            targets::send,
        ),
        group(
            "round_trip_latency",
            "A request to a server thread and its answer, one at a time, until the asker has it.",
            round_trips,
            targets::round_trip,
        )
        .with(over_mutex_yield),
        group(
            "after_idle",
            "The same after 20 ms in which nothing happened: the server sleeps and has to be woken.",
            idle,
            targets::after_idle,
        ),
        group(
            "throughput_1to1",
            "Batches of commands from one thread to another, each over when it was consumed.",
            flow,
            targets::throughput,
        ),
        group(
            "throughput_1to1_word",
            "The same with one machine word for a message, so that the queue counts and not the copy.",
            words,
            targets::throughput,
        ),
        group(
            "throughput_4to1",
            "Commands from four threads to one, until all are consumed.",
            many,
            targets::throughput_many,
        ),
        group(
            "contention",
            "Four producers with 250 commands each: the time until all are consumed.",
            contention,
            targets::contention,
        )
        .with(over_mutex_yield),
        group(
            "backpressure",
            "A thousand commands through a queue of 100 to a consumer that works 10 µs on each; the limit is its work alone.",
            pressure,
            targets::backpressure,
        ),
        group("bytes_clone", "Cloning a shared payload, next to copying it.", clones, targets::promised),
        group(
            "memory_pool",
            "Allocating from the device's pool next to malloc, and writing and reading 1 KiB.",
            pool,
            targets::memory_pool,
        ),
        group("submit", "What submitting costs the caller while a worker drains the queue.", submit, targets::promised),
        group(
            "overload_1to1",
            "One to one while four more threads keep all cores busy.",
            one_to_one,
            targets::overload,
        )
        .beside(4),
        group(
            "overload_4to1",
            "Four to one while four more threads keep all cores busy.",
            four_to_one,
            targets::overload,
        )
        .beside(4),
    ]
}

fn side(name: &str, effort: &Effort, body: fn(&Effort) -> Result<Vec<Metric>>) -> Side {
    let effort = effort.clone();
    Side::new(name, move || body(&effort))
}

/// The messages of the send group, by case.
fn messages() -> [(&'static str, Message); 4] {
    [
        ("small", Message::small()),
        ("medium", Message::medium()),
        ("large-1KiB", Message::large(&payload(1 << 10))),
        ("large-1MiB", Message::large(&payload(1 << 20))),
    ]
}

fn send_receive<P: Link<Message>>(effort: &Effort) -> Result<Vec<Metric>> {
    let messages = messages();
    let mut queue = Alone::new::<P>(CAPACITY);
    let mut samples = messages.each_ref().map(|_| Vec::new());
    // The cases take turns as well.
    for _ in 0..4 {
        for ((_, message), samples) in messages.iter().zip(&mut samples) {
            let expected = message.clone().consume();
            let mut cycle = || {
                queue.send(message.clone())?;
                match queue.receive()? {
                    got if got == expected => Ok(()),
                    got => Err(Error::Sum { got, expected }),
                }
            };
            warm_up(effort.turn / 40, &mut cycle)?;
            samples.extend(batch_timed(effort.turn / 4, 200, cycle)?);
        }
    }
    Ok(messages.iter().zip(samples).map(|((case, _), samples)| Metric::lower(*case, "ns", samples)).collect())
}

fn round_trip<P: Service>(effort: &Effort) -> Result<Vec<Metric>> {
    let mut round_trip = RoundTrip::start::<P>()?;
    let mut ask = || round_trip.ask(Message::small(), 1);
    warm_up(effort.turn / 2, &mut ask)?;
    Ok(vec![Metric::lower("", "ns", each_timed(effort.turn * 2, ask)?)])
}

const IDLE: Duration = Duration::from_millis(20);

/// Times one run of `work` after an idle while, several times.
fn timed_after_idle(effort: &Effort, mut work: impl FnMut() -> Result<()>) -> Result<Vec<Metric>> {
    let clock = clock_cost();
    let mut samples = Vec::with_capacity(effort.runs);
    work()?;
    for _ in 0..effort.runs {
        thread::sleep(IDLE);
        let start = Instant::now();
        work()?;
        samples.push((start.elapsed().as_nanos() as f64 - clock).max(1.0));
    }
    Ok(vec![Metric::lower("", "ns", samples)])
}

fn after_idle<P: Service>(effort: &Effort) -> Result<Vec<Metric>> {
    let mut round_trip = RoundTrip::start::<P>()?;
    timed_after_idle(effort, || round_trip.ask(Message::small(), 1))
}

fn open() -> Result<(Device, Stream)> {
    let device = millrace::runtime().open("cpu")?;
    let stream = device.stream()?;
    Ok((device, stream))
}

fn stream_round_trip(effort: &Effort) -> Result<Vec<Metric>> {
    let (_device, stream) = open()?;
    let mut ask = || Ok(stream.submit(Synchronize)?.wait()?);
    warm_up(effort.turn / 2, &mut ask)?;
    let submitted = each_timed(effort.turn, ask)?;
    let run = each_timed(effort.turn, || Ok(stream.run(Synchronize)?))?;
    Ok(vec![Metric::lower("", "ns", submitted), Metric::lower("run", "ns", run)])
}

fn stream_after_idle(effort: &Effort) -> Result<Vec<Metric>> {
    let (_device, stream) = open()?;
    timed_after_idle(effort, || Ok(stream.submit(Synchronize)?.wait()?))
}

/// Messages of a batch, as the seed has them.
pub const BATCHES: [usize; 4] = [10, 100, 1000, 10_000];

fn throughput<P: Link<Message>>(effort: &Effort) -> Result<Vec<Metric>> {
    BATCHES.into_iter().map(|batch| flow::<P, _>(effort, batch, &Message::small())).collect()
}

/// The same with one word for a message, where the queue alone counts and not the copy of 168 bytes.
fn throughput_word<P: Link<u64>>(effort: &Effort) -> Result<Vec<Metric>> {
    [1000, 10_000].into_iter().map(|batch| flow::<P, _>(effort, batch, &1)).collect()
}

fn flow<P: Link<M>, M: Parcel>(effort: &Effort, batch: usize, message: &M) -> Result<Metric> {
    let mut flow = Flow::<_, M>::start::<P>(CAPACITY, batch)?;
    warm_up(effort.turn / 4, || flow.batch(message))?;
    let times = each_timed(effort.turn, || flow.batch(message))?;
    flow.finish()?;
    let rates = times.into_iter().map(|ns| batch as f64 / ns * 1e9).collect();
    Ok(Metric::higher(batch.to_string(), "messages/s", rates))
}

const PRODUCERS: usize = 4;

fn throughput_many<P: Link<Message, Tx: Clone>>(effort: &Effort) -> Result<Vec<Metric>> {
    let rates = (0..effort.runs).map(|_| {
        let time = workloads::contend::<P>(PRODUCERS, effort.each, CAPACITY, &Message::small())?;
        Ok((PRODUCERS * effort.each) as f64 / time.as_secs_f64())
    });
    Ok(vec![Metric::higher("", "messages/s", rates.collect::<Result<_>>()?)])
}

fn stream_one<P: Link<Message>>(effort: &Effort) -> Result<Vec<Metric>> {
    let rate = workloads::stream_one::<P>(CAPACITY, &Message::small(), effort.overloaded)?;
    Ok(vec![Metric::higher("", "messages/s", vec![rate])])
}

fn stream_many<P: Link<Message, Tx: Clone>>(effort: &Effort) -> Result<Vec<Metric>> {
    let rate = workloads::stream_many::<P>(PRODUCERS, CAPACITY, &Message::small(), effort.overloaded)?;
    Ok(vec![Metric::higher("", "messages/s", vec![rate])])
}

fn contention<P: Link<Message, Tx: Clone>>(effort: &Effort) -> Result<Vec<Metric>> {
    let times = (0..effort.runs * 5).map(|_| {
        let time = workloads::contend::<P>(PRODUCERS, 250, CAPACITY, &Message::medium())?;
        Ok(time.as_secs_f64() * 1e3)
    });
    Ok(vec![Metric::lower("", "ms", times.collect::<Result<_>>()?)])
}

const SLOW: (usize, u64, Duration) = (100, 1000, Duration::from_micros(10));

fn backpressure<P: Link<Message>>(effort: &Effort) -> Result<Vec<Metric>> {
    let (capacity, count, work) = SLOW;
    let [mut total, mut cpu, mut lost, mut depth] = [const { Vec::new() }; 4];
    for _ in 0..effort.runs {
        let pressure = workloads::backpressure::<P>(capacity, count, work, &Message::medium())?;
        total.push(pressure.total.as_secs_f64() * 1e3);
        if let Some(producer) = pressure.producer {
            cpu.push(100.0 * producer.as_secs_f64() / pressure.total.as_secs_f64());
        }
        lost.push(pressure.lost as f64);
        depth.push(pressure.depth as f64);
    }
    let mut metrics = vec![Metric::lower("", "ms", total)];
    if !cpu.is_empty() {
        metrics.push(Metric::lower("producer-cpu", "% of a core", cpu));
    }
    metrics.push(Metric::lower("lost", "messages", lost));
    metrics.push(Metric::lower("depth", "messages", depth));
    Ok(metrics)
}

fn consumer_alone(effort: &Effort) -> Result<Vec<Metric>> {
    let (_, count, work) = SLOW;
    let times = (0..effort.runs).map(|_| workloads::work_alone(count, work, &Message::medium()).as_secs_f64() * 1e3);
    Ok(vec![Metric::lower("", "ms", times.collect())])
}

/// Sizes of the clone group.
pub const CLONED: [usize; 3] = [1 << 10, 1 << 16, 1 << 20];

fn bytes_clone(effort: &Effort) -> Result<Vec<Metric>> {
    CLONED
        .into_iter()
        .map(|size| {
            let bytes = payload(size);
            let samples = batch_timed(effort.turn, 1000, || {
                black_box(black_box(&bytes).clone());
                Ok(())
            })?;
            Ok(Metric::lower(size.to_string(), "ns", samples))
        })
        .collect()
}

fn bytes_copy(effort: &Effort) -> Result<Vec<Metric>> {
    CLONED
        .into_iter()
        .map(|size| {
            let bytes = payload(size);
            let samples = each_timed(effort.turn, || {
                black_box(Bytes::copy_from_slice(black_box(&bytes)));
                Ok(())
            })?;
            Ok(Metric::lower(size.to_string(), "ns", samples))
        })
        .collect()
}

/// Sizes of the pool group.
const POOLED: [(usize, &str); 2] = [(1 << 10, "1KiB"), (1 << 20, "1MiB")];
/// Allocations held at once.
const HELD: usize = 64;

/// Allocating and freeing, apart and together: the same for any allocator.
fn allocator<T>(effort: &Effort, mut allocate: impl FnMut(usize) -> Result<T>) -> Result<Vec<Metric>> {
    let mut metrics = Vec::new();
    for (size, name) in POOLED {
        let mut held = Vec::with_capacity(HELD);
        let [mut allocating, mut freeing] = [const { Vec::new() }; 2];
        let start = Instant::now();
        while start.elapsed() < effort.turn {
            let before = Instant::now();
            for _ in 0..HELD {
                held.push(allocate(size)?);
            }
            let between = Instant::now();
            held.clear();
            let after = Instant::now();
            allocating.push((between - before).as_nanos() as f64 / HELD as f64);
            freeing.push((after - between).as_nanos() as f64 / HELD as f64);
        }
        let cycle = batch_timed(effort.turn, 200, || {
            black_box(allocate(size)?);
            Ok(())
        })?;
        metrics.push(Metric::lower(format!("allocate-{name}"), "ns", allocating));
        metrics.push(Metric::lower(format!("free-{name}"), "ns", freeing));
        metrics.push(Metric::lower(format!("cycle-{name}"), "ns", cycle));
    }
    Ok(metrics)
}

fn pool(effort: &Effort) -> Result<Vec<Metric>> {
    let (device, stream) = open()?;
    let mut metrics = allocator(effort, |size| Ok(device.allocate(size)?))?;
    let buffer = device.allocate(1 << 10)?;
    let bytes = payload(1 << 10);
    let write = batch_timed(effort.turn, 100, || Ok(stream.run(buffer.write(0, bytes.clone()))?))?;
    let read = batch_timed(effort.turn, 100, || {
        let view = stream.run(buffer.read(..))?;
        match black_box(&view).last() {
            Some(5) => Ok(()),
            other => Err(Error::Device(format!("read {other:?} instead of 5"))),
        }
    })?;
    metrics.push(Metric::lower("write-1KiB", "ns", write));
    metrics.push(Metric::lower("read-1KiB", "ns", read));
    Ok(metrics)
}

fn malloc(effort: &Effort) -> Result<Vec<Metric>> {
    allocator(effort, |size| Ok(black_box(Vec::<u8>::with_capacity(size))))
}

/// What writing must cost at least: the copy itself.
fn copy_1_kib(effort: &Effort) -> Result<Vec<Metric>> {
    let (from, mut to) = (payload(1 << 10), vec![0; 1 << 10]);
    let samples = batch_timed(effort.turn, 100, || {
        black_box(&mut to).copy_from_slice(black_box(&from));
        Ok(())
    })?;
    Ok(vec![Metric::lower("write-1KiB", "ns", samples)])
}

/// Below the usual capacity of a stream's queue.
const BURST: usize = 128;

fn submit(effort: &Effort) -> Result<Vec<Metric>> {
    let (_device, stream) = open()?;
    let clock = clock_cost();
    let mut tickets = Vec::with_capacity(BURST);
    let [mut single, mut burst] = [const { Vec::new() }; 2];
    let start = Instant::now();
    while start.elapsed() < effort.turn * 4 {
        // Every submit by itself, tickets kept.
        let mut before = Instant::now();
        for _ in 0..BURST {
            tickets.push(stream.submit(Synchronize)?);
            let now = Instant::now();
            single.push(((now - before).as_nanos() as f64 - clock).max(1.0));
            before = now;
        }
        for ticket in tickets.drain(..) {
            ticket.wait()?;
        }
        // A whole burst, tickets dropped at once: with the wake-up of the worker and whatever else it costs.
        let before = Instant::now();
        for _ in 0..BURST {
            drop(stream.submit(Synchronize)?);
        }
        burst.push(before.elapsed().as_nanos() as f64 / BURST as f64);
        stream.synchronize()?;
    }
    Ok(vec![Metric::lower("", "ns", single), Metric::lower("burst-and-drop", "ns", burst)])
}
