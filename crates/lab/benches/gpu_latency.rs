//! `cargo bench --bench gpu_latency`: the command path under criterion, with baselines and regressions.
//!
//! A bare id is ours (`channel`: our ring) or the queue it replaces (`mutex`: a `Mutex<VecDeque>`, polled with yields);
//! peers follow in the same group as `<id>/<peer>`. After each group its targets are printed next to what was measured:
//! the median and the 99th percentile of single operations where latency matters, of criterion's samples elsewhere.

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark talks to a person, and ends if it cannot go on"
)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use millrace::{Buffer, Device, Stream};
use millrace_lab::{
    Message,
    commands::{BATCHES, CLONED},
    measure::{Better, Summary, clock_cost},
    payload,
    peers::{
        Crossbeam, Flume, Kanal, Limit, Link, Millrace, MutexCondvar, MutexYield, Peer, Service, Std, TokioBroadcast,
        TokioMpsc,
    },
    workloads::{Alone, CAPACITY, Flow, RoundTrip, backpressure, contend},
};

const FINE: &str = "the side works";
/// Kept for percentiles; more change nothing.
const MOST_SAMPLES: usize = 1 << 20;

/// A criterion group that keeps samples of its own for the table after it.
struct Suite<'a> {
    name: &'static str,
    group: BenchmarkGroup<'a, WallTime>,
    /// Id and nanoseconds per operation.
    lines: Vec<(String, Vec<f64>)>,
}

impl<'a> Suite<'a> {
    fn new(c: &'a mut Criterion, name: &'static str) -> Self {
        Self { name, group: c.benchmark_group(name), lines: Vec::new() }
    }

    /// A benchmark. What it needs is started with its first sample, and only if it is run at all. `run` times so many
    /// operations, and pushes the nanoseconds of each if it times them one by one.
    fn bench<S>(
        &mut self,
        id: String,
        start: impl Fn() -> S,
        mut run: impl FnMut(&mut S, u64, &mut Vec<f64>) -> Duration,
    ) {
        let (mut state, mut samples) = (None, Vec::new());
        self.group.bench_function(&id, |bencher| {
            let state = state.get_or_insert_with(&start);
            bencher.iter_custom(|iters| {
                let before = samples.len();
                let time = run(state, iters, &mut samples);
                // The first few of the warm-up are so short that they time the clock.
                if samples.len() == before && time > Duration::from_micros(100) {
                    samples.push(time.as_nanos() as f64 / iters as f64);
                }
                samples.truncate(MOST_SAMPLES);
                time
            });
        });
        if samples.len() >= 5 {
            self.lines.push((id, samples));
        }
    }

    /// Prints what was measured next to what was promised, and the factor over the mutex queue next to the promised one.
    fn finish(self, targets: &[Target], factors: &[Factor]) {
        self.group.finish();
        let lines: Vec<_> = self
            .lines
            .into_iter()
            .filter_map(|(id, samples)| Some((id, Summary::of(samples, Better::Lower)?)))
            .collect();
        if lines.is_empty() {
            return;
        }
        println!("{:<52} {:>10} {:>10}   target", self.name, "p50", "p99");
        for (id, summary) in &lines {
            let target = targets.iter().find(|target| target.id == id).map_or(String::new(), |target| {
                let met = if summary.p50 < target.below { "met" } else { "MISSED" };
                format!("< {} {met}", time(target.below))
            });
            println!("  {id:<50} {:>10} {:>10}   {target}", time(summary.p50), time(summary.p99));
        }
        for factor in factors {
            let p50 = |wanted: &str| lines.iter().find(|(id, _)| id == wanted).map(|(_, summary)| summary.p50);
            if let Some((ours, theirs)) = p50(factor.ours).zip(p50(factor.theirs)) {
                let (ours_id, theirs_id, measured) = (factor.ours, factor.theirs, theirs / ours);
                println!("  {ours_id} is {measured:.2} x as fast as {theirs_id}; promised {} x", factor.promised);
            }
        }
        println!();
    }
}

/// Nanoseconds that an operation is to stay below.
struct Target {
    id: &'static str,
    below: f64,
}

const fn below(id: &'static str, below: f64) -> Target {
    Target { id, below }
}

/// How many times faster one is said to be than the other.
struct Factor {
    ours: &'static str,
    theirs: &'static str,
    promised: f64,
}

const fn factor(ours: &'static str, theirs: &'static str, promised: f64) -> Factor {
    Factor { ours, theirs, promised }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.1} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

