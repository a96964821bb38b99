//! Cells per second of the engines, next to what the memory allows: `cargo run --release -p millrace-wave --example
//! throughput [SIDE]…`
//!
//! A step reads two words of every cell and writes one. The limit is a kernel that does just that to two buffers of the
//! same size, on the same device and the same threads: `before[i] = now[i] - before[i]`.
#![allow(clippy::print_stdout, reason = "an example talks")]

use std::time::{Duration, Instant};

use millrace::prelude::*;
use millrace_wave::{Boundary, Engine, PerStep, Reference, Scene};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// How long the calls of a round take together, roughly.
const ROUND: Duration = Duration::from_millis(200);

/// One that is measured, with its best round so far.
struct Side<'a> {
    call: Box<dyn FnMut(u64) -> Outcome<()> + 'a>,
    calls: u64,
    best: f64,
}

impl<'a> Side<'a> {
    fn new(mut call: impl FnMut(u64) -> Outcome<()> + 'a) -> Outcome<Self> {
        let mut calls = 1;
        loop {
            let start = Instant::now();
            call(calls)?;
            let share = ROUND.as_secs_f64() / start.elapsed().as_secs_f64();
            if share < 1.5 {
                break;
            }
            calls = (calls as f64 * share.min(8.0)).ceil() as u64;
        }
        Ok(Self { call: Box::new(call), calls, best: f64::INFINITY })
    }

    fn round(&mut self) -> Outcome<()> {
        let start = Instant::now();
        (self.call)(self.calls)?;
        self.best = self.best.min(start.elapsed().as_secs_f64() / self.calls as f64);
        Ok(())
    }
}

fn engine_side(mut engine: impl Engine + 'static) -> Outcome<Side<'static>> {
    Side::new(move |steps| {
        engine.step(steps)?;
        Ok(engine.finish()?)
    })
}

/// The least that a step can do with memory.
fn limit(device: &Device, side: u32) -> Outcome<Side<'static>> {
    const PIECE: u32 = 1024;
    let spec = KernelSpec::new("limit")
        .binding::<f32>("now", Access::Read)
        .binding::<f32>("before", Access::ReadWrite)
        .cpu(CpuKernel::whole(|launch| {
            let (now, before) = (launch.input::<f32>(0), launch.output::<f32>(1));
            let piece = (before.len() / (4 * launch.threads().count())).next_multiple_of(PIECE as usize);
            let pieces = std::sync::Mutex::new(before.chunks_mut(piece).zip(now.chunks(piece)));
            let count = now.len().div_ceil(piece) as u64;
            launch.threads().for_each(count, &|_| {
                let next = pieces.lock().ok().and_then(|mut pieces| pieces.next());
                if let Some((before, now)) = next {
                    before.iter_mut().zip(now).for_each(|(before, now)| *before = now - *before);
                }
            });
        }))
        .wgsl(
            "@group(0) @binding(0) var<storage, read> now: array<f32>;
             @group(0) @binding(1) var<storage, read_write> before: array<f32>;
             @compute @workgroup_size(128)
             fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
                 let i = id.y * groups.x * 128u + id.x;
                 if (i < arrayLength(&now)) { before[i] = now[i] - before[i]; }
             }",
        )
        .block(128);
    let cells = side as usize * side as usize * side as usize;
    let (kernel, stream) = (device.kernel(&spec)?, device.stream()?);
    let (now, before) = (device.allocate(4 * cells)?, device.allocate(4 * cells)?);
    let groups = cells.div_ceil(128) as u32;
    let grid = Dim3::from([groups.min(4096), groups.div_ceil(4096)]);
    stream.run(now.fill(.., 0))?;
    Side::new(move |calls| {
        for _ in 0..calls {
            stream.enqueue(kernel.launch().bind(&now).bind(&before).grid(grid))?;
        }
        Ok(stream.synchronize()?)
    })
}

fn main() -> Outcome<()> {
    let mut sides = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<u32>, _>>()?;
    if sides.is_empty() {
        sides = vec![32, 64, 128, 256];
    }
    let runtime = millrace::runtime();
    for side in sides {
        let cells = f64::from(side).powi(3);
        let room = || Scene::Empty.setup(side, Boundary::Absorbing, Scene::tone(8.0)).build();
        let mut all = vec![("reference".to_owned(), engine_side(Reference::new(room()?)?)?)];
        for found in runtime.devices().into_iter().filter(|found| found.unavailable.is_none()) {
            let device = runtime.open(&found.id)?;
            all.push((format!("launch on {}", found.id), engine_side(PerStep::on(&device, room()?)?)?));
            all.push((format!("  the limit on {}", found.id), limit(&device, side)?));
        }
        for _ in 0..5 {
            all.iter_mut().try_for_each(|(_, side)| side.round())?;
        }
        println!("{side}³ cells");
        for (name, side) in all {
            let rate = cells / side.best;
            println!("  {name:<22} {:9.1} M cells/s  {:6.1} GB/s", rate / 1e6, rate * 12.0 / 1e9);
        }
    }
    Ok(())
}
