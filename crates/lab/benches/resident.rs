//! `cargo bench --bench resident`: resident kernels and their parts under criterion, with baselines and regressions.
//!
//! A bare id is ours; peers follow in the same group as `<id>/<peer>`. After each group its targets are printed next to
//! what was measured: the median and the 99th percentile of criterion's samples.

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

use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime};
use millrace::{
    Runtime,
    cpu::CpuProvider,
    resident::{Archive, Launch, LaunchOptions, Message as _, Status, WaitPolicy, rkyv},
};
use millrace_lab::{
    Message,
    measure::{Better, Summary},
    peers::{Crossbeam, Kanal, Link, Millrace, MutexCondvar, Peer, Std, TokioMpsc},
    resident::{
        actors::{PEERS, Pace},
        archives::{Archives, BURST, FLOATS, Plain, VectorAdd, accessed, checked},
        kernels::{
            Adder, Command, INJECT, PAIR, PATIENCE, Pair, Taker, check_sum, launched, residential, side_on,
            until_handled,
        },
    },
    workloads::{Alone, CAPACITY, contend},
};

const FINE: &str = "the side works";

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

    /// A benchmark. What it needs is started with its first sample, and only if it is run at all. `run` does so many
    /// operations and says how long they took.
    fn bench<S>(&mut self, id: impl Into<String>, start: impl Fn() -> S, mut run: impl FnMut(&mut S, u64) -> Duration) {
        let (id, mut state, mut samples) = (id.into(), None, Vec::new());
        self.group.bench_function(&id, |bencher| {
            let state = state.get_or_insert_with(&start);
            bencher.iter_custom(|iters| {
                let time = run(state, iters);
                samples.push(time.as_nanos() as f64 / iters as f64);
                time
            });
        });
        if samples.len() >= 5 {
            self.lines.push((id, samples));
        }
    }

    /// [`Self::bench`] of something that is done again and again on this thread.
    fn repeat<S>(&mut self, id: impl Into<String>, start: impl Fn() -> S, work: impl Fn(&mut S)) {
        self.bench(id, start, |state, iters| {
            let start = Instant::now();
            for _ in 0..iters {
                work(state);
            }
            start.elapsed()
        });
    }

    /// Prints what was measured next to what was promised, in nanoseconds.
    fn finish(self, targets: &[(&str, f64)]) {
        self.group.finish();
        let lines: Vec<_> = self
            .lines
            .into_iter()
            .filter_map(|(id, samples)| Some((id, Summary::of(samples, Better::Lower)?)))
            .collect();
        if lines.is_empty() {
            return;
        }
        println!("{:<44} {:>10} {:>10}   target", self.name, "p50", "p99");
        for (id, summary) in &lines {
            let target = targets.iter().find(|(name, _)| name == id).map_or(String::new(), |(_, below)| {
                let met = if summary.p50 < *below { "met" } else { "MISSED" };
                format!("< {} {met}", time(*below))
            });
            println!("  {id:<42} {:>10} {:>10}   {target}", time(summary.p50), time(summary.p99));
        }
        println!();
    }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.1} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

/// At least so many operations in bursts, which say what an operation took on average, in nanoseconds; the time of so many.
fn in_bursts(iters: u64, mut burst: impl FnMut() -> f64) -> Duration {
    let bursts = iters.div_ceil(BURST as u64);
    let mean = (0..bursts).map(|_| burst()).sum::<f64>() / bursts as f64;
    Duration::from_nanos((mean * iters as f64) as u64)
}

