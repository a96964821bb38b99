//! What the parts of a conversation with a resident kernel on the CPU cost, next to two threads that bounce a cache line.
//! In short turns, of which the best is shown, so that a busy machine disturbs less.
//!
//! ```sh
//! cargo run --release -p millrace-resident --example figures
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example talks")]

use std::{
    hint::black_box,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use millrace_core::Runtime;
use millrace_cpu::CpuProvider;
use millrace_resident::{Archive, ArchivedHandler, Handler, Launch, LaunchOptions, Message, Scope, rkyv};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Pair {
    a: f32,
    b: f32,
}

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Sum {
    value: f32,
}

struct Adder;

impl Handler for Adder {
    type Message = Pair;
    type Reply = Sum;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), pair: &Pair, scope: &mut Scope<'_, Sum>) -> Sum {
        if !scope.is_ask() {
            scope.no_reply();
        }
        Sum { value: pair.a + pair.b }
    }
}

type Vectors = (Vec<f32>, Vec<f32>);

struct VectorAdder;

impl ArchivedHandler for VectorAdder {
    type Message = Vectors;
    type Reply = f32;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), message: &rkyv::Archived<Vectors>, _: &mut Scope<'_, f32>) -> f32 {
        message.0[0].to_native() + message.1[0].to_native()
    }
}

/// Median and 99th percentile of a turn.
#[derive(Clone, Copy)]
struct Figures(f64, f64);

fn figures(mut samples: Vec<f64>) -> Figures {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
    Figures(at(0.5), at(0.99))
}

/// Samples of `work`, each over so many in a row.
fn turn(samples: usize, times: u32, mut work: impl FnMut()) -> Figures {
    let sample = |_| {
        let start = Instant::now();
        (0..times).for_each(|_| work());
        start.elapsed().as_nanos() as f64 / f64::from(times)
    };
    figures((0..samples).map(sample).collect())
}

/// Two threads that write one word in turns.
fn bounce(rounds: u32) -> Figures {
    let word = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..rounds {
                while word.load(Ordering::Acquire) != 2 * n + 1 {
                    std::hint::spin_loop();
                }
                word.store(2 * n + 2, Ordering::Release);
            }
        });
        let mut n = 0;
        turn(rounds as usize, 1, || {
            word.store(2 * n + 1, Ordering::Release);
            while word.load(Ordering::Acquire) != 2 * n + 2 {
                std::hint::spin_loop();
            }
            n += 1;
        })
    })
}

fn main() {
    let cpu = || Runtime::new(vec![Box::new(CpuProvider)]).open("cpu").unwrap();
    let pair = Pair { a: 1.0, b: 2.0 };
    let device = cpu();
    let adder = device.launch(Adder, LaunchOptions::default().inbound(1 << 12)).unwrap();
    let vectors = device.launch_archived(VectorAdder, LaunchOptions::default().payload(16_384)).unwrap();
    let message = (vec![1.0f32; 1000], vec![2.0f32; 1000]);
    let (large, small) = (Archive::new(&message).unwrap(), Archive::new(&(vec![1.0f32], vec![1.0f32])).unwrap());
    let clock = millrace_resident::Clock::new();
    let settle = || {
        while adder.telemetry().waiting.1 > 0 {
            std::thread::yield_now();
        }
    };
    let mut best: Vec<(&str, Figures)> = Vec::new();
    let mut note = |what, figures: Figures| match best.iter_mut().find(|(name, _)| *name == what) {
        Some((_, best)) if best.0 <= figures.0 => {}
        Some((_, best)) => *best = figures,
        None => best.push((what, figures)),
    };
    for _ in 0..30 {
        note("two threads bounce a cache line", bounce(3000));
        note("ask", turn(3000, 1, || _ = black_box(adder.ask(black_box(pair)).unwrap())));
        note("inject, the kernel active", {
            let mut all = Vec::new();
            for _ in 0..50 {
                all.push(turn(1, 64, || adder.try_send(black_box(pair)).unwrap()).0);
                settle();
            }
            figures(all)
        });
        adder.pause().unwrap();
        note("inject, the kernel paused", turn(40, 100, || adder.try_send(black_box(pair)).unwrap()));
        note("telemetry", turn(100, 100, || _ = black_box(adder.telemetry())));
        note("status", turn(100, 100, || _ = black_box(adder.status())));
        adder.activate().unwrap();
        settle();
        note("clock", turn(100, 100, || _ = black_box(clock.tick())));
        note("ask with two vectors of 1000 floats", turn(500, 1, || _ = vectors.ask(black_box(&message)).unwrap()));
        let check = |archive: &Archive<Vectors>| {
            let bytes = black_box(archive.bytes());
            rkyv::access::<rkyv::Archived<Vectors>, rkyv::rancor::Error>(bytes).unwrap().0.len()
        };
        note("checked read of two vectors of 1000 floats", turn(100, 100, || _ = black_box(check(&large))));
        note("checked read of two vectors of one float", turn(100, 100, || _ = black_box(check(&small))));
        note("device, kernel, first answer", {
            turn(3, 1, || {
                let adder = cpu().launch(Adder, LaunchOptions::default()).unwrap();
                black_box(adder.ask(pair).unwrap().value);
            })
        });
        std::thread::sleep(Duration::from_millis(20));
        note("ask after 20 ms", turn(1, 1, || _ = black_box(adder.ask(black_box(pair)).unwrap())));
    }
    for (what, Figures(p50, p99)) in best {
        println!("{what:<44} p50 {p50:>9.1} ns   p99 {p99:>9.1} ns");
    }
}