/// Calls `$body::<Peer>(suite, "id/peer", what)` for every peer.
macro_rules! peers {
    ($body:ident($suite:expr, $id:expr, $what:expr): $($peer:ty),+) => {
        $($body::<$peer>($suite, format!("{}/{}", $id, <$peer as Peer>::NAME), $what);)+
    };
}

/// Times sends until the queue is full, empties it untimed, and so on.
fn send<P: Link<Message>>(suite: &mut Suite<'_>, id: String, (capacity, message): (usize, &Message)) {
    suite.bench(
        id,
        || Alone::new::<P>(capacity),
        |queue, iters, _| {
            let (mut left, mut time) = (iters as usize, Duration::ZERO);
            while left > 0 {
                let burst = left.min(capacity);
                let start = Instant::now();
                for _ in 0..burst {
                    queue.send(message.clone()).expect(FINE);
                }
                time += start.elapsed();
                for _ in 0..burst {
                    black_box(queue.receive().expect(FINE));
                }
                left -= burst;
            }
            time
        },
    );
}

/// The reverse of [`send`].
fn receive<P: Link<Message>>(suite: &mut Suite<'_>, id: String, (capacity, message): (usize, &Message)) {
    suite.bench(
        id,
        || Alone::new::<P>(capacity),
        |queue, iters, _| {
            let (mut left, mut time) = (iters as usize, Duration::ZERO);
            while left > 0 {
                let burst = left.min(capacity);
                for _ in 0..burst {
                    queue.send(message.clone()).expect(FINE);
                }
                let start = Instant::now();
                for _ in 0..burst {
                    black_box(queue.receive().expect(FINE));
                }
                time += start.elapsed();
                left -= burst;
            }
            time
        },
    );
}

fn send_and_receive<P: Link<Message>>(suite: &mut Suite<'_>, id: String, (capacity, message): (usize, &Message)) {
    suite.bench(
        id,
        || Alone::new::<P>(capacity),
        |queue, iters, _| {
            let start = Instant::now();
            for _ in 0..iters {
                queue.send(message.clone()).expect(FINE);
                black_box(queue.receive().expect(FINE));
            }
            start.elapsed()
        },
    );
}

fn channel_send_latency(c: &mut Criterion) {
    let mut suite = Suite::new(c, "channel_send_latency");
    let large = Message::large(&payload(1 << 20));
    let cases = [
        ("small_command_bounded", 100, Message::small()),
        ("medium_command_bounded", 100, Message::medium()),
        ("large_command_bounded", 100, large),
        ("small_command_unbounded", 1000, Message::small()),
    ];
    for (id, capacity, message) in &cases {
        send::<Millrace>(&mut suite, id.to_string(), (*capacity, message));
        peers!(send(&mut suite, id, (*capacity, message)): Crossbeam, Kanal, Flume, Std, TokioMpsc, TokioBroadcast);
    }
    suite.finish(&[below("small_command_bounded", 100.0), below("small_command_unbounded", 100.0)], &[]);
}

fn mutex_vecdeque_latency(c: &mut Criterion) {
    let mut suite = Suite::new(c, "mutex_vecdeque_latency");
    let (small, medium, large) = (Message::small(), Message::medium(), Message::large(&payload(1 << 20)));
    send::<MutexYield>(&mut suite, "push_small_command".to_owned(), (100, &small));
    send::<MutexYield>(&mut suite, "push_medium_command".to_owned(), (100, &medium));
    send::<MutexYield>(&mut suite, "push_large_command".to_owned(), (100, &large));
    receive::<MutexYield>(&mut suite, "pop_command".to_owned(), (100, &small));
    send_and_receive::<MutexYield>(&mut suite, "push_pop_cycle".to_owned(), (100, &small));
    suite.finish(&[below("push_small_command", 500.0)], &[]);
}

fn round_trip<P: Service>(suite: &mut Suite<'_>, id: String, (): ()) {
    let clock = clock_cost();
    suite.bench(
        id,
        || RoundTrip::start::<P>().expect(FINE),
        |server, iters, samples| {
            let start = Instant::now();
            let mut before = start;
            for _ in 0..iters {
                server.ask(Message::small(), 1).expect(FINE);
                let now = Instant::now();
                samples.push(((now - before).as_nanos() as f64 - clock).max(1.0));
                before = now;
            }
            before - start
        },
    );
}