fn serialization(c: &mut Criterion) {
    let mut suite = Suite::new(c, "serialization");
    suite.bench(
        "serialize_small",
        || Plain::small().expect(FINE),
        |plain, iters| in_bursts(iters, || plain.burst().expect(FINE)),
    );
    suite.bench(
        "serialize_1k_in_place",
        || (Plain::large().expect(FINE), VectorAdd::of(FLOATS)),
        |(plain, vectors), iters| in_bursts(iters, || plain.burst(vectors).expect(FINE)),
    );
    suite.bench(
        "rkyv_serialize_1k",
        || Archives::of(FLOATS).expect(FINE),
        |archives, iters| in_bursts(iters, || archives.burst().expect(FINE)),
    );
    suite.repeat(
        "rkyv_serialize_1k/rkyv",
        || VectorAdd::of(FLOATS),
        |message| drop(black_box(rkyv::to_bytes::<rkyv::rancor::Error>(black_box(&*message)).expect(FINE))),
    );
    suite.repeat(
        "rkyv_serialize_1k/memcpy",
        || (VectorAdd::of(FLOATS), vec![0f32; 2 * FLOATS]),
        |(message, to)| {
            let (a, b) = black_box(&mut **to).split_at_mut(FLOATS);
            a.copy_from_slice(black_box(&message.a));
            b.copy_from_slice(black_box(&message.b));
        },
    );
    let bytes = PAIR.as_bytes();
    suite.repeat(
        "deserialize_small",
        || (),
        |()| {
            let pair = Pair::from_bytes(black_box(bytes)).expect(FINE);
            black_box(pair.a + pair.b);
        },
    );
    let small = || Archive::new(&VectorAdd::of(1)).expect(FINE);
    suite.repeat("rkyv_deserialize_small", small, |archive| {
        black_box(checked(black_box(&*archive).bytes()).expect(FINE));
    });
    suite.repeat("rkyv_zero_copy_access_small", small, |archive| {
        black_box(accessed(black_box(&*archive)));
    });
    let archive = || Archive::new(&VectorAdd::of(FLOATS)).expect(FINE);
    suite.repeat("rkyv_deserialize_1k", archive, |archive| {
        black_box(checked(black_box(&*archive).bytes()).expect(FINE));
    });
    suite.repeat("rkyv_zero_copy_access", archive, |archive| {
        black_box(accessed(black_box(&*archive)));
    });
    suite.finish(&[
        ("serialize_small", 30.0),
        ("deserialize_small", 30.0),
        ("rkyv_deserialize_small", 30.0),
        ("rkyv_zero_copy_access_small", 2.0),
        ("rkyv_deserialize_1k", 30.0),
        ("rkyv_zero_copy_access", 2.0),
    ]);
}

fn allocation(c: &mut Criterion) {
    let mut suite = Suite::new(c, "allocation");
    suite.repeat(
        "pooled_alloc_4kb",
        || millrace::runtime().open("cpu").expect("the CPU is always there"),
        |device| drop(black_box(device.allocate(4096).expect(FINE))),
    );
    suite.repeat("direct_alloc_4kb/malloc", || (), |()| drop(black_box(Vec::<u8>::with_capacity(black_box(4096)))));
    suite.repeat(
        "direct_alloc_4kb/mmap",
        || (),
        |()| {
            let mut map = memmap2::MmapMut::map_anon(4096).expect(FINE);
            black_box(&mut map)[0] = 1;
        },
    );
    suite.finish(&[("pooled_alloc_4kb", 50.0)]);
}

fn enqueue<P: Link<Message>>(suite: &mut Suite<'_>, id: String) {
    suite.repeat(
        id,
        || Alone::new::<P>(CAPACITY),
        |queue| {
            queue.send(Message::medium()).expect(FINE);
            black_box(queue.receive().expect(FINE));
        },
    );
}

fn contended<P: Link<Message, Tx: Clone>>(suite: &mut Suite<'_>, id: String) {
    suite.bench(
        id,
        || (),
        |(), iters| (0..iters).map(|_| contend::<P>(4, 1000, CAPACITY, &Message::medium()).expect(FINE)).sum(),
    );
}

/// Calls `$body::<Peer>(suite, "id/peer")` for every peer.
macro_rules! peers {
    ($body:ident($suite:expr, $id:expr): $($peer:ty),+) => {
        $($body::<$peer>($suite, format!("{}/{}", $id, <$peer as Peer>::NAME));)+
    };
}