fn round_trip_latency(c: &mut Criterion) {
    let mut suite = Suite::new(c, "round_trip_latency");
    round_trip::<Millrace>(&mut suite, "channel_oneshot".to_owned(), ());
    round_trip::<MutexYield>(&mut suite, "mutex_vecdeque".to_owned(), ());
    peers!(round_trip(&mut suite, "channel_oneshot", ()):
        Crossbeam, Kanal, Flume, Std, TokioMpsc, TokioBroadcast, MutexCondvar, Limit);
    let targets = [below("channel_oneshot", 5e3), below("mutex_vecdeque", 25e3)];
    suite.finish(&targets, &[factor("channel_oneshot", "mutex_vecdeque", 5.0)]);
}

/// Batches to a consumer thread that outlives them; a batch is over when it was consumed.
fn batches<P: Link<Message>>(suite: &mut Suite<'_>, id: String, (batch, message): (usize, &Message)) {
    suite.bench(
        id,
        || Flow::start::<P>(CAPACITY, batch).expect(FINE),
        |flow, iters, _| {
            let start = Instant::now();
            for _ in 0..iters {
                flow.batch(message).expect(FINE);
            }
            start.elapsed()
        },
    );
}

fn throughput(c: &mut Criterion) {
    let mut suite = Suite::new(c, "throughput");
    let message = Message::small();
    for batch in BATCHES {
        suite.group.throughput(Throughput::Elements(batch as u64));
        batches::<Millrace>(&mut suite, format!("channel/{batch}"), (batch, &message));
        batches::<MutexYield>(&mut suite, format!("mutex_vecdeque/{batch}"), (batch, &message));
        peers!(batches(&mut suite, format!("channel/{batch}"), (batch, &message)):
            Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexCondvar);
    }
    // 500 k/s and 50 k/s, as the time of a batch of 1000.
    let targets = [below("channel/1000", 2e6), below("mutex_vecdeque/1000", 20e6)];
    suite.finish(&targets, &[factor("channel/1000", "mutex_vecdeque/1000", 10.0)]);
}

fn slow_consumer<P: Link<Message>>(suite: &mut Suite<'_>, id: String, (): ()) {
    suite.bench(
        id,
        || (),
        |(), iters, _| {
            let run = || {
                let pressure = backpressure::<P>(100, 1000, Duration::from_micros(10), &Message::medium()).expect(FINE);
                assert_eq!(pressure.lost, 0, "a bounded queue loses nothing");
                pressure.total
            };
            (0..iters).map(|_| run()).sum()
        },
    );
}

fn backpressure_group(c: &mut Criterion) {
    let mut suite = Suite::new(c, "backpressure");
    suite.group.sample_size(10);
    slow_consumer::<Millrace>(&mut suite, "channel_bounded_100".to_owned(), ());
    slow_consumer::<MutexYield>(&mut suite, "mutex_vecdeque_limited".to_owned(), ());
    peers!(slow_consumer(&mut suite, "channel_bounded_100", ()): Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexCondvar);
    // The consumer alone needs 10 ms.
    let targets = [below("channel_bounded_100", 10.5e6)];
    suite.finish(&targets, &[factor("channel_bounded_100", "mutex_vecdeque_limited", 1.3)]);
}

/// `iters` times the same on one thread.
fn repeat(iters: u64, mut work: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..iters {
        work();
    }
    start.elapsed()
}

fn bytes_clone(c: &mut Criterion) {
    let mut suite = Suite::new(c, "bytes_clone");
    for size in CLONED {
        suite.group.throughput(Throughput::Bytes(size as u64));
        suite.bench(
            size.to_string(),
            || payload(size),
            |bytes, iters, _| {
                repeat(iters, || {
                    black_box(black_box(&*bytes).clone());
                })
            },
        );
    }
    suite.finish(&[below("1024", 100.0), below("65536", 100.0), below("1048576", 100.0)], &[]);
}

/// A device with a buffer of 1 KiB.
fn device() -> (Device, Stream, Buffer) {
    let device = millrace::runtime().open("cpu").expect("the CPU is always there");
    let (stream, buffer) = (device.stream().expect(FINE), device.allocate(1 << 10).expect(FINE));
    (device, stream, buffer)
}

/// Allocates up to 64, frees them, and so on; times one of the two.
fn allocate_or_free<T>(iters: u64, time_allocating: bool, mut allocate: impl FnMut() -> T) -> Duration {
    let mut held = Vec::with_capacity(64);
    let (mut left, mut time) = (iters, Duration::ZERO);
    while left > 0 {
        let burst = left.min(64);
        let before = Instant::now();
        for _ in 0..burst {
            held.push(black_box(allocate()));
        }
        let between = Instant::now();
        held.clear();
        time += if time_allocating { between - before } else { between.elapsed() };
        left -= burst;
    }
    time
}

fn memory_pool(c: &mut Criterion) {
    let mut suite = Suite::new(c, "memory_pool");
    let cases = [("allocate_1kb", 1 << 10, true), ("allocate_1mb", 1 << 20, true), ("deallocate_1kb", 1 << 10, false)];
    for (id, size, allocating) in cases {
        suite.bench(id.to_owned(), device, |(device, ..), iters, _| {
            allocate_or_free(iters, allocating, || device.allocate(size).expect(FINE))
        });
        suite.bench(
            format!("{id}/malloc"),
            || (),
            |(), iters, _| allocate_or_free(iters, allocating, || Vec::<u8>::with_capacity(size)),
        );
    }
    let bytes = payload(1 << 10);
    suite.bench("write_1kb".to_owned(), device, |(_, stream, buffer), iters, _| {
        repeat(iters, || stream.run(buffer.write(0, bytes.clone())).expect(FINE))
    });
    suite.bench("read_1kb".to_owned(), device, |(_, stream, buffer), iters, _| {
        stream.run(buffer.write(0, bytes.clone())).expect(FINE);
        repeat(iters, || assert_eq!(black_box(stream.run(buffer.read(..)).expect(FINE)).last(), Some(&5)))
    });
    suite.bench("alloc_dealloc_cycle".to_owned(), device, |(device, ..), iters, _| {
        repeat(iters, || drop(black_box(device.allocate(1 << 10).expect(FINE))))
    });
    suite.bench(
        "alloc_dealloc_cycle/malloc".to_owned(),
        || (),
        |(), iters, _| repeat(iters, || drop(black_box(Vec::<u8>::with_capacity(1 << 10)))),
    );
    let targets = [
        below("allocate_1kb", 1e3),
        below("allocate_1mb", 1e3),
        below("deallocate_1kb", 500.0),
        below("write_1kb", 100.0),
        below("read_1kb", 100.0),
        below("alloc_dealloc_cycle", 380.0),
    ];
    suite.finish(&targets, &[]);
}

fn command_processing(c: &mut Criterion) {
    let mut suite = Suite::new(c, "command_processing");
    let message = Message::medium();
    suite.group.throughput(Throughput::Elements(100));
    let (ours, mutex) = ("sequential_processing_channel", "sequential_processing_mutex");
    batches::<Millrace>(&mut suite, ours.to_owned(), (100, &message));
    batches::<MutexYield>(&mut suite, mutex.to_owned(), (100, &message));
    peers!(batches(&mut suite, ours, (100, &message)): Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexCondvar);
    suite.finish(&[], &[factor(ours, mutex, 1.5)]);
}

fn four_producers<P: Link<Message, Tx: Clone>>(suite: &mut Suite<'_>, id: String, (): ()) {
    suite.bench(
        id,
        || (),
        |(), iters, _| (0..iters).map(|_| contend::<P>(4, 250, CAPACITY, &Message::medium()).expect(FINE)).sum(),
    );
}

fn contention(c: &mut Criterion) {
    let mut suite = Suite::new(c, "contention");
    suite.group.throughput(Throughput::Elements(1000));
    four_producers::<Millrace>(&mut suite, "multi_producer_channel".to_owned(), ());
    four_producers::<MutexYield>(&mut suite, "multi_producer_mutex".to_owned(), ());
    peers!(four_producers(&mut suite, "multi_producer_channel", ()): Crossbeam, Kanal, Flume, Std, TokioMpsc, MutexCondvar);
    let targets = [below("multi_producer_channel", 5e6), below("multi_producer_mutex", 50e6)];
    suite.finish(&targets, &[factor("multi_producer_channel", "multi_producer_mutex", 10.0)]);
}

criterion_group! {
    name = gpu_latency;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(30)
        .nresamples(5000)
        .without_plots();
    targets = channel_send_latency, mutex_vecdeque_latency, round_trip_latency, throughput, backpressure_group,
        bytes_clone, memory_pool, command_processing, contention
}
criterion_main!(gpu_latency);