fn queue(c: &mut Criterion) {
    let mut suite = Suite::new(c, "queue");
    enqueue::<Millrace>(&mut suite, "queue_enqueue".to_owned());
    peers!(enqueue(&mut suite, "queue_enqueue"): Crossbeam, Kanal, Std, TokioMpsc, MutexCondvar);
    contended::<Millrace>(&mut suite, "queue_contended_4_threads".to_owned());
    peers!(contended(&mut suite, "queue_contended_4_threads"): Crossbeam, Kanal, Std, TokioMpsc, MutexCondvar);
    suite.finish(&[]);
}

fn round_trip(c: &mut Criterion) {
    let mut suite = Suite::new(c, "kernel_round_trip");
    for device in residential() {
        suite.repeat(
            side_on("round_trip_latency", device),
            || launched(device, Adder, LaunchOptions::default()).expect(FINE),
            |(_, adder)| check_sum(adder.ask(PAIR).expect(FINE).value).expect(FINE),
        );
    }
    // Above, whoever asks runs the handler itself; here every question goes to another thread.
    suite.repeat(
        "round_trip_latency-spin",
        || launched("cpu", Adder, LaunchOptions::default().wait(WaitPolicy::Spin)).expect(FINE),
        |(_, adder)| check_sum(adder.ask(PAIR).expect(FINE).value).expect(FINE),
    );
    for (name, peer) in PEERS {
        let askers: &[&'static str] = if name == "limit" { &[""] } else { &["task", "thread"] };
        for asker in askers {
            let id = format!("round_trip_latency/{name}{}{asker}", if asker.is_empty() { "" } else { "-" });
            let run = |(): &mut (), iters| {
                let rows = peer(&Pace::Count(iters, asker)).expect(FINE);
                Duration::from_nanos(rows.iter().flat_map(|row| &row.samples).sum::<f64>() as u64)
            };
            suite.bench(id, || (), run);
        }
    }
    suite.finish(&[("round_trip_latency", 500e3), ("round_trip_latency-spin", 500e3), ("round_trip_latency-gpu", 1e3)]);
}

fn inject_and_query(c: &mut Criterion) {
    let mut suite = Suite::new(c, "inject_and_query");
    for device in residential() {
        let start = || {
            let options = LaunchOptions::default().inbound(2 * BURST);
            (launched(device, Taker, options).expect(FINE), 0u64)
        };
        suite.bench(side_on("inject", device), start, |((_, taker), sent), iters| {
            in_bursts(iters, || {
                let before = Instant::now();
                for n in 0..BURST {
                    taker.try_send(Command::nth(INJECT, n as u32)).expect(FINE);
                }
                let took = before.elapsed().as_nanos() as f64 / BURST as f64;
                *sent += BURST as u64;
                until_handled(taker, *sent).expect(FINE);
                took
            })
        });
        suite.repeat(side_on("query_state", device), start, |((_, taker), _)| {
            black_box(taker.telemetry());
        });
    }
    let targets = [("inject", 100.0), ("inject-gpu", 100.0), ("query_state", 50.0), ("query_state-gpu", 50.0)];
    suite.finish(&targets);
}

fn startup(c: &mut Criterion) {
    let mut suite = Suite::new(c, "startup");
    suite.repeat(
        "cpu_runtime_with_a_kernel",
        || (),
        |()| {
            let device = Runtime::new(vec![Box::new(CpuProvider)]).open("cpu").expect(FINE);
            let adder = device.launch(Adder, LaunchOptions::default()).expect(FINE);
            adder.wait_for(Status::Active, Instant::now() + PATIENCE).expect(FINE);
        },
    );
    suite.finish(&[("cpu_runtime_with_a_kernel", 1e6)]);
}

criterion_group! {
    name = resident;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(30)
        .nresamples(5000)
        .without_plots();
    targets = serialization, allocation, queue, round_trip, inject_and_query, startup
}
criterion_main!(resident);
